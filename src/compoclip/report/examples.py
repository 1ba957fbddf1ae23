"""Items that a model wins or loses against the base, drawn by a hash of the item, not by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from compoclip.benchmarks.skills import SKILLS
from compoclip.evaluation.groups import Part
from compoclip.evaluation.io import load_items
from compoclip.report.cards import Card, Desk, Record, card
from compoclip.report.study import Study

_MOST = 8  # cards a skill


@dataclass(frozen=True)
class Tally:
    """How many items a model alone gets right, and the base alone, of n common ones."""

    model: str
    won: int
    lost: int
    n: int


@dataclass(frozen=True)
class SkillExamples:
    """Cards of one skill, with the tally of every model against the base."""

    skill: str
    about: str
    tallies: tuple[Tally, ...]
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Rows:
    """Where each common item of a part lies in every model's table, and who gets it right."""

    part: Part
    items: tuple[str, ...]
    rows: Mapping[str, np.ndarray]
    right: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Items:
    """tables: common benchmark -> model -> its items. parts: benchmark -> sub-task -> the common
    ones."""

    tables: Mapping[str, Mapping[str, pa.Table]]
    parts: Mapping[str, Mapping[str, Rows]]


def read_items(study: Study) -> Items:
    """The items of all common benchmarks. Raises CompoclipError for tables that do not serve."""
    tables = {b: {m: load_items(study.results[m][b]) for m in study.models} for b in study.common}
    return Items(tables, {name: _rows(each, name) for name, each in tables.items()})


def examples(study: Study, items: Items, desk: Desk) -> tuple[SkillExamples, ...]:
    """Up to two won and two lost items a skill for one model, one each where there are several."""
    if not study.others:
        return ()
    found = []
    for skill, parts in study.skills.groups.items():
        rows = [items.parts[part.benchmark][part.name] for part in parts]
        tallies = tuple(_tally(study, model, rows) for model in study.others)
        cards = _cards(study, rows, items, desk)
        if cards:
            found.append(SkillExamples(skill, SKILLS.get(skill, ""), tallies, cards))
    return tuple(found)


def _rows(tables: Mapping[str, pa.Table], benchmark: str) -> dict[str, Rows]:
    """The common items of a benchmark by sub-task."""
    places: dict[str, dict[tuple[str, str], int]] = {}
    for model, table in tables.items():
        keys = zip(table["subtask"].to_pylist(), table["item"].to_pylist())
        places[model] = {key: row for row, key in enumerate(keys)}
    first, *rest = places.values()
    common: dict[str, list[str]] = {}
    for subtask, item in first:
        if all((subtask, item) in other for other in rest):
            common.setdefault(subtask, []).append(item)
    rights = {model: _right(table) for model, table in tables.items()}
    found = {}
    for subtask, items in common.items():
        rows = {m: np.array([place[subtask, i] for i in items]) for m, place in places.items()}
        right = {m: rights[m][rows[m]] for m in tables}
        found[subtask] = Rows(Part(benchmark, subtask), tuple(items), rows, right)
    return found


def _right(table: pa.Table) -> np.ndarray:
    """Whether each item is right by its main metric."""
    main = np.full(table.num_rows, np.nan)
    for column in table.column_names:
        if column.startswith("used."):
            values = np.array(table[column].to_numpy(zero_copy_only=False), dtype=float)
            main = np.where(np.isnan(main), values, main)
    right: np.ndarray = main > 0.5
    return right


def _tally(study: Study, model: str, rows: Sequence[Rows]) -> Tally:
    won = lost = n = 0
    for each in rows:
        one, two = each.right[study.base], each.right[model]
        won += int((two & ~one).sum())
        lost += int((one & ~two).sum())
        n += len(each.items)
    return Tally(model, won, lost, n)


def _cards(
    study: Study,
    rows: Sequence[Rows],
    items: Items,
    desk: Desk,
) -> tuple[Card, ...]:
    """For each model the first items, by hash, that it wins and that it loses."""
    order = sorted(
        ((each, k) for each in rows for k in range(len(each.items))), key=lambda p: hash_of(*p)
    )
    wanted = 2 if len(study.others) == 1 else 1
    chosen: dict[tuple[int, int], tuple[Rows, int]] = {}
    shown: set[str] = set()
    for model in study.others:
        for won in (True, False):
            kept = 0
            for each, k in order:
                if kept == wanted or len(chosen) >= _MOST:
                    break
                if each.right[model][k] != won or each.right[study.base][k] == won:
                    continue
                key = (id(each), k)
                if key not in chosen:
                    row = int(each.rows[study.base][k])
                    images = items.tables[each.part.benchmark][study.base]["images"][row].as_py()
                    if images and (shown | desk.album.seen.keys()) & set(images):
                        continue  # another photo tells more
                    shown |= set(images)
                    chosen[key] = (each, k)
                kept += 1
    cards = []
    for each, k in chosen.values():
        records = records_of(study, items, each, k)
        right = {m: bool(each.right[m][k]) for m in study.models}
        cards.append(card(each.part, records, right, study.base, desk))
    return tuple(cards)


def records_of(study: Study, items: Items, rows: Rows, k: int) -> dict[str, Record]:
    """Model -> its row of the per-item table, of the k-th common item."""
    return {
        m: items.tables[rows.part.benchmark][m].slice(int(rows.rows[m][k]), 1).to_pylist()[0]
        for m in study.models
    }


def hash_of(rows: Rows, k: int) -> bytes:
    """A hash of an item that puts items in an order that nobody chose."""
    text = f"{rows.part.benchmark}/{rows.part.name}/{rows.items[k]}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
