"""Faulty items of a loaded benchmark: `compoclip data audit`.

The checks are the same for all benchmarks: they look at cases, galleries and classes, never at
files, so a new benchmark is audited as soon as it can be read.
"""

from __future__ import annotations

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
    TWO_TRUE,
    Benchmark,
    Case,
    Cases,
    Classification,
    Form,
    ImageRef,
    Probe,
    Retrieval,
    image_key,
    image_names,
    text_names,
)
from compoclip.benchmarks.files import LEVELS, key, runs, same, same_bag
from compoclip.benchmarks.sources import document
from compoclip.captions.clip_text import CONTEXT_LENGTH, SPECIAL_TOKENS, fits_context
from compoclip.captions.lexicon import lexicon
from compoclip.captions.tagger import lemma_of
from compoclip.console import track
from compoclip.data.decode import opened
from compoclip.errors import CompoclipError
from compoclip.files import bytes_hash

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
    MISSING = "image-missing"
    UNDECODABLE = "image-undecodable"
    SAME_WORDS = "same-words"
    BOX_BEYOND = "box-beyond"
    ROTATED = "image-rotated"
    LONG = "too-long"


MEANING = {Kind(name): text for name, text in document()["_defects"].items()}
FAULTS = frozenset(Kind) - {Kind.SAME_WORDS, Kind.BOX_BEYOND, Kind.ROTATED, Kind.LONG}
"""Defects that make an item meaningless; the others are properties worth knowing."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of one item; level: of `files.LEVELS`, "" where texts are not compared."""

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
    """Return whether a dominant sense (`captions.lexicon`) of both, as one part of speech, is the
    same; forms of one word (man, men) are no synonyms."""
    senses = lexicon()

    def lemmas(text: str, kind: str) -> set[str]:
        head, blank, last = text.rpartition(" ")
        return {text, head + blank + lemma_of(last, kind, _TAGS[kind])}

    for kind in _TAGS:
        for one, two in product(lemmas(old, kind), lemmas(new, kind)):
            if one == two:
                return False
            if set(senses.dominant(one, kind)) & set(senses.dominant(two, kind)):
                return True
    return False


# --- All defects of a benchmark. ---

Faulty = frozenset[tuple[str, str]]
"""(sub-task, id) of items, named as in results."""
Found = tuple[str, str, Kind, str, str]
"""Sub-task, id, kind, level, detail."""
_SHOWN = 200
_SURELY_FITS = CONTEXT_LENGTH - SPECIAL_TOKENS


@dataclass(frozen=True)
class Audit:
    """The defects of a benchmark or of training data.

    items: by sub-task; of training data the rows, captions and negatives. left_out: rows that the
    reader itself made no items of, by reason. Of training data, missing: image files that do not
    exist; repeated, sideways: images with the bytes of an earlier one, and that EXIF turns, which
    only decoding finds.
    """

    benchmark: str
    items: Mapping[str, int]
    defects: tuple[Defect, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    repeated: int = 0
    sideways: int = 0

    @property
    def by_subtask(self) -> dict[Kind, dict[str, dict[str, int]]]:
        """Return kind -> sub-task -> level -> defects of that level or stricter; level "" for all,
        and sub-task "" for all."""
        counts: dict[Kind, dict[str, Counter[str]]] = {}
        order = {kind: k for k, kind in enumerate(Kind)}
        for defect in sorted(self.defects, key=lambda defect: (order[defect.kind], defect.subtask)):
            levels = LEVELS[LEVELS.index(defect.level) :] if defect.level else ()
            for part in ("", defect.subtask):
                of_part = counts.setdefault(defect.kind, {}).setdefault(part, Counter())
                of_part.update(("", *levels))
        return {k: {part: dict(n) for part, n in parts.items()} for k, parts in counts.items()}

    @property
    def counts(self) -> dict[Kind, dict[str, int]]:
        """Return kind -> level -> defects of that level or stricter; level "" for all of a kind."""
        return {kind: parts[""] for kind, parts in self.by_subtask.items()}

    @property
    def faulty(self) -> Faulty:
        """Return the items with a fault: those that --exclude-faulty leaves out."""
        return frozenset((defect.subtask, defect.id) for defect in self.defects if defect.fault)

    @property
    def faults(self) -> dict[str, int]:
        """Return kind of fault -> items that have it; an item may have several."""
        faults = {
            (defect.kind, defect.subtask, defect.id) for defect in self.defects if defect.fault
        }
        counts = Counter(str(kind) for kind, *_ in faults)
        return {str(kind): counts[kind] for kind in Kind if counts[kind]}


def audit(benchmark: Benchmark, *, decoding: bool = False) -> Audit:
    """Return all defects: of texts, of repeated items, of images, in the order of the items.

    Boxes are compared with the images that are there; absent images are `check`'s to report.
    decoding: also decode every image. Items have one defect of a kind at most, at its strictest
    level.
    """
    content = benchmark.content
    if isinstance(content, Cases):
        defects = [*(defect for case in content for defect in _case(case)), *_repeats(content)]
        pictured = [(case.subtask, case.id, ref) for case in content for ref in case.images]
    else:
        gallery = isinstance(content, Retrieval)
        defects = [*(_gallery(content) if isinstance(content, Retrieval) else _classes(content))]
        named = list(zip(image_names(content.images), content.images))
        pictured = [
            (part, *image) for part in (["i2t"] if gallery else content.counts()) for image in named
        ]
    defects += _images(pictured, decoding)
    return Audit(
        benchmark=benchmark.name,
        items=content.counts(),
        defects=tuple(Defect(benchmark.name, *defect) for defect in defects),
        left_out=dict(benchmark.left_out),
    )


def _images(pictured: Iterable[tuple[str, str, ImageRef]], decoding: bool) -> Iterator[Found]:
    """Yield items with a bad image, given as (sub-task, id, image); absent ones count as good."""
    pictured = list(pictured)
    refs = {ref for *_, ref in pictured if decoding or ref.box is not None}
    problems: dict[ImageRef, tuple[Kind, str] | None] = {}
    members, there = Members(), lru_cache(maxsize=None)(Path.is_file)
    label = "decoding" if decoding else "comparing boxes"
    for ref in track(sorted(refs, key=image_key), label, unit="images"):
        problems[ref] = _judge(ref, members, decoding) if there(ref.path) else None
    bad = ((part, name, problems.get(ref)) for part, name, ref in pictured)
    once = {(part, name, fault[0]): fault[1] for part, name, fault in bad if fault is not None}
    yield from ((*key, "", detail) for key, detail in once.items())


def _judge(ref: ImageRef, members: Members, decoding: bool) -> tuple[Kind, str] | None:
    """Return the defect of one image that is there; its pixels are read for `decoding` alone."""
    try:
        with opened(ref.stored(members), ref.photo, upright=ref.upright) as file:
            if ref.box is not None:
                width, height = file.size
                left, upper, right, lower = (round(edge) for edge in ref.box)
                detail = f"{image_key(ref)} of {width} x {height} pixels"
                empty = right <= left or lower <= upper
                if empty or left >= width or upper >= height or right <= 0 or lower <= 0:
                    return Kind.BOX_OUTSIDE, detail
                if left < 0 or upper < 0 or right > width or lower > height:
                    return Kind.BOX_BEYOND, detail
            if decoding:
                file.rgb()
                if file.rotated:
                    return Kind.ROTATED, f"{image_key(ref)} is stored rotated"
    except CompoclipError as error:
        return (Kind.UNDECODABLE, str(error)) if decoding else None
    return None


def _compare(caption: str, negative: str, words: bool = True) -> Iterator[tuple[Kind, str, str]]:
    """Yield (kind, level, detail) of what makes a negative as true as its caption."""
    detail = f"{caption[:_SHOWN]!r} / {negative[:_SHOWN]!r}"
    if level := same(caption, negative):
        yield Kind.EQUAL, level, detail
    elif (pair := exchanged(caption, negative)) and synonymous(*pair):
        yield Kind.SYNONYM, "", f"{pair[0]} / {pair[1]}: {detail}"
    if words and (level := same_bag(caption, negative)):
        yield Kind.SAME_WORDS, level, detail


def too_long(texts: Iterable[str]) -> Iterator[tuple[Kind, str, str]]:
    """Yield the first text over CLIP's context, if any."""
    # a token is a byte at least, and only markup and other scripts can grow when cleaned
    for text in texts:
        short = len(text) <= _SURELY_FITS and text.isascii() and "&" not in text
        if not short and not fits_context(text):
            yield Kind.LONG, "", repr(text[:_SHOWN])
            return


def _case(case: Case) -> Iterator[Found]:
    true, false = case.sides
    # of two true captions the first alone: the second is a rewording and shares no order to lose
    defects = [
        defect
        for k in true
        for other in false
        for defect in _compare(case.texts[k], case.texts[other], words=k == true[0])
    ]
    if case.form in TWO_TRUE and (level := same(case.texts[0], case.texts[1])):
        defects.append((Kind.SAME_POSITIVES, level, repr(case.texts[0][:_SHOWN])))
    if case.form in (Form.CHOOSE_IMAGE, Form.GROUP):
        keys = [image_key(ref) for ref in case.images]
        if keys[case.truth] in keys[: case.truth] + keys[case.truth + 1 :]:
            defects.append((Kind.SAME_IMAGE, "", keys[case.truth]))
    for defect in _strictest([*defects, *too_long(case.texts)]):
        yield case.subtask, case.id, *defect


def _strictest(defects: Iterable[tuple[Kind, str, str]]) -> list[tuple[Kind, str, str]]:
    order = {level: k for k, level in enumerate(("", *LEVELS))}
    best: dict[Kind, tuple[Kind, str, str]] = {}
    for defect in defects:
        best[defect[0]] = min(best.get(defect[0], defect), defect, key=lambda one: order[one[1]])
    return list(best.values())


def _repeats(cases: Iterable[Case]) -> Iterator[Found]:
    """Yield items that say what an earlier one of their sub-task said, or the contrary."""
    first: dict[object, Case] = {}
    statements: dict[object, list[Case]] = defaultdict(list)
    for case in cases:
        about = (case.subtask, case.form, case.images, case.texts)
        exact = (about, case.truth)
        if exact in first:
            yield case.subtask, case.id, Kind.DUPLICATE, "", f"of {first[exact].id}"
        first.setdefault(exact, case)
        if case.form is Form.BINARY:
            statements[about].append(case)
    for about_one in statements.values():
        if len({case.truth for case in about_one}) > 1:
            for case in about_one:
                yield case.subtask, case.id, Kind.CONTRADICTION, "", repr(case.texts[0][:_SHOWN])


def _gallery(content: Retrieval) -> Iterator[Found]:
    names = text_names(content)
    earlier_keys: dict[str, set[object]] = {level: set() for level in LEVELS}
    for index, text in enumerate(content.texts):
        level = _met(text, earlier_keys)
        if index not in names:
            continue
        if level is not None:
            yield "t2i", names[index], Kind.REPEATED, level, repr(text[:_SHOWN])
        for kind, _, detail in too_long([text]):
            yield "t2i", names[index], kind, "", detail


def _classes(content: Classification | Probe) -> Iterator[Found]:
    measured = content.test if isinstance(content, Probe) else content
    part, names = next(iter(content.counts())), [name.lower() for name in measured.classes]
    twice = {name for name, n in Counter(names).items() if n > 1}
    for name, label in zip(image_names(measured.images), measured.labels):
        if names[label] in twice:
            yield part, name, Kind.SAME_CLASS, "", measured.classes[label]


# --- Defects of training data: captions with hard negatives, as every source yields them. ---


def audit_training(source: str, rows: Iterable[Sample], decoding: bool = False) -> Audit:
    """Compare every negative with the captions of its row, and every caption with earlier ones.

    Defects are of the sub-task "caption" or "negative"; the id is the row's, with "#k" for its k-th
    caption or negative, which has one defect of a kind at most. Images are looked up; `decoding`
    reads them, too.
    """
    earlier_keys: dict[str, set[object]] = {level: set() for level in LEVELS}
    all_defects: list[Defect] = []
    missing: dict[str, None] = {}
    items = dict.fromkeys(("rows", "captions", "negatives"), 0)
    equal = sideways = 0
    photos: dict[str, str] = {}

    def add(part: str, row: str, defects: Iterable[tuple[Kind, str, str]]) -> None:
        all_defects.extend(Defect(source, part, row, *defect) for defect in defects)

    for row in rows:
        path = row.image if isinstance(row.image, Path) else None
        if path is not None and not path.is_file():
            missing[str(path)] = None
            add("caption", row.id, [(Kind.MISSING, "", str(path))])
        elif decoding:
            name = str(path or row.id)
            try:
                with opened(row.image, name) as file:
                    file.rgb()
                    sideways += file.rotated
            except CompoclipError as error:
                add("caption", row.id, [(Kind.UNDECODABLE, "", str(error))])
            else:
                stored = row.image.read_bytes() if isinstance(row.image, Path) else row.image
                equal += photos.setdefault(bytes_hash(stored), name) != name
        items["rows"] += 1
        items["captions"] += len(row.captions)
        items["negatives"] += len(row.negatives)
        for k, caption in enumerate(row.captions):
            again = _met(caption, earlier_keys)
            repeated = [] if again is None else [(Kind.REPEATED, again, repr(caption))]
            add("caption", f"{row.id}#{k}", (*repeated, *too_long([caption])))
        for k, negative in enumerate(row.negatives):
            problems = _strictest(
                defect for text in row.captions for defect in _compare(text, negative)
            )
            if negative in row.negatives[:k]:
                problems.append((Kind.DUPLICATE, "", repr(negative)))
            add("negative", f"{row.id}#{k}", (*problems, *too_long([negative])))
    return Audit(source, items, tuple(all_defects), {}, tuple(missing), equal, sideways)


def _met(text: str, earlier_keys: Mapping[str, set[object]]) -> str | None:
    """Return the strictest level of an equal earlier text; `text` joins `earlier_keys`."""
    keys = {level: key(text, level) for level in LEVELS}
    strictest = next((level for level in LEVELS if keys[level] in earlier_keys[level]), None)
    for level, value in keys.items():
        earlier_keys[level].add(value)
    return strictest
