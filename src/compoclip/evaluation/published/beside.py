"""Our results in the columns of a published table: values, intervals, chance, coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import RESAMPLES, percentile_interval
from compoclip.evaluation.groups import ScorePart, part_draws, part_score
from compoclip.evaluation.items import Values
from compoclip.evaluation.published.read import Column, PublishedNumber, PublishedTable
from compoclip.evaluation.results import Results, Score

STANDS_IN = "another edition of the captions stands in"


@dataclass(frozen=True)
class TableEntry:
    """Results that make one row. blocks: block of the table -> one model's results; in a table
    without blocks, or for one model in all blocks, the only key is ""."""

    name: str
    blocks: Mapping[str, Sequence[Results]]


@dataclass(frozen=True)
class MeasuredCell:
    """One of our numbers, in [0, 1] (a difference: in [-1, 1]).

    low, high: 95 % interval, None for a single photo. chance: None for differences. n, expected:
    items used and of the full benchmarks. have, of: numbers that went in, and that the column is
    made of. marks: remarks, e.g. "partial".
    """

    value: float
    low: float | None
    high: float | None
    chance: float | None
    n: int
    expected: int
    have: int
    of: int
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """Our row. edition: "" for the official items, else the name of the others (then no number
    is comparable with the published ones). cells: one a column, None where it is not measured.
    missing: labels of the columns that are not there for lack of results, by column id."""

    name: str
    edition: str
    cells: tuple[MeasuredCell | None, ...]
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def covered(self) -> int:
        """Columns that have a number."""
        return sum(cell is not None for cell in self.cells)


def entries_of(results: Sequence[Results]) -> list[TableEntry]:
    """One entry a model, in order of appearance."""
    models: dict[str, list[Results]] = {}
    for each in results:
        models.setdefault(each.model, []).append(each)
    return [TableEntry(name, {"": found}) for name, found in models.items()]


def beside(
    table: PublishedTable,
    entries: Sequence[TableEntry],
    *,
    allow_partial: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Measured]:
    """A row for every entry and edition of the benchmarks that fills at least one column.

    A number from a part of a benchmark's items is marked "partial". A column that is derived from
    several numbers stays empty unless all are there and whole; with `allow_partial` it is made of
    those that are there and marked, a difference only of both. Intervals of derived columns:
    bootstrap over photos, one model's numbers on the same photos sharing the draws. Raises
    CompoclipError when a model has two results that fit one column, or items cannot be read.
    """
    rows = []
    for entry in entries:
        for edition in _editions(entry):
            row = _row(table, entry, edition, allow_partial, resamples, seed)
            if row.covered:
                rows.append(row)
    return rows


def _editions(entry: TableEntry) -> list[str]:
    found = {_split(each)[1] for results in entry.blocks.values() for each in results}
    return sorted(found)


def _split(results: Results) -> tuple[str, str]:
    """Name that the reader gives the benchmark, and the edition of its items."""
    name, _, edition = results.reader_name.partition("@")
    return name, edition


def _row(
    table: PublishedTable,
    entry: TableEntry,
    edition: str,
    allow_partial: bool,
    resamples: int,
    seed: int,
) -> Measured:
    blocks = {
        block: _by_name(entry.name, results, edition) for block, results in entry.blocks.items()
    }
    known: dict[str, dict[PublishedNumber, _Number]] = {}
    for column in table.columns:
        for source, _ in column.terms:
            block = source.block if source.block in blocks else ""
            number = _number(blocks.get(block, {}), block, source)
            if number is not None:
                known.setdefault(column.id, {})[source] = number
    plans: dict[str, list[tuple[_Number, float]]] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for column in table.columns:
        have = known.get(column.id, {})
        lacking = [source for source, _ in column.terms if source not in have]
        broken = [s for s, number in have.items() if number.partial and column.derived]
        if (lacking or broken) and not (allow_partial and have and column.derived):
            missing[column.id] = tuple(dict.fromkeys(_named(table, s) for s in lacking + broken))
            continue
        if column.difference and lacking:
            missing[column.id] = tuple(_named(table, s) for s in lacking)
            continue
        total = sum(weight for source, weight in column.terms if source in have)
        scale = 1.0 if column.difference else 1.0 / total
        plans[column.id] = [
            (have[source], weight * scale) for source, weight in column.terms if source in have
        ]
    draws = _draws(
        [number for c in table.columns if c.derived for number, _ in plans.get(c.id, ())],
        resamples,
        seed,
    )
    cells = tuple(
        _cell(column, plans[column.id], draws) if column.id in plans else None
        for column in table.columns
    )
    return Measured(entry.name, edition, cells, missing)


def _by_name(model: str, results: Sequence[Results], edition: str) -> dict[str, Results]:
    found: dict[str, Results] = {}
    for each in results:
        name, own = _split(each)
        if own != edition:
            continue
        if name in found:
            raise CompoclipError(
                f"{model}: {found[name].benchmark} and {each.benchmark} are both results of "
                f"{name}; give the one to be shown"
            )
        found[name] = each
    return found


@dataclass(frozen=True)
class _Number:
    """A stored score, and where it stands."""

    block: str
    results: Results
    part: ScorePart
    score: Score
    stands_in: bool

    @property
    def partial(self) -> bool:
        return self.score.n < self.score.expected

    @property
    def key(self) -> tuple[str, ScorePart]:
        return self.block, self.part


def _number(results: Mapping[str, Results], block: str, source: PublishedNumber) -> _Number | None:
    name = source.benchmark if source.benchmark in results else source.instead
    if name not in results:
        return None
    each = results[name]
    score = source.score or each.headline
    part = ScorePart(each.benchmark, score, source.metric)
    stored = each.scores.get(score, {}) if source.metric else each.aggregates
    if (source.metric or score) not in stored:
        return None
    return _Number(
        block, each, part, part_score({each.benchmark: each}, part), name != source.benchmark
    )


def _named(table: PublishedTable, source: PublishedNumber) -> str:
    """What to measure for a source, in words."""
    name = " ".join(word for word in (source.benchmark, source.score, source.metric) if word)
    block = table.blocks.get(source.block, "")
    return f"{name} ({block})" if block else name


def _draws(
    numbers: Sequence[_Number], resamples: int, seed: int
) -> dict[tuple[str, ScorePart], Values]:
    wanted: dict[str, dict[ScorePart, Results]] = {}
    for number in numbers:
        wanted.setdefault(number.block, {})[number.part] = number.results
    found = {}
    for block, parts in wanted.items():
        results = list({each.benchmark: each for each in parts.values()}.values())
        for part, draws in part_draws(results, list(parts), resamples, seed).items():
            found[block, part] = draws
    return found


def _cell(
    column: Column,
    terms: Sequence[tuple[_Number, float]],
    draws: Mapping[tuple[str, ScorePart], Values],
) -> MeasuredCell:
    scores = [number.score for number, _ in terms]
    marks = []
    if any(number.partial for number, _ in terms):
        marks.append("partial")
    if len(terms) < len(column.terms):
        marks.append(f"{len(terms)} of {len(column.terms)} parts")
    if any(number.stands_in for number, _ in terms):
        marks.append(STANDS_IN)
    if column.derived:
        drawn = np.sum([weight * draws[number.key] for number, weight in terms], axis=0)
        low, high = percentile_interval(drawn, min(score.photos for score in scores))
    else:
        low, high = scores[0].low, scores[0].high
    return MeasuredCell(
        value=sum(weight * number.score.value for number, weight in terms),
        low=low,
        high=high,
        chance=None
        if column.difference
        else sum(weight * number.score.chance for number, weight in terms),
        n=sum(score.n for score in scores),
        expected=sum(score.expected for score in scores),
        have=len(terms),
        of=len(column.terms),
        marks=tuple(marks),
    )
