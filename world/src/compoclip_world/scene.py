"""A scene: things with full ground truth on a background, and how scenes are drawn."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields

from compoclip.errors import UsageError
from compoclip.typed import is_a
from compoclip_world.vocabulary import COLOURS, KINDS


@dataclass(frozen=True, slots=True)
class Thing:
    """One object, in the words of `vocabulary`. Lengths are shares of the image side.

    x, y: the centre, right and down. radius: half the side of the square its icon is drawn in.
    depth: 0 is nearest to the viewer; nearer things are drawn over farther ones. shade: brightness
    shift in 8-bit steps, never enough to change the colour's name.
    """

    kind: str
    colour: str
    size: str
    pattern: str
    x: float
    y: float
    radius: float
    depth: int
    shade: int = 0


@dataclass(frozen=True, slots=True)
class Backdrop:
    """The background: named colour and texture, and which of the texture's variants is drawn."""

    colour: str
    texture: str
    variant: int = 0


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that is in the picture, and nothing else (closed world)."""

    things: tuple[Thing, ...]
    backdrop: Backdrop


def require_weights(name: str, weights: Collection[float]) -> None:
    """Raise UsageError for weights that nothing can be drawn by."""
    if min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise UsageError(
            f"world: {name} needs weights of a finite sum, none negative and one above zero"
        )


@dataclass(frozen=True)
class WorldConfig:
    """The distribution of scenes and captions. Every probability is a share in [0, 1].

    Args:
        size: Image side in pixels.
        objects: Weights of scenes with 1, 2, 3 and 4 objects.
        inside: Chance that a scene with two or more objects holds a thing inside a hollow one.
        occlusion: Chance that such a scene holds a thing in front of another.
        repeat: Chance that a further object copies the kind and colour of an earlier one (this is
            what counts are about).
        same_colour: Chance that it copies just the colour.
        unlike: All things of a scene differ in kind and in colour.
        anchored: Chance that an object sits clearly in one of the nine regions of the picture
            (corner, edge, middle) instead of anywhere.
        patterned: Chance of a pattern.
        textured: Chance of a background that is not plain.
        kinds: The allowed kinds, empty for all.
        colours: The allowed colours, empty for all.
        backdrops: The allowed background colours, empty for all.
        synonyms: Chance that a word of a caption is replaced by a synonym.
        rare: Chance that a kind has a name in a caption that the bundled base has never read.
        caption_weights: (caption type, weight) for the types that differ from the default.
        attributes: Weights of 0, 1, 2 and 3 attributes for a thing that a caption mentions.
        holdout_seed: Chooses the compounds that ordinary splits never show (see `sampling`).
        holdout_attribute: Share of the (colour, kind) pairs among these.
        holdout_relation: Share of the (kind, relation, kind) triples among these.
    """

    size: int = 64
    objects: tuple[float, ...] = (0.35, 0.35, 0.2, 0.1)
    inside: float = 0.12
    occlusion: float = 0.12
    repeat: float = 0.25
    same_colour: float = 0.1
    unlike: bool = False
    anchored: float = 0.6
    patterned: float = 0.4
    textured: float = 0.4
    kinds: tuple[str, ...] = ()
    colours: tuple[str, ...] = ()
    backdrops: tuple[str, ...] = ()
    synonyms: float = 0.15
    rare: float = 0.0
    caption_weights: tuple[tuple[str, float], ...] = ()
    attributes: tuple[float, ...] = (0.2, 0.5, 0.23, 0.07)
    holdout_seed: int = 0
    holdout_attribute: float = 0.1
    holdout_relation: float = 0.03

    def __post_init__(self) -> None:
        """Reject values out of range with one clear line. Raises UsageError."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "float" and not 0.0 <= value <= 1.0:
                raise UsageError(f"world: {field.name} is {value}; give a share between 0 and 1")
        if not 16 <= self.size <= 1024:
            raise UsageError(f"world: image size {self.size} is out of range; give 16 to 1024")
        for name, weights, fewest, chances in (
            ("objects", self.objects, 1, "1 to 4 weights"),
            ("attributes", self.attributes, 4, "4 weights"),
        ):
            if not fewest <= len(weights) <= 4:
                raise UsageError(f"world: {name} needs {chances}")
            require_weights(name, weights)
        pairs = self.caption_weights
        paired = is_a(pairs, tuple[tuple[object, ...], ...]) and all(
            len(pair) == 2 and is_a(pair[0], str) and is_a(pair[1], float) for pair in pairs
        )
        if not paired:
            raise UsageError("world: caption_weights needs pairs of a caption type and a weight")

    @property
    def known_kinds(self) -> tuple[str, ...]:
        """The kinds that things may be of."""
        return self.kinds or tuple(KINDS)

    @property
    def known_colours(self) -> tuple[str, ...]:
        """The colours that things may have."""
        return self.colours or tuple(COLOURS)
