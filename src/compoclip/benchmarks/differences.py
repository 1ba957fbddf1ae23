"""Rows that one benchmark took over from another and edited, told by their ids.

Says why scores on the two must never be compared row by row (BENCHMARKS 2.6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from compoclip.benchmarks.case import Benchmark, Case, Form
from compoclip.benchmarks.sameness import LETTERS, LEVELS, STORED, TOKENIZED, WORDS, key

STRIPPED = "stripped"
NORMALISATIONS = (STORED, STRIPPED, TOKENIZED, WORDS, LETTERS)
"""`sameness.LEVELS`, and "stripped": as stored, but for blanks at both ends."""


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
    content = benchmark.content
    cases = content if isinstance(content, tuple) else ()
    return {(case.subtask, case.id): _texts(case) for case in cases if len(case.texts) > 1}


def _texts(case: Case) -> tuple[str, str]:
    if case.form in (Form.TRIPLE, Form.TEXT_ONLY):
        return case.texts[0], case.texts[2]
    return case.texts[case.truth], case.texts[1 - case.truth]
