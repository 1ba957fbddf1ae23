"""Defects of training data: captions with hard negatives, as every source yields them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compoclip.benchmarks.audit import compare_texts, same_words, too_long
from compoclip.benchmarks.defects import Defect, Kind, count
from compoclip.benchmarks.sameness import LEVELS, key


class Row(Protocol):
    """An image with captions and the hard negatives that came with them (`data.sample.Sample`)."""

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


def audit_training(source: str, rows: Iterable[Row]) -> TrainingAudit:
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


def _negative(row: Row, place: int) -> Iterator[tuple[Kind, str, str]]:
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
