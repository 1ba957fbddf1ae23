"""Our results in the columns of a published table: values, intervals, chance, coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from compoclip.errors import CompoclipError
from compoclip.evaluation.groups import ScorePart, part_draws, part_score
from compoclip.evaluation.items import Values
from compoclip.evaluation.published.read import (
    Column,
    PublishedNumber,
    PublishedRow,
    PublishedTable,
)
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.statistics import RESAMPLES, percentile_interval
from compoclip.evaluation.tables import Layout, laid_out, span

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
    """Make one entry a model, in order of appearance.

    Args:
        results: of any models and benchmarks.

    Returns:
        The entries, for `beside`.
    """
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
    """Fill the columns of a published table from results.

    A number from a part of a benchmark's items is marked "partial". A column that is derived from
    several numbers stays empty unless all are there and whole. Intervals of derived columns come
    from a bootstrap over photos, in which one model's numbers on the same photos share the draws.

    Args:
        table: the published table.
        entries: what to make rows of.
        allow_partial: make derived columns of the numbers that are there, and mark them; a
            difference still needs both.
        resamples: bootstrap draws for the intervals.
        seed: of the draws.

    Returns:
        A row for every entry and edition of the benchmarks that fills at least one column.

    Raises:
        CompoclipError: a model has two results that fit one column, or items cannot be read.
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
    plans: dict[str, list[tuple[_Number, float]]] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for column in table.columns:
        have: dict[PublishedNumber, _Number] = {}
        for source, _ in column.terms:
            block = source.block if source.block in blocks else ""
            number = _number(blocks.get(block, {}), block, source)
            if number is not None:
                have[source] = number
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
    """The benchmark, score and metric of a source, as text."""
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


# --- The table with our rows below it, as text cells and as JSON. ---

PUBLISHED, MEASURED, INTERVAL, CHANCE = "published", "measured", "95 % interval", "chance"
_MARKS = {"partial": "*", STANDS_IN: "~"}


@dataclass(frozen=True)
class TableLine:
    """One line of the shown table. source: PUBLISHED, MEASURED, INTERVAL or CHANCE."""

    source: str
    labels: tuple[str, ...]
    cells: tuple[str, ...]


def header(table: PublishedTable) -> tuple[str, ...]:
    """Heads of all columns: source, row labels, then one a number."""
    columns = (
        f"{table.blocks[column.block]} {column.label}" if column.block else column.label
        for column in table.columns
    )
    return ("", *table.row_labels, *columns)


def lines(table: PublishedTable, measured: Sequence[Measured]) -> list[TableLine]:
    """Published rows as printed, then ours: values, intervals, and chance once for all.

    "-" where there is no number; "*" a part of the items, "+" a part of the numbers that the
    column is made of, "~" another edition of the captions.
    """
    shown = [
        TableLine(
            PUBLISHED, row.labels, tuple(_printed(row, k, table) for k in range(len(row.values)))
        )
        for row in table.rows
    ]
    for each in measured:
        name = f"{each.name} [{each.edition} items]" if each.edition else each.name
        labels = ("",) * (len(table.row_labels) - 1)
        if "method" in table.row_labels:
            place = table.row_labels.index("method")
            named = (*labels[:place], name, *labels[place:])
        else:
            named = (name, *labels)
        shown.append(TableLine(MEASURED, named, tuple(map(_value, each.cells))))
        shown.append(TableLine(INTERVAL, ("", *labels), tuple(map(_interval, each.cells))))
    chance = _chance(table, measured)
    if any(chance):
        blank = ("",) * len(table.row_labels)
        shown.append(TableLine(CHANCE, blank, tuple(each or "-" for each in chance)))
    return shown


def notes(table: PublishedTable, measured: Sequence[Measured]) -> list[str]:
    """Where the published numbers come from, what our rows lack, and what the marks mean."""
    source = f"published: {table.paper}{f'; {table.table}' if table.table else ''}; {table.models}"
    found = [source, *table.notes]
    for row in table.rows:
        name = " ".join(label for label in row.labels if label)
        found += [f"{name}: {row.note}"] * bool(row.note)
        for remark in dict.fromkeys(row.marks.values()):
            columns = [c.label for c in table.columns if row.marks.get(c.id) == remark]
            found.append(f"{name}: {', '.join(columns)} {remark}")
    marks: set[str] = set()
    for each in measured:
        found += _coverage(table, each)
        marks |= {_mark(mark) for cell in each.cells if cell for mark in cell.marks}
    meanings = {
        "*": "a part of the benchmark's items only",
        "+": "a part of the numbers that the column is made of only",
        "~": STANDS_IN,
    }
    found += [f"{mark} {meaning}" for mark, meaning in meanings.items() if mark in marks]
    if len(table.blocks) > 1 and measured:
        found.append(
            "a model that is not named for one block is shown in all of them: "
            f"{', '.join(f'{block}=RESULTS' for block in table.blocks)} names one"
        )
    return found


def shown(table: PublishedTable, measured: Sequence[Measured], layout: Layout = "text") -> str:
    """The whole table in a layout."""
    every = lines(table, measured)
    heads = header(table)
    return laid_out(
        [(line.source, *line.labels, *line.cells) for line in every],
        ("source", *heads[1:]) if layout == "csv" else heads,
        layout,
        title=table.title,
        left=1 + len(table.row_labels),
        muted=[k for k, line in enumerate(every) if line.source == PUBLISHED],
        notes=notes(table, measured),
    )


def to_json(table: PublishedTable, measured: Sequence[Measured]) -> dict[str, Any]:
    """Everything that `shown` shows, numbers in percent as published and as fractions as ours."""
    ids = [column.id for column in table.columns]
    return {
        "table": table.id,
        "title": table.title,
        "paper": table.paper,
        "models": table.models,
        "columns": [
            {"id": c.id, "label": c.label, "block": c.block, "rule": c.rule} for c in table.columns
        ],
        "published": [
            {
                "labels": dict(zip(table.row_labels, row.labels)),
                "percent": dict(zip(ids, row.values)),
                "marks": dict(row.marks),
                "note": row.note,
            }
            for row in table.rows
        ],
        "measured": [
            {
                "model": each.name,
                "edition": each.edition,
                "comparable": not each.edition,
                "cells": {
                    key: asdict(cell) if cell is not None else None
                    for key, cell in zip(ids, each.cells)
                },
                "covered": each.covered,
                "columns": len(ids),
                "missing": {key: list(names) for key, names in each.missing.items()},
            }
            for each in measured
        ],
        "notes": notes(table, measured),
    }


def _printed(row: PublishedRow, column: int, table: PublishedTable) -> str:
    value = row.values[column]
    if value is None:
        return "-"
    digits = 2 if table.columns[column].id == "meta" else 1
    return f"{value:.{digits}f}"


def _value(cell: MeasuredCell | None) -> str:
    if cell is None:
        return "-"
    return f"{100 * cell.value:.1f}{''.join(dict.fromkeys(map(_mark, cell.marks)))}"


def _mark(mark: str) -> str:
    return _MARKS.get(mark, "+")


def _interval(cell: MeasuredCell | None) -> str:
    return "-" if cell is None else span(cell.low, cell.high)


def _chance(table: PublishedTable, measured: Sequence[Measured]) -> list[str]:
    found = []
    for k in range(len(table.columns)):
        known = [each.cells[k] for each in measured]
        values = {f"{100 * c.chance:.1f}" for c in known if c is not None and c.chance is not None}
        found.append(values.pop() if len(values) == 1 else "")
    return found


def _coverage(table: PublishedTable, each: Measured) -> list[str]:
    told = [f"{each.name}: {each.covered} of {len(table.columns)} columns"]
    if each.missing:
        lacking = list(dict.fromkeys(n for names in each.missing.values() for n in names))
        few = ", ".join(lacking[:6]) + (f" and {len(lacking) - 6} more" if len(lacking) > 6 else "")
        told[0] += f"; not or not wholly measured: {few}"
    if each.edition:
        told.append(
            f"{each.name}: measured on the items of '{each.edition}', not the official ones; "
            "not comparable with the published rows"
        )
    return told
