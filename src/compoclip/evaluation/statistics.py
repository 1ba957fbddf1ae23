"""Intervals and tests for benchmark scores: what a difference between two numbers is worth.

All functions are deterministic given their seed and know nothing of benchmarks or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[Any]
Floats = NDArray[np.float64]

RESAMPLES = 2000
_DRAWS_AT_ONCE = 4_000_000


class PairedDifference(NamedTuple):
    """mean(a) - mean(b), its bootstrap interval, and a two-sided p-value."""

    difference: float
    low: float
    high: float
    p: float


def wilson(successes: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion of n independent items.

    `successes` may be fractional (items with tied scores can count in part). n = 0 says nothing:
    (0, 1). Raises ValueError unless 0 <= successes <= n.

    Source: Wilson, Probable Inference, the Law of Succession, and Statistical Inference (1927).
    """
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} items")
    if n == 0:
        return 0.0, 1.0
    z = float(stats.norm.ppf(0.5 + level / 2))
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At 0 and n the formula gives the bound exactly; rounding must not push it past.
    low = 0.0 if successes == 0 else max(0.0, float(centre - half))
    high = 1.0 if successes == n else min(1.0, float(centre + half))
    return low, high


def cluster_bootstrap(
    values: Array,
    clusters: Array,
    statistic: Callable[[Array], float] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile interval when items that share a cluster (an image) are not independent.

    Whole clusters are drawn with replacement, as many as there are. values: (N,) or (N, F), one row
    an item. clusters: (N,) labels of any kind. statistic: maps resampled rows to a number; the mean
    when not given, which is computed without a loop. A statistic that is undefined (NaN) on some
    resample makes both bounds NaN. Raises ValueError on empty or unequal input.

    Source: Davison and Hinkley, Bootstrap Methods and their Application (1997), section 3.8.
    """
    if statistic is None:
        _, means = resampled_means(values, clusters, resamples=resamples, seed=seed)
        return _percentiles(means[:, 0], level)
    cluster = _codes(values, clusters)[1]
    order = np.argsort(cluster, kind="stable")
    sizes = np.bincount(cluster)
    members = np.split(order, np.cumsum(sizes)[:-1])
    rng = np.random.default_rng(seed)
    outcomes = np.empty(resamples)
    for i in range(resamples):
        drawn = rng.integers(len(members), size=len(members))
        outcomes[i] = statistic(values[np.concatenate([members[c] for c in drawn])])
    return _percentiles(outcomes, level)


def bootstrap_aggregate(
    values: Array,
    clusters: Array,
    groups: Array,
    weights: Mapping[Any, float] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float]:
    """Cluster-bootstrap interval of a mean of means: sub-task means, averaged.

    groups: (N,) sub-task of each item. weights: weight of each sub-task's mean, equal when not
    given; they are divided by their sum, so a nested mean (benchmarks of sub-tasks) is a matter of
    weights. Clusters are drawn once for all sub-tasks, which keeps the dependence between sub-tasks
    that share images. A sub-task that a resample misses altogether (possible only when it has very
    few images) is left out of that resample's mean. Raises ValueError on empty or unequal input and
    when `weights` lacks a sub-task.
    """
    labels, means = resampled_means(values, clusters, groups, resamples, seed)
    if weights is None:
        weight = np.ones(len(labels))
    else:
        lacking = [label for label in labels if label not in weights]
        if lacking:
            raise ValueError(f"no weight for {', '.join(map(str, lacking))}")
        weight = np.array([weights[label] for label in labels], dtype=np.float64)
    present = ~np.isnan(means)
    total = (np.where(present, means, 0.0) * weight).sum(1)
    return _percentiles(total / (present * weight).sum(1), level)


def resampled_means(
    values: Array,
    clusters: Array,
    groups: Array | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[list[Any], Floats]:
    """The mean of every group in every cluster-bootstrap resample.

    Returns the G group labels, sorted (one group "" when `groups` is None), and a (resamples, G)
    array; NaN where a resample holds no item of the group. Any rule that turns group means into an
    aggregate can be applied to its rows.
    """
    values, cluster = _codes(values, clusters)
    if values.ndim != 1:
        raise ValueError(f"values must be one number an item, not of shape {values.shape}")
    labels: list[Any] = [""]
    group = np.zeros(len(values), dtype=np.int64)
    if groups is not None:
        if len(groups) != len(values):
            raise ValueError(f"{len(values)} values, but {len(groups)} group labels")
        unique, group = np.unique(groups, return_inverse=True)
        labels = unique.tolist()
    shape = (int(cluster.max()) + 1, len(labels))
    sums, sizes = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, (cluster, group), values)
    np.add.at(sizes, (cluster, group), 1.0)
    means = [
        np.divide(weights @ sums, size, out=np.full(size.shape, np.nan), where=size > 0)
        for weights in cluster_weights(shape[0], resamples, seed)
        for size in [weights @ sizes]
    ]
    return labels, np.concatenate(means)


def mcnemar(b: int, c: int) -> float:
    """Two-sided p-value that two models differ, from the items only one of them gets right.

    b: right for the first only; c: right for the second only. Exact binomial test below 25
    discordant items, else its mid-p form, which is less conservative.

    Source: Fagerland, Lydersen and Laake, The McNemar Test for Binary Matched-Pairs Data (2013).
    """
    if b < 0 or c < 0:
        raise ValueError(f"counts must not be negative: {b}, {c}")
    n, fewer = b + c, min(b, c)
    if n == 0:
        return 1.0
    tail = 2 * float(stats.binom.cdf(fewer, n, 0.5))
    return min(1.0, tail if n < 25 else tail - float(stats.binom.pmf(fewer, n, 0.5)))


def paired_bootstrap(
    a: Array,
    b: Array,
    clusters: Array,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> PairedDifference:
    """Cluster bootstrap of mean(a) - mean(b), for two models' outcomes on the same items.

    p is twice the smaller share of resamples on either side of zero, the observed sample counted
    among them (so never zero), at most 1.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} outcomes against {len(b)}: not the same items")
    gap = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    _, means = resampled_means(gap, clusters, resamples=resamples, seed=seed)
    low, high = _percentiles(means[:, 0], level)
    side = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return PairedDifference(
        float(gap.mean()), low, high, min(1.0, 2 * (side + 1) / (resamples + 1))
    )


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: reject those at or below the level.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure (1979).
    """
    p = np.asarray(pvalues, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return [float(x) for x in adjusted]


def _codes(values: Array, clusters: Array) -> tuple[Array, NDArray[np.int64]]:
    values = np.asarray(values)
    if len(values) == 0 or len(values) != len(clusters):
        raise ValueError(f"{len(values)} values with {len(clusters)} cluster labels")
    return values, np.unique(np.asarray(clusters), return_inverse=True)[1]


def cluster_weights(clusters: int, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each cluster is drawn: (r, clusters) blocks, `resamples` rows in all.

    The block size bounds memory and does not change the draws.
    """
    rng = np.random.default_rng(seed)
    block = max(1, _DRAWS_AT_ONCE // clusters)
    for first in range(0, resamples, block):
        rows = min(block, resamples - first)
        drawn = rng.integers(clusters, size=(rows, clusters))
        drawn += np.arange(rows)[:, None] * clusters
        counts = np.bincount(drawn.ravel(), minlength=rows * clusters)
        yield counts.reshape(rows, clusters).astype(np.float64)


def _percentiles(outcomes: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(outcomes, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)
