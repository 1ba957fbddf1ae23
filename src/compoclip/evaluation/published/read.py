"""The published tables that come with the package: `tables/*.json`, described in its README."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from compoclip.errors import UsageError, closest
from compoclip.files import read_json
from compoclip.typed import build

_FOLDER = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class PublishedNumber:
    """One measured number that a column is made of.

    benchmark: its name in results, as its reader gives it. score: name of an aggregate, or of a
    sub-task when `metric` is given; "" for the headline. block: which model of a row it is taken
    from, in tables that have blocks. instead: benchmark that stands in where `benchmark` was not
    measured, marked as such.
    """

    benchmark: str
    score: str = ""
    metric: str = ""
    block: str = ""
    instead: str = ""


@dataclass(frozen=True)
class Column:
    """A column: the sum of measured numbers, each times its weight (a mean, or a difference).

    rule: how it is made, in words. derived: whether it is made of several numbers.
    """

    id: str
    label: str
    block: str
    terms: tuple[tuple[PublishedNumber, float], ...]
    rule: str

    @property
    def derived(self) -> bool:
        """True if more than one number goes in."""
        return len(self.terms) > 1

    @property
    def difference(self) -> bool:
        """True if it is a difference, for which chance and coverage mean nothing."""
        return any(weight < 0 for _, weight in self.terms)


@dataclass(frozen=True)
class PublishedRow:
    """Published numbers of a method in percent, one a column (None: not printed).

    marks: column id -> remark on a cell. note: remark on the row.
    """

    labels: tuple[str, ...]
    values: tuple[float | None, ...]
    marks: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class MtebTask:
    """A task of mteb. scores: its name of a score -> the column with it; main: the main one."""

    name: str
    main: str
    scores: Mapping[str, str]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper. blocks: id -> label of column groups with different models of one method,
    for example one per fine-tuning set. models: description of the published rows. tasks: of mteb,
    which has the same numbers."""

    id: str
    title: str
    paper: str
    models: str
    row_labels: tuple[str, ...]
    blocks: Mapping[str, str]
    columns: tuple[Column, ...]
    rows: tuple[PublishedRow, ...]
    table: str = ""
    notes: tuple[str, ...] = ()
    tasks: tuple[MtebTask, ...] = ()

    @property
    def benchmarks(self) -> set[str]:
        """Return the names of the benchmarks that fill its columns."""
        sources = (source for column in self.columns for source, _ in column.terms)
        return {name for source in sources for name in (source.benchmark, source.instead)}


@cache
def table_names() -> tuple[str, ...]:
    """Return the sorted ids of the published tables that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


@cache
def require_table(name: str) -> None:
    """Raise UsageError for a name of no published table."""
    if name not in table_names():
        raise UsageError(f"no published table '{name}'; {closest(name, table_names())}")


def published_table(name: str) -> PublishedTable:
    """Read a published table by its id; raise UsageError for an unknown one."""
    require_table(name)
    path, remedy = _FOLDER / f"{name}.json", "install compoclip again"
    data = read_json(path, damaged=remedy)
    columns: dict[str, Column] = {}
    for column in data["columns"]:
        columns[column["id"]] = _column(column, columns)
    blocks = {block["id"]: block["label"] for block in data.get("blocks", ())}
    facts = {**data, "id": name, "blocks": blocks, "columns": []}
    table: PublishedTable = build(PublishedTable, facts, str(path), remedy)
    return replace(table, columns=tuple(columns.values()))


def _column(data: Mapping[str, Any], earlier: Mapping[str, Column]) -> Column:
    """Read a column from its "mean" (of sources, earlier columns) or "difference" (of two)."""
    block = data.get("block", "")
    if "difference" in data:
        first, second = parts = data["difference"]
        weights = [1.0, -1.0]
        rule = f"{earlier[first].label} minus {earlier[second].label}"
    else:
        parts = data["mean"]
        weights = [1 / len(parts) for _ in parts]
        rule = "as measured" if len(parts) == 1 else f"plain mean of {len(parts)} numbers"
    terms: list[tuple[PublishedNumber, float]] = []
    for part, factor in zip(parts, weights):
        if isinstance(part, str):
            terms += [(source, weight * factor) for source, weight in earlier[part].terms]
        else:
            terms.append((PublishedNumber(**{"block": block, **part}), factor))
    return Column(data["id"], data["label"], block, tuple(terms), rule)
