"""From scored items to scores: sub-tasks and aggregates with interval, chance and ties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from compoclip.benchmarks.case import Aggregate, Listed
from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import (
    RANKED,
    MeanNode,
    evaluate,
    leaf,
    plan,
    resample,
    rows_of,
    ruled_values,
)
from compoclip.evaluation.items import (
    MAIN,
    POSITIVE_SCORE,
    Flags,
    Items,
    Outcomes,
    Values,
    main_values,
)
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import (
    BOOTSTRAP,
    Bootstrap,
    Interval,
    percentile_interval,
    wilson,
)


class Summary(NamedTuple):
    """scores: sub-task -> metric -> Score. aggregates: rule name -> Score."""

    scores: dict[str, dict[str, Score]]
    aggregates: dict[str, Score]


def summarise(
    items: Items,
    rules: Mapping[str, Aggregate],
    expected: Mapping[str, int] | None = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    listed: Listed | None = None,
) -> Summary:
    """Score all sub-tasks and rules, plus the aggregate "positive_score" over all items.

    The interval is Wilson's if no two items share a photo, otherwise a bootstrap over photos. Means
    of means and areas under a curve always take the bootstrap. If all items are right, or all
    wrong, it is Wilson's for the number of photos. A single photo has no interval. A rule whose
    sub-tasks have no items at all is left out, and for partial data one that the items there are do
    not define.

    expected: sub-task -> items of the full benchmark, where more than are here; "sub-task/metric"
    where a metric counts other things, such as groups of items. listed: how many of the expected
    items have the labels that a rule picks.
    """
    frame = _Frame(items)
    expected = expected or {}
    names = np.asarray(items.subtasks, dtype=object)
    here = Counter(items.subtasks)
    counts: Counter[str] = here + Counter(
        f"{name}/{metric}" for metric in frame.metrics for name in names[frame.applies[metric]]
    )
    short = {name: max(0, n - counts[name]) for name, n in expected.items()}

    def lack(subtask: str, metric: str) -> int:
        return short.get(f"{subtask}/{metric}", short.get(subtask, 0))

    trees: dict[tuple[str, str], tuple[MeanNode, int]] = {}
    for subtask in here:
        rows = np.flatnonzero(names == subtask)
        for metric in frame.metrics:
            tree = leaf(metric, rows[frame.applies[metric][rows]], items.truth)
            if tree is not None:
                trees[subtask, metric] = tree, lack(subtask, metric)
    everything = Aggregate(tuple(here), weighting="micro", metric=POSITIVE_SCORE)
    for name, rule in {**rules, POSITIVE_SCORE: everything}.items():
        parts = rule.subtasks()
        if not here.keys() & parts:
            continue
        gap = sum(lack(part, rule.metric or MAIN) for part in parts)
        here_listed = Listed(items.subtasks, items.labels, items.truth)
        tree = plan(rule, here_listed, frame.applies, frame.main)
        fault = f"no items for an aggregate over {', '.join(sorted(parts))}; check the annotation "
        if tree is None and not gap:
            raise CompoclipError(f"{fault}and image folders")
        if tree is None:
            continue
        if gap and listed is not None and rule.by_label():
            everywhere = {metric: np.ones(len(listed.subtasks), bool) for metric in frame.applies}
            whole = plan(rule, listed, everywhere, frame.main)
            count = Counter(listed.subtasks)  # items that no file lists may have any label
            all_items = sum(max(0, expected.get(part, 0) - count[part]) for part in parts)
            all_items += len(rows_of(whole)) if whole is not None else 0
            gap = max(0, all_items - len(rows_of(tree)))
        trees["", name] = tree, gap

    # Of one proportion of items that share no photo the interval is Wilson's.
    photos = {key: len(np.unique(frame.photos[rows_of(tree)])) for key, (tree, _) in trees.items()}
    redrawn = [k for k, (tree, _) in trees.items() if not tree.share or photos[k] < len(tree.rows)]
    draws = resample([trees[k][0] for k in redrawn], frame.used, frame.photos, bootstrap)
    draws_of = dict(zip(redrawn, draws))
    scores = {k: frame.score(*entry, photos[k], draws_of.get(k)) for k, entry in trees.items()}
    return Summary(
        {part: {name: s for (of, name), s in scores.items() if of == part} for part in here},
        {name: score for (of, name), score in scores.items() if not of},
    )


class _Frame:
    """Per-item values of scored items by metric, "main" being each item's main metric.

    metrics: of the sub-tasks. main: the metric of rules that name none. used: what rules are
    computed from (`ruled_values`). photos: the number of each item's photo.
    """

    def __init__(self, items: Items) -> None:
        main = Outcomes(
            *(
                main_values(
                    {name: outcome[k] for name, outcome in items.outcomes.items()}, len(items)
                )
                for k in range(len(Outcomes._fields))
            )
        )
        used = {name: outcome.used for name, outcome in items.outcomes.items()}
        applied = {**used, MAIN: main.used, POSITIVE_SCORE: items.positive}
        self.metrics = (*items.outcomes, POSITIVE_SCORE)
        self.main = next((name for name in items.outcomes if name in RANKED), MAIN)
        self.applies: dict[str, Flags] = {name: ~np.isnan(used) for name, used in applied.items()}
        self.outcomes = {**items.outcomes, MAIN: main}
        self.used = ruled_values(items)
        self.photos = items.photos

    def score(self, tree: MeanNode, lacking: int, photos: int, draws: Values | None) -> Score:
        rows, leaves = rows_of(tree), [node for node, _ in tree.leaves()]
        value = evaluate(tree, self.used)
        kind = "bootstrap"
        interval: Interval = (None, None)
        shares = [self.used[node.metric][node.rows] for node in leaves if node.share]
        every = np.concatenate(shares) if len(shares) == len(leaves) else np.array([0.5])
        alike = (every == 0).all() or (every == 1).all()  # then resampling says nothing
        if draws is not None and not alike:
            interval = percentile_interval(draws, photos)
        elif photos > 1:
            kind, interval = "wilson", wilson(float(round(value * photos)), photos)
        low, high = interval

        names = {node.metric for node in leaves} - {MAIN}
        left = [node.rows for node in leaves if node.metric == MAIN]
        for name in self.outcomes if left else ():  # the metrics that are the main ones of items
            applies = [self.applies[name][part] for part in left]
            names |= {name} if any(flags.any() for flags in applies) else set()
            left = [part[~flags] for part, flags in zip(left, applies)]
        score = Score(
            metric="+".join(sorted(names)),
            value=value,
            n=len(rows),
            expected=len(rows) + lacking,
            low=low,
            high=high,
            interval=kind if low is not None else "none",
            chance=0.0,
            photos=photos,
        )
        if any(node.metric == POSITIVE_SCORE for node in leaves):
            return score
        tied = []
        for node in leaves:
            if node.curve:  # equal scores of true and false items
                scores = self.used[node.metric][node.rows]
                both = np.intersect1d(scores[: node.true], scores[node.true :])
                tied.append(node.rows[np.isin(scores, both)])
            else:
                tied.append(node.rows[self.outcomes[node.metric].tied[node.rows]])
        strict, fractional = (
            {
                metric: self.used[metric] if metric in RANKED else outcome[k]
                for metric, outcome in self.outcomes.items()
            }
            for k in (1, 2)
        )
        chances = {metric: outcome.chance for metric, outcome in self.outcomes.items()}
        return replace(
            score,
            chance=float(tree.walk(lambda node: chances[node.metric][node.rows].mean())),
            ties=len(np.unique(np.concatenate(tied))),
            strict=evaluate(tree, strict, 0.0),
            fractional=evaluate(tree, fractional),
        )
