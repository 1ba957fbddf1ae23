"""Which relations and positions hold: crisp rules with a zone in between that is never asserted.

Every test answers True, False, or None. None is the ambiguous zone: captions never claim it and
the oracle says UNKNOWN. Lengths are shares of the image side.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from compoclip_world.scene import Thing
from compoclip_world.vocabulary import KINDS, SIZE_ORDER

BESIDE = 0.2
"""A thing is left of (above) another if its centre is at least this far to the left (higher)..."""
CONE = 0.5
"""...and the offset on that axis is at least this share of the offset on the other axis."""
OVERLAP = 0.6
"""Two things overlap visibly when their centres are nearer than this share of the radius sum."""
HOLLOW = 0.72
"""Half-width of the free space in a hollow thing, as a share of its radius."""
NEAR = 0.42
FAR = 0.6
"""Centres nearer than NEAR are near each other, farther than FAR they are not."""
EDGE = 0.37
"""A centre within this distance of an edge is at that edge; past the middle it is not."""
CENTRE = 0.12
NOT_CENTRE = 0.2
"""Largest offset from the centre of the picture for "in the middle", and smallest for "not"."""

PLACINGS: tuple[str, ...] = ("left", "right", "above", "below")
"""The relations that say where one thing is as seen from another."""
_TURNED = (("left", "right"), ("above", "below"), ("front", "behind"), ("bigger", "smaller"))
CONVERSE: dict[str, str] = {
    name: other
    for one, two in (*_TURNED, ("inside", "around"), ("same colour", "same colour"))
    for name, other in ((one, two), (two, one))
}
POSITIONS: tuple[str, ...] = (
    *("top left", "top", "top right", "left", "middle", "right"),
    *("bottom left", "bottom", "bottom right"),
)


def _ahead(along: float, across: float) -> bool | None:
    if along >= BESIDE and along >= CONE * abs(across):
        return True
    return False if along <= 0 else None


def _within(length: float, surely: float, never: float) -> bool | None:
    """True up to the one limit, False from the other on."""
    return True if length <= surely else False if length >= never else None


def _distance(a: Thing, b: Thing) -> float:
    return math.hypot(a.x - b.x, a.y - b.y)


def inside(a: Thing, b: Thing) -> bool | None:
    """True if `a` lies in the free space of the hollow thing `b`."""
    reach = a.radius + max(abs(a.x - b.x), abs(a.y - b.y))
    if KINDS[b.kind].hollow and reach <= HOLLOW * b.radius + 1e-9:
        return True
    if not KINDS[b.kind].hollow or _distance(a, b) >= a.radius + b.radius * 0.9:
        return False
    return None


def in_front(a: Thing, b: Thing) -> bool | None:
    """True if `a` hides a clearly visible part of `b`."""
    share = _distance(a, b) / (a.radius + b.radius)
    if share >= 0.95:
        return False
    if inside(a, b) is not False or inside(b, a) is not False or share > OVERLAP:
        return None
    return a.depth < b.depth


def touching(a: Thing, b: Thing) -> bool | None:
    """True if the two things are in contact: certain only for overlaps and for clear gaps."""
    return _within(_distance(a, b) / (a.radius + b.radius), OVERLAP, 1.1)


_RULES: dict[str, Callable[[Thing, Thing], bool | None]] = {
    "left": lambda a, b: _ahead(b.x - a.x, b.y - a.y),
    "above": lambda a, b: _ahead(b.y - a.y, b.x - a.x),
    "inside": inside,
    "front": in_front,
    "bigger": lambda a, b: SIZE_ORDER.index(a.size) > SIZE_ORDER.index(b.size),
    "same colour": lambda a, b: a.colour == b.colour,
    "near": lambda a, b: _within(_distance(a, b), NEAR, FAR),
    "touching": touching,
}


def related(relation: str, a: Thing, b: Thing) -> bool | None:
    """True if `a` stands in `relation` to the different thing `b`. None in the ambiguous zone.

    left, right, above, below: offset of at least `BESIDE` inside a cone. bigger, smaller: the size
    classes differ. Raises KeyError for a relation that is not part of the world.
    """
    if relation in _RULES:
        return _RULES[relation](a, b)
    return _RULES[CONVERSE[relation]](b, a)


def located(position: str, thing: Thing) -> bool | None:
    """True if the thing is at the named place of the picture, such as "top left" or "middle".

    "left" and "top" alone say nothing about the other axis. Raises KeyError for another name.
    """
    edges = {"left": thing.x, "right": 1 - thing.x, "top": thing.y, "bottom": 1 - thing.y}
    if position == "middle":
        off = max(abs(thing.x - 0.5), abs(thing.y - 0.5))
        return _within(off, CENTRE, NOT_CENTRE)
    holds = [_within(edges[word], EDGE, 0.5) for word in position.split()]
    return False if False in holds else None if None in holds else True
