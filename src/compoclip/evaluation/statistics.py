"""Intervals and tests for benchmark scores: what a difference between two numbers is worth.

All functions are deterministic given their seed and know nothing of benchmarks or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

RESAMPLES = 2000
_DRAWS_AT_ONCE = 4_000_000


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


def percentile_interval(draws: Floats, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap draws, without the undefined ones (nan).

    Source: Davison and Hinkley, Bootstrap Methods and their Application (1997), section 5.3.
    """
    low, high = np.nanquantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def bootstrap_p(draws: Floats) -> float:
    """Two-sided p-value that a difference is not zero, from its bootstrap draws.

    Twice the smaller share of draws on either side of zero, the observed sample counted among them
    (so never zero), at most 1.
    """
    side = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    return min(1.0, 2 * (side + 1) / (len(draws) + 1))
