"""Evaluates `benchmarks.case.Aggregate` trees on per-item values, with a cluster bootstrap.

Every node of such a tree is a mean, so a rule is linear in the per-item values: the difference of
two models under a rule is the rule applied to the differences of their items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from compoclip.benchmarks.case import Aggregate
from compoclip.errors import CompoclipError
from compoclip.evaluation.outcomes import Indices, Values
from compoclip.evaluation.statistics import RESAMPLES, cluster_weights


@dataclass(frozen=True)
class Mean:
    """Mean of `metric` over the items at `rows`: a leaf of a planned rule."""

    metric: str
    rows: Indices

    @property
    def key(self) -> tuple[str, bytes]:
        """Equal for equal means."""
        return self.metric, self.rows.tobytes()


@dataclass(frozen=True)
class MeanOf:
    """Plain mean of the parts."""

    parts: tuple[Mean | MeanOf, ...]


Plan = Mean | MeanOf


def plan(
    rule: Aggregate,
    subtasks: Sequence[str],
    labels: Sequence[Mapping[str, str]],
    applies: Mapping[str, np.ndarray],
    main: str,
) -> Plan:
    """Turn a rule into means over rows.

    subtasks, labels: of the n items. applies: metric -> boolean (n,), whether the item has it.
    main: name of the values to average where a rule names no metric. Parts without a single item
    are left out (they are refused earlier unless partial data is allowed). Raises CompoclipError
    when nothing is left, or for an unknown metric or weighting.
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
            kept = [
                Mean(metric, np.array(group, dtype=np.int64))
                for _, group in sorted(groups.items())
                if len(group) >= node.min_group
            ]
            return MeanOf(tuple(kept)) if kept else None
        if node.weighting == "micro":
            pooled = rows(node, metric)
            return Mean(metric, pooled) if len(pooled) else None
        parts: list[Plan] = []
        for part in node.parts:
            if isinstance(part, str):
                built = build(Aggregate((part,), weighting="micro"), metric)
            else:
                built = build(part, metric)
            if built is not None:
                parts.append(built)
        return MeanOf(tuple(parts)) if parts else None

    tree = build(rule, main)
    if tree is None:
        raise CompoclipError(
            f"no items for an aggregate over {', '.join(sorted(rule.subtasks()))}; "
            "check the annotation and image folders"
        )
    return tree


def leaves(tree: Plan) -> list[Mean]:
    """The leaves of a plan, left to right."""
    if isinstance(tree, Mean):
        return [tree]
    return [leaf for part in tree.parts for leaf in leaves(part)]


def rows_of(tree: Plan) -> Indices:
    """Sorted distinct rows that a plan uses."""
    return np.unique(np.concatenate([leaf.rows for leaf in leaves(tree)]))


def evaluate(tree: Plan, values: Mapping[str, Values]) -> float:
    """The rule's value; `values`: metric -> (n,) per-item values."""
    return float(_combine(tree, lambda leaf: np.asarray(values[leaf.metric][leaf.rows].mean())))


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
    columns: dict[tuple[str, bytes], tuple[int, Mean]] = {}
    for leaf in (leaf for tree in trees for leaf in leaves(tree)):
        columns.setdefault(leaf.key, (len(columns), leaf))
    _, codes = np.unique(np.asarray(clusters), return_inverse=True)
    count = int(codes.max()) + 1
    row = np.concatenate([codes[leaf.rows] for _, leaf in columns.values()])
    column = np.concatenate([np.full(len(leaf.rows), k) for k, leaf in columns.values()])
    value = np.concatenate([values[leaf.metric][leaf.rows] for _, leaf in columns.values()])
    shape = (count, len(columns))
    sums = sparse.csc_array((value, (row, column)), shape=shape)
    sizes = sparse.csc_array((np.ones(len(value)), (row, column)), shape=shape)
    blocks = []
    for weights in cluster_weights(count, resamples, seed):
        size = weights @ sizes
        mean = np.divide(weights @ sums, size, out=np.full(size.shape, np.nan), where=size > 0)
        blocks.append(mean)
    means = np.concatenate(blocks)
    return [_combine(tree, lambda leaf: means[:, columns[leaf.key][0]]) for tree in trees]


def _combine(tree: Plan, leaf_value: Callable[[Mean], Values]) -> Values:
    if isinstance(tree, Mean):
        return leaf_value(tree)
    parts = np.stack([_combine(part, leaf_value) for part in tree.parts])
    present = ~np.isnan(parts)
    total = np.where(present, parts, 0.0).sum(axis=0)
    count = present.sum(axis=0)
    mean: Values = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    return mean


def rule_to_json(rule: Aggregate) -> dict[str, object]:
    """A JSON-ready form of a rule, stored with results so that they can be compared later."""
    return {
        "parts": [p if isinstance(p, str) else rule_to_json(p) for p in rule.parts],
        "weighting": rule.weighting,
        "macro_by": rule.macro_by,
        "min_group": rule.min_group,
        "exclude": sorted(rule.exclude),
        "metric": rule.metric,
    }


def rule_from_json(data: Mapping[str, object]) -> Aggregate:
    """The inverse of `rule_to_json`. Raises KeyError or TypeError for anything else."""
    parts, exclude = data["parts"], data["exclude"]
    macro_by, metric, group = data["macro_by"], data["metric"], data["min_group"]
    if not isinstance(parts, list) or not isinstance(exclude, list) or not isinstance(group, int):
        raise TypeError("an aggregate needs lists of parts and exclusions, and a group size")
    return Aggregate(
        parts=tuple(p if isinstance(p, str) else rule_from_json(p) for p in parts),
        weighting=str(data["weighting"]),
        macro_by=None if macro_by is None else str(macro_by),
        min_group=group,
        exclude=frozenset(str(value) for value in exclude),
        metric=None if metric is None else str(metric),
    )
