"""The flat icon of every kind, drawn with polygons in a unit square from -1 to 1 (y down).

An icon has two layers: `body` (takes the colour and the pattern; drawing with 0 cuts a hole) and
`ink` (dark details such as an eye or a door, clipped to nothing: they may stick out of the body).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw

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

    def polygon(self, points: Sequence[Point], fill: int = 255) -> None:
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

    def line(self, points: Sequence[Point], width: float) -> None:
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


def _polar(n: int, radii: Sequence[float], turn: float = -90) -> list[Point]:
    """`n` points round the centre, their distances taken from `radii` in turn."""
    angles = (math.radians(turn + 360 * i / n) for i in range(n))
    return [
        (radii[i % len(radii)] * math.cos(a), radii[i % len(radii)] * math.sin(a))
        for i, a in enumerate(angles)
    ]


def _ball(p: Pen) -> None:
    p.ellipse(0, 0, 0.9, 0.9)


def _box(p: Pen) -> None:
    p.rect(-0.96, -0.96, 0.96, 0.96)
    p.rect(-0.72, -0.72, 0.72, 0.72, fill=0)


def _star(p: Pen) -> None:
    p.polygon([(x, y + 0.08) for x, y in _polar(10, (1.04, 0.46))])


def _heart(p: Pen) -> None:
    p.ellipse(-0.46, -0.36, 0.5, 0.5)
    p.ellipse(0.46, -0.36, 0.5, 0.5)
    p.polygon([(-0.9, -0.14), (0, -0.4), (0.9, -0.14), (0, 0.95)])


def _cross(p: Pen) -> None:
    p.rect(-0.32, -0.95, 0.32, 0.95)
    p.rect(-0.95, -0.32, 0.95, 0.32)


def _ring(p: Pen) -> None:
    p.ellipse(0, 0, 0.98, 0.98)
    p.ellipse(0, 0, 0.72, 0.72, fill=0)


def _moon(p: Pen) -> None:
    p.ellipse(0, 0, 0.95, 0.95)
    p.ellipse(0.5, -0.12, 0.76, 0.76, fill=0)


def _house(p: Pen) -> None:
    p.polygon([(-1, -0.05), (0, -0.95), (1, -0.05)])
    p.rect(-0.72, -0.1, 0.72, 0.92)
    p.block(-0.2, 0.35, 0.2, 0.92)
    p.line([(-0.95, -0.07), (0.95, -0.07)], 0.12)


def _tree(p: Pen) -> None:
    p.polygon([(0, -0.98), (0.58, -0.28), (-0.58, -0.28)])
    p.polygon([(0, -0.6), (0.76, 0.2), (-0.76, 0.2)])
    p.polygon([(0, -0.1), (0.9, 0.65), (-0.9, 0.65)])
    p.block(-0.16, 0.65, 0.16, 0.98)


def _fish(p: Pen) -> None:
    p.ellipse(-0.2, 0, 0.76, 0.52)
    p.polygon([(0.3, 0), (0.97, -0.6), (0.8, 0), (0.97, 0.6)])
    p.polygon([(-0.35, -0.4), (0.1, -0.8), (0.25, -0.35)])
    p.dot(-0.6, -0.12, 0.12)


def _mug(p: Pen) -> None:
    p.ellipse(0.5, 0.05, 0.48, 0.5)
    p.ellipse(0.5, 0.05, 0.22, 0.25, fill=0)
    p.rect(-0.85, -0.8, 0.45, 0.85)
    p.line([(-0.85, -0.58), (0.45, -0.58)], 0.12)


def _key(p: Pen) -> None:
    p.ellipse(0, -0.5, 0.48, 0.48)
    p.ellipse(0, -0.5, 0.18, 0.18, fill=0)
    p.rect(-0.15, -0.1, 0.15, 0.97)
    p.rect(0.1, 0.68, 0.58, 0.95)
    p.rect(0.1, 0.26, 0.5, 0.5)


def _umbrella(p: Pen) -> None:
    p.slice(0, 0.05, 0.97, 180, 360)
    for x in (-0.65, 0.0, 0.65):
        p.ellipse(x, 0.08, 0.3, 0.2, fill=0)
    p.line([(0, -0.1), (0, 0.7)], 0.14)
    p.arc(-0.2, 0.68, 0.27, 0.27, 0, 180, 0.14)


def _hat(p: Pen) -> None:
    p.rect(-0.56, -0.85, 0.56, 0.55)
    p.ellipse(0, 0.58, 0.98, 0.24)
    p.block(-0.56, 0.12, 0.56, 0.34)


def _boat(p: Pen) -> None:
    p.polygon([(-0.95, 0.4), (0.95, 0.4), (0.55, 0.92), (-0.55, 0.92)])
    p.polygon([(0.06, -0.95), (0.06, 0.22), (0.86, 0.22)])
    p.polygon([(-0.12, -0.7), (-0.12, 0.22), (-0.74, 0.22)])
    p.line([(-0.03, -0.95), (-0.03, 0.4)], 0.1)


def _flower(p: Pen) -> None:
    for x, y in _polar(5, (0.52,)):
        p.ellipse(x, y, 0.42, 0.42)
    p.ellipse(0, 0, 0.4, 0.4)
    p.dot(0, 0, 0.26)


def _arrow(p: Pen) -> None:
    p.polygon([(0.97, 0), (0.15, -0.75), (0.15, 0.75)])
    p.rect(-0.97, -0.3, 0.3, 0.3)


def _bell(p: Pen) -> None:
    p.slice(0, -0.28, 0.56, 180, 360)
    p.polygon(
        [(-0.56, -0.3), (0.56, -0.3), (0.66, 0.35), (0.95, 0.66), (-0.95, 0.66), (-0.66, 0.35)]
    )
    p.ellipse(0, -0.86, 0.13, 0.13)
    p.dot(0, 0.8, 0.19)


def _car(p: Pen) -> None:
    p.polygon([(-0.55, -0.15), (-0.32, -0.62), (0.3, -0.62), (0.6, -0.15)])
    p.polygon([(-0.98, -0.15), (0.7, -0.15), (0.98, 0.05), (0.98, 0.42), (-0.98, 0.42)])
    p.polygon([(-0.3, -0.18), (-0.18, -0.46), (0.18, -0.46), (0.34, -0.18)], fill=0)
    p.dot(-0.52, 0.42, 0.27)
    p.dot(0.52, 0.42, 0.27)


def _rabbit(p: Pen) -> None:
    p.ellipse(-0.34, -0.52, 0.22, 0.48)
    p.ellipse(0.34, -0.52, 0.22, 0.48)
    p.ellipse(0, 0.35, 0.68, 0.62)
    p.dot(-0.26, 0.2, 0.11)
    p.dot(0.26, 0.2, 0.11)
    p.dot(0, 0.5, 0.12)


def _bottle(p: Pen) -> None:
    p.rect(-0.2, -0.85, 0.2, -0.3)
    p.polygon(
        [(-0.2, -0.5), (0.2, -0.5), (0.52, -0.05), (0.52, 0.97), (-0.52, 0.97), (-0.52, -0.05)]
    )
    p.block(-0.26, -0.98, 0.26, -0.78)


def _crown(p: Pen) -> None:
    p.polygon(
        [
            *((-0.95, -0.62), (-0.45, 0.05), (0, -0.85), (0.45, 0.05), (0.95, -0.62)),
            *((0.78, 0.75), (-0.78, 0.75)),
        ]
    )
    p.line([(-0.78, 0.5), (0.78, 0.5)], 0.12)


def _mushroom(p: Pen) -> None:
    p.slice(0, 0.1, 0.97, 180, 360)
    p.rect(-0.3, 0.05, 0.3, 0.9)
    p.line([(-0.95, 0.1), (0.95, 0.1)], 0.12)


def _diamond(p: Pen) -> None:
    p.polygon([(-0.55, -0.7), (0.55, -0.7), (0.98, -0.2), (0, 0.92), (-0.98, -0.2)])
    p.line([(-0.95, -0.2), (0.95, -0.2)], 0.1)


ICONS: dict[str, Callable[[Pen], None]] = {
    "ball": _ball,
    "box": _box,
    "star": _star,
    "heart": _heart,
    "cross": _cross,
    "ring": _ring,
    "moon": _moon,
    "house": _house,
    "tree": _tree,
    "fish": _fish,
    "mug": _mug,
    "key": _key,
    "umbrella": _umbrella,
    "hat": _hat,
    "boat": _boat,
    "flower": _flower,
    "arrow": _arrow,
    "bell": _bell,
    "car": _car,
    "rabbit": _rabbit,
    "bottle": _bottle,
    "crown": _crown,
    "mushroom": _mushroom,
    "diamond": _diamond,
}
