"""Image-text retrieval both ways: R@1, R@5, R@10 from exact ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compoclip.benchmarks.case import Retrieval, TiePolicy, image_key, image_names, text_names
from compoclip.evaluation.clusters import linked
from compoclip.evaluation.items import (
    EncodedFeatures,
    Indices,
    Items,
    Outcomes,
    Scores,
    Values,
    merge_equal,
)

# --- Exact ranks of the right candidates in a shared gallery, in bounded memory. ---

SCORES_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class RetrievalRanks:
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
        """1 + strictly better + equal ones before it in index order."""
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


def rank(queries: Scores, gallery: Scores, right: Sequence[Sequence[int]]) -> RetrievalRanks:
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
    return RetrievalRanks(gallery=m, **{name: joined.get(name, empty) for name in _COLUMNS})


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
    """The columns of `RetrievalRanks` for one block of scores (b, m); overwrites `scores`."""
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


# --- Image-text retrieval both ways: R@1, R@5, R@10 from exact ranks. ---

CUTS = (1, 5, 10)


def score_retrieval(
    content: Retrieval, features: EncodedFeatures, ties: Mapping[str, TiePolicy] | None = None
) -> Items:
    """Rank all texts for each image ("i2t": hit if any matching text is among the k best) and all
    images for each text ("t2i").

    The items are the queries that have a match; candidates without one stay in the gallery as
    distractors. The default tie policy is index order ("first").
    """
    policies = ties or {}
    texts_of: dict[int, list[int]] = {}
    images_of: dict[int, list[int]] = {}
    for image, text in content.pairs:
        texts_of.setdefault(image, []).append(text)
        images_of.setdefault(text, []).append(image)
    images = features.images[features.image_index(content.images)]
    texts = features.texts[features.text_index(content.texts)]
    asked_images, asked_texts = sorted(texts_of), sorted(images_of)
    i2t = rank(images[asked_images], texts, [sorted(set(texts_of[i])) for i in asked_images])
    t2i = rank(texts[asked_texts], images, [sorted(set(images_of[t])) for t in asked_texts])

    keys = [image_key(ref) for ref in content.images]
    paths = [ref.photo for ref in content.images]
    names, caption = image_names(content.images), text_names(content)
    n = len(asked_images) + len(asked_texts)
    return Items(
        ids=[names[i] for i in asked_images] + [caption[t] for t in asked_texts],
        forms=["retrieval"] * n,
        subtasks=["i2t"] * len(asked_images) + ["t2i"] * len(asked_texts),
        labels=[{}] * n,
        truth=[0] * n,
        images=[(keys[i],) for i in asked_images] + _shown(t2i, keys),
        texts=_shown(i2t, content.texts) + [(content.texts[t],) for t in asked_texts],
        scores=_scores(i2t) + _scores(t2i),
        clusters=linked(
            [[paths[i]] for i in asked_images]
            + [[paths[i] for i in images_of[t]] for t in asked_texts]
        ),
        positive=np.concatenate([i2t.best_score, t2i.best_score]).astype(np.float64),
        outcomes={
            f"r{k}": _join(
                i2t.within(k, _first(policies, "i2t")), t2i.within(k, _first(policies, "t2i"))
            )
            for k in CUTS
        },
        extra={"rank": [int(r) for r in (*i2t.rank, *t2i.rank)]},
    )


def _first(policies: Mapping[str, TiePolicy], subtask: str) -> bool:
    policy = policies.get(subtask, policies.get("", TiePolicy.FIRST))
    return policy is TiePolicy.FIRST


def _shown(ranks: RetrievalRanks, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Names of the best right candidate and of its best rival."""
    return [
        (names[best],) if rival < 0 else (names[best], names[rival])
        for best, rival in zip(ranks.best, ranks.rival)
    ]


def _scores(ranks: RetrievalRanks) -> list[Sequence[float]]:
    return [
        [float(best)] if rival < 0 else [float(best), float(score)]
        for best, rival, score in zip(ranks.best_score, ranks.rival, ranks.rival_score)
    ]


def _join(one: Outcomes, two: Outcomes) -> Outcomes:
    return Outcomes(
        used=np.concatenate([one.used, two.used]),
        strict=np.concatenate([one.strict, two.strict]),
        fractional=np.concatenate([one.fractional, two.fractional]),
        chance=np.concatenate([one.chance, two.chance]),
    )
