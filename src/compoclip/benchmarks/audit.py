"""Faulty items of a loaded benchmark: `compoclip data audit`.

The checks are the same for all benchmarks: they look at cases, galleries and classes, never at
files, so a new benchmark is audited as soon as it can be read.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from compoclip.archives import Members
from compoclip.benchmarks.case import (
    Benchmark,
    Case,
    Cases,
    Classification,
    Form,
    ImageRef,
    Retrieval,
    image_key,
    image_names,
    text_names,
)
from compoclip.benchmarks.files import LEVELS, key, runs, same, same_bag
from compoclip.captions.lexicon import lexicon
from compoclip.captions.tagger import lemma_of
from compoclip.console import track
from compoclip.data.decode import opened
from compoclip.errors import CompoclipError
from compoclip.rewrites.base import CONTEXT_LENGTH, SPECIAL_TOKENS, fits_context

if TYPE_CHECKING:
    from compoclip.data.sources import Sample

# --- What an audit can find, and how it is counted. ---


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
    ROTATED = "image-rotated"
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
    Kind.ROTATED: "an image is stored rotated: it is shown so, except in a user's own benchmarks, "
    "where it is turned upright",
    Kind.LONG: "a text is longer than the 77 tokens of CLIP and will be cut",
}
FAULTS = frozenset(Kind) - {Kind.SAME_WORDS, Kind.BOX_BEYOND, Kind.ROTATED, Kind.LONG}
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
        """Return whether --exclude-faulty leaves the item out."""
        return self.kind in FAULTS


def count(defects: Iterable[Defect]) -> dict[Kind, dict[str, int]]:
    """Return kind -> level -> defects of that level or stricter; level "" for all of a kind."""
    found: dict[Kind, Counter[str]] = {}
    for defect in defects:
        each = found.setdefault(defect.kind, Counter())
        each[""] += 1
        if defect.level:
            for level in LEVELS[LEVELS.index(defect.level) :]:
                each[level] += 1
    return {kind: dict(found[kind]) for kind in Kind if kind in found}


_TWO_TRUE = (Form.TRIPLE, Form.TEXT_ONLY, Form.HALF_TRUTH, Form.TWO_TRUE)
"""The forms with two true texts, before false ones."""


# --- Negatives that mean the same as their caption: one word exchanged for a WordNet synonym. ---

_TAGS = {"NOUN": "NNS", "VERB": "VBZ", "ADJ": "JJR", "ADV": "RBR"}
"""Part of speech -> the inflected form to undo."""
_MOST_WORDS = 2


def exchanged(a: str, b: str) -> tuple[str, str] | None:
    """Return the one stretch that differs, as lower-case words of both texts.

    None where words were only put in or left out, or the stretch is longer than two words.
    """
    one, two = runs(a), runs(b)
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
    """Return whether a dominant sense of both is the same, as the same part of speech.

    Forms of one word (man, men) are not synonyms. See `captions.lexicon` for dominant senses.
    """
    known = lexicon()

    def lemmas(text: str, kind: str) -> set[str]:
        head, blank, last = text.rpartition(" ")
        return {text, head + blank + lemma_of(last, kind, _TAGS[kind])}

    for kind in _TAGS:
        for one, two in product(lemmas(old, kind), lemmas(new, kind)):
            if one == two:
                return False
            if set(known.dominant(one, kind)) & set(known.dominant(two, kind)):
                return True
    return False


# --- Images of items: boxes that miss them, files that cannot be decoded. ---


def audit_images(
    items: Iterable[Pictured], decoding: bool
) -> Iterator[tuple[str, str, Kind, str, str]]:
    """Yield (sub-task, id, kind, "", detail) of items, given with their images, with a bad image.

    Boxes are compared with the sizes that the files state; absent files are passed over. decoding:
    decode every image, each once.
    """
    refs = [(part, name, ref) for part, name, images in items for ref in images]
    wanted = {ref for *_, ref in refs if decoding or ref.box is not None}
    found: dict[ImageRef, tuple[Kind, str] | None] = {}
    members = Members()
    there = lru_cache(maxsize=None)(Path.is_file)
    what = "decoding" if decoding else "comparing boxes"
    for ref in track(sorted(wanted, key=image_key), what, unit="images"):
        found[ref] = _judge(ref, members, decoding) if there(ref.path) else None
    told = set()
    for part, name, ref in refs:
        bad = found.get(ref)
        if bad is not None and (part, name, bad[0]) not in told:
            told.add((part, name, bad[0]))
            yield part, name, bad[0], "", bad[1]


def _judge(ref: ImageRef, members: Members, decoding: bool) -> tuple[Kind, str] | None:
    size = None if ref.member or ref.box is None else _size(ref.path)
    if ref.box is not None and size is not None:
        left, upper, right, lower = (round(edge) for edge in ref.box)
        shown = f"{image_key(ref)} of {size[0]} x {size[1]} pixels"
        empty = right <= left or lower <= upper
        if empty or left >= size[0] or upper >= size[1] or right <= 0 or lower <= 0:
            return Kind.BOX_OUTSIDE, shown
        if left < 0 or upper < 0 or right > size[0] or lower > size[1]:
            return Kind.BOX_BEYOND, shown
    if decoding:
        stored = members(ref.path, ref.member) if ref.member else ref.path
        try:
            with opened(stored, ref.photo, upright=ref.upright) as file:
                file.rgb()
                if file.rotated:
                    return Kind.ROTATED, f"{image_key(ref)} is stored rotated"
        except CompoclipError as error:
            return Kind.UNDECODABLE, str(error)
    return None


@lru_cache(maxsize=1 << 10)
def _size(path: Path) -> tuple[int, int] | None:
    """Return width and height as the file states them, None where it cannot be told."""
    try:
        with opened(path) as file:
            return file.size
    except CompoclipError:
        return None


# --- All defects of a benchmark. ---

Faulty = frozenset[tuple[str, str]]
"""(sub-task, id) of items, named as in results."""
_SHOWN = 200
_SURELY_FITS = CONTEXT_LENGTH - SPECIAL_TOKENS


@dataclass(frozen=True)
class Audit:
    """The defects of one benchmark. items: by sub-task. left_out: rows that the reader itself made
    no items of, by reason."""

    benchmark: str
    items: Mapping[str, int]
    defects: tuple[Defect, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> dict[Kind, dict[str, int]]:
        """See `count`."""
        return count(self.defects)

    @property
    def by_subtask(self) -> dict[Kind, dict[str, dict[str, int]]]:
        """Return kind -> sub-task -> as `counts`."""
        found: dict[Kind, dict[str, dict[str, int]]] = {}
        for subtask in sorted({each.subtask for each in self.defects}):
            own = count(each for each in self.defects if each.subtask == subtask)
            for kind, levels in own.items():
                found.setdefault(kind, {})[subtask] = levels
        return found

    @property
    def faulty(self) -> Faulty:
        """Return the items with a fault: those that --exclude-faulty leaves out."""
        return frozenset((each.subtask, each.id) for each in self.defects if each.fault)

    @property
    def faults(self) -> dict[str, int]:
        """Return kind of fault -> items that have it; an item may have several."""
        found = {(each.kind, each.subtask, each.id) for each in self.defects if each.fault}
        counts = Counter(str(kind) for kind, *_ in found)
        return {str(kind): counts[kind] for kind in Kind if counts[kind]}


def audit(benchmark: Benchmark, *, decoding: bool = False) -> Audit:
    """Return all defects: of texts, of repeated items, of images, in the order of the items.

    Boxes are compared with the images that are there; absent images are `check`'s to report.
    decoding: also decode every image. Items have one defect of a kind at most, at its strictest
    level.
    """
    content = benchmark.content
    if isinstance(content, Cases):
        found = [*(each for case in content for each in _case(case)), *_repeats(content)]
        pictured = [(case.subtask, case.id, case.images) for case in content]
    else:
        gallery = isinstance(content, Retrieval)
        found = [*(_gallery(content) if isinstance(content, Retrieval) else _classes(content))]
        named = list(zip(image_names(content.images), zip(content.images)))
        parts = ["i2t"] if gallery else content.counts()
        pictured = [(part, *each) for part in parts for each in named]
    found += audit_images(pictured, decoding)
    return Audit(
        benchmark=benchmark.name,
        items=content.counts(),
        defects=tuple(Defect(benchmark.name, *each) for each in found),
        left_out=dict(benchmark.left_out),
    )


Found = tuple[str, str, Kind, str, str]
"""Sub-task, id, kind, level, detail."""
Pictured = tuple[str, str, tuple[ImageRef, ...]]
"""Sub-task, id, images."""


def _compare(caption: str, negative: str, words: bool = True) -> Iterator[tuple[Kind, str, str]]:
    """Yield (kind, level, detail) of what makes a negative as true as its caption.

    words: also when both hold the same words.
    """
    shown = f"{caption[:_SHOWN]!r} / {negative[:_SHOWN]!r}"
    if level := same(caption, negative):
        yield Kind.EQUAL, level, shown
    elif (pair := exchanged(caption, negative)) and synonymous(*pair):
        yield Kind.SYNONYM, "", f"{pair[0]} / {pair[1]}: {shown}"
    if words and (level := same_bag(caption, negative)):
        yield Kind.SAME_WORDS, level, shown


def too_long(texts: Iterable[str]) -> Iterator[tuple[Kind, str, str]]:
    """Yield the first text over CLIP's context, if any."""
    # a token is a byte at least, and only markup and other scripts can grow when cleaned
    for text in texts:
        short = len(text) <= _SURELY_FITS and text.isascii() and "&" not in text
        if not short and not fits_context(text):
            yield Kind.LONG, "", repr(text[:_SHOWN])
            return


def _case(case: Case) -> Iterator[Found]:
    truth, false = [case.truth], [k for k in range(len(case.texts)) if k != case.truth]
    if case.form in _TWO_TRUE:
        truth, false = [0, 1], list(range(2, len(case.texts)))
    elif case.form not in (Form.CHOOSE_TEXT, Form.GROUP):
        false = []
    # of two true captions the first alone: the second is a rewording and shares no order to lose
    found = [
        each
        for k in truth
        for other in false
        for each in _compare(case.texts[k], case.texts[other], words=k == truth[0])
    ]
    if case.form in _TWO_TRUE:
        level = same(case.texts[0], case.texts[1])
        if level is not None:
            found.append((Kind.SAME_POSITIVES, level, repr(case.texts[0][:_SHOWN])))
    keys = [image_key(ref) for ref in case.images]
    wrong = [name for place, name in enumerate(keys) if place != case.truth]
    if case.form in (Form.CHOOSE_IMAGE, Form.GROUP) and keys[case.truth] in wrong:
        found.append((Kind.SAME_IMAGE, "", keys[case.truth]))
    found += too_long(case.texts)
    for kind in dict.fromkeys(kind for kind, *_ in found):
        mine = [each for each in found if each[0] == kind]
        kind, level, detail = min(mine, key=lambda each: _rank(each[1]))
        yield case.subtask, case.id, kind, level, detail


def _repeats(cases: Iterable[Case]) -> Iterator[Found]:
    """Yield items that say what an earlier one of their sub-task said, or the contrary."""
    first: dict[object, Case] = {}
    told: dict[object, list[Case]] = defaultdict(list)
    for case in cases:
        about = (case.subtask, case.form, case.images, case.texts)
        exact = (about, case.truth)
        if exact in first:
            yield case.subtask, case.id, Kind.DUPLICATE, "", f"of {first[exact].id}"
        first.setdefault(exact, case)
        if case.form is Form.BINARY:
            told[about].append(case)
    for cases_of_one in told.values():
        if len({case.truth for case in cases_of_one}) > 1:
            for case in cases_of_one:
                yield case.subtask, case.id, Kind.CONTRADICTION, "", repr(case.texts[0][:_SHOWN])


def _gallery(content: Retrieval) -> Iterator[Found]:
    names = text_names(content)
    seen: dict[str, set[object]] = {level: set() for level in LEVELS}
    for index, text in enumerate(content.texts):
        level = _met(text, seen)
        if index not in names:
            continue
        if level is not None:
            yield "t2i", names[index], Kind.REPEATED, level, repr(text[:_SHOWN])
        for kind, _, detail in too_long([text]):
            yield "t2i", names[index], kind, "", detail


def _classes(content: Classification) -> Iterator[Found]:
    """Yield images of classes that share a name with another one."""
    names = [name.lower() for name in content.classes]
    twice = {name for name, n in Counter(names).items() if n > 1}
    for name, label in zip(image_names(content.images), content.labels):
        if names[label] in twice:
            yield "zero_shot", name, Kind.SAME_CLASS, "", content.classes[label]


# --- Defects of training data: captions with hard negatives, as every source yields them. ---


@dataclass(frozen=True)
class TrainingAudit:
    """Defects of a training source. Only decoding finds repeated and sideways images.

    Args:
        source: What was read.
        rows: Number of rows.
        captions: Number of captions.
        negatives: Number of negatives.
        missing: Image files that do not exist.
        defects: Sub-task "caption" or "negative"; the id is the row's, with "#k" for its k-th
            caption or negative.
        repeated: Number of images with the bytes of an earlier one.
        sideways: Number of images that EXIF turns.
    """

    source: str
    rows: int
    captions: int
    negatives: int
    missing: tuple[str, ...]
    defects: tuple[Defect, ...]
    repeated: int = 0
    sideways: int = 0

    @property
    def counts(self) -> dict[Kind, dict[str, int]]:
        """See `count`."""
        return count(self.defects)


def audit_training(source: str, rows: Iterable[Sample], decoding: bool = False) -> TrainingAudit:
    """Compare every negative with the captions of its row, and every caption with earlier ones.

    A negative has one defect of a kind at most. Images are looked up; `decoding` reads them, too.
    """
    seen: dict[str, set[object]] = {level: set() for level in LEVELS}
    found: list[Defect] = []
    missing: dict[str, None] = {}
    n_rows = n_captions = n_negatives = equal = sideways = 0
    photos: dict[bytes, str] = {}
    for row in rows:
        n_rows += 1
        if isinstance(row.image, Path) and not row.image.is_file():
            missing[str(row.image)] = None
        elif decoding:
            name = str(row.image) if isinstance(row.image, Path) else row.id
            try:
                with opened(row.image, name) as file:
                    file.rgb()
                    sideways += file.rotated
            except CompoclipError as error:
                found.append(Defect(source, "caption", row.id, Kind.UNDECODABLE, "", str(error)))
            else:
                stored = row.image.read_bytes() if isinstance(row.image, Path) else row.image
                digest = hashlib.blake2b(stored, digest_size=16).digest()
                equal += photos.setdefault(digest, name) != name
        n_captions += len(row.captions)
        n_negatives += len(row.negatives)
        for k, caption in enumerate(row.captions):
            again = _met(caption, seen)
            repeated = [] if again is None else [(Kind.REPEATED, again, repr(caption))]
            for each in (*repeated, *too_long([caption])):
                found.append(Defect(source, "caption", f"{row.id}#{k}", *each))
        for k, negative in enumerate(row.negatives):
            told: dict[Kind, tuple[str, str]] = {}
            for caption in row.captions:
                for kind, level, detail in _compare(caption, negative):
                    if kind not in told or _rank(level) < _rank(told[kind][0]):
                        told[kind] = level, detail
            if negative in row.negatives[:k]:
                told[Kind.DUPLICATE] = "", repr(negative)
            defects = [(kind, *each) for kind, each in told.items()]
            for each in (*defects, *too_long([negative])):
                found.append(Defect(source, "negative", f"{row.id}#{k}", *each))
    return TrainingAudit(
        source, n_rows, n_captions, n_negatives, tuple(missing), tuple(found), equal, sideways
    )


def _met(text: str, seen: Mapping[str, set[object]]) -> str | None:
    """Return the strictest level at which an earlier text was the same; `text` joins `seen`."""
    keys = {level: key(text, level) for level in LEVELS}
    found = next((level for level in LEVELS if keys[level] in seen[level]), None)
    for level, value in keys.items():
        seen[level].add(value)
    return found


def _rank(level: str) -> int:
    return LEVELS.index(level) if level else -1
