"""The clearest and the worst item of every benchmark, for all models together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compoclip.benchmarks.case import Form
from compoclip.report.cards import Card, Desk, card
from compoclip.report.examples import Items, Rows, hash_of, records_of
from compoclip.report.study import Study

_BEST, _WORST = "the clearest of what all get right", "the farthest off of what all get wrong"


def extremes(study: Study, items: Items, desk: Desk) -> dict[str, tuple[Card, ...]]:
    """Benchmark -> the item that all models get right by the largest mean margin, and the one that
    all get wrong by the largest; those there are, of photos that no other card shows if possible.

    Margins are in cosines: of the right answer over the best wrong one (`margin`).
    """
    return {name: _of(study, items, name, desk) for name in study.common}


def _of(study: Study, items: Items, benchmark: str, desk: Desk) -> tuple[Card, ...]:
    parts = items.parts[benchmark].values()
    margins = {
        model: np.array([margin(*row) for row in _columns(table)])
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


def _seen(items: Items, study: Study, entry: tuple[float, bytes, Rows, int], desk: Desk) -> bool:
    _, _, each, k = entry
    row = int(each.rows[study.base][k])
    images = items.tables[each.part.benchmark][study.base]["images"][row].as_py()
    return bool(desk.album.seen.keys() & set(images))


def _columns(table: Any) -> zip[tuple[str, list[float], int]]:
    return zip(*(table[name].to_pylist() for name in ("form", "scores", "truth")))


def margin(form: str, scores: Sequence[float], truth: int) -> float:
    """By how much the right answer is above the best wrong one; below 0 when it is not. NaN where
    an item has no such pair. Layout of the scores: as `evaluation` writes them by form."""
    if len(scores) < 2:
        return float("nan")
    match form:
        case Form.CHOOSE_TEXT | Form.CHOOSE_IMAGE:
            rivals = [score for k, score in enumerate(scores) if k != truth]
            return scores[truth] - max(rivals)
        case Form.TRIPLE:
            return min(scores[0], scores[1]) - scores[2]
        case Form.TEXT_ONLY:
            return scores[0] - max(scores[1:])
        case Form.GROUP:
            a, b, c, d = scores[:4]  # photo 1 with texts 1 and 2, photo 2 with both
            return min(a, d) - max(b, c)
        case Form.BINARY:
            return float("nan")
    return scores[0] - scores[1]  # retrieval and classification: right one, best rival
