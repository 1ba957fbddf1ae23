"""Means over parts of several benchmarks: one number a skill, compositionality, zero-shot accuracy.

A group is a plain mean of its parts. Its interval comes from a bootstrap over photos in which
parts of one benchmark share the draws and benchmarks are drawn independently, as in `compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import Plan, evaluate, resample, rows_of
from compoclip.evaluation.compare import Difference, Pair, corrected, own_seed
from compoclip.evaluation.items import MAIN
from compoclip.evaluation.outcomes import Values
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.statistics import RESAMPLES, bootstrap_p, percentile_interval


@dataclass(frozen=True)
class Part:
    """One number of one benchmark: a metric of a sub-task, or an aggregate.

    name: of the sub-task, or of the rule when `metric` is "". metric: "main" is the first one.
    """

    benchmark: str
    name: str
    metric: str = MAIN


Groups = Mapping[str, tuple[Part, ...]]


def skill_groups(results: Sequence[Results]) -> dict[str, tuple[Part, ...]]:
    """Skill -> its sub-tasks in all benchmarks. A sub-task without a skill is one of its own,
    called "benchmark: sub-task"."""
    groups: dict[str, list[Part]] = {}
    for each in results:
        for subtask in each.scores:
            name = each.skills.get(subtask, f"{each.benchmark}: {subtask}")
            groups.setdefault(name, []).append(Part(each.benchmark, subtask))
    return {name: tuple(parts) for name, parts in groups.items()}


def part_score(results: Mapping[str, Results], part: Part) -> Score:
    """The stored score of a part. Raises CompoclipError when the results do not have it."""
    each = results[part.benchmark]
    try:
        if not part.metric:
            return each.aggregates[part.name]
        metrics = each.scores[part.name]
        return metrics[part.metric] if part.metric != MAIN else next(iter(metrics.values()))
    except (KeyError, StopIteration) as error:
        raise CompoclipError(
            f"{each.model} on {each.benchmark}: no {part.metric or 'aggregate'} of '{part.name}'; "
            "evaluate again"
        ) from error


def group_scores(
    results: Sequence[Results], groups: Groups, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Score]:
    """One model's score in each group; a group of one part has that part's stored score.

    results: one a benchmark, holding every part. Other groups: n, expected and ties are sums over
    the parts, all else plain means. Raises CompoclipError when results lack a part or its items.
    """
    named = {each.benchmark: each for each in results}
    several = {name: parts for name, parts in groups.items() if len(parts) > 1}
    pairs = {
        benchmark: Pair.of(named[benchmark], named[benchmark])
        for benchmark in _benchmarks(several.values())
    }
    draws = _draws(pairs, several, _drawn_scores, resamples, seed)
    scores = {}
    for name, parts in groups.items():
        found = [part_score(named, part) for part in parts]
        scores[name] = found[0] if len(found) == 1 else _mean(found, draws[name])
    return scores


def part_draws(
    results: Sequence[Results], parts: Sequence[Part], resamples: int = RESAMPLES, seed: int = 0
) -> dict[Part, Values]:
    """One model's value of every part in each draw of photos, (resamples,).

    results: one a benchmark. Draws of a benchmark depend on its name and `seed` alone, so those of
    two models on the same items go together. Raises CompoclipError as `group_scores` does.
    """
    named = {each.benchmark: each for each in results}
    groups = {str(number): (part,) for number, part in enumerate(dict.fromkeys(parts))}
    pairs = {name: Pair.of(named[name], named[name]) for name in _benchmarks(groups.values())}
    draws = _draws(pairs, groups, _drawn_scores, resamples, seed)
    return {part: draws[name] for name, (part,) in groups.items()}


def group_differences(
    base: Sequence[Results],
    other: Sequence[Results],
    groups: Groups,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Difference, ...]:
    """Two models compared in each group on the same items; p-values corrected over the groups.

    p: McNemar for one sub-task alone, else bootstrap. Raises CompoclipError as `compare` does.
    """
    mine = {each.benchmark: each for each in base}
    theirs = {each.benchmark: each for each in other}
    pairs = {name: Pair.of(mine[name], theirs[name]) for name in _benchmarks(groups.values())}
    draws = _draws(pairs, groups, Pair.draws, resamples, seed)
    found = []
    for name, parts in groups.items():
        values = [
            (
                evaluate(_tree(pairs[part.benchmark], part), pairs[part.benchmark].base),
                evaluate(_tree(pairs[part.benchmark], part), pairs[part.benchmark].other),
            )
            for part in parts
        ]
        before, after = np.mean(values, axis=0)
        low, high = percentile_interval(draws[name])
        each = Difference(
            benchmark=parts[0].benchmark if len(parts) == 1 else "",
            name=name,
            base=float(before),
            other=float(after),
            difference=float(after - before),
            low=low,
            high=high,
            n=sum(len(rows_of(_tree(pairs[part.benchmark], part))) for part in parts),
            p=bootstrap_p(draws[name]),
        )
        if len(parts) == 1:
            pair = pairs[parts[0].benchmark]
            each = pair.with_mcnemar(each, _tree(pair, parts[0])) if parts[0].metric else each
        found.append(each)
    return tuple(corrected(found))


def _benchmarks(groups: Iterable[Sequence[Part]]) -> list[str]:
    """Names of all benchmarks with a part, each once, in order."""
    return list(dict.fromkeys(part.benchmark for parts in groups for part in parts))


def _tree(pair: Pair, part: Part) -> Plan:
    """How the part is computed from the pair's items."""
    try:
        return pair.leaf(part.name, part.metric) if part.metric else pair.trees[part.name]
    except KeyError as error:
        raise CompoclipError(
            f"{part.benchmark}: the items have no {error} for '{part.name}'; evaluate again"
        ) from error


def _drawn_scores(pair: Pair, trees: Sequence[Plan], resamples: int, seed: int) -> list[Values]:
    """The base model's value of each tree in every draw."""
    return resample(trees, pair.base, pair.clusters, resamples, seed)


def _draws(
    pairs: Mapping[str, Pair],
    groups: Groups,
    draw: Callable[[Pair, Sequence[Plan], int, int], list[Values]],
    resamples: int,
    seed: int,
) -> dict[str, Values]:
    """Each group's mean over its parts in every draw; draw: what to draw of the parts."""
    wanted: dict[str, dict[Part, Plan]] = {name: {} for name in pairs}
    for part in (part for parts in groups.values() for part in parts):
        wanted[part.benchmark].setdefault(part, _tree(pairs[part.benchmark], part))
    drawn: dict[Part, Values] = {}
    for name, trees in wanted.items():
        columns = draw(pairs[name], list(trees.values()), resamples, own_seed(seed, name))
        drawn |= dict(zip(trees, columns))
    return {
        name: np.mean(np.stack([drawn[part] for part in parts]), axis=0)
        for name, parts in groups.items()
    }


def _mean(scores: Sequence[Score], draws: Values) -> Score:
    low, high = percentile_interval(draws)

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if len(known) == len(values) else None

    return Score(
        metric="+".join(dict.fromkeys(score.metric for score in scores)),
        value=float(np.mean([score.value for score in scores])),
        n=sum(score.n for score in scores),
        expected=sum(score.expected for score in scores),
        low=low,
        high=high,
        interval="bootstrap",
        chance=float(np.mean([score.chance for score in scores])),
        ties=sum(score.ties for score in scores),
        strict=mean([score.strict for score in scores]),
        fractional=mean([score.fractional for score in scores]),
    )
