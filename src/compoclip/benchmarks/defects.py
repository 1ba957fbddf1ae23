"""What an audit can find, and how it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from compoclip.benchmarks.case import Benchmark, Case, Form
from compoclip.benchmarks.files import LETTERS, LEVELS, STORED, TOKENIZED, WORDS, key, letters
from compoclip.captions.lexicon import lexicon
from compoclip.captions.tagger import lemma_of


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
    """One defect of one item. level: of `files.LEVELS`, "" where texts are not compared.

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


# --- Rows that one benchmark took over from another and edited, told by their ids. ---
#
# Says why scores on the two must never be compared row by row.

STRIPPED = "stripped"
NORMALISATIONS = (STORED, STRIPPED, TOKENIZED, WORDS, LETTERS)
"""`files.LEVELS`, and "stripped": as stored, but for blanks at both ends."""


@dataclass(frozen=True)
class Differences:
    """edited, original: names of the benchmarks. shared: ids of both. only_edited, only_original:
    ids of one. rows: normalisation -> shared ids whose caption or negative differs."""

    edited: str
    original: str
    shared: int
    only_edited: int
    only_original: int
    rows: Mapping[str, int]


def differences(edited: Benchmark, original: Benchmark) -> Differences:
    """Compare captions and negatives at the same ids; rewordings of the caption do not count."""
    mine, theirs = _rows(edited), _rows(original)
    shared = mine.keys() & theirs.keys()
    return Differences(
        edited=edited.name,
        original=original.name,
        shared=len(shared),
        only_edited=len(mine.keys() - shared),
        only_original=len(theirs.keys() - shared),
        rows={
            name: sum(
                any(normal(a) != normal(b) for a, b in zip(mine[each], theirs[each]))
                for each in shared
            )
            for name, normal in _NORMALS.items()
        },
    )


def _normal(level: str) -> Callable[[str], Any]:
    return lambda text: key(text, level)


_NORMALS: Mapping[str, Callable[[str], Any]] = {
    name: _normal(name) if name in LEVELS else str.strip for name in NORMALISATIONS
}


def _rows(benchmark: Benchmark) -> dict[tuple[str, str], tuple[str, str]]:
    """Caption and negative of every case with texts to choose from, of the sub-tasks of both."""
    cases = benchmark.content.cases
    return {(case.subtask, case.id): _texts(case) for case in cases if len(case.texts) > 1}


def _texts(case: Case) -> tuple[str, str]:
    if case.form in (Form.TRIPLE, Form.TEXT_ONLY):
        return case.texts[0], case.texts[2]
    return case.texts[case.truth], case.texts[1 - case.truth]


# --- Negatives that mean the same as their caption: one word exchanged for a WordNet synonym. ---

_TAGS = {"NOUN": "NNS", "VERB": "VBZ", "ADJ": "JJR", "ADV": "RBR"}
"""Part of speech -> the inflected form to undo."""
_MOST_WORDS = 2


def exchanged(a: str, b: str) -> tuple[str, str] | None:
    """The one stretch that differs, as lower-case words of both texts; None where words were only
    put in or left out, or the stretch is longer than two words."""
    one, two = letters(a), letters(b)
    start = 0
    while start < min(len(one), len(two)) and one[start] == two[start]:
        start += 1
    end = 0
    while end < min(len(one), len(two)) - start and one[-1 - end] == two[-1 - end]:
        end += 1
    old, new = one[start : len(one) - end], two[start : len(two) - end]
    if not (1 <= len(old) <= _MOST_WORDS and 1 <= len(new) <= _MOST_WORDS):
        return None
    return " ".join(old), " ".join(new)


@lru_cache(maxsize=1 << 14)
def synonymous(old: str, new: str) -> bool:
    """Whether a dominant sense of both is the same, as the same part of speech.

    Forms of one word (man, men) are not synonyms. See `captions.lexicon` for dominant senses.
    """
    known = lexicon()
    for kind in _TAGS:
        for one in _lemmas(old, kind):
            for two in _lemmas(new, kind):
                if one == two:
                    return False
                if set(known.dominant(one, kind)) & set(known.dominant(two, kind)):
                    return True
    return False


def _lemmas(text: str, kind: str) -> set[str]:
    head, blank, last = text.rpartition(" ")
    return {text, head + blank + lemma_of(last, kind, _TAGS[kind])}
