"""The published tables that the results have a number for, with our rows below the papers'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compoclip.evaluation.published.beside import Measured, TableEntry, beside
from compoclip.evaluation.published.read import (
    PublishedRow,
    PublishedTable,
    published_table,
    table_names,
)
from compoclip.evaluation.published.show import TableLine, header, lines, notes
from compoclip.report.plotting import Dot, Plot, Reference, scatter
from compoclip.report.study import Study

# Published table -> its columns of compositionality, and of what it may cost.
_TRADEOFFS = {
    "fsc-clip-table1": ("comp", {"zs": "zero-shot accuracy", "i2t": "image-to-text R@1"}),
}


@dataclass(frozen=True)
class PublishedSheet:
    """One table as shown: heads of the row labels, heads of the numbers, lines, remarks."""

    id: str
    title: str
    labels: tuple[str, ...]
    heads: tuple[str, ...]
    lines: tuple[TableLine, ...]
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


def _entries(study: Study, table: PublishedTable) -> list[TableEntry]:
    """The models with what they have of the table, editions apart."""
    names = {name for c in table.columns for s, _ in c.terms for name in (s.benchmark, s.instead)}
    return [
        TableEntry(model, {"": [each for each in results.values() if each.reader_name in names]})
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


@dataclass(frozen=True)
class PublishedPoints:
    """Trade-offs as a paper prints them. measured: models that stand among its points."""

    title: str
    source: str
    plots: tuple[Plot, ...]
    measured: tuple[str, ...]


def published_tradeoffs(study: Study, resamples: int, seed: int) -> tuple[PublishedPoints, ...]:
    """Published points in grey, and among them the models measured on all of the same items."""
    found = []
    for name, (across, others) in _TRADEOFFS.items():
        table = published_table(name)
        places = {column.id: k for k, column in enumerate(table.columns)}
        ours = beside(table, _entries(study, table), resamples=resamples, seed=seed)
        plots: list[Plot] = []
        shown: dict[str, None] = {}
        for up, label in others.items():
            x, y = places[across], places[up]
            grey = [
                Reference(_row_name(row, table), one / 100, other / 100)
                for row in table.rows
                if (one := row.values[x]) is not None and (other := row.values[y]) is not None
            ]
            dots = [
                Dot(each.name, study.models.index(each.name), one_cell, other_cell)
                for each in ours
                if (one_cell := each.cells[x]) is not None
                and (other_cell := each.cells[y]) is not None
            ]
            shown |= dict.fromkeys(dot.name for dot in dots)
            plots.append(
                scatter(
                    dots,
                    (f"{table.columns[x].label} ({table.columns[x].rule}), %", f"{label}, %"),
                    title=f"{label[0].upper()}{label[1:]}, {table.title}",
                    about=f"{label} against compositionality in {table.title}",
                    front=True,
                    references=grey,
                )
            )
        found.append(PublishedPoints(table.title, table.paper, tuple(plots), tuple(shown)))
    return tuple(found)


def _row_name(row: PublishedRow, table: PublishedTable) -> str:
    """Method first: "FSC-CLIP (COCO, LoRA)"."""
    labels = dict(zip(table.row_labels, row.labels))
    method = labels.pop("method", "")
    more = [name if label == "yes" else label for name, label in labels.items() if label]
    return f"{method} ({', '.join(more)})" if more else method
