"""Training pairs about the relative position of two things in photos with boxes.

A pair needs two things that the photo shows once each (no crowds), of at least 1 % of its area,
with boxes that do not overlap on an axis. For left and right, the mirrored photo is the counterpart
for the opposite caption; above and below have only the opposite caption.

The texts vary: several wordings, either thing as subject, and in half of the rows an appended
caption written by people, which ties them to ordinary language. Captions with "left" or "right" are
not appended: they would be false of the mirrored photo. Writing and clocks are mirrored with the
photo. Rule of the boxes: Zhang et al., CounterCurate (Findings of ACL 2024).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compoclip.rewrites.base import rng_for
from compoclip.rewrites.edit import article_for

LEAST_SHARE = 0.01  # of the photo's area
OPPOSITES = {
    "left_right": ("to the left of", "to the right of"),
    "above_below": ("above", "below"),
}
"""Of each axis the word for what comes first along it, and the word for what comes second."""
_PLURALS = frozenset({"scissors", "skis"})  # of COCO's categories; they take no article

Box = tuple[float, float, float, float]
"""Left, upper, right, lower edge in pixels."""


@dataclass(frozen=True)
class BoxedThing:
    """A thing of a photo. crowd: whether the box holds many of them."""

    label: str
    box: Box
    crowd: bool = False


@dataclass(frozen=True)
class BoxedPhoto:
    """A photo, by file name, with all its things and its area in pixels."""

    image: str
    area: float
    things: tuple[BoxedThing, ...]

    def apart(self, axis: int) -> list[tuple[str, str]]:
        """Return (first, second) labels of things that do not overlap on an axis, 0 for x."""
        seen = Counter(each.label for each in self.things)
        alone = []
        for each in self.things:
            left, upper, right, lower = each.box
            large = (right - left) * (lower - upper) >= LEAST_SHARE * self.area
            if large and seen[each.label] == 1 and not each.crowd:
                alone.append(each)
        return [
            (a.label, b.label)
            for a in alone
            for b in alone
            if a is not b and a.box[axis + 2] <= b.box[axis]
        ]


def named(label: str) -> str:
    """Return a label with its article: "a dog", "an apple", "scissors"."""
    return label if label in _PLURALS else f"{article_for(label)} {label}"


# --- Rows to train on. ---

# Axis -> wordings of the position of X, the subject, and Y: with X first on the axis, and second.
_WORDINGS = {
    "left_right": (
        ("{x} to the left of {y}", "{x} to the right of {y}"),
        ("{x} is left of {y}", "{x} is right of {y}"),
        ("{x} is to the left of {y}", "{x} is to the right of {y}"),
        ("{x} on the left and {y} on the right", "{x} on the right and {y} on the left"),
        ("on the left {x}, on the right {y}", "on the right {x}, on the left {y}"),
    ),
    "above_below": (
        ("{x} above {y}", "{x} below {y}"),
        ("{x} is above {y}", "{x} is below {y}"),
        ("{x} is higher up than {y}", "{x} is lower down than {y}"),
        ("{x} at the top and {y} at the bottom", "{x} at the bottom and {y} at the top"),
    ),
}
_SIDES = re.compile(r"\b(?:left|right)(?:most|wards?|-hand)?\b|\bmirror", re.IGNORECASE)
NOT_APART = "photo without two single things apart"


def mirror_rows(
    photos: Sequence[BoxedPhoto],
    captions: Mapping[str, Sequence[str]],
    seed: int = 0,
    human: float = 0.5,
    left_out: Counter[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield training rows of photos with boxes, at most one per photo and axis.

    A row, to be read by `open_tables`, is {"image", "caption", "neg_caption"} and, for left and
    right, "mirror": true. captions: file name -> captions by people, appended to a share `human` of
    the rows. left_out: counts photos without a row.
    """
    for photo in photos:
        made = 0
        for axis, (name, wordings) in enumerate(_WORDINGS.items()):
            pairs = photo.apart(axis)
            if not pairs:
                continue
            made += 1
            rng = rng_for(seed, photo.image, 0, name)
            first, second = map(named, rng.choice(pairs))
            subject = rng.randrange(2)  # whether the second thing is the subject
            x, y = (second, first) if subject else (first, second)
            wording = rng.choice(wordings)
            texts = [each.format(x=x, y=y) for each in (wording[subject], wording[1 - subject])]
            fitting = [text for text in captions.get(photo.image, ()) if not _SIDES.search(text)]
            if fitting and rng.random() < human:
                said = rng.choice(fitting).strip()
                texts = [f"{text}. {said}" for text in texts]
            row = {"image": photo.image, "caption": texts[0], "neg_caption": texts[1]}
            yield {**row, "mirror": True} if name == "left_right" else row
        if not made and left_out is not None:
            left_out[NOT_APART] += 1
