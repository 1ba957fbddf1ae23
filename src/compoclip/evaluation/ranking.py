"""Exact ranks of the right candidates in a shared gallery, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compoclip.evaluation.features import merge_equal
from compoclip.evaluation.outcomes import Indices, Outcomes, Scores, Values

SCORES_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class Ranks:
    """Where the best right candidate of each of q queries stands among m candidates.

    better: candidates that score more. equal: candidates with the same score, itself included;
    equal_right: how many of these are right. before: wrong ones of these that come first in index
    order. right: number of right candidates. best: index of the best right candidate (the first of
    equals); rival: index of the best wrong one (-1 when there is none). All (q,).
    """

    better: Indices
    equal: Indices
    equal_right: Indices
    before: Indices
    right: Indices
    best: Indices
    rival: Indices
    best_score: Scores
    rival_score: Scores
    gallery: int

    @property
    def rank(self) -> Indices:
        """1 + strictly better + equal ones before it in index order (BENCHMARKS 4)."""
        return 1 + self.better + self.before

    def within(self, k: int, first: bool = True) -> Outcomes:
        """Whether a right candidate is among the k best.

        used: by `rank` when `first`, else every wrong equal counts as before it (strict).
        fractional: equals in random order. chance: the whole gallery in random order.
        """
        strict = (1 + self.better + self.equal - self.equal_right <= k).astype(np.float64)
        everyone = np.full(len(self.better), self.gallery)
        return Outcomes(
            used=(self.rank <= k).astype(np.float64) if first else strict,
            strict=strict,
            fractional=_any_drawn(k - self.better, self.equal, self.equal_right),
            chance=_any_drawn(np.full(len(everyone), k), everyone, self.right),
        )


def rank(queries: Scores, gallery: Scores, right: Sequence[Sequence[int]]) -> Ranks:
    """Rank a gallery (m, D) for each query (q, D); `right[i]` are the right candidates of query i.

    Every query needs at least one right candidate. Works through blocks of queries of about
    SCORES_AT_ONCE scores, so memory does not grow with q * m. Bit-equal gallery rows get bit-equal
    scores.
    """
    distinct, place = merge_equal(gallery)
    merged = len(distinct) < len(gallery)
    m, q = len(gallery), len(queries)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
    step = max(1, SCORES_AT_ONCE // max(m, 1))
    for start in range(0, q, step):
        scores = queries[start : start + step] @ distinct.T
        if merged:
            scores = scores[:, place]
        for name, values in _rank_block(scores, right[start : start + step]).items():
            columns[name].append(values)
    joined = {name: np.concatenate(parts) for name, parts in columns.items() if parts}
    empty = np.empty(0, dtype=np.int64)
    return Ranks(gallery=m, **{name: joined.get(name, empty) for name in _COLUMNS})


_COLUMNS = (
    "better",
    "equal",
    "equal_right",
    "before",
    "right",
    "best",
    "rival",
    "best_score",
    "rival_score",
)


def _rank_block(scores: Scores, right: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """The columns of `Ranks` for one block of scores (b, m); overwrites `scores`."""
    counts = np.array([len(each) for each in right], dtype=np.int64)
    rows = np.repeat(np.arange(len(right)), counts)
    columns = np.concatenate([np.sort(np.asarray(each, dtype=np.int64)) for each in right])
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    own = scores[rows, columns]
    best_score = np.maximum.reduceat(own, starts)
    is_best = own == best_score[rows]
    best = np.minimum.reduceat(np.where(is_best, columns, scores.shape[1]), starts)
    equal_right = np.add.reduceat(is_best.astype(np.int64), starts)
    level = scores == best_score[:, None]
    equal = np.count_nonzero(level, axis=1)
    before = np.zeros(len(right), dtype=np.int64)
    for row in np.flatnonzero(equal > equal_right):
        before[row] = np.count_nonzero(level[row, : best[row]])
    result = {
        "better": np.count_nonzero(scores > best_score[:, None], axis=1),
        "equal": equal,
        "equal_right": equal_right,
        "before": before,
        "right": counts,
        "best": best,
        "best_score": best_score,
    }
    scores[rows, columns] = -np.inf
    rival = scores.argmax(axis=1)
    result["rival_score"] = scores[np.arange(len(scores)), rival]
    result["rival"] = np.where(np.isneginf(result["rival_score"]), -1, rival)
    return result


def _any_drawn(draws: Indices, total: Indices, right: Indices) -> Values:
    """Probability that `draws` picks without return out of `total` hit one of `right`."""
    draws = np.clip(draws, 0, total)
    miss = np.ones(len(draws))
    for i in range(int(draws.max(initial=0))):
        left = np.maximum(total - i, 1)
        miss = np.where(i < draws, miss * np.maximum(total - right - i, 0) / left, miss)
    return 1.0 - miss
