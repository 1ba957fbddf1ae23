"""A published table with our rows below it, as text cells and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compoclip.evaluation.layout import Layout, laid_out, span
from compoclip.evaluation.published.beside import STANDS_IN, Measured, MeasuredCell
from compoclip.evaluation.published.read import PublishedRow, PublishedTable

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
