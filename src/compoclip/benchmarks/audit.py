"""Faulty items of a loaded benchmark: `compoclip data audit`.

The checks are the same for all benchmarks: they look at cases, galleries and classes, never at
files, so a new benchmark is audited as soon as it can be read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from PIL import Image

from compoclip.benchmarks.case import (
    Benchmark,
    Case,
    Classification,
    Form,
    ImageRef,
    Retrieval,
    image_key,
    image_names,
    text_names,
)
from compoclip.benchmarks.defects import Defect, Kind, count, exchanged, synonymous
from compoclip.benchmarks.files import LEVELS, key, same, same_bag
from compoclip.benchmarks.registry import listed
from compoclip.console import track
from compoclip.data.decode import decode
from compoclip.data.members import Members
from compoclip.errors import CompoclipError
from compoclip.rewrites.base import CONTEXT_LENGTH, SPECIAL_TOKENS, fits_context

# --- Images of items: boxes that miss them, files that cannot be decoded. ---


def audit_images(
    items: Iterable[tuple[str, str, tuple[ImageRef, ...]]], decoding: bool
) -> Iterator[tuple[str, str, Kind, str, str]]:
    """(sub-task, id, kind, "", detail) of items, given with their images, that have a bad image.

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
        try:
            decode(members(ref.path, ref.member) if ref.member else ref.path, name=ref.photo)
        except CompoclipError as error:
            return Kind.UNDECODABLE, str(error)
    return None


@lru_cache(maxsize=1 << 10)
def _size(path: Path) -> tuple[int, int] | None:
    """Width and height as the file states them, None where it cannot be told."""
    try:
        with Image.open(path) as opened:
            return opened.size
    except (OSError, ValueError, Image.DecompressionBombError):
        return None


# --- Faulty items of a loaded benchmark: `compoclip data audit`. ---

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
        """See `defects.count`."""
        return count(self.defects)

    @property
    def by_subtask(self) -> dict[Kind, dict[str, dict[str, int]]]:
        """Kind -> sub-task -> as `counts`."""
        found: dict[Kind, dict[str, dict[str, int]]] = {}
        for subtask in sorted({each.subtask for each in self.defects}):
            own = count(each for each in self.defects if each.subtask == subtask)
            for kind, levels in own.items():
                found.setdefault(kind, {})[subtask] = levels
        return found

    @property
    def faulty(self) -> Faulty:
        """Items with a fault: those that clean scores leave out."""
        return frozenset((each.subtask, each.id) for each in self.defects if each.fault)

    @property
    def faults(self) -> dict[str, int]:
        """Kind of fault -> items that have it; an item may have several."""
        found = {(each.kind, each.subtask, each.id) for each in self.defects if each.fault}
        counts = Counter(str(kind) for kind, *_ in found)
        return {str(kind): counts[kind] for kind in Kind if counts[kind]}


def audit(benchmark: Benchmark, *, decoding: bool = False) -> Audit:
    """All defects: of texts, of repeated items, of images, each in the order of the items.

    Boxes are compared with the images that are there; absent images are `check`'s to report.
    decoding: also decode every image. Items have one defect of a kind at most, at its strictest
    level.
    """
    content = benchmark.content
    if isinstance(content, Retrieval):
        found = [*_gallery(content), *audit_images(_retrieval_refs(content), decoding)]
    elif isinstance(content, Classification):
        parts = content.classes if content.tags else ("zero_shot",)
        names = image_names(content.images)
        refs = [(part, n, (ref,)) for part in parts for n, ref in zip(names, content.images)]
        found = [*_classes(content), *audit_images(refs, decoding)]
    else:
        found = [*(each for case in content for each in _case(case)), *_repeats(content)]
        found += audit_images([(c.subtask, c.id, c.images) for c in content], decoding)
    return Audit(
        benchmark=benchmark.name,
        items=listed(benchmark),
        defects=tuple(Defect(benchmark.name, *each) for each in found),
        left_out=dict(benchmark.left_out),
    )


Found = tuple[str, str, Kind, str, str]
"""Sub-task, id, kind, level, detail."""


def compare_texts(caption: str, negative: str) -> Iterator[tuple[Kind, str, str]]:
    """(kind, level, detail) of what makes a negative true of what its caption is true of."""
    level = same(caption, negative)
    shown = f"{caption[:_SHOWN]!r} / {negative[:_SHOWN]!r}"
    if level is not None:
        yield Kind.EQUAL, level, shown
        return
    pair = exchanged(caption, negative)
    if pair is not None and synonymous(*pair):
        yield Kind.SYNONYM, "", f"{pair[0]} / {pair[1]}: {shown}"


def same_words(caption: str, negative: str) -> Iterator[tuple[Kind, str, str]]:
    """(kind, level, texts) when both hold the same words."""
    level = same_bag(caption, negative)
    if level is not None:
        yield Kind.SAME_WORDS, level, f"{caption[:_SHOWN]!r} / {negative[:_SHOWN]!r}"


def too_long(texts: Iterable[str]) -> Iterator[tuple[Kind, str, str]]:
    """The first text over CLIP's context, if any."""
    # a token is a byte at least, and only markup and other scripts can grow when cleaned
    long = next(
        (
            text
            for text in texts
            if not (len(text) <= _SURELY_FITS and text.isascii() and "&" not in text)
            and not fits_context(text)
        ),
        None,
    )
    if long is not None:
        yield Kind.LONG, "", repr(long[:_SHOWN])


def _case(case: Case) -> Iterator[Found]:
    opposed = list(_opposed(case))
    found = [each for one, two in opposed for each in compare_texts(one, two)]
    # of two true captions the first alone: the second is a rewording and shares no order to lose
    first = [two for one, two in opposed if one == opposed[0][0]]
    found += [each for two in first for each in same_words(opposed[0][0], two)]
    if case.form in (Form.TRIPLE, Form.TEXT_ONLY):
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
        kind, level, detail = min(mine, key=lambda each: LEVELS.index(each[1]) if each[1] else -1)
        yield case.subtask, case.id, kind, level, detail


def _opposed(case: Case) -> Iterator[tuple[str, str]]:
    """(true text, false text) of a case."""
    match case.form:
        case Form.CHOOSE_TEXT:
            truth = case.texts[case.truth]
            yield from ((truth, t) for k, t in enumerate(case.texts) if k != case.truth)
        case Form.TRIPLE | Form.TEXT_ONLY:
            yield case.texts[0], case.texts[2]
            yield case.texts[1], case.texts[2]
        case Form.GROUP:
            yield case.texts[0], case.texts[1]


def _repeats(cases: Iterable[Case]) -> Iterator[Found]:
    """Items that say again what an earlier one of their sub-task said, or the contrary."""
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
        keys = {level: key(text, level) for level in LEVELS}
        level = next((each for each in LEVELS if keys[each] in seen[each]), None)
        for each, value in keys.items():
            seen[each].add(value)
        if index not in names:
            continue
        if level is not None:
            yield "t2i", names[index], Kind.REPEATED, level, repr(text[:_SHOWN])
        for kind, _, detail in too_long([text]):
            yield "t2i", names[index], kind, "", detail


def _retrieval_refs(content: Retrieval) -> list[tuple[str, str, tuple[ImageRef, ...]]]:
    names = image_names(content.images)
    return [("i2t", name, (ref,)) for name, ref in zip(names, content.images)]


def _classes(content: Classification) -> Iterator[Found]:
    """Images of classes that share a name with another one."""
    names = [name.lower() for name in content.classes]
    twice = {name for name, n in Counter(names).items() if n > 1}
    for name, label in zip(image_names(content.images), content.labels):
        if names[label] in twice:
            yield "zero_shot", name, Kind.SAME_CLASS, "", content.classes[label]


# --- Defects of training data: captions with hard negatives, as every source yields them. ---


class AuditedRow(Protocol):
    """An image with captions and the hard negatives that came with them (`data.sources.Sample`)."""

    @property
    def id(self) -> str: ...

    @property
    def image(self) -> Path | bytes: ...

    @property
    def captions(self) -> tuple[str, ...]: ...

    @property
    def negatives(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class TrainingAudit:
    """source: what was read. rows, captions, negatives: how many; missing: image files not there.

    The defects' sub-task is "caption" or "negative", their id that of the row, with "#k" for its
    k-th caption or negative.
    """

    source: str
    rows: int
    captions: int
    negatives: int
    missing: int
    defects: tuple[Defect, ...]

    @property
    def counts(self) -> dict[Kind, dict[str, int]]:
        """See `defects.count`."""
        return count(self.defects)


def audit_training(source: str, rows: Iterable[AuditedRow]) -> TrainingAudit:
    """Compare every negative with the captions of its row, and every caption with earlier ones.

    A negative has one defect of a kind at most. Images are looked up, not read.
    """
    seen: dict[str, set[object]] = {level: set() for level in LEVELS}
    found: list[Defect] = []
    n_rows = n_captions = n_negatives = missing = 0
    for row in rows:
        n_rows += 1
        n_captions += len(row.captions)
        n_negatives += len(row.negatives)
        missing += isinstance(row.image, Path) and not row.image.is_file()
        for k, caption in enumerate(row.captions):
            for kind, level, detail in (*_repeated(caption, seen), *too_long([caption])):
                found.append(Defect(source, "caption", f"{row.id}#{k}", kind, level, detail))
        for k in range(len(row.negatives)):
            for kind, level, detail in _negative(row, k):
                found.append(Defect(source, "negative", f"{row.id}#{k}", kind, level, detail))
    return TrainingAudit(source, n_rows, n_captions, n_negatives, missing, tuple(found))


def _repeated(caption: str, seen: dict[str, set[object]]) -> Iterator[tuple[Kind, str, str]]:
    keys = {level: key(caption, level) for level in LEVELS}
    level = next((each for each in LEVELS if keys[each] in seen[each]), None)
    for each, value in keys.items():
        seen[each].add(value)
    if level is not None:
        yield Kind.REPEATED, level, repr(caption)


def _negative(row: AuditedRow, place: int) -> Iterator[tuple[Kind, str, str]]:
    negative = row.negatives[place]
    told: dict[Kind, tuple[str, str]] = {}
    for caption in row.captions:
        for kind, level, detail in (
            *compare_texts(caption, negative),
            *same_words(caption, negative),
        ):
            if kind not in told or _rank(level) < _rank(told[kind][0]):
                told[kind] = level, detail
    if negative in row.negatives[:place]:
        told[Kind.DUPLICATE] = "", repr(negative)
    yield from ((kind, level, detail) for kind, (level, detail) in told.items())
    yield from too_long([negative])


def _rank(level: str) -> int:
    return LEVELS.index(level) if level else -1
