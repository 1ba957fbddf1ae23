"""What an audit can find, and how it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from compoclip.benchmarks.sameness import LEVELS


class Kind(StrEnum):
    """Defects of items, see `MEANING`."""

    EQUAL = "negative-equals-caption"
    SYNONYM = "negative-is-synonym"
    SAME_POSITIVES = "captions-equal"
    SAME_IMAGE = "images-equal"
    DUPLICATE = "duplicate"
    CONTRADICTION = "true-and-false"
    REPEATED = "repeated-caption"
    SAME_CLASS = "classes-equal"
    BOX_OUTSIDE = "box-outside"
    UNDECODABLE = "image-undecodable"
    SAME_WORDS = "same-words"
    BOX_BEYOND = "box-beyond"
    LONG = "too-long"


MEANING = {
    Kind.EQUAL: "a negative says what the caption says, so no model can be right",
    Kind.SYNONYM: "a negative differs by one WordNet synonym, so it is true as well",
    Kind.SAME_POSITIVES: "the two true captions are the same text",
    Kind.SAME_IMAGE: "a wrong image is the right one",
    Kind.DUPLICATE: "an earlier item has the same images and texts",
    Kind.CONTRADICTION: "one statement about one image is listed as true and as false",
    Kind.REPEATED: "an earlier caption is the same text",
    Kind.SAME_CLASS: "two classes have the same name",
    Kind.BOX_OUTSIDE: "the box lies outside the image, or is empty",
    Kind.UNDECODABLE: "an image cannot be decoded",
    Kind.SAME_WORDS: "a negative has the words of the (first) caption, nearly always in another "
    "order: a model blind to order ties here",
    Kind.BOX_BEYOND: "the box reaches beyond the image and is filled with black there",
    Kind.LONG: "a text is longer than the 77 tokens of CLIP and will be cut",
}
FAULTS = frozenset(Kind) - {Kind.SAME_WORDS, Kind.BOX_BEYOND, Kind.LONG}
"""Defects that make an item meaningless; the others are properties worth knowing."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of one item. level: of `sameness.LEVELS`, "" where texts are not compared.

    detail: the texts or the image in question.
    """

    benchmark: str
    subtask: str
    id: str
    kind: Kind
    level: str = ""
    detail: str = ""

    @property
    def fault(self) -> bool:
        """Whether the item is left out of clean scores."""
        return self.kind in FAULTS


def count(defects: Iterable[Defect]) -> dict[Kind, dict[str, int]]:
    """Kind -> level -> defects of that level or a stricter one; level "" for all of a kind."""
    found: dict[Kind, Counter[str]] = {}
    for defect in defects:
        each = found.setdefault(defect.kind, Counter())
        each[""] += 1
        if defect.level:
            for level in LEVELS[LEVELS.index(defect.level) :]:
                each[level] += 1
    return {kind: dict(found[kind]) for kind in Kind if kind in found}
