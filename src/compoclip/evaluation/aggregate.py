"""Rules of benchmarks (`benchmarks.case.Aggregate`) as trees of means, computed in one walk.

An inner node is the plain mean of its parts; a leaf is the mean of a metric over items, or a curve
over them. `MeanNode.walk` is the only walk: a score, its variants under other tie policies, and
bootstrap draws differ in what a leaf's value is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np

from compoclip.benchmarks.case import Aggregate, Listed
from compoclip.errors import CompoclipError
from compoclip.evaluation.curves import weighted_ap_11, weighted_auc
from compoclip.evaluation.items import (
    BOTH_IMAGES,
    MAIN,
    POSITIVE_SCORE,
    Flags,
    Indices,
    Items,
    Values,
    rows_by_name,
)
from compoclip.evaluation.statistics import BOOTSTRAP, Bootstrap

RANKED: Mapping[str, Callable[[Values, Flags, Values, float], Values]] = MappingProxyType(
    {
        "auc": weighted_auc,
        "ap11": weighted_ap_11,
        "ap11_devkit": partial(weighted_ap_11, devkit=True),
    }
)
"""Curves: metrics whose per-item values are scores to be ranked, not outcomes to be averaged."""


def ruled_values(items: Items) -> dict[str, Values]:
    """Return the per-item values that rules average: metric -> (n,), nan where it does not apply.

    Outcomes, "main" being the first that applies to an item, and for curves the ranked scores.
    `BOTH_IMAGES` is the outcome of pairs of choices.
    """
    used = {name: outcome.used for name, outcome in items.outcomes.items()}
    ranked = [name for name in RANKED if name in used]
    first = np.array([scores[0] for scores in items.scores if ranked], dtype=float)
    return {
        **used,
        MAIN: items.judged[MAIN].used,
        BOTH_IMAGES: items.both_images,
        POSITIVE_SCORE: items.positive,
        **dict.fromkeys(ranked, first),
    }


@dataclass(frozen=True, eq=False)
class MeanNode:
    """A node of a planned rule: a leaf computes a metric, an inner node averages its parts.

    rows: distinct items of a leaf; a curve lists its true items first. true: their number.
    """

    metric: str = ""
    rows: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    true: int = 0
    parts: tuple[MeanNode, ...] = ()

    @property
    def curve(self) -> bool:
        """True for the leaf of a curve."""
        return self.metric in RANKED

    @property
    def share(self) -> bool:
        """True for a leaf that is a share of right items."""
        return not self.parts and not self.curve and self.metric != POSITIVE_SCORE

    @property
    def key(self) -> tuple[str, bytes]:
        """Return a key that is equal for leaves that compute the same."""
        return self.metric, self.rows.tobytes()

    def leaves(self, weight: float = 1.0) -> Iterator[tuple[MeanNode, float]]:
        """Yield the leaves, left to right, and how much each counts."""
        if not self.parts:
            yield self, weight
        for part in self.parts:
            yield from part.leaves(weight / len(self.parts))

    def walk(self, leaf: Callable[[MeanNode], Values]) -> Values:
        """Return the value, computed from the leaves; means leave nan out."""
        if not self.parts:
            return leaf(self)
        values = np.stack([part.walk(leaf) for part in self.parts])
        present = ~np.isnan(values)
        total, count = np.where(present, values, 0.0).sum(axis=0), present.sum(axis=0)
        return _ratio(total, count)

    def value(self, values: Mapping[str, Values], tie: float = 0.5) -> Values:
        """Compute a leaf whose items count once each.

        values: metric -> (n,) per-item values. tie: what equal scores of a true and a false item
        count in a curve.
        """
        column = values[self.metric][self.rows]
        if not self.curve:
            return np.asarray(column.mean())
        counts = np.ones((1, len(column)))
        return np.asarray(RANKED[self.metric](column, self._is_true, counts, tie)[0])

    def weighted(self, values: Mapping[str, Values], units: Indices) -> Callable[[Values], Values]:
        """Return what computes a leaf from weights (r, units), how often each unit counts.

        It gives a number per row of weights, nan where nothing has weight. What does not depend on
        the weights is computed here, once for all draws.

        values: metric -> (n,) per-item values. units: (n,), the unit of each item.
        """
        column, units = values[self.metric][self.rows], units[self.rows]
        if self.curve:
            curve, is_true = RANKED[self.metric], self._is_true
            return lambda weights: curve(column, is_true, weights[:, units], 0.5)
        there, place = np.unique(units, return_inverse=True)
        totals, counts = np.bincount(place, column), np.bincount(place)

        def ratio(weights: Values) -> Values:
            weights = weights[:, there]
            return _ratio(weights @ totals, weights @ counts)

        return ratio

    @property
    def _is_true(self) -> Flags:
        """Return which items of a curve are true."""
        flags: Flags = np.arange(len(self.rows)) < self.true
        return flags


def _ratio(total: Values, count: Values) -> Values:
    ratio: Values = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    return ratio


def leaf(metric: str, rows: Indices, truth: Sequence[int] = ()) -> MeanNode | None:
    """Return the leaf that computes `metric` from the items at `rows`.

    None if nothing can be computed: no rows, or a curve without true or without false items.
    truth: of all items, for curves.
    """
    if metric not in RANKED:
        return MeanNode(metric, rows) if len(rows) else None
    right = np.asarray(truth)[rows] == 1
    if right.all() or not right.any():
        return None
    return MeanNode(metric, np.concatenate([rows[right], rows[~right]]), int(right.sum()))


def mean_of(parts: Sequence[MeanNode | None]) -> MeanNode | None:
    """Return the mean of the parts that are not None: a single one as it is, None without any."""
    nodes = tuple(part for part in parts if part is not None)
    return MeanNode(parts=nodes) if len(nodes) > 1 else next(iter(nodes), None)


def plan(
    rule: Aggregate, items: Items | Listed, applies: Mapping[str, Flags], main: str
) -> MeanNode | None:
    """Turn a rule into means over rows; parts without an item are left out, None without any.

    applies: metric -> (n,), whether the item has it. main: what to average where a rule names no
    metric. Raises CompoclipError for an unknown metric.
    """
    places = items.subtask_rows if isinstance(items, Items) else rows_by_name(items.subtasks)

    def build(node: Aggregate, inherited: str) -> MeanNode | None:
        metric = node.metric or inherited
        if node.weighting not in ("macro", "micro"):
            raise CompoclipError(f"unknown aggregate weighting '{node.weighting}'; macro or micro")
        if node.macro_by is None and node.weighting == "macro":
            return mean_of([build(part, metric) for part in node.nested()])
        if metric not in applies:
            raise CompoclipError(
                f"an aggregate asks for the metric '{metric}', which these items do not have; "
                f"they have {', '.join(applies)}"
            )
        here = [places[name] for name in node.subtasks() if name in places]
        rows = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *here]))
        rows = rows[applies[metric][rows]]
        if node.macro_by is None:
            return leaf(metric, rows, items.truth)
        groups: dict[str, list[int]] = {}
        for row in rows.tolist():
            value = items.labels[row].get(node.macro_by)
            if value is not None and value not in node.exclude:
                groups.setdefault(value, []).append(row)
        return mean_of(
            [
                leaf(metric, np.array(group, dtype=np.int64), items.truth)
                for _, group in sorted(groups.items())
                if len(group) >= node.min_group
            ]
        )

    return build(rule, main)


def rows_of(tree: MeanNode) -> Indices:
    """Return the sorted distinct rows that a tree uses."""
    rows = [node.rows for node, _ in tree.leaves()]
    return np.sort(rows[0]) if len(rows) == 1 else np.unique(np.concatenate(rows))


def evaluate(tree: MeanNode, values: Mapping[str, Values], tie: float = 0.5) -> float:
    """Return the value of a tree for per-item values; arguments as of `MeanNode.value`."""
    return float(tree.walk(lambda node: node.value(values, tie)))


def additions(
    tree: MeanNode, base: Mapping[str, Values], other: Mapping[str, Values], units: Indices
) -> Values:
    """Split the difference of two models into what each unit (photo, group of photos) adds to it.

    In a mean, a unit adds the shares of its items. In a curve, a unit adds its jackknife estimate:
    the loss of area without the unit, minus the mean loss, plus a part of the whole difference.
    That part is the unit's share of the items; true and false items count half each. A unit without
    which no curve is left adds the whole difference.

    base, other: metric -> (n,) per-item values of each model. units: (n,), the unit of each item.
    Returns (units,), 0 for those without an item of the rule.
    """
    added = np.zeros(int(units.max()) + 1)
    for node, weight in tree.leaves():
        if not node.curve:
            gap = other[node.metric][node.rows] - base[node.metric][node.rows]
            shares = gap * (weight / len(gap))
            added += np.bincount(units[node.rows], weights=shares, minlength=len(added))
            continue
        there, codes = np.unique(units[node.rows], return_inverse=True)
        weights = np.ones((len(there), len(added)))
        weights[np.arange(len(there)), there] = 0
        whole = float(node.value(other) - node.value(base))
        without = node.weighted(other, units)(weights) - node.weighted(base, units)(weights)
        lost = (whole - np.nan_to_num(without)) * (len(there) - 1) / len(there)
        false = len(codes) - node.true
        kind = np.repeat([0.5 / node.true, 0.5 / false], [node.true, false])
        part = np.bincount(codes, whole * kind, minlength=len(there))
        added[there] += weight * (lost - lost.mean() + part)
    return added


def resample(
    trees: Sequence[MeanNode],
    values: Mapping[str, Values],
    photos: Indices,
    bootstrap: Bootstrap = BOOTSTRAP,
    base: Mapping[str, Values] | None = None,
) -> list[Values]:
    """Compute every tree in bootstrap draws of whole clusters; all share the draws.

    values: metric -> (n,) per-item values. photos: (n,), the number of each item's photo. base:
    values of another model, whose trees in the same draws are subtracted. Returns one (resamples,)
    array per tree. A part that a draw misses altogether is left out of that draw's mean; nan for a
    draw without any of the tree's items.
    """
    if not bootstrap.resamples:
        return [np.zeros(0) for _ in trees]
    if base is not None and any(node.curve for tree in trees for node, _ in tree.leaves()):
        one, two = (resample(trees, outcomes, photos, bootstrap) for outcomes in (base, values))
        return [after - before for before, after in zip(one, two)]
    if base is not None:  # all is linear
        values = {name: values[name] - base[name] for name in base}
    leaves = {node.key: node for tree in trees for node, _ in tree.leaves()}
    blocks: dict[tuple[str, bytes], list[Values]] = {key: [] for key in leaves}
    computed = {key: node.weighted(values, photos) for key, node in leaves.items()}
    for weights in bootstrap.weights(int(photos.max()) + 1):
        for key, compute in computed.items():
            blocks[key].append(compute(weights))
    draws = {key: np.concatenate(parts) for key, parts in blocks.items()}
    return [tree.walk(lambda node: draws[node.key]) for tree in trees]
