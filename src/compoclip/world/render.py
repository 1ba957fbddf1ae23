"""From a scene to pixels: cached icon masks, blended into small windows of a cached background."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import ImageFilter

from compoclip.errors import UsageError
from compoclip.world.icons import ICONS, Pen
from compoclip.world.scene import Scene, Thing
from compoclip.world.vocabulary import BACKDROP_COLOURS, COLOURS

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
    ICONS[kind](pen)
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
