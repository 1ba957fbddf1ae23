"""From scored items to scores: sub-tasks and aggregates with interval, chance and ties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compoclip.benchmarks.case import Aggregate, Listed
from compoclip.evaluation.aggregate import (
    RANKED,
    Plan,
    evaluate,
    leaf,
    leaves,
    plan,
    plan_or_none,
    resample,
    rows_of,
    ruled_values,
)
from compoclip.evaluation.items import MAIN, POLICIES, POSITIVE_SCORE, Items, Outcomes, Values
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import RESAMPLES, Interval, percentile_interval, wilson


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
    listed: Listed | None = None,
) -> Summary:
    """Scores of all sub-tasks and rules, plus the aggregate "positive_score" over all items.

    expected: sub-task -> items of the full benchmark, where more than are here; "sub-task/metric"
    where a metric counts other things, such as groups of items. listed: tells how many of these
    have the labels that a rule picks. Intervals: Wilson for items that share no photo, else a
    bootstrap over photos, always for means of means and areas under a curve. Where all items are
    right or all are wrong: Wilson for the number of photos; for a single photo none.
    A rule whose sub-tasks have no items at all is left out, and for partial data one that
    the items there are do not define.
    """
    frame = _Frame.of(items)
    here = Counter(items.subtasks)
    used = {**here, **frame.counts(items.subtasks)}
    short = {name: max(0, n - used.get(name, 0)) for name, n in (expected or {}).items()}

    def lack(subtask: str, metric: str) -> int:
        return short.get(f"{subtask}/{metric}", short.get(subtask, 0))

    subtasks = np.asarray(items.subtasks, dtype=object)

    trees: dict[tuple[str, str], Plan] = {}
    lacking: dict[tuple[str, str], int] = {}
    for subtask in here:
        rows = np.flatnonzero(subtasks == subtask)
        for metric in frame.metrics:
            tree = leaf(metric, rows[frame.applies[metric][rows]], items.truth)
            if tree is not None:
                trees[subtask, metric] = tree
                lacking[subtask, metric] = lack(subtask, metric)
    everything = Aggregate(tuple(here), weighting="micro", metric=POSITIVE_SCORE)
    for name, rule in {**rules, POSITIVE_SCORE: everything}.items():
        if here.keys() & rule.subtasks():
            gap = sum(lack(part, rule.metric or MAIN) for part in rule.subtasks())
            about = Listed(items.subtasks, items.labels, items.truth), frame.applies, frame.main
            found = plan_or_none(rule, *about) if gap else plan(rule, *about)
            if found is not None:
                if gap and listed is not None and rule.by_label():
                    all_items = _listed_items(rule, listed, frame, expected or {})
                    gap = max(0, all_items - len(rows_of(found)))
                trees["", name], lacking["", name] = found, gap

    scores = _score_all(frame, items, trees, lacking, resamples, seed)
    return Summary(
        scores={
            subtask: {metric: score for (part, metric), score in scores.items() if part == subtask}
            for subtask in here
        },
        aggregates={name: score for (part, name), score in scores.items() if not part},
    )


def _listed_items(
    rule: Aggregate, listed: Listed, frame: _Frame, expected: Mapping[str, int]
) -> int:
    """Items that the rule uses of the full benchmark. Those that no file lists may be any."""
    everything = {name: np.ones(len(listed.subtasks), dtype=bool) for name in frame.applies}
    whole = plan_or_none(rule, listed, everything, frame.main)
    here = Counter(listed.subtasks)
    unlisted = sum(max(0, expected.get(part, 0) - here[part]) for part in rule.subtasks())
    return unlisted + (0 if whole is None else len(rows_of(whole)))


@dataclass(frozen=True)
class _Frame:
    """Per-item values by metric, "main" being each item's main metric.

    used: what rules are computed from: outcomes, and for a curve the scores to be ranked. main: the
    metric of rules that name none.
    """

    metrics: tuple[str, ...]
    main: str
    applies: dict[str, np.ndarray]
    outcomes: dict[str, Outcomes]
    used: dict[str, Values]
    main_of: np.ndarray

    @classmethod
    def of(cls, items: Items) -> _Frame:
        n = len(items)
        names = tuple(items.outcomes)
        main_of = np.full(n, -1)
        main = Outcomes.nowhere(n)
        for number, each in enumerate(items.outcomes.values()):
            new = (main_of < 0) & ~np.isnan(each.used)
            main_of[new] = number
            for whole, part in zip(main, each):
                whole[new] = part[new]
        outcomes = {**items.outcomes, MAIN: main}
        used = {name: each.used for name, each in items.outcomes.items()}
        applies = {**used, MAIN: main.used, POSITIVE_SCORE: items.positive}
        return cls(
            metrics=(*names, POSITIVE_SCORE),
            main=next((name for name in names if name in RANKED), MAIN),
            applies={name: ~np.isnan(each) for name, each in applies.items()},
            outcomes=outcomes,
            used=ruled_values(used, items.scores, items.positive),
            main_of=np.array([*names, MAIN], dtype=object)[main_of],
        )

    def counts(self, subtasks: Sequence[str]) -> dict[str, int]:
        """ "sub-task/metric" -> items that have the metric."""
        return {
            f"{subtask}/{metric}": n
            for metric in self.metrics
            for subtask, n in Counter(np.asarray(subtasks)[self.applies[metric]].tolist()).items()
        }

    def policy(self, part: str) -> dict[str, Values]:
        """Values by metric under "strict" or "fractional" ties."""
        place = POLICIES.index(part)
        values = {name: each[place] for name, each in self.outcomes.items()}
        return {**values, **{name: self.used[name] for name in RANKED if name in values}}

    def chance(self, tree: Plan) -> float:
        """The value of the plan when every item is guessed."""
        return float(tree.combine(lambda leaf: self.outcomes[leaf.metric].chance[leaf.rows].mean()))

    def metric_name(self, tree: Plan) -> str:
        """Which metric a plan averages; several are joined by "+"."""
        names: set[str] = set()
        for each in leaves(tree):
            names |= set(self.main_of[each.rows]) if each.metric == MAIN else {each.metric}
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
    draws = resample([trees[k] for k in drawn], frame.used, items.clusters, resamples, seed)
    drawn_values = dict(zip(drawn, draws))
    scores = {}
    for key, tree in trees.items():
        rows = rows_of(tree)
        value = evaluate(tree, frame.used)
        photos = len(np.unique(clusters[rows]))
        interval: Interval = (None, None)
        if key in drawn_values and not _all_alike(tree, frame.used):
            kind, interval = "bootstrap", percentile_interval(drawn_values[key], photos)
        elif photos > 1:
            kind, interval = "wilson", wilson(float(round(value * photos)), photos)
        low, high = interval
        parts: dict[str, float] = {}
        ties = 0
        if not any(each.metric == POSITIVE_SCORE for each in leaves(tree)):
            for part, tie in (("strict", 0.0), ("fractional", 0.5)):
                parts[part] = evaluate(tree, frame.policy(part), tie)
            parts["chance"] = frame.chance(tree)
            hang = (each.tied(frame.used, frame.outcomes).tolist() for each in leaves(tree))
            ties = len({row for rows in hang for row in rows})
        scores[key] = Score(
            metric=frame.metric_name(tree),
            value=value,
            n=len(rows),
            expected=len(rows) + lacking[key],
            low=low,
            high=high,
            interval=kind if low is not None else "none",
            chance=parts.get("chance", 0.0),
            photos=photos,
            ties=ties,
            strict=parts.get("strict"),
            fractional=parts.get("fractional"),
        )
    return scores


def _all_alike(tree: Plan, values: Mapping[str, Values]) -> bool:
    """True if all items are right or all are wrong: resampling then says nothing."""
    if not all(each.share for each in leaves(tree)):
        return False
    every = np.concatenate([values[each.metric][each.rows] for each in leaves(tree)])
    return bool((every == 0).all() or (every == 1).all())


def _independent(tree: Plan, clusters: np.ndarray) -> bool:
    """True if the plan is one proportion of items that share no photo."""
    rows = rows_of(tree)
    return tree.share and len(np.unique(clusters[rows])) == len(rows)
