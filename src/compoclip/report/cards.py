"""One example on a card: photos, texts with what differs marked, and every model's scores."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from compoclip.benchmarks.case import SKILLS, Form
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.forms.form import Record, ShownItem
from compoclip.evaluation.groups import ScorePart
from compoclip.evaluation.items import main_values, used_outcomes
from compoclip.evaluation.results import load_items
from compoclip.report.looks import Album, Look, Looker, Picture, Piece, changed_runs, word_diff
from compoclip.report.study import Study
from compoclip.report.wording import cosine


@dataclass(frozen=True)
class Text:
    """A text on a card. true: whether it fits the photo; None where that is not the question."""

    label: str
    pieces: tuple[Piece, ...]
    true: bool | None


@dataclass(frozen=True)
class Photo:
    """A photo on a card with what it is called and shows."""

    label: str
    alt: str
    picture: Picture


@dataclass(frozen=True)
class CardLine:
    """One model's scores, under the card's columns."""

    model: str
    scores: tuple[str, ...]
    right: bool


@dataclass(frozen=True)
class Card:
    """One item. won, lost: models that alone, against the base, are right or wrong. about: why it
    is shown, where it is not for that. looks: where models look for the words that differ."""

    benchmark: str
    subtask: str
    item: str
    photos: tuple[Photo, ...]
    texts: tuple[Text, ...]
    columns: tuple[str, ...]
    lines: tuple[CardLine, ...]
    won: tuple[str, ...]
    lost: tuple[str, ...]
    about: str = ""
    looks: tuple[Look, ...] = ()


@dataclass(frozen=True)
class Desk:
    """The photos and maps of the page, each embedded within a budget."""

    album: Album = field(default_factory=Album)
    looker: Looker = field(default_factory=Looker)


def card(
    part: ScorePart,
    records: Mapping[str, Record],
    right: Mapping[str, bool],
    base: str,
    desk: Desk,
    reason: str = "",
) -> Card:
    """records: model -> its row of the per-item table; right: model -> whether it is right.
    reason: why it is shown, where it is not for models that differ."""
    row = records[base]
    wrong = next((record for model, record in records.items() if not right[model]), row)
    content = FORMS[row["form"]].shown(row, wrong)
    texts = _marked(content.texts)
    about = next((text for _, text, true in content.texts if true is not False), part.name)
    return Card(
        benchmark=part.benchmark,
        subtask=part.name,
        item=row["item"],
        photos=tuple(
            Photo(label, f"{label} of the example “{about}”", desk.album.add(key))
            for label, key in content.images
        ),
        texts=texts,
        columns=tuple(heading for heading, _ in content.columns),
        lines=tuple(
            CardLine(m, tuple(_score(row, place) for _, place in content.columns), right[m])
            for m, row in records.items()
        ),
        won=tuple(m for m in records if right[m] and not right[base]),
        lost=tuple(m for m in records if right[base] and not right[m]),
        about=reason,
        looks=_looks(content, texts, desk),
    )


def _looks(content: ShownItem, texts: Sequence[Text], desk: Desk) -> tuple[Look, ...]:
    """Maps of what differs in the first text that has it, true ones first; of one photo alone."""
    if not desk.looker.models or len(content.images) != 1:
        return ()
    ordered = sorted(texts, key=lambda text: text.true is False)
    chosen = next((t for t in ordered if changed_runs(t.pieces)), None)
    if chosen is None:
        return ()
    return desk.looker.looks(desk.album.photo(content.images[0][1]), chosen.pieces)


def _score(record: Record, place: int) -> str:
    scores = record["scores"]
    return cosine(scores[place]) if place < len(scores) else "–"


def _marked(texts: Sequence[tuple[str, str, bool | None]]) -> tuple[Text, ...]:
    """Texts with the words marked that differ from the first true (or only other) one."""
    plain = tuple(Text(label, (Piece(text, False),), true) for label, text, true in texts)
    if len(texts) < 2:
        return plain
    last = texts[-1][1]
    first, foil = word_diff(texts[0][1], last)
    marked = [first, *(word_diff(text, last)[0] for _, text, _ in texts[1:-1]), foil]
    return tuple(Text(label, pieces, true) for (label, _, true), pieces in zip(texts, marked))


# --- Items that a model wins or loses against the base, drawn by a hash of the item, not by
# hand. ---

_MOST = 8  # cards a skill


@dataclass(frozen=True)
class WinTally:
    """Numbers of items only the model gets right, and only the base, of n common ones."""

    model: str
    won: int
    lost: int
    n: int


@dataclass(frozen=True)
class SkillExamples:
    """Cards of one skill, with the tally of every model against the base."""

    skill: str
    about: str
    tallies: tuple[WinTally, ...]
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Rows:
    """Where each common item of a part lies in every model's table, and who gets it right."""

    part: ScorePart
    items: tuple[str, ...]
    rows: Mapping[str, np.ndarray]
    right: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CardItems:
    """tables: common benchmark -> model -> its items. parts: benchmark -> sub-task -> the common
    ones."""

    tables: Mapping[str, Mapping[str, pa.Table]]
    parts: Mapping[str, Mapping[str, Rows]]


def read_items(study: Study) -> CardItems:
    """The items of all common benchmarks. Raises CompoclipError for tables that do not serve."""
    tables = {b: {m: load_items(study.results[m][b]) for m in study.models} for b in study.common}
    return CardItems(tables, {name: _rows(each, name) for name, each in tables.items()})


def examples(study: Study, items: CardItems, desk: Desk) -> tuple[SkillExamples, ...]:
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
    rights = {m: main_values(used_outcomes(t), t.num_rows) > 0.5 for m, t in tables.items()}
    found = {}
    for subtask, items in common.items():
        rows = {m: np.array([place[subtask, i] for i in items]) for m, place in places.items()}
        right = {m: rights[m][rows[m]] for m in tables}
        found[subtask] = Rows(ScorePart(benchmark, subtask), tuple(items), rows, right)
    return found


def _tally(study: Study, model: str, rows: Sequence[Rows]) -> WinTally:
    won = lost = n = 0
    for each in rows:
        one, two = each.right[study.base], each.right[model]
        won += int((two & ~one).sum())
        lost += int((one & ~two).sum())
        n += len(each.items)
    return WinTally(model, won, lost, n)


def _cards(
    study: Study,
    rows: Sequence[Rows],
    items: CardItems,
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


def records_of(study: Study, items: CardItems, rows: Rows, k: int) -> dict[str, Record]:
    """Model -> its row of the per-item table, of the k-th common item."""
    return {
        m: items.tables[rows.part.benchmark][m].slice(int(rows.rows[m][k]), 1).to_pylist()[0]
        for m in study.models
    }


def hash_of(rows: Rows, k: int) -> bytes:
    """A hash of an item that puts items in an order that nobody chose."""
    text = f"{rows.part.benchmark}/{rows.part.name}/{rows.items[k]}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


# --- The clearest and the worst item of every benchmark, for all models together. ---

_BEST, _WORST = "the clearest of what all get right", "the farthest off of what all get wrong"


def extremes(study: Study, items: CardItems, desk: Desk) -> dict[str, tuple[Card, ...]]:
    """Benchmark -> the item that all models get right by the largest mean margin, and the one that
    all get wrong by the largest; those there are, of photos that no other card shows if possible.

    Margins are in cosines: of the right answer over the best wrong one (`ItemForm.margin`).
    """
    return {name: _of(study, items, name, desk) for name in study.common}


def _of(study: Study, items: CardItems, benchmark: str, desk: Desk) -> tuple[Card, ...]:
    parts = items.parts[benchmark].values()
    margins = {
        model: np.array(
            [FORMS[form].margin(scores, truth) for form, scores, truth in _columns(table)]
        )
        for model, table in items.tables[benchmark].items()
    }
    found = []
    for about, right in ((_BEST, True), (_WORST, False)):
        able: list[tuple[float, bytes, Rows, int]] = []
        for each in parts:
            all_same = np.all([each.right[m] == right for m in study.models], axis=0)
            mean = np.mean([margins[m][each.rows[m]] for m in study.models], axis=0)
            for k in np.flatnonzero(all_same & np.isfinite(mean)).tolist():
                value = -float(mean[k]) if right else float(mean[k])
                able.append((value, hash_of(each, k), each, k))
        able.sort(key=lambda entry: entry[:2])
        if able:
            fresh = (e for e in able[:50] if not _seen(items, study, e, desk))
            _, _, each, k = next(fresh, able[0])
            records = records_of(study, items, each, k)
            rights = dict.fromkeys(study.models, right)
            found.append(card(each.part, records, rights, study.base, desk, about))
    return tuple(found)


def _seen(
    items: CardItems, study: Study, entry: tuple[float, bytes, Rows, int], desk: Desk
) -> bool:
    _, _, each, k = entry
    row = int(each.rows[study.base][k])
    images = items.tables[each.part.benchmark][study.base]["images"][row].as_py()
    return bool(desk.album.seen.keys() & set(images))


def _columns(table: Any) -> zip[tuple[Form, list[float], int]]:
    return zip(*(table[name].to_pylist() for name in ("form", "scores", "truth")))
