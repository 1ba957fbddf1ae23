"""Confidence intervals and tests for benchmark scores.

All functions are deterministic for a seed and know nothing of benchmarks or files. Items about one
photo are not independent, so photos are the sampling unit: intervals resample them, the test flips
their signs. `tests/test_evaluation_verdicts.py` simulates the error rates of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Counts = NDArray[np.unsignedinteger]
Interval = tuple[float | None, float | None]

FEWEST = 10
"""Photos below which a number is printed but not judged."""
LEVEL = 0.05
NOT_SIGNIFICANT = "not significant"
_DRAWS_AT_ONCE = 4_000_000
_CACHED_BYTES = 2**27
_MOST_SUMS = 2**16
_SAME = 1e-9  # of the largest amount: sums closer than that are equal


def wilson(successes: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion of n independent items; (0, 1) for n = 0.

    successes: right items, fractional if tied items count in part. Raises ValueError unless 0 <=
    successes <= n.

    Source: Wilson, Probable Inference, the Law of Succession, and Statistical Inference (1927).
    """
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} items")
    if n == 0:
        return 0.0, 1.0
    z = float(special.ndtri(0.5 + level / 2))
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At 0 and n the formula gives the bound exactly; rounding must not push it past.
    low = 0.0 if successes == 0 else max(0.0, float(centre - half))
    high = 1.0 if successes == n else min(1.0, float(centre + half))
    return low, high


def holm(pvalues: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p-values of one family, in the order given; reject those at or below
    the level. None, for no test, does not count and stays None.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure (1979).
    """
    p = np.array([pvalue for pvalue in pvalues if pvalue is not None], dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    corrected = iter(adjusted.tolist())
    return [None if pvalue is None else next(corrected) for pvalue in pvalues]


def is_significant(p: float | None) -> bool:
    """Return whether a p-value of `holm` is significant; nothing else in the project decides it."""
    return p is not None and p <= LEVEL


@dataclass(frozen=True)
class Bootstrap:
    """A bootstrap: the number of its resamples, 0 for no intervals, and the seed of its draws."""

    resamples: int = 2000
    seed: int = 0

    def of_benchmark(self, name: str) -> Bootstrap:
        """Return the bootstrap of a benchmark's photos: the same whatever else is compared."""
        return replace(self, seed=self.seed + crc32(name.encode()))

    def weights(self, clusters: int) -> Iterator[Floats]:
        """Draw clusters with replacement: blocks of counts (r, clusters), one row per resample.

        The block size bounds memory and does not change the draws. Columns are contiguous: a
        product with a sparse matrix would copy rows.
        """
        for counts in self._counts(clusters):
            yield counts.astype(np.float64)

    def _counts(self, clusters: int) -> Iterable[Counts]:
        """Return the blocks of `weights` as small integers, from memory where they are there."""
        block = max(1, _DRAWS_AT_ONCE // clusters)
        if self.resamples * clusters > _CACHED_BYTES:
            return self._draw(clusters, block)
        key = self, clusters, block
        blocks = _cached.pop(key, None) or tuple(self._draw(clusters, block))
        _cached[key] = blocks
        while len(_cached) > 1 and _bytes_of_cached() > _CACHED_BYTES:
            del _cached[next(iter(_cached))]
        return blocks

    def _draw(self, clusters: int, block: int) -> Iterator[Counts]:
        rng = np.random.default_rng(self.seed)
        for first in range(0, self.resamples, block):
            rows = min(block, self.resamples - first)
            sampled = rng.integers(clusters, size=(rows, clusters))
            sampled += np.arange(rows)[:, None] * clusters
            counts = np.bincount(sampled.ravel(), minlength=rows * clusters)
            small = np.min_scalar_type(int(counts.max()))
            yield counts.reshape(rows, clusters).astype(small, order="F")


_cached: dict[tuple[Bootstrap, int, int], tuple[Counts, ...]] = {}
"""Counts by bootstrap, clusters and rows of a block; those that were used least recently come
first. All comparisons on a benchmark need the same counts, and drawing takes longer than the rest
of a comparison."""


def _bytes_of_cached() -> int:
    return sum(counts.nbytes for blocks in _cached.values() for counts in blocks)


BOOTSTRAP = Bootstrap()


def percentile_interval(draws: Floats, photos: int, level: float = 0.95) -> Interval:
    """Return the percentile interval of bootstrap draws (r,), of which undefined ones (nan) are
    left out.

    The tails are adjusted so that the interval of a mean is as wide as Student's: plain percentiles
    are too narrow for few resampled photos. Returns (None, None) without draws, and for one photo.

    Source: Hesterberg, What Teachers Should Know About the Bootstrap (2015), section 4.3: the
    expanded percentile interval.
    """
    defined = draws[~np.isnan(draws)]
    if photos < 2 or not len(defined):
        return None, None
    wide = np.sqrt(photos / (photos - 1)) * -special.stdtrit(photos - 1, 0.5 - level / 2)
    tail = float(special.ndtr(-wide))
    low, high = np.quantile(defined, [tail, 1 - tail])
    return float(low), float(high)


def bounded_interval(
    draws: Floats, photos: int, lowest: float = -1.0, highest: float = 1.0
) -> Interval:
    """Return `percentile_interval`, or a wider interval where all draws are alike.

    If every photo adds the same, as where two models are always right, resampling says nothing
    about photos that were not measured. They may add anything from `lowest` to `highest`, and their
    share is at most Wilson's bound for none of `photos`. The default bounds are those of a
    difference of scores. Draws that are all alike have no interval, (None, None), where a bound is
    infinite.
    """
    low, high = percentile_interval(draws, photos)
    if low is None or high is None or high - low > _SAME:
        return low, high
    if np.isinf(highest - lowest):
        return None, None
    share = wilson(0, photos)[1]
    return low - share * (low - lowest), high + share * (highest - high)


def sign_flip(adds: Floats) -> float:
    """Return the two-sided p-value that a difference is not zero; 1 if all contributions are 0.

    adds: (photos,) contribution of each photo. If two models are equally good, each contribution
    could as well have the other sign. p is the share of all 2^photos sign assignments whose sum is
    at least as far from zero as the observed sum.

    The share is exact for up to 32 photos with a contribution, and for any number of photos with
    few distinct contributions, as with one item per photo (McNemar's exact test). Otherwise it is
    the saddlepoint approximation with a continuity correction by the smallest amount: accurate in
    the far tail too, and not below the exact share if sums lie on a grid of that amount.

    Sources: Fisher, The Design of Experiments (1935), section 21; Lugannani and Rice, Saddle Point
    Approximation for the Distribution of the Sum of Independent Random Variables (1980).
    """
    size = np.abs(adds[adds != 0])
    if not len(size):
        return 1.0
    scale = size.max()
    size, total = size / scale, abs(float(adds.sum())) / scale
    if total > size.sum() * (1 - 1e-12):  # all on one side: no other choice of signs reaches it
        return min(1.0, 2.0 ** (1 - len(size)))
    _, first, counts = np.unique(size.round(9), return_index=True, return_counts=True)
    groups = list(zip(size[first].tolist(), counts.tolist()))
    one = _signed_sums(groups[::2])
    if one is not None and (two := _signed_sums(groups[1::2])) is not None:
        (left, left_chance), (right, right_chance) = one, two
        beyond = np.append(np.cumsum(right_chance[::-1])[::-1], 0.0)
        reached = np.searchsorted(right, total - left - _SAME * size.sum())
        return min(1.0, 2 * float(left_chance @ beyond[reached])) if total > _SAME else 1.0
    total -= float(size.min())
    if total**2 < 1e-6 * float((size**2).sum()) or total < 0:
        return 1.0
    from scipy.optimize import brentq  # slow to import, and few tests come here

    # The tilt at which `total` is the mean of the tilted sum; K is the cumulant generating function
    # of a sum of signs times `size`.
    high = total / float((size**2).sum())
    while float((size * np.tanh(high * size)).sum()) < total:
        high *= 2
    tilt = brentq(lambda t: float((size * np.tanh(t * size)).sum()) - total, 0.0, high)
    cosh = np.cosh(np.minimum(tilt * size, 300))
    k = float((np.logaddexp(tilt * size, -tilt * size) - np.log(2)).sum())
    w = np.sqrt(2 * (tilt * total - k))
    u = tilt * np.sqrt(float(((size / cosh) ** 2).sum()))
    return float(min(1.0, 2 * special.ndtr(-(w + np.log(u / w) / w))))


def guessing(adds: Floats, photos: int, value: float, chance: float) -> float:
    """Return the two-sided p-value that a score in [0, 1] is not that of guessing.

    The larger p-value of two tests. `sign_flip` asks that contributions are symmetric, which those
    of rare hits are not: where all of few queries miss, it would find a score "below chance". The
    binomial test knows the chance, but not that items share photos; so it counts as many items as
    would vary as the photos do, and no more than photos where nothing varies.

    adds: (photos,) what each photo adds to value - chance.
    """
    spread = float(adds @ adds - adds.sum() ** 2 / photos) * photos / (photos - 1)
    items = value * (1 - value) / spread if spread > _SAME else float(photos)
    hits, misses = value * items, (1 - value) * items
    more = float(special.betainc(hits, misses + 1, chance)) if hits > 0 else 1.0
    fewer = float(special.betainc(misses, hits + 1, 1 - chance)) if misses > 0 else 1.0
    return max(sign_flip(adds), min(1.0, 2 * more, 2 * fewer))


def _signed_sums(groups: Sequence[tuple[float, int]]) -> tuple[Floats, Floats] | None:
    """Return all sums of (amount, count) with any signs, ascending, and the share of choices of
    signs that give each; None for more than can be listed."""
    sums, chance = np.zeros(1), np.ones(1)
    for amount, count in groups:
        if len(sums) * (count + 1) > _MOST_SUMS:
            return None
        plus = np.arange(count + 1)
        ways = (
            special.gammaln(count + 1) - special.gammaln(plus + 1) - special.gammaln(plus[::-1] + 1)
        )
        sums = np.add.outer(sums, amount * (2 * plus - count)).ravel()
        chance = np.multiply.outer(chance, np.exp(ways - count * np.log(2))).ravel()
        order = np.argsort(sums)
        sums, chance = sums[order], chance[order]
        new = np.append(0, np.flatnonzero(sums[1:] - sums[:-1] > _SAME) + 1)
        sums, chance = sums[new], np.add.reduceat(chance, new)
    return sums, chance


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; None if a bootstrap gives no interval."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of_means(
        cls, values: Floats, bootstrap: Bootstrap, lowest: float = -np.inf, highest: float = np.inf
    ) -> list[Self]:
        """Estimate the means of the columns of (n, columns), by a bootstrap over the rows.

        lowest, highest: The bounds of a value. Where one is infinite, a column whose rows are all
            alike has no interval (`bounded_interval`).
        """
        n = len(values)
        draws = np.concatenate([w @ values / n for w in bootstrap.weights(n)])
        return [
            cls(float(column.mean()), *bounded_interval(column_draws, n, lowest, highest))
            for column, column_draws in zip(values.T, draws.T)
        ]
