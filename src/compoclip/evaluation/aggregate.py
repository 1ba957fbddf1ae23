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
from scipy import sparse

from compoclip.benchmarks.case import Aggregate, Listed
from compoclip.errors import CompoclipError
from compoclip.evaluation.curves import weighted_ap_11, weighted_auc
from compoclip.evaluation.items import (
    MAIN,
    POSITIVE_SCORE,
    Flags,
    Indices,
    Outcomes,
    Values,
    main_values,
)
from compoclip.evaluation.statistics import RESAMPLES, cluster_weights

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


def ruled_values(
    outcomes: Mapping[str, Values], scores: Sequence[Sequence[float]], positive: Values
) -> dict[str, Values]:
    """The per-item values that rules average: metric -> (n,), nan where it does not apply.

    Outcomes, "main" being the first that applies to an item, and for a metric of `RANKED` the
    scores to be ranked.
    """
    ranked = [name for name in RANKED if name in outcomes]
    first = np.array([each[0] for each in scores], dtype=float) if ranked else positive
    return {
        **outcomes,
        MAIN: main_values(outcomes, len(positive)),
        POSITIVE_SCORE: positive,
        **dict.fromkeys(ranked, first),
    }


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
        """True for a share of right items, False for a mean cosine."""
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
        """Each unit's part of `weight` times the difference: the sum of its items' shares."""
        gap = other[self.metric][self.rows] - base[self.metric][self.rows]
        shares, n = gap * (weight / len(gap)), int(units.max()) + 1
        return np.bincount(units[self.rows], weights=shares, minlength=n).astype(np.float64)

    def tied(self, values: Mapping[str, Values], outcomes: Mapping[str, Outcomes]) -> Indices:
        """Rows whose outcome hangs on equal scores."""
        return self.rows[outcomes[self.metric].tied[self.rows]]


@dataclass(frozen=True)
class ScoreCurve:
    """The curve of `metric` (see `RANKED`) over items at `true` and items at `false`: a leaf."""

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
        """Each unit's part of `weight` times the difference, by a jackknife.

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
    """The leaf that computes `metric` from the items at `rows`; truth: of all items, for curves.

    None where there is nothing to compute: no rows, or a curve without true or without false items.
    """
    if metric not in RANKED:
        return Mean(metric, rows) if len(rows) else None
    right = np.asarray(truth)[rows] == 1
    return (
        ScoreCurve(metric, rows[right], rows[~right]) if right.any() and not right.all() else None
    )


def plan_or_none(
    rule: Aggregate, listed: Listed, applies: Mapping[str, np.ndarray], main: str
) -> Plan | None:
    """Turn a rule into means over rows.

    Parts without a single item (for a curve: without a true and a false one) are left out; they are
    refused earlier unless partial data is allowed.

    Args:
        rule: the rule.
        listed: the n items.
        applies: metric -> boolean (n,), whether the item has it.
        main: name of the values to average where a rule names no metric.

    Returns:
        The plan; None when nothing is left.

    Raises:
        CompoclipError: a metric or weighting is unknown.
    """
    names = np.asarray(listed.subtasks, dtype=object)

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
                value = listed.labels[row].get(node.macro_by)
                if value is not None and value not in node.exclude:
                    groups.setdefault(value, []).append(row)
            built = [
                leaf(metric, np.array(group, dtype=np.int64), listed.truth)
                for _, group in sorted(groups.items())
                if len(group) >= node.min_group
            ]
            return mean_of([each for each in built if each is not None])
        if node.weighting == "micro":
            return leaf(metric, rows(node, metric), listed.truth)
        branches = [build(part, metric) for part in node.nested()]
        return mean_of([each for each in branches if each is not None])

    return build(rule, main)


def mean_of(parts: Sequence[Plan]) -> Plan | None:
    """Their plain mean: None of nothing, and of one part that part, which is the same number."""
    return MeanOf(tuple(parts)) if len(parts) > 1 else next(iter(parts), None)


def plan(rule: Aggregate, listed: Listed, applies: Mapping[str, np.ndarray], main: str) -> Plan:
    """`plan_or_none`, raising CompoclipError when nothing is left."""
    tree = plan_or_none(rule, listed, applies, main)
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
    """Split the difference of two models into what each unit (photo, group of photos) adds to it.

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
