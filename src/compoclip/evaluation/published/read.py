"""The published tables that come with the package.

`tables/*.json` are tables to compare with; their README describes the format. `papers/*.yaml` hold
the tables and figures of one paper each, with what `reproduce` runs for every row; their README
describes what they add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from compoclip.config import package_yaml
from compoclip.errors import UsageError, closest
from compoclip.files import read_json
from compoclip.typed import build

_TABLES = Path(__file__).parent / "tables"
_PAPERS = Path(__file__).parent / "papers"
_REMEDY = "install compoclip again"


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
class Arm:
    """An arm of an experiment: what `reproduce` runs for a row of a table.

    recipe: the method to train with; "" for the model that training starts from. settings: options
    of train beside the recipe's defaults. data: the training data, a name of `protocols.yaml`.
    block_data: block of the table -> its training data. scene_data: which of the drawn captions
    stand for them with --scale world. model: what training starts from. wise_ft: share of the
    tuned weights in a mix with those of `model`. scope: the part of the model that is mixed.
    checkpoint: file with the authors' weights, of a row that is not trained again.
    """

    recipe: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    block_data: Mapping[str, str] = field(default_factory=dict)
    scene_data: str = "scenes"
    model: str = ""
    wise_ft: float = 1.0
    scope: Literal["all", "image"] = "all"
    checkpoint: str = ""


@dataclass(frozen=True)
class PublishedRow:
    """Published numbers of a method in percent, one a column (None: not printed).

    deviations: published standard deviations over seeds, one a column, where the paper has them.
    marks: column id -> remark on a cell. note: remark on the row. arm: what gives the row.
    """

    labels: tuple[str, ...]
    values: tuple[float | None, ...]
    deviations: tuple[float | None, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    arm: Arm | None = None

    @property
    def name(self) -> str:
        """Return the labels in one line."""
        return " ".join(label for label in self.labels if label)


@dataclass(frozen=True)
class MtebTask:
    """A task of mteb. scores: its name of a score -> the column with it; main: the main one."""

    name: str
    main: str
    scores: Mapping[str, str]


@dataclass(frozen=True)
class PublishedTable:
    """A table or figure of a paper.

    blocks: id -> label of column groups with different models of one method, for example one per
    fine-tuning set. models: description of the published rows. tasks: of mteb, which has the same
    numbers. The other fields are of a table that `reproduce` runs, see the README of `papers/`.
    place: "table 2" or "figure 4". measure: the benchmarks to measure on. reference: labels of the
    row that the others are compared with. seeds: of every arm. commands: what to call with the
    models of the arms afterwards. needs: what has to be got by hand. borrowed: id of the table that
    has the columns, which this one shows again.
    """

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
    place: str = ""
    measure: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    commands: tuple[str, ...] = ()
    needs: str = ""
    borrowed: str = ""

    @property
    def benchmarks(self) -> set[str]:
        """Return the names of the benchmarks that fill its columns."""
        sources = (source for column in self.columns for source, _ in column.terms)
        return {name for source in sources for name in (source.benchmark, source.instead)}


@dataclass(frozen=True)
class Paper:
    """The tables and figures of a paper, in its order. title: what it is called in short."""

    name: str
    title: str
    tables: tuple[PublishedTable, ...]

    def table(self, place: str) -> PublishedTable:
        """Return the table of a place, such as "table 2"; raise UsageError for an unknown one."""
        for table in self.tables:
            if table.place == place:
                return table
        hint = closest(place, [table.place for table in self.tables])
        raise UsageError(f"{self.name}: no {place}; {hint}")


@cache
def paper_names() -> tuple[str, ...]:
    """Return the names of the papers whose tables `reproduce` runs."""
    return tuple(sorted(path.stem for path in _PAPERS.glob("*.yaml")))


@cache
def paper(name: str) -> Paper:
    """Read a paper by its name; raise UsageError for an unknown one."""
    if name not in paper_names():
        raise UsageError(f"no paper '{name}'; {closest(name, paper_names())}")
    path = _PAPERS / f"{name}.yaml"
    data = package_yaml(path)
    shared = {"paper": data["paper"], "models": data["models"]}
    usual = data["arm"]
    tables: dict[str, PublishedTable] = {}
    for facts in map(dict, data["tables"]):
        of_table = facts.pop("arm", {})
        rows = [_with_arm(row, usual, of_table) for row in facts["rows"]]
        whole = {"row_labels": ["method"], **shared, **facts, "rows": rows}
        if isinstance(whole["columns"], str):  # the columns of an earlier table, all or some
            whole["borrowed"] = whole["columns"]
            columns = tables[whole["columns"]].columns
            only = whole.pop("only", [column.id for column in columns])
            whole["columns"] = tuple(column for column in columns if column.id in only)
        table = _table(whole.pop("id"), whole, path)
        tables[table.id] = table
    return Paper(name, data["title"], tuple(tables.values()))


def _with_arm(row: Mapping[str, Any], *usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose arm has what the paper and the table say of all arms."""
    if "arm" not in row:
        return dict(row)
    arm: dict[str, Any] = {}
    for facts in (*usual, row["arm"]):
        settings = {**arm.get("settings", {}), **facts.get("settings", {})}
        arm = {**arm, **facts, "settings": settings}
    return {**row, "arm": arm}


@cache
def published_tables() -> Mapping[str, PublishedTable]:
    """Read the published tables that come with the package; sorted, by id."""
    tables = [table for name in paper_names() for table in paper(name).tables]
    for path in _TABLES.glob("*.json"):
        tables.append(_table(path.stem, read_json(path, damaged=_REMEDY), path))
    return {table.id: table for table in sorted(tables, key=lambda table: table.id)}


def comparison_tables() -> tuple[PublishedTable, ...]:
    """Return the tables beside which results stand in a report: those with columns of their own."""
    return tuple(table for table in published_tables().values() if not table.borrowed)


def published_table(name: str) -> PublishedTable:
    """Return a published table by its id; raise UsageError for an unknown one."""
    tables = published_tables()
    if name not in tables:
        raise UsageError(f"no published table '{name}'; {closest(name, tables)}")
    return tables[name]


def _table(name: str, data: Mapping[str, Any], path: Path) -> PublishedTable:
    columns: dict[str, Column] = {}
    for facts in data["columns"]:
        column = facts if isinstance(facts, Column) else _column(facts, columns)
        columns[column.id] = column
    blocks = {block["id"]: block["label"] for block in data.get("blocks", ())}
    fields = {**data, "id": name, "blocks": blocks, "columns": []}
    table: PublishedTable = build(PublishedTable, fields, str(path), _REMEDY)
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
