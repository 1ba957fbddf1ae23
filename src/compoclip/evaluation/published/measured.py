"""Our results in the columns of a published table: values, intervals, chance, coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from compoclip.console import counted
from compoclip.errors import CompoclipError, abridged
from compoclip.evaluation.numerals import percent, span
from compoclip.evaluation.published.read import PublishedNumber, PublishedTable
from compoclip.evaluation.results import Results, Score, by_model
from compoclip.printed import Layout, Table

STANDS_IN = "another edition of the captions stands in"


TableEntry = tuple[str, Mapping[str, Sequence[Results]]]
"""Name of a row, and the results of one model by block of the table. The only block is "" in a
table without blocks, and for one model in all blocks."""


@dataclass(frozen=True)
class MeasuredCell:
    """One of our numbers, in [0, 1] (a difference: in [-1, 1]).

    low, high: 95 % interval; None for a single photo, and for columns derived from others. chance:
    None for differences. n, expected: items used and of the full benchmarks. have, of: numbers that
    went in, and that the column is made of. marks: remarks, e.g. "partial".
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

    @property
    def signs(self) -> str:
        """The signs of the marks, each once."""
        return "".join(dict.fromkeys(_MARKS.get(mark, "+") for mark in self.marks))

    @property
    def text(self) -> str:
        """The value in percent, with the signs of its marks."""
        return percent(self.value) + self.signs


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
    """Make one entry per model, in order of appearance."""
    return [(name, {"": of_model}) for name, of_model in by_model(results).items()]


def fill_table(
    table: PublishedTable, entries: Sequence[TableEntry], *, allow_partial: bool = False
) -> list[Measured]:
    """Fill the columns of a published table from results: a row for every entry and edition of the
    benchmarks that fills at least one column.

    A number from a part of a benchmark's items is marked "partial". A column derived from several
    numbers stays empty unless all are complete, and has no interval. allow_partial: derive columns
    from the available numbers and mark them; a difference still needs both. Raises CompoclipError
    when a model has two results that fit one column.
    """
    rows = []
    for name, blocks in entries:
        editions = {r.reader_name.partition("@")[2] for of in blocks.values() for r in of}
        rows += [_row(table, name, blocks, edition, allow_partial) for edition in sorted(editions)]
    return [row for row in rows if row.covered]


def _row(
    table: PublishedTable,
    model: str,
    entry: Mapping[str, Sequence[Results]],
    edition: str,
    allow_partial: bool,
) -> Measured:
    blocks: dict[str, dict[str, Results]] = {block: {} for block in entry}
    for block, named in blocks.items():
        for result in entry[block]:
            name, _, result_edition = result.reader_name.partition("@")
            if result_edition == edition and name in table.benchmarks:
                if name in named:
                    raise CompoclipError(
                        f"{model}: {named[name].benchmark} and {result.benchmark} are both results "
                        f"of {name}; give the one to be shown"
                    )
                named[name] = result
    cells: list[MeasuredCell | None] = []
    missing: dict[str, tuple[str, ...]] = {}
    for column in table.columns:
        have: list[tuple[Score, float, bool]] = []
        lacking: dict[str, bool] = {}  # name -> whether a part of it is there
        for source, weight in column.terms:
            stored = _score(blocks.get(source.block, blocks.get("", {})), source)
            have += [(stored[0], weight, stored[1])] if stored else []
            if stored is None or (column.derived and stored[0].n < stored[0].expected):
                words = (source.benchmark, source.score, source.metric)
                block = table.blocks.get(source.block, "")
                name = " ".join(word for word in words if word) + (f" ({block})" if block else "")
                lacking[name] = lacking.get(name, True) and stored is not None
        absent = [name for name, part in lacking.items() if not part]
        reasons = [*absent, *(name for name, part in lacking.items() if part)]
        if allow_partial and have and column.derived:
            reasons = absent if column.difference else []
        if reasons:
            missing[column.id] = tuple(reasons)
            cells.append(None)
            continue
        scale = 1.0 if column.difference else 1.0 / sum(weight for _, weight, _ in have)
        scores = [score for score, _, _ in have]
        marks = ["partial"] if any(score.n < score.expected for score in scores) else []
        if len(have) < len(column.terms):
            marks.append(f"{len(have)} of {len(column.terms)} parts")
        if any(stands_in for _, _, stands_in in have):
            marks.append(STANDS_IN)
        chance = sum(weight * scale * score.chance for score, weight, _ in have)
        cells.append(
            MeasuredCell(
                value=sum(weight * scale * score.value for score, weight, _ in have),
                low=None if column.derived else scores[0].low,
                high=None if column.derived else scores[0].high,
                chance=None if column.difference else chance,
                n=sum(score.n for score in scores),
                expected=sum(score.expected for score in scores),
                have=len(have),
                of=len(column.terms),
                marks=tuple(marks),
            )
        )
    return Measured(model, edition, tuple(cells), missing)


def _score(results: Mapping[str, Results], source: PublishedNumber) -> tuple[Score, bool] | None:
    """Return the stored score, and whether it is of another edition of the captions."""
    name = source.benchmark if source.benchmark in results else source.instead
    if name not in results:
        return None
    score = results[name].stored(source.score, source.metric)
    return None if score is None else (score, name != source.benchmark)


# --- The table with our rows below it, as text cells and as JSON. ---

_MARKS = {"partial": "*", STANDS_IN: "~"}
MEANINGS = {
    "*": "only a part of the benchmark's items was measured",
    "+": "only a part of the numbers that the column is made of was measured",
    "~": STANDS_IN,
}
"""Sign behind a number -> what it means."""


def whole_table(table: PublishedTable, measured: Sequence[Measured]) -> Table:
    """Return published rows as printed, then ours, each with a row of intervals; chance is last.

    The first column says which of these a row is. "-" stands for a missing number. Marks: "*" only
    a part of the items was measured, "+" only a part of the numbers that the column averages, "~"
    another edition of the captions.
    """
    digits = [2 if column.id == "meta" else 1 for column in table.columns]
    rows: list[Sequence[str]] = []
    for row in table.rows:
        printed = ("-" if v is None else f"{v:.{k}f}" for v, k in zip(row.values, digits))
        rows.append(["published", *row.labels, *printed])
    place = table.row_labels.index("method") if "method" in table.row_labels else 0
    blank = tuple("" for _ in table.row_labels)
    for model in measured:
        name = f"{model.name} [{model.edition} items]" if model.edition else model.name
        values = ("-" if c is None else c.text for c in model.cells)
        intervals = ("-" if c is None else span(c.low, c.high) for c in model.cells)
        rows.append(["measured", *blank[:place], name, *blank[place + 1 :], *values])
        rows.append(["95 % interval", *blank, *intervals])
    chances = []
    for cells in zip(*(model.cells for model in measured)):
        texts = {percent(c.chance) for c in cells if c is not None and c.chance is not None}
        chances.append(texts.pop() if len(texts) == 1 else "-")
    if set(chances) - {"-"}:
        rows.append(["chance", *blank, *chances])
    heads = (
        f"{table.blocks[column.block]} {column.label}" if column.block else column.label
        for column in table.columns
    )
    return Table(
        rows,
        ("", *table.row_labels, *heads),
        left=1 + len(table.row_labels),
        title=table.title,
        notes=notes(table, measured),
        muted=range(len(table.rows)),
    )


def notes(table: PublishedTable, measured: Sequence[Measured]) -> list[str]:
    """Return where the published numbers come from, what our rows lack, what the marks mean."""
    source = f"published: {table.paper}{f'; {table.table}' if table.table else ''}; {table.models}"
    remarks = [source, *table.notes]
    for row in table.rows:
        if row.note:
            remarks.append(f"{row.name}: {row.note}")
        for remark in dict.fromkeys(row.marks.values()):
            columns = [c.label for c in table.columns if row.marks.get(c.id) == remark]
            remarks.append(f"{row.name}: {', '.join(columns)} {remark}")
    for model in measured:
        covered = f"{model.name}: {model.covered} of {counted(len(table.columns), 'column')}"
        if model.missing:
            lacking = list(dict.fromkeys(n for names in model.missing.values() for n in names))
            covered += f"; not or not wholly measured: {abridged(lacking, 6)}"
        remarks.append(covered)
        if model.edition:
            remarks.append(
                f"{model.name}: measured on the items of '{model.edition}', not the official ones; "
                "not comparable with the published rows"
            )
    signs = {sign for model in measured for cell in model.cells if cell for sign in cell.signs}
    remarks += [f"{sign} {meaning}" for sign, meaning in MEANINGS.items() if sign in signs]
    if len(table.blocks) > 1 and measured:
        remarks.append(
            "a model that is not named for one block is shown in all of them: "
            f"{', '.join(f'{block}=RESULTS' for block in table.blocks)} names one"
        )
    return remarks


def table_text(table: PublishedTable, measured: Sequence[Measured], layout: Layout = "text") -> str:
    """Return the whole table in a layout; in CSV, the first column has a name."""
    whole = whole_table(table, measured)
    if layout == "csv":
        whole = replace(whole, header=("source", *whole.header[1:]))
    return whole.printed(layout)


def to_json(table: PublishedTable, measured: Sequence[Measured]) -> dict[str, Any]:
    """Return all that `table_text` prints; published numbers in percent, ours as fractions."""
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
                "model": model.name,
                "edition": model.edition,
                "comparable": not model.edition,
                "cells": {
                    key: asdict(cell) if cell is not None else None
                    for key, cell in zip(ids, model.cells)
                },
                "covered": model.covered,
                "columns": len(ids),
                "missing": {key: list(names) for key, names in model.missing.items()},
            }
            for model in measured
        ],
        "notes": notes(table, measured),
    }
