"""Evaluates `benchmarks.case.Aggregate` trees on per-item values, with a cluster bootstrap.

Every node of such a tree is a mean, but for leaves that are areas under a curve. A rule of
means alone is linear in the per-item values: the difference of two models under it is the rule
applied to the differences of their items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special, stats

from compoclip.benchmarks.case import Aggregate
from compoclip.errors import CompoclipError
from compoclip.evaluation.curves import weighted_ap_11, weighted_auc
from compoclip.evaluation.items import POSITIVE_SCORE, Flags, Indices, Outcomes, Values

# --- Intervals and tests for benchmark scores: what a difference between two numbers is worth. ---
#
# All functions are deterministic given their seed and know nothing of benchmarks or files. Items
# about one photo are not independent, so that everything here counts photos: intervals redraw them,
# the test changes their signs. `scripts/verdicts.py` simulates how often both err.

Floats = NDArray[np.float64]
Interval = tuple[float | None, float | None]

RESAMPLES = 2000
FEWEST = 10
"""Photos below which a number is shown and not judged."""
_DRAWS_AT_ONCE = 4_000_000


def wilson(successes: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion of n independent items.

    Args:
        successes: how many are right; fractional where items with tied scores count in part.
        n: number of items.
        level: confidence level.

    Returns:
        The lower and the upper bound; (0, 1) for no items, which say nothing.

    Raises:
        ValueError: unless 0 <= successes <= n.

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

    The exact binomial test below 25 discordant items, above them its mid-p form, which is less
    conservative.

    Args:
        b: items right for the first model only.
        c: items right for the second model only.

    Returns:
        The p-value; 1 without discordant items.

    Raises:
        ValueError: a count is negative.

    Source: Fagerland, Lydersen and Laake, The McNemar Test for Binary Matched-Pairs Data (2013).
    """
    if b < 0 or c < 0:
        raise ValueError(f"counts must not be negative: {b}, {c}")
    n, fewer = b + c, min(b, c)
    if n == 0:
        return 1.0
    tail = 2 * float(special.bdtr(fewer, n, 0.5))
    return min(1.0, tail if n < 25 else tail - float(stats.binom.pmf(fewer, n, 0.5)))


def holm(pvalues: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values; reject those at or below the level.

    Args:
        pvalues: of one family of tests. None, where nothing was tested, does not count.

    Returns:
        The adjusted values in the order given, None where they were None.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure (1979).
    """
    p = np.array([each for each in pvalues if each is not None], dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    found = iter(adjusted.tolist())
    return [None if each is None else next(found) for each in pvalues]


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


def percentile_interval(draws: Floats, photos: int, level: float = 0.95) -> Interval:
    """Percentile interval of bootstrap draws.

    The tails cut off are those that make the interval of a mean as wide as Student's: plain
    percentiles are too narrow for few photos.

    Args:
        draws: (r,) values in the draws; undefined ones (nan) are left out.
        photos: number of photos that were redrawn.
        level: confidence level.

    Returns:
        The bounds; (None, None) without draws, and for one photo, which says nothing about others.

    Source: Hesterberg, What Teachers Should Know About the Bootstrap (2015), section 4.3: the
    expanded percentile interval.
    """
    known = draws[~np.isnan(draws)]
    if photos < 2 or not len(known):
        return None, None
    wide = np.sqrt(photos / (photos - 1)) * stats.t.isf(0.5 - level / 2, photos - 1)
    tail = float(special.ndtr(-wide))
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)


def sign_flip(adds: Floats) -> float:
    """Two-sided p-value that a difference is not zero.

    Were two models alike, each photo could as well have added the same with the other sign. p is
    the share of all 2^photos choices of signs that give at least the observed sum, so it holds for
    few photos and for photos of very different weight, and needs no draws: where the photos that
    add something add equally much it is McNemar's test (`mcnemar`, an item a photo being the usual
    case), else the saddlepoint approximation, whose relative error stays small far out in the tail.

    Args:
        adds: (photos,) what each photo adds to the difference.

    Returns:
        The p-value; 1 where no photo adds anything.

    Sources: Fisher, The Design of Experiments (1935), section 21; Lugannani and Rice, Saddle Point
    Approximation for the Distribution of the Sum of Independent Random Variables (1980).
    """
    size = np.abs(adds[adds != 0])
    if not len(size):
        return 1.0
    size = size / size.max()
    scale = float(np.abs(adds).max())
    total = abs(float(adds.sum())) / scale
    if size.min() > 1 - 1e-9:
        return mcnemar(int((adds > 0).sum()), int((adds < 0).sum()))
    if total > size.sum() * (1 - 1e-12):  # all on one side: no other choice of signs reaches it
        return min(1.0, 2.0 ** (1 - len(size)))
    variance = float((size**2).sum())
    if total**2 < 1e-6 * variance:
        return 1.0
    # The tilt at which `total` is the mean of the tilted sum; K is the cumulant generating function
    # of a sum of signs times `size`.
    tilt = _tilt(size, total)
    cosh = np.cosh(np.minimum(tilt * size, 300))
    k = float((np.logaddexp(tilt * size, -tilt * size) - np.log(2)).sum())
    w = np.sqrt(2 * (tilt * total - k))
    u = tilt * np.sqrt(float(((size / cosh) ** 2).sum()))
    return float(min(1.0, 2 * special.ndtr(-(w + np.log(u / w) / w))))


def _tilt(size: Floats, total: float) -> float:
    """The root of sum(size * tanh(tilt * size)) = total, by Newton's method within brackets."""
    tilt, low, high = total / float((size**2).sum()), 0.0, np.inf
    for _ in range(200):
        tanh = np.tanh(tilt * size)
        gap = float((size * tanh).sum()) - total
        low, high = (tilt, high) if gap < 0 else (low, tilt)
        slope = float((size**2 * (1 - tanh**2)).sum())
        step = tilt - gap / slope if slope > 0 else np.inf
        if not low < step < high:
            step = 2 * tilt if np.isinf(high) else (low + high) / 2
        if abs(step - tilt) <= 1e-10 * tilt:
            break
        tilt = step
    return tilt


# --- Evaluates `benchmarks.case.Aggregate` trees on per-item values, with a cluster bootstrap. ---

RANKED: Mapping[str, Callable[[Values, Flags, Values, float], Values]] = MappingProxyType(
    {
        "auc": weighted_auc,
        "ap11": weighted_ap_11,
        "ap11_devkit": partial(weighted_ap_11, devkit=True),
    }
)
"""Metrics whose values are scores to be ranked, not outcomes to be averaged: area under the ROC
curve, 11-point average precision as the ELEVATER toolkit and as the VOC devkit have it."""
_WEIGHTS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Mean:
    """Mean of `metric` over the items at `rows`, sorted and distinct: a leaf of a planned rule."""

    metric: str
    rows: Indices

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal means."""
        return self.metric, self.rows.tobytes()

    @property
    def share(self) -> bool:
        """Whether it is the share of items that are right, and not a mean cosine."""
        return self.metric != POSITIVE_SCORE

    def weighted(self, weight: float = 1.0) -> Iterator[tuple[Leaf, float]]:
        """The leaves of the plan and how much each counts."""
        yield self, weight

    def combine(self, leaf_value: Callable[[Leaf], Values]) -> Values:
        """The plan's value, from the values of its leaves."""
        return leaf_value(self)

    def means(self) -> list[Mean]:
        """The leaves that are means."""
        return [self]

    def curves(self) -> list[ScoreCurve]:
        """The leaves that are areas under curves."""
        return []

    def value(self, values: Mapping[str, Values], tie: float = 0.5) -> Values:
        """The mean of per-item values, by metric."""
        return np.asarray(values[self.metric][self.rows].mean())

    def additions(
        self, base: Mapping[str, Values], other: Mapping[str, Values], units: Indices, weight: float
    ) -> Values:
        """What each unit adds to `weight` times the difference: the sum of its items' shares."""
        gap = other[self.metric][self.rows] - base[self.metric][self.rows]
        shares, n = gap * (weight / len(gap)), int(units.max()) + 1
        return np.bincount(units[self.rows], weights=shares, minlength=n).astype(np.float64)

    def tied(self, values: Mapping[str, Values], outcomes: Mapping[str, Outcomes]) -> Indices:
        """Rows whose outcome hangs on equal scores."""
        return self.rows[outcomes[self.metric].tied[self.rows]]


@dataclass(frozen=True)
class ScoreCurve:
    """What `RANKED` makes of `metric`, items at `true` against items at `false`: a leaf."""

    metric: str
    true: Indices
    false: Indices
    share = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal curves."""
        return self.metric, self.true.tobytes(), self.false.tobytes()

    @property
    def rows(self) -> Indices:
        """All items it ranks, the true ones first."""
        return np.concatenate([self.true, self.false])

    def weighted(self, weight: float = 1.0) -> Iterator[tuple[Leaf, float]]:
        """As of a `Mean`."""
        yield self, weight

    def combine(self, leaf_value: Callable[[Leaf], Values]) -> Values:
        """As of a `Mean`."""
        return leaf_value(self)

    def means(self) -> list[Mean]:
        """None."""
        return []

    def curves(self) -> list[ScoreCurve]:
        """Itself."""
        return [self]

    def values(
        self, values: Mapping[str, Values], weights: Values | None = None, tie: float = 0.5
    ) -> Values:
        """Its value for each row of `weights` (r, items at `rows`), by default all 1; (r,)."""
        rows = self.rows
        kind = np.arange(len(rows)) < len(self.true)
        each = np.ones((1, len(rows))) if weights is None else weights
        return RANKED[self.metric](values[self.metric][rows], kind, each, tie)

    def value(self, values: Mapping[str, Values], tie: float = 0.5) -> Values:
        """The area; tie: what equal scores of a true and a false item count."""
        found: Values = self.values(values, tie=tie)[0]
        return found

    def additions(
        self, base: Mapping[str, Values], other: Mapping[str, Values], units: Indices, weight: float
    ) -> Values:
        """What each unit adds to `weight` times the difference, by a jackknife.

        What the area loses without the unit, less the mean loss, plus the unit's share of the items
        (true and false ones counting half each) of the difference; where nothing is left without
        it, it has all.
        """
        there, codes = np.unique(units[self.rows], return_inverse=True)
        whole = float((self.values(other) - self.values(base))[0])
        without = []
        block = max(1, _WEIGHTS_AT_ONCE // len(codes))
        for first in range(0, len(there), block):
            left = np.arange(first, min(first + block, len(there)))
            weights = (codes != left[:, None]).astype(np.float64)
            without.append(self.values(other, weights) - self.values(base, weights))
        lost = (whole - np.nan_to_num(np.concatenate(without))) * (len(there) - 1) / len(there)
        true, items = len(self.true), len(codes)
        kind = np.repeat([0.5 / true, 0.5 / (items - true)], [true, items - true])
        found = np.zeros(int(units.max()) + 1)
        own = np.bincount(codes, whole * kind, minlength=len(there))
        found[there] = weight * (lost - lost.mean() + own)
        return found

    def tied(self, values: Mapping[str, Values], outcomes: Mapping[str, Outcomes]) -> Indices:
        """Rows whose score an item of the other kind has too."""
        scores = values[self.metric]
        return self.rows[
            np.isin(scores[self.rows], np.intersect1d(scores[self.true], scores[self.false]))
        ]


@dataclass(frozen=True)
class MeanOf:
    """Plain mean of the parts."""

    parts: tuple[Plan, ...]
    share = False

    def weighted(self, weight: float = 1.0) -> Iterator[tuple[Leaf, float]]:
        """As of a `Mean`."""
        for part in self.parts:
            yield from part.weighted(weight / len(self.parts))

    def combine(self, leaf_value: Callable[[Leaf], Values]) -> Values:
        """The mean of the parts that are not nan."""
        parts = np.stack([part.combine(leaf_value) for part in self.parts])
        present = ~np.isnan(parts)
        total = np.where(present, parts, 0.0).sum(axis=0)
        count = present.sum(axis=0)
        mean: Values = np.divide(
            total, count, out=np.full(np.shape(total), np.nan), where=count > 0
        )
        return mean

    def means(self) -> list[Mean]:
        """Those of all parts."""
        return [each for part in self.parts for each in part.means()]

    def curves(self) -> list[ScoreCurve]:
        """Those of all parts."""
        return [each for part in self.parts for each in part.curves()]


Leaf = Mean | ScoreCurve
Plan = Leaf | MeanOf


def leaf(metric: str, rows: Indices, truth: Sequence[int] = ()) -> Leaf | None:
    """How `metric` is computed from the items at `rows`; truth: of all items, for curves.

    None where there is nothing to compute: no rows, or a curve without true or without false items.
    """
    if metric not in RANKED:
        return Mean(metric, rows) if len(rows) else None
    right = np.asarray(truth)[rows] == 1
    return (
        ScoreCurve(metric, rows[right], rows[~right]) if right.any() and not right.all() else None
    )


def plan_or_none(
    rule: Aggregate,
    subtasks: Sequence[str],
    labels: Sequence[Mapping[str, str]],
    applies: Mapping[str, np.ndarray],
    main: str,
    truth: Sequence[int] = (),
) -> Plan | None:
    """Turn a rule into means over rows.

    subtasks, labels: of the n items. applies: metric -> boolean (n,), whether the item has it.
    main: name of the values to average where a rule names no metric. truth: of the n items, for
    curves. Parts without a single item (for a curve: without a true and a false one) are left out
    (they are refused earlier unless partial data is allowed); None when nothing is left. Raises
    CompoclipError for an unknown metric or weighting.
    """
    names = np.asarray(subtasks, dtype=object)

    def rows(parts: Aggregate, metric: str) -> Indices:
        if metric not in applies:
            raise CompoclipError(
                f"an aggregate asks for the metric '{metric}', which these items do not have; "
                f"they have {', '.join(applies)}"
            )
        return np.flatnonzero(np.isin(names, sorted(parts.subtasks())) & applies[metric])

    def build(node: Aggregate, inherited: str) -> Plan | None:
        metric = node.metric or inherited
        if node.weighting not in ("macro", "micro"):
            raise CompoclipError(f"unknown aggregate weighting '{node.weighting}'; macro or micro")
        if node.macro_by is not None:
            groups: dict[str, list[int]] = {}
            for row in rows(node, metric).tolist():
                value = labels[row].get(node.macro_by)
                if value is not None and value not in node.exclude:
                    groups.setdefault(value, []).append(row)
            built = [
                leaf(metric, np.array(group, dtype=np.int64), truth)
                for _, group in sorted(groups.items())
                if len(group) >= node.min_group
            ]
            return mean_of([each for each in built if each is not None])
        if node.weighting == "micro":
            return leaf(metric, rows(node, metric), truth)
        branches = [build(part, metric) for part in node.nested()]
        return mean_of([each for each in branches if each is not None])

    return build(rule, main)


def mean_of(parts: Sequence[Plan]) -> Plan | None:
    """Their plain mean: None of nothing, and of one part that part, which is the same number."""
    return MeanOf(tuple(parts)) if len(parts) > 1 else next(iter(parts), None)


def plan(
    rule: Aggregate,
    subtasks: Sequence[str],
    labels: Sequence[Mapping[str, str]],
    applies: Mapping[str, np.ndarray],
    main: str,
    truth: Sequence[int] = (),
) -> Plan:
    """`plan_or_none`, raising CompoclipError when nothing is left."""
    tree = plan_or_none(rule, subtasks, labels, applies, main, truth)
    if tree is None:
        raise CompoclipError(
            f"no items for an aggregate over {', '.join(sorted(rule.subtasks()))}; "
            "check the annotation and image folders"
        )
    return tree


def leaves(tree: Plan) -> list[Leaf]:
    """The leaves of a plan, left to right."""
    return [each for each, _ in tree.weighted()]


def rows_of(tree: Plan) -> Indices:
    """Sorted distinct rows that a plan uses."""
    return np.unique(np.concatenate([each.rows for each in leaves(tree)]))


def evaluate(tree: Plan, values: Mapping[str, Values], tie: float = 0.5) -> float:
    """The rule's value.

    Args:
        tree: the planned rule.
        values: metric -> (n,) per-item values.
        tie: what equal scores of a true and a false item count in an area under a curve.
    """
    return float(tree.combine(lambda each: each.value(values, tie)))


def additions(
    tree: Plan, base: Mapping[str, Values], other: Mapping[str, Values], units: Indices
) -> Values:
    """What every unit (photo, group of photos) adds to the rule's value for `other` minus `base`.

    They add up to the difference.

    Args:
        tree: the planned rule.
        base: metric -> (n,) per-item values of one model.
        other: those of the other model.
        units: (n,), the unit of each item.

    Returns:
        (units,), 0 for those without an item of the rule.
    """
    found = np.zeros(int(units.max()) + 1)
    for each, weight in tree.weighted():
        found += each.additions(base, other, units, weight)
    return found


def resample(
    trees: Sequence[Plan],
    values: Mapping[str, Values],
    clusters: Sequence[str],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Values]:
    """Each rule's value in each of `resamples` draws of whole clusters; all share the draws.

    values: metric -> (n,); clusters: (n,), items that share a photo. A group that a draw misses
    altogether is left out of that draw's mean. Returns one (resamples,) array a rule; nan for a
    draw without any of the rule's items.
    """
    if not resamples:
        return [np.zeros(0) for _ in trees]
    _, codes = np.unique(np.asarray(clusters), return_inverse=True)
    count = int(codes.max()) + 1
    means = list({each.key: each for tree in trees for each in tree.means()}.values())
    areas = list({each.key: each for tree in trees for each in tree.curves()}.values())
    sums, sizes = _columns(means, values, codes, count)
    blocks = []
    for weights in cluster_weights(count, resamples, seed):
        size = weights @ sizes
        mean = np.divide(weights @ sums, size, out=np.full(size.shape, np.nan), where=size > 0)
        columns = [area.values(values, weights[:, codes[area.rows]])[:, None] for area in areas]
        mean = np.concatenate([mean, *columns], axis=1)
        blocks.append(mean)
    drawn = np.concatenate(blocks)
    leaf_order: list[Leaf] = [*means, *areas]
    column = {each.key: number for number, each in enumerate(leaf_order)}

    def draws(each: Leaf) -> Values:
        values: Values = drawn[:, column[each.key]]
        return values

    return [tree.combine(draws) for tree in trees]


def resample_difference(
    trees: Sequence[Plan],
    base: Mapping[str, Values],
    other: Mapping[str, Values],
    clusters: Sequence[str],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Values]:
    """Each rule's value for `other` minus that for `base` in each draw, both on the same draws."""
    if not any(tree.curves() for tree in trees):
        gap = {name: other[name] - base[name] for name in base}
        return resample(trees, gap, clusters, resamples, seed)
    one, two = (resample(trees, each, clusters, resamples, seed) for each in (base, other))
    return [after - before for before, after in zip(one, two)]


def _columns(
    means: Sequence[Mean], values: Mapping[str, Values], codes: Indices, count: int
) -> tuple[sparse.csc_array, sparse.csc_array]:
    """Sum of values and number of items, by cluster (rows) and mean (columns)."""
    shape = (count, len(means))
    if not means:
        return sparse.csc_array(shape), sparse.csc_array(shape)
    row = np.concatenate([codes[each.rows] for each in means])
    column = np.concatenate([np.full(len(each.rows), k) for k, each in enumerate(means)])
    value = np.concatenate([values[each.metric][each.rows] for each in means])
    sums = sparse.csc_array((value, (row, column)), shape=shape)
    return sums, sparse.csc_array((np.ones(len(value)), (row, column)), shape=shape)
