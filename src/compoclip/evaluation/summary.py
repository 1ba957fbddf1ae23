"""From scored items to scores: sub-tasks and aggregates with interval, chance and ties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compoclip.benchmarks.case import Aggregate
from compoclip.evaluation.aggregate import (
    Mean,
    Plan,
    evaluate,
    leaves,
    plan,
    resample,
    rows_of,
)
from compoclip.evaluation.items import MAIN, POSITIVE_SCORE, Items
from compoclip.evaluation.outcomes import Outcomes, Values
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import RESAMPLES, percentile_interval, wilson


@dataclass(frozen=True)
class Summary:
    """scores: sub-task -> metric -> Score. aggregates: rule name -> Score."""

    scores: dict[str, dict[str, Score]]
    aggregates: dict[str, Score]


def summarise(
    items: Items,
    rules: Mapping[str, Aggregate],
    expected: Mapping[str, int] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Summary:
    """Scores of all sub-tasks and rules, plus the aggregate "positive_score" over all items.

    expected: sub-task -> items of the full benchmark, where more than are here. Intervals: Wilson
    for items that share no photo, else a bootstrap over photos, always for means of means. A rule
    whose sub-tasks have no items at all is left out.
    """
    frame = _Frame.of(items)
    here = Counter(items.subtasks)
    short = {name: max(0, n - here[name]) for name, n in (expected or {}).items()}
    subtasks = np.asarray(items.subtasks, dtype=object)

    trees: dict[tuple[str, str], Plan] = {}
    lacking: dict[tuple[str, str], int] = {}
    for subtask in here:
        rows = np.flatnonzero(subtasks == subtask)
        for metric in frame.metrics:
            kept = rows[frame.applies[metric][rows]]
            if len(kept):
                trees[subtask, metric] = Mean(metric, kept)
                lacking[subtask, metric] = short.get(subtask, 0)
    everything = Aggregate(tuple(here), weighting="micro", metric=POSITIVE_SCORE)
    for name, rule in {**rules, POSITIVE_SCORE: everything}.items():
        if here.keys() & rule.subtasks():
            trees["", name] = plan(rule, items.subtasks, items.labels, frame.applies, MAIN)
            lacking["", name] = sum(short.get(part, 0) for part in rule.subtasks())

    scores = _score_all(frame, items, trees, lacking, resamples, seed)
    return Summary(
        scores={
            subtask: {metric: score for (part, metric), score in scores.items() if part == subtask}
            for subtask in here
        },
        aggregates={name: score for (part, name), score in scores.items() if not part},
    )


@dataclass(frozen=True)
class _Frame:
    """Per-item values by metric, "main" being each item's main metric."""

    metrics: tuple[str, ...]
    applies: dict[str, np.ndarray]
    outcomes: dict[str, Outcomes]
    used: dict[str, Values]
    main_of: np.ndarray

    @classmethod
    def of(cls, items: Items) -> _Frame:
        n = len(items)
        names = tuple(items.outcomes)
        main_of = np.full(n, -1)
        arrays = {part: np.full(n, np.nan) for part in ("used", "strict", "fractional", "chance")}
        for number, each in enumerate(items.outcomes.values()):
            new = (main_of < 0) & ~np.isnan(each.used)
            main_of[new] = number
            for part, out in arrays.items():
                out[new] = getattr(each, part)[new]
        outcomes = {**items.outcomes, MAIN: Outcomes(**arrays)}
        return cls(
            metrics=(*names, POSITIVE_SCORE),
            applies={
                **{name: ~np.isnan(each.used) for name, each in outcomes.items()},
                POSITIVE_SCORE: np.ones(n, dtype=bool),
            },
            outcomes=outcomes,
            used={
                **{name: each.used for name, each in outcomes.items()},
                POSITIVE_SCORE: items.positive,
            },
            main_of=np.array([*names, MAIN], dtype=object)[main_of],
        )

    def metric_name(self, tree: Plan) -> str:
        """Which metric a plan averages; several are joined by "+"."""
        names: set[str] = set()
        for leaf in leaves(tree):
            names |= set(self.main_of[leaf.rows]) if leaf.metric == MAIN else {leaf.metric}
        return "+".join(sorted(names))


def _score_all(
    frame: _Frame,
    items: Items,
    trees: Mapping[tuple[str, str], Plan],
    lacking: Mapping[tuple[str, str], int],
    resamples: int,
    seed: int,
) -> dict[tuple[str, str], Score]:
    _, clusters = np.unique(np.asarray(items.clusters), return_inverse=True)
    drawn = [key for key, tree in trees.items() if not _independent(tree, clusters)]
    intervals: dict[tuple[str, str], tuple[float, float]] = {}
    if drawn:
        draws = resample([trees[k] for k in drawn], frame.used, items.clusters, resamples, seed)
        intervals = {key: percentile_interval(each) for key, each in zip(drawn, draws)}
    scores = {}
    for key, tree in trees.items():
        rows = rows_of(tree)
        value = evaluate(tree, frame.used)
        bootstrap = key in intervals
        low, high = (
            intervals[key] if bootstrap else wilson(float(round(value * len(rows))), len(rows))
        )
        parts: dict[str, float] = {}
        ties = 0
        if not any(leaf.metric == POSITIVE_SCORE for leaf in leaves(tree)):
            for part in ("strict", "fractional", "chance"):
                per_item = {name: getattr(o, part) for name, o in frame.outcomes.items()}
                parts[part] = evaluate(tree, per_item)
            tied = {
                row
                for leaf in leaves(tree)
                for row in leaf.rows[frame.outcomes[leaf.metric].tied[leaf.rows]].tolist()
            }
            ties = len(tied)
        scores[key] = Score(
            metric=frame.metric_name(tree),
            value=value,
            n=len(rows),
            expected=len(rows) + lacking[key],
            low=low,
            high=high,
            interval="bootstrap" if bootstrap else "wilson",
            chance=parts.get("chance", 0.0),
            ties=ties,
            strict=parts.get("strict"),
            fractional=parts.get("fractional"),
        )
    return scores


def _independent(tree: Plan, clusters: np.ndarray) -> bool:
    """Whether the plan is one proportion of items that share no photo."""
    if not isinstance(tree, Mean) or tree.metric == POSITIVE_SCORE:
        return False
    return len(np.unique(clusters[tree.rows])) == len(tree.rows)
