"""One example on a card: photos, texts with what differs marked, and every model's scores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from compoclip.benchmarks.case import Form
from compoclip.evaluation.aggregate import ruled_values
from compoclip.evaluation.comparison import Difference, ScorePart
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.items import MAIN
from compoclip.evaluation.results import load_items, stored_items
from compoclip.report.looks import Album, Look, Picture, Piece, changed_runs, word_diff
from compoclip.report.study import Study
from compoclip.report.wording import MINUS

Record = Mapping[str, Any]
"""A row of a table of items (`items.COLUMNS`)."""
Text = tuple[str, tuple[Piece, ...], bool | None]
"""A text on a card: label, runs, whether it fits the photo (None where that is not asked)."""


@dataclass(frozen=True)
class Card:
    """One item.

    photos: (label, alternative text, picture). lines: (model, scores under the columns, right).
    won, lost: models that alone, against the base, are right or wrong. looks: words that differ,
    and where models look for them. change: of the sub-task that the item is from, in
    `before_after`.
    """

    part: ScorePart
    item: str
    photos: tuple[tuple[str, str, Picture], ...]
    texts: tuple[Text, ...]
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[str, ...], bool], ...]
    won: tuple[str, ...]
    lost: tuple[str, ...]
    looks: tuple[Look, ...] = ()
    change: Difference | None = None


def card(
    part: ScorePart,
    records: Mapping[str, Record],
    right: Mapping[str, bool],
    base: str,
    album: Album,
    maps: bool = True,
) -> Card:
    """Make a card. records: model -> its row of the per-item table; right: model -> whether it is
    right; maps: show where the models of the album look for the words that differ."""

    def cosine(scores: Sequence[float], place: int) -> str:
        return f"{scores[place]:.3f}".replace("-", MINUS) if place < len(scores) else "–"

    row = records[base]
    failing = next((record for model, record in records.items() if not right[model]), row)
    images, plain, columns = _contents(row, failing)
    texts = _marked(plain)
    about = next((text for _, text, true in plain if true is not False), part.name)
    looks: tuple[Look, ...] = ()
    if maps and album.models and len(images) == 1:
        # Maps of what differs in the first text that has it, true ones first; of one photo alone.
        ordered = sorted(texts, key=lambda text: text[2] is False)
        differing = next((pieces for _, pieces, _ in ordered if changed_runs(pieces)), None)
        if differing is not None:
            looks = album.looks(images[0][1], differing)
    return Card(
        part=part,
        item=row["item"],
        photos=tuple(
            (label, f"{label} of the example “{about}”", album.add(key)) for label, key in images
        ),
        texts=texts,
        columns=tuple(heading for heading, _ in columns),
        lines=tuple(
            (model, tuple(cosine(record["scores"], place) for _, place in columns), right[model])
            for model, record in records.items()
        ),
        won=tuple(m for m in records if right[m] and not right[base]),
        lost=tuple(m for m in records if right[base] and not right[m]),
        looks=looks,
    )


_Labelled = tuple[str, str, bool | None]
"""A text before its words are marked: label, text, whether it fits the photo."""


def _contents(
    row: Record, failing: Record
) -> tuple[Sequence[tuple[str, str]], Sequence[_Labelled], Sequence[tuple[str, int]]]:
    """Return images (label, key), texts (label, text, truth) and columns (heading, score's index).

    Of forms without columns of their own the right candidate and the rival that beat it in
    `failing`, the item in the table of a model that gets it wrong, if any.
    """
    form, images, texts, truth = FORMS[row["form"]], row["images"], row["texts"], row["truth"]
    if form.comparisons:
        several = len(images) > 1
        photos = [(f"Photo {k}" if several else "Photo", i) for k, i in enumerate(images, 1)]
        headings = [(name, k) for k, name in enumerate(form.headings)]
        return photos, list(zip(form.called, texts, form.true)), headings
    if len(images) == len(texts) == 1:
        label, true = form.alone[truth]
        return [("Photo", failing["images"][0])], [(label, texts[0], true)], [("cosine", 0)]
    others = (k for k in range(len(failing["scores"])) if k != failing["truth"])
    rival = max(others, key=failing["scores"].__getitem__)
    columns = [(form.headings[0], truth), (form.headings[1], rival)]
    if len(images) > 1:
        labelled = [("Right photo", images[truth]), ("Wrong photo", failing["images"][rival])]
        return labelled, [("Text", texts[0], None)], columns
    named = [(form.called[0], texts[truth], True), (form.called[1], failing["texts"][rival], False)]
    return [("Photo", images[0])], named, columns


def _marked(texts: Sequence[_Labelled]) -> tuple[Text, ...]:
    """Texts with the words marked that differ from the first true (or only other) one."""
    if len(texts) < 2:
        return tuple((label, (Piece(text, False),), true) for label, text, true in texts)
    last = texts[-1][1]
    first, foil = word_diff(texts[0][1], last)
    marked = [first, *(word_diff(text, last)[0] for _, text, _ in texts[1:-1]), foil]
    return tuple((label, pieces, true) for (label, _, true), pieces in zip(texts, marked))


# --- Items that a model wins or loses against the base, drawn by a hash of the item, not by
# hand. ---

_MOST = 8  # cards a skill


@dataclass(frozen=True)
class CommonItems:
    """The ids of the items of a part that all models have. tables: model -> the benchmark's table
    of items. rows: model -> row of each item in it. right: model -> whether it gets each right."""

    part: ScorePart
    items: tuple[str, ...]
    tables: Mapping[str, pa.Table]
    rows: Mapping[str, np.ndarray]
    right: Mapping[str, np.ndarray]

    def records(self, k: int) -> dict[str, Record]:
        """Model -> its row of the per-item table, of the k-th item."""
        return {
            model: table.slice(int(self.rows[model][k]), 1).to_pylist()[0]
            for model, table in self.tables.items()
        }

    def images(self, k: int) -> set[str]:
        """Keys of the photos of the k-th item."""
        model, table = next(iter(self.tables.items()))
        return set(table["images"][int(self.rows[model][k])].as_py())


def _by_hash(parts: Sequence[CommonItems]) -> list[tuple[CommonItems, int]]:
    """Return every item of some parts, in the order of their hashes, which nobody chose."""
    every = {
        f"{common.part.benchmark}/{common.part.name}/{item}": (common, k)
        for common in parts
        for k, item in enumerate(common.items)
    }
    hashed = sorted(every, key=lambda text: hashlib.blake2b(text.encode(), digest_size=8).digest())
    return [every[text] for text in hashed]


AllItems = Mapping[str, Mapping[str, CommonItems]]
"""Benchmark -> sub-task -> its common items."""


def read_items(study: Study) -> dict[str, dict[str, CommonItems]]:
    """Read the items of all common benchmarks.

    Args:
        study: the results.

    Raises:
        CompoclipError: a table of items is absent, damaged, or of other results.
    """
    by_benchmark: dict[str, dict[str, CommonItems]] = {}
    for benchmark in study.common:
        tables = {m: load_items(study.results[m][benchmark]) for m in study.models}
        stored = {m: stored_items(study.results[m][benchmark]) for m in study.models}
        places: dict[str, dict[tuple[str, str], int]] = {}
        for model, columns in stored.items():
            keys = zip(columns.subtasks, columns.ids)
            places[model] = {key: row for row, key in enumerate(keys)}
        first, *rest = places.values()
        common: dict[str, list[str]] = {}
        for subtask, item in first:
            if all((subtask, item) in other for other in rest):
                common.setdefault(subtask, []).append(item)
        rights = {m: ruled_values(columns)[MAIN] > 0.5 for m, columns in stored.items()}
        by_benchmark[benchmark] = {}
        for subtask, items in common.items():
            rows = {m: np.array([place[subtask, i] for i in items]) for m, place in places.items()}
            right = {m: rights[m][rows[m]] for m in tables}
            part = ScorePart(benchmark, subtask)
            by_benchmark[benchmark][subtask] = CommonItems(part, tuple(items), tables, rows, right)
    return by_benchmark


Tally = tuple[str, int, int, int]
"""A model, how many items it alone gets right against the base, how many the base alone, of n."""


def examples(
    study: Study, items: AllItems, album: Album
) -> list[tuple[str, list[Tally], list[Card]]]:
    """Return (skill, tallies, cards) for every skill.

    The cards are items that a model wins from the base and items that it loses, the first by hash:
    up to two of each for a single model, one of each per model for several.
    """
    if not study.others:
        return []
    limit = 2 if len(study.others) == 1 else 1
    by_skill = []
    for skill, parts in study.skills.groups.items():
        rows = [items[part.benchmark][part.name] for part in parts]
        tallies = []
        for model in study.others:
            ways = [(common.right[study.base], common.right[model]) for common in rows]
            won = sum(int((other & ~base).sum()) for base, other in ways)
            lost = sum(int((base & ~other).sum()) for base, other in ways)
            tallies.append((model, won, lost, sum(len(common.items) for common in rows)))
        order = _by_hash(rows)
        chosen: dict[tuple[int, int], tuple[CommonItems, int]] = {}
        used_photos: set[str] = set()
        for model, won_by_it in product(study.others, (True, False)):
            taken = 0
            for common, k in order:
                if taken == limit or len(chosen) >= _MOST:
                    break
                right = common.right[model][k]
                if right != won_by_it or common.right[study.base][k] == won_by_it:
                    continue
                if (id(common), k) not in chosen:
                    images = common.images(k)
                    if images & (used_photos | album.pictures.keys()):
                        continue  # another photo tells more
                    used_photos |= images
                    chosen[id(common), k] = (common, k)
                taken += 1
        cards = []
        for common, k in chosen.values():
            rights = {m: bool(common.right[m][k]) for m in study.models}
            cards.append(card(common.part, common.records(k), rights, study.base, album))
        if cards:
            by_skill.append((skill, tallies, cards))
    return by_skill


SCENES = 12


def scenes(by_skill: list[tuple[str, list[Tally], list[Card]]]) -> list[tuple[str, Card]]:
    """Take the cards for the top of a page out of `examples`, with their skills.

    In turn one per skill, an item won, then one lost, as far as there are any.
    """
    taken: list[tuple[str, Card]] = []
    while len(taken) < SCENES and any(cards for *_, cards in by_skill):
        for skill, _, cards in by_skill:
            if cards and len(taken) < SCENES:
                matching = [card for card in cards if bool(card.won) != len(taken) % 2]
                taken.append((skill, (matching or cards)[0]))
                cards.remove(taken[-1][1])
    return taken


def before_after(
    study: Study,
    items: AllItems,
    album: Album,
    skills: Sequence[str] = (),
    count: int = 3,
    lost: bool = False,
    subtasks: Sequence[str] = (),
    all_models: bool = False,
) -> list[Card]:
    """Return items with one photo that the base gets wrong and the most improved model right.

    They are of sub-tasks that need the image and in which the model is significantly better, so
    that a picture shows what was gained and not what chance turned over; and of the half of them
    with the larger margin. One per skill, the first by hash, then a second per skill. Cards have
    the change of their sub-task.

    Args:
        study: of any number of models; of one there are no items.
        items: as `read_items` gives them.
        album: keeps the photos.
        skills: In this order; by default all, colours first, then the largest gain.
        count: how many at most.
        lost: Return items that the base gets right and the model wrong, of sub-tasks in which the
            model is significantly worse.
        subtasks: Names of the sub-tasks to take items from; by default all.
        all_models: Show what all models make of the items, not the base and that model alone.
    """
    if not study.others:
        return []
    tuned = most_improved(study)
    models = study.models if all_models else (study.base, tuned)
    verdict = "lower" if lost else "higher"
    apart = {
        (column.part.benchmark, column.part.name)
        for column in study.grounded.models[0].columns
        if column.apart and not lost
    }
    by_skill: dict[str, list[Difference]] = {}
    every = study.comparisons[tuned].subtasks
    # A difference in colour is seen at once.
    for change in sorted(every, key=lambda d: ("colo" not in d.name, -abs(d.difference))):
        is_named = not subtasks or change.name in subtasks
        if change.verdict == verdict and is_named and (change.benchmark, change.name) not in apart:
            named = study.results[study.base][change.benchmark].skills
            skill = named.get(change.name, f"{change.benchmark}: {change.name}")
            by_skill.setdefault(skill, []).append(change)
    cards: list[Card] = []
    used_photos: set[str] = set()
    rounds = [skill for _ in range(count) for skill in skills or by_skill]
    for skill in rounds:
        changes = {(d.benchmark, d.name): d for d in by_skill.get(skill, ())}
        parts = [items[benchmark][name] for benchmark, name in changes]
        winner, loser = (study.base, tuned) if lost else (tuned, study.base)
        for part, k in _clear(parts, winner, loser) if len(cards) < count else ():
            images = part.images(k)
            if images & used_photos:
                continue
            records = {m: row for m, row in part.records(k).items() if m in models}
            right = {model: bool(part.right[model][k]) for model in records}
            example = card(part.part, records, right, study.base, album, maps=False)
            change = changes[part.part.benchmark, part.part.name]
            cards.append(replace(example, change=change))
            used_photos |= images
            break
    return cards


def most_improved(study: Study) -> str:
    """Return the model with the largest change of the mean grounded gain, or of all skills."""
    gains = study.grounded.differences
    changes = study.skills.differences

    def improvement(model: str) -> tuple[float, float]:
        gain = gains[model].difference if model in gains else 0.0
        return gain, sum(d.difference for d in changes[model].values())

    return max(study.others, key=improvement)


def _clear(
    parts: Sequence[CommonItems], winner: str, loser: str
) -> Iterator[tuple[CommonItems, int]]:
    """Yield choices between texts on which one model alone is right, in the order of their hashes:
    the half that it decides by the larger margin."""
    margins: dict[tuple[str, int], float] = {}
    for common in parts:
        table, rows = common.tables[winner], common.rows[winner]
        for k in np.flatnonzero(common.right[winner] & ~common.right[loser]).tolist():
            row = table.slice(int(rows[k]), 1).to_pylist()[0]
            if row["form"] == Form.CHOOSE_TEXT:
                truth = row["scores"][row["truth"]]
                rivals = [score for n, score in enumerate(row["scores"]) if n != row["truth"]]
                margins[str(common.part), k] = truth - max(rivals)
    median = float(np.median([*margins.values()])) if margins else 0.0
    for common, k in _by_hash(parts):
        if margins.get((str(common.part), k), -np.inf) >= median:
            yield common, k
