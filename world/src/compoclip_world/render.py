"""From a scene to pixels: cached icon masks, blended into small windows of a cached background."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from compoclip.errors import UsageError
from compoclip_world.scene import Scene, Thing
from compoclip_world.vocabulary import BACKDROP_COLOURS, COLOURS, read_tables

# --- The flat icon of every kind, drawn in a unit square from -1 to 1 (y down). ---
#
# An icon has two layers: `body` (takes the colour and the pattern; drawing with 0 cuts a hole) and
# `ink` (dark details such as an eye or a door, clipped to nothing: they may stick out of the body).

Point = tuple[float, float]


class Pen:
    """Draws in unit coordinates on the two layers of an icon of `side` pixels."""

    def __init__(self, side: int) -> None:
        """Start with both layers empty."""
        self.side = side
        self.body = Image.new("L", (side, side), 0)
        self.ink = Image.new("L", (side, side), 0)
        self._body = ImageDraw.Draw(self.body)
        self._ink = ImageDraw.Draw(self.ink)

    def _at(self, points: Sequence[Point]) -> list[Point]:
        half = (self.side - 1) / 2
        return [(half * (1 + x), half * (1 + y)) for x, y in points]

    def draw(self, kind: str) -> None:
        """Draw the icon of a kind: methods of this class, after "cut" with 0."""
        for name, *numbers in ICONS[kind]:
            cut, _, shape = name.rpartition(" ")
            getattr(self, shape)(*numbers, **({"fill": 0} if cut else {}))

    def star(self, n: int, outer: float, inner: float, down: float) -> None:
        """Fill a star of the body: `n` points round the centre, out and in, moved `down`."""
        points = (polar(i / n, (outer, inner)[i % 2]) for i in range(n))
        self.polygon(*((x, y + down) for x, y in points))

    def petals(self, n: int, far: float, r: float) -> None:
        """Fill `n` discs of the body round the centre."""
        for i in range(n):
            self.ellipse(*polar(i / n, far), r, r)

    def polygon(self, *points: Point, fill: int = 255) -> None:
        """Fill a polygon of the body; `fill` 0 cuts it out."""
        self._body.polygon(self._at(points), fill=fill)

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: int = 255) -> None:
        """Fill an axis-parallel ellipse of the body; `fill` 0 cuts it out."""
        self._body.ellipse(self._flat(x - rx, y - ry, x + rx, y + ry), fill=fill)

    def rect(self, x0: float, y0: float, x1: float, y1: float, fill: int = 255) -> None:
        """Fill a rectangle of the body; `fill` 0 cuts it out."""
        self._body.rectangle(self._flat(x0, y0, x1, y1), fill=fill)

    def slice(self, x: float, y: float, r: float, start: float, end: float) -> None:
        """Fill a pie slice of the body from angle `start` to `end` (degrees, clockwise)."""
        self._body.pieslice(self._flat(x - r, y - r, x + r, y + r), start, end, fill=255)

    def line(self, width: float, *points: Point) -> None:
        """Draw an ink line of the given width."""
        self._ink.line(self._at(points), fill=255, width=self._width(width), joint="curve")

    def arc(
        self, x: float, y: float, rx: float, ry: float, start: float, end: float, width: float
    ) -> None:
        """Draw an ink arc from angle `start` to `end` (degrees, clockwise)."""
        box = self._flat(x - rx, y - ry, x + rx, y + ry)
        self._ink.arc(box, start, end, fill=255, width=self._width(width))

    def dot(self, x: float, y: float, r: float) -> None:
        """Draw an ink disc."""
        self._ink.ellipse(self._flat(x - r, y - r, x + r, y + r), fill=255)

    def block(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draw an ink rectangle."""
        self._ink.rectangle(self._flat(x0, y0, x1, y1), fill=255)

    def _width(self, width: float) -> int:
        return max(1, round(width * self.side / 2))

    def _flat(self, x0: float, y0: float, x1: float, y1: float) -> tuple[float, ...]:
        (a, b), (c, d) = self._at([(x0, y0), (x1, y1)])
        return a, b, c, d


def polar(turn: float, radius: float) -> Point:
    """Return the point at a share of a turn, clockwise from the top."""
    angle = math.radians(-90 + 360 * turn)
    return radius * math.cos(angle), radius * math.sin(angle)


ICONS: dict[str, list[list[Any]]] = read_tables("icons")
"""Kind -> its shapes, each with its numbers."""


# --- From a scene to pixels: cached icon masks, blended into small windows of a cached
# background. ---

_CANVAS = 150
"""Icons are drawn at least about this many pixels wide (2 to 8 times too big), then shrunk."""
_OUTLINE = 0.09
"""Width of the outline as a share of the icon's half side."""

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float32]


def render(scene: Scene, size: int) -> Pixels:
    """The scene as (size, size, 3) uint8 RGB. The same scene and size give the same pixels.

    Raises UsageError when `size` is below 16 pixels.
    """
    if size < 16:
        raise UsageError(f"world: cannot draw a scene {size} pixels wide; give at least 16")
    backdrop = scene.backdrop
    canvas = _backdrop(backdrop.colour, backdrop.texture, backdrop.variant, size).copy()
    for thing in sorted(scene.things, key=lambda t: -t.depth):
        _draw(canvas, thing, size)
    return canvas


def _draw(canvas: Pixels, thing: Thing, size: int) -> None:
    side = max(5, round(2 * thing.radius * size))
    left = min(max(0, round(thing.x * size - side / 2)), size - side)
    top = min(max(0, round(thing.y * size - side / 2)), size - side)
    clear, layers = _layers(thing.kind, thing.pattern, side)
    paint = _paint(thing.colour, thing.shade)
    window = canvas[top : top + side, left : left + side]
    window[...] = window * clear + layers @ paint


@lru_cache(maxsize=512)
def _paint(colour: str, shade: int) -> Plane:
    """RGB rows of the three layers: body, pattern, ink. Half a step is added for rounding."""
    spec = COLOURS[colour]
    body = np.clip(np.array(spec.rgb) + shade, 0, 254)
    ink = np.full(3, 105) if sum(spec.rgb) < 120 else np.array(spec.rgb) * 0.36
    return np.stack([body, np.array(spec.mark), ink]).astype(np.float32)


@lru_cache(maxsize=2048)
def _layers(kind: str, pattern: str, side: int) -> tuple[Plane, Plane]:
    """Share of the background left (side, side, 1) and cover of body, pattern, ink (.., 3)."""
    body, ink = _masks(kind, side)
    marks = _pattern(pattern, side) * body
    layers = np.stack([body - marks, marks, ink], axis=-1).astype(np.float32)
    clear = (1 - body - ink).astype(np.float32)[..., None]
    return clear, layers


@lru_cache(maxsize=2048)
def _masks(kind: str, side: int) -> tuple[Plane, Plane]:
    """Cover of the body and of the ink (details and outline) in each pixel; their sum is <= 1."""
    times = min(8, max(2, -(-_CANVAS // side)))
    big = side * times
    pen = Pen(big)
    pen.draw(kind)
    width = max(3, round(_OUTLINE * big / 2) | 1)
    body = np.asarray(pen.body, dtype=np.float32) / 255
    core = np.asarray(pen.body.filter(ImageFilter.MinFilter(width)), dtype=np.float32) / 255
    detail = np.asarray(pen.ink, dtype=np.float32) / 255
    # Outline and details are ink; what is left of the eroded silhouette is body.
    ink = np.maximum(body - core, detail)
    core = np.minimum(core, 1 - ink)

    def shrink(plane: Plane) -> Plane:
        blocks = plane.reshape(side, times, side, times)
        return np.asarray(blocks.mean(axis=(1, 3)), dtype=np.float32)

    return shrink(core), shrink(ink)


def _pattern(name: str, side: int) -> Plane:
    """Where the pattern's second colour lies: (side, side) with values 0 to 1."""
    rows, columns = np.mgrid[0:side, 0:side].astype(np.float32)
    if name == "striped":
        period = max(4, round(side * 0.26))
        return np.asarray(rows % period >= 0.55 * period, dtype=np.float32)
    if name == "checked":
        cell = max(3, round(side * 0.2))
        start = (side % (2 * cell)) // 2
        odd = ((rows + start) // cell + (columns + start) // cell) % 2
        return np.asarray(odd, dtype=np.float32)
    if name == "spotted":
        pitch = max(5.0, side * 0.3)
        down = (rows - side / 2 + 0.5) / pitch
        shift = 0.5 * (np.floor(down + 0.5) % 2)
        across = (columns - side / 2 + 0.5) / pitch + shift
        dy, dx = (v - np.floor(v + 0.5) for v in (down, across))
        reach = np.hypot(dx, dy) * pitch
        return np.asarray(np.clip(0.3 * pitch + 0.5 - reach, 0, 1), dtype=np.float32)
    return np.zeros((side, side), dtype=np.float32)


@lru_cache(maxsize=256)
def _backdrop(colour: str, texture: str, variant: int, size: int) -> Pixels:
    """The background alone. The variant turns a gradient and seeds the speckles."""
    base = np.array(BACKDROP_COLOURS[colour][1], dtype=np.float32)
    plane = np.zeros((size, size), dtype=np.float32)
    rows, columns = np.mgrid[0:size, 0:size].astype(np.float32) / (size - 1) * 2 - 1
    # Pale backgrounds get darker marks, dark ones lighter marks.
    sign = -1 if base.mean() > 100 else 1
    if texture == "gradient":
        angle = variant * np.pi / 4
        ramp = rows * np.sin(angle) + columns * np.cos(angle)
        plane = sign * 30 + ramp / np.abs(ramp).max() * 38
    elif texture == "speckled":
        grain = max(1, round(size / 64))
        cells = -(-size // grain)
        noise = np.random.default_rng(variant).random((cells, cells))
        plane = (noise.repeat(grain, 0).repeat(grain, 1)[:size, :size] < 0.14) * sign * 48.0
    elif texture == "lined":
        period = max(6, round(size / 9))
        marks = np.arange(size) % period < max(1, round(size / 64))
        plane = (marks[:, None] | marks[None, :]) * sign * 42.0
    return np.asarray(np.clip(base + plane[..., None], 0, 255), dtype=np.uint8)


# --- A contact sheet: pictures of scenes with their captions below, for people. ---

_SIDE = 208
_MARGIN = 12
_LINE = 15
_FONT = 12


def contact_sheet(
    scenes: Sequence[tuple[Scene, Sequence[str]]], size: int, columns: int = 4
) -> Image.Image:
    """All (scene, captions) in rows of `columns`; scenes are drawn with `size` pixels, then grown.

    Small pictures grow by a whole factor without smoothing, so that the sheet shows exactly what a
    model sees. Raises UsageError when `size` is below 16.
    """
    shown = size * max(1, _SIDE // size)
    font = ImageFont.load_default(_FONT)
    cells = [
        (scene, [line for text in captions for line in _wrap(text, font, shown)])
        for scene, captions in scenes
    ]
    columns = max(1, min(columns, len(cells)))
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    heights = [shown + _MARGIN // 2 + _LINE * max(len(lines) for _, lines in row) for row in rows]
    width = columns * (shown + _MARGIN) + _MARGIN
    sheet = Image.new("RGB", (width, sum(heights) + (len(rows) + 1) * _MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    top = _MARGIN
    for row, height in zip(rows, heights):
        for i, (scene, lines) in enumerate(row):
            left = _MARGIN + i * (shown + _MARGIN)
            picture = Image.fromarray(render(scene, size))
            sheet.paste(picture.resize((shown, shown), Image.Resampling.NEAREST), (left, top))
            for k, line in enumerate(lines):
                spot = (left, top + shown + _MARGIN // 2 + k * _LINE)
                pen.text(spot, line, fill="black", font=font)
        top += height + _MARGIN
    return sheet


def _wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """The text in lines no wider than `width`, each further line indented."""
    lines: list[str] = []
    current = "- "
    for word in text.split():
        longer = f"{current}{word} "
        if math.ceil(font.getlength(longer)) > width and current.strip(" -"):
            lines.append(current.rstrip())
            longer = f"   {word} "
        current = longer
    return [*lines, current.rstrip()]
