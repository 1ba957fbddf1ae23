"""The published tables that the results have a number for, with our rows below the papers'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compoclip.evaluation.published.beside import Entry, Measured, beside
from compoclip.evaluation.published.read import PublishedTable, published_table, table_names
from compoclip.evaluation.published.show import Line, header, lines, notes
from compoclip.report.study import Study


@dataclass(frozen=True)
class PublishedSheet:
    """One table as shown: heads of the row labels, heads of the numbers, lines, remarks."""

    id: str
    title: str
    labels: tuple[str, ...]
    heads: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]


def published_sheets(study: Study, resamples: int, seed: int) -> tuple[PublishedSheet, ...]:
    """Every table of which some model has at least one column on the official items.

    Results on items of another edition are not shown: nothing published compares with them.
    """
    found = []
    for name in table_names():
        table = published_table(name)
        measured = beside(table, _entries(study, table), resamples=resamples, seed=seed)
        if measured:
            found.append(_sheet(table, measured))
    return tuple(found)


def _entries(study: Study, table: PublishedTable) -> list[Entry]:
    """The models with what they have of the table, editions apart."""
    names = {name for c in table.columns for s, _ in c.terms for name in (s.benchmark, s.instead)}
    return [
        Entry(model, {"": [each for each in results.values() if each.reader_name in names]})
        for model, results in study.results.items()
    ]


def _sheet(table: PublishedTable, measured: Sequence[Measured]) -> PublishedSheet:
    return PublishedSheet(
        id=table.id,
        title=table.title,
        labels=table.row_labels,
        heads=header(table)[1 + len(table.row_labels) :],
        lines=tuple(lines(table, measured)),
        notes=tuple(notes(table, measured)),
    )
