"""Metrics of groups of items: a group is right when all of its items are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from compoclip.benchmarks.case import Case
from compoclip.evaluation.items import Items
from compoclip.evaluation.outcomes import Indices, Outcomes, Values

Sizes = Mapping[tuple[str, str, str], int]
"""(metric, sub-task, label value) -> items of the whole group."""


def group_sizes(cases: Iterable[Case], joint: Mapping[str, str]) -> Sizes:
    """How many cases every group has; joint: metric -> case label, see `Benchmark`."""
    return Counter(
        (metric, case.subtask, case.labels[label])
        for case in cases
        for metric, label in joint.items()
        if label in case.labels
    )


def groups_by_part(sizes: Sizes) -> dict[str, int]:
    """ "sub-task/metric" -> number of groups."""
    return dict(Counter(f"{subtask}/{metric}" for metric, subtask, _ in sizes))


def with_joint(items: Items, joint: Mapping[str, str], sizes: Sizes) -> Items:
    """The items with one more metric for each entry of `joint`.

    A group's outcome is the product of its items' main outcomes (with random ties and for chance
    their probabilities, the items being independent). The group's first item bears it, the metric
    does not apply to the others. Groups of which an item is absent, by `sizes`, are left out.
    """
    main = next(iter(items.outcomes.values()))
    outcomes = dict(items.outcomes)
    for metric, label in joint.items():
        groups: dict[tuple[str, str, str], list[int]] = {}
        for row, (subtask, labels) in enumerate(zip(items.subtasks, items.labels)):
            if label in labels:
                groups.setdefault((metric, subtask, labels[label]), []).append(row)
        whole = [np.array(rows) for key, rows in groups.items() if len(rows) == sizes[key]]
        outcomes[metric] = _products(main, whole, len(items))
    return replace(items, outcomes=outcomes)


def _products(main: Outcomes, groups: list[Indices], n: int) -> Outcomes:
    def spread(values: Values) -> Values:
        out = np.full(n, np.nan)
        for rows in groups:
            out[rows[0]] = values[rows].prod()
        return out

    return Outcomes(
        used=spread(main.used),
        strict=spread(main.strict),
        fractional=spread(main.fractional),
        chance=spread(main.chance),
    )
