"""From scored items to scores: sub-tasks and aggregates with interval, chance and ties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from compoclip.benchmarks.case import Aggregate, Content
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
from compoclip.evaluation.items import MAIN, POSITIVE_SCORE, Items, Values
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import (
    BOOTSTRAP,
    Bootstrap,
    Interval,
    percentile_interval,
    wilson,
)


def summarise(
    items: Items,
    rules: Mapping[str, Aggregate],
    expected: Mapping[str, int] | None = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    whole: Content | None = None,
) -> tuple[dict[str, dict[str, Score]], dict[str, Score]]:
    """Score all sub-tasks and rules, plus the aggregate "positive_score" over all items.

    Returns sub-task -> metric -> score, and rule name -> score.

    The interval is Wilson's if no two items share a photo, otherwise a bootstrap over photos. Means
    of means and areas under a curve always take the bootstrap. If all items are right, or all
    wrong, it is Wilson's for the number of photos. A single photo has no interval. A rule whose
    sub-tasks have no items at all is left out, and for partial data one that the items there are do
    not define.

    expected: sub-task -> items of the full benchmark, where more than are here; "sub-task/metric"
    where a metric counts other things, such as groups of items. whole: the full benchmark, whose
    labels tell how many of the expected items a rule picks.
    """
    metrics = (*items.outcomes, POSITIVE_SCORE)
    main = next((name for name in items.outcomes if name in RANKED), MAIN)
    values, clusters = ruled_values(items), items.photos
    expected = expected or {}
    names = np.asarray(items.subtasks, dtype=object)
    here = Counter(items.subtasks)
    counts: Counter[str] = here + Counter(
        f"{name}/{metric}" for metric in metrics for name in names[items.applies[metric]]
    )
    short = {name: max(0, n - counts[name]) for name, n in expected.items()}

    def lack(subtask: str, metric: str) -> int:
        return short.get(f"{subtask}/{metric}", short.get(subtask, 0))

    trees: dict[tuple[str, str], tuple[MeanNode, int]] = {}
    for subtask, rows in items.subtask_rows.items():
        for metric in metrics:
            tree = leaf(metric, rows[items.applies[metric][rows]], items.truth)
            if tree is not None:
                trees[subtask, metric] = tree, lack(subtask, metric)
    everything = Aggregate(tuple(here), weighting="micro", metric=POSITIVE_SCORE)
    for name, rule in {**rules, POSITIVE_SCORE: everything}.items():
        parts = rule.subtasks()
        if not here.keys() & parts:
            continue
        gap = sum(lack(part, rule.metric or MAIN) for part in parts)
        tree = plan(rule, items, items.applies, main)
        if tree is None and not gap:
            raise CompoclipError(
                f"no items for an aggregate over {', '.join(sorted(parts))}; check the annotation "
                "and image folders"
            )
        if tree is None:
            continue
        if gap and whole is not None and rule.by_label():
            listed = whole.listed
            everywhere = {metric: np.ones(len(listed.subtasks), bool) for metric in items.applies}
            whole_tree = plan(rule, listed, everywhere, main)
            count = Counter(listed.subtasks)  # items that no file lists may have any label
            all_items = sum(max(0, expected.get(part, 0) - count[part]) for part in parts)
            all_items += len(rows_of(whole_tree)) if whole_tree is not None else 0
            gap = max(0, all_items - len(rows_of(tree)))
        trees["", name] = tree, gap

    # Of one proportion of items that share no photo the interval is Wilson's.
    photos = {key: len(np.unique(clusters[rows_of(tree)])) for key, (tree, _) in trees.items()}
    redrawn = [k for k, (tree, _) in trees.items() if not tree.share or photos[k] < len(tree.rows)]
    draws = resample([trees[k][0] for k in redrawn], values, clusters, bootstrap)
    draws_of = dict(zip(redrawn, draws))
    scores = {
        key: _score(items, values, tree, lacking, photos[key], draws_of.get(key))
        for key, (tree, lacking) in trees.items()
    }
    return (
        {part: {name: s for (of, name), s in scores.items() if of == part} for part in here},
        {name: score for (of, name), score in scores.items() if not of},
    )


def _score(
    items: Items,
    values: Mapping[str, Values],
    tree: MeanNode,
    lacking: int,
    photos: int,
    draws: Values | None,
) -> Score:
    """Return the score of a tree; values: as of `ruled_values`. lacking: items that are not here.

    photos: the number of its photos. draws: its values in bootstrap draws, if it needs them.
    """
    rows, leaves = rows_of(tree), [node for node, _ in tree.leaves()]
    value = evaluate(tree, values)
    kind = "bootstrap"
    interval: Interval = (None, None)
    shares = [values[node.metric][node.rows] for node in leaves if node.share]
    every = np.concatenate(shares) if len(shares) == len(leaves) else np.array([0.5])
    alike = (every == 0).all() or (every == 1).all()  # then resampling says nothing
    if draws is not None and not alike:
        interval = percentile_interval(draws, photos)
    elif photos > 1:
        kind, interval = "wilson", wilson(float(round(value * photos)), photos)
    low, high = interval

    names = {node.metric for node in leaves} - {MAIN}
    left = [node.rows for node in leaves if node.metric == MAIN]
    for name in items.judged if left else ():  # the metrics that are the main ones of items
        applies = [items.applies[name][part] for part in left]
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
            ranked = values[node.metric][node.rows]
            both = np.intersect1d(ranked[: node.true], ranked[node.true :])
            tied.append(node.rows[np.isin(ranked, both)])
        else:
            tied.append(node.rows[items.judged[node.metric].tied[node.rows]])
    strict, fractional = (
        {
            metric: values[metric] if metric in RANKED else outcome[k]
            for metric, outcome in items.judged.items()
        }
        for k in (1, 2)
    )
    chances = {metric: outcome.chance for metric, outcome in items.judged.items()}
    return replace(
        score,
        chance=float(tree.walk(lambda node: chances[node.metric][node.rows].mean())),
        ties=len(np.unique(np.concatenate(tied))),
        strict=evaluate(tree, strict, 0.0),
        fractional=evaluate(tree, fractional),
    )
