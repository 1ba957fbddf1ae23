"""Means over parts of several benchmarks: one number a skill, compositionality, zero-shot accuracy.

A group is a plain mean of its parts. Its interval comes from a bootstrap over photos in which
parts of one benchmark share the draws and benchmarks are drawn independently, as in `compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compoclip.benchmarks.case import ZERO_SHOT
from compoclip.benchmarks.registry import SANITY_CHECKS, SUITES
from compoclip.console import table
from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import MeanOf, Plan, evaluate, resample, rows_of
from compoclip.evaluation.comparison import (
    Difference,
    Evidence,
    Pair,
    corrected,
    difference,
    joined,
    own_seed,
    with_counts,
)
from compoclip.evaluation.items import MAIN, POSITIVE_SCORE, Values
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.statistics import RESAMPLES
from compoclip.evaluation.tables import percent, span


@dataclass(frozen=True)
class ScorePart:
    """One number of one benchmark: a metric of a sub-task, or an aggregate.

    name: of the sub-task, or of the rule when `metric` is "". metric: "main" is the first one.
    """

    benchmark: str
    name: str
    metric: str = MAIN


Groups = Mapping[str, tuple[ScorePart, ...]]


def skill_groups(results: Sequence[Results]) -> dict[str, tuple[ScorePart, ...]]:
    """Group the sub-tasks of all benchmarks by skill.

    Args:
        results: one model's, one a benchmark.

    Returns:
        Skill -> its sub-tasks. A sub-task without a skill is one of its own, called
        "benchmark: sub-task".
    """
    groups: dict[str, list[ScorePart]] = {}
    for each in results:
        for subtask in each.scores:
            name = each.skills.get(subtask, f"{each.benchmark}: {subtask}")
            groups.setdefault(name, []).append(ScorePart(each.benchmark, subtask))
    return {name: tuple(parts) for name, parts in groups.items()}


def part_score(results: Mapping[str, Results], part: ScorePart) -> Score:
    """The stored score of a part. Raises CompoclipError when the results do not have it."""
    each = results[part.benchmark]
    try:
        if not part.metric:
            return each.aggregates[part.name]
        if part.metric == MAIN:
            return each.main(part.name)
        return each.scores[part.name][part.metric]
    except (KeyError, StopIteration) as error:
        raise CompoclipError(
            f"{each.model} on {each.benchmark}: no {part.metric or 'aggregate'} of '{part.name}'; "
            "evaluate again"
        ) from error


def group_scores(
    results: Sequence[Results], groups: Groups, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Score]:
    """Average one model's scores in each group.

    A group of one part has that part's stored score. Of other groups n, expected and ties are sums
    over the parts, photos are those of the benchmark with the fewest, all else plain means.

    Args:
        results: one a benchmark, holding every part.
        groups: name -> the parts that count alike.
        resamples: bootstrap draws for the intervals.
        seed: of the draws.

    Returns:
        Name -> score.

    Raises:
        CompoclipError: results lack a part, or their items cannot be read.
    """
    named = {each.benchmark: each for each in results}
    several = {name: parts for name, parts in groups.items() if len(parts) > 1}
    pairs = {
        benchmark: Pair.of(named[benchmark], named[benchmark])
        for benchmark in _benchmarks(several.values())
    }
    evidence = _evidence(pairs, several, _of_base, resamples, seed)
    scores = {}
    for name, parts in groups.items():
        found = [part_score(named, part) for part in parts]
        scores[name] = found[0] if len(found) == 1 else _mean(found, evidence[name])
    return scores


def part_draws(
    results: Sequence[Results],
    parts: Sequence[ScorePart],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[ScorePart, Values]:
    """One model's value of every part in each bootstrap draw of photos.

    Draws of a benchmark depend on its name and `seed` alone, so those of two models on the same
    items go together.

    Args:
        results: one a benchmark, holding every part.
        parts: what to draw.
        resamples: number of draws.
        seed: of the draws.

    Returns:
        Part -> (resamples,) values.

    Raises:
        CompoclipError: as `group_scores` does.
    """
    named = {each.benchmark: each for each in results}
    groups = {str(number): (part,) for number, part in enumerate(dict.fromkeys(parts))}
    pairs = {name: Pair.of(named[name], named[name]) for name in _benchmarks(groups.values())}
    found = _evidence(pairs, groups, _of_base, resamples, seed)
    return {part: found[name].draws for name, (part,) in groups.items()}


def group_differences(
    base: Sequence[Results],
    other: Sequence[Results],
    groups: Groups,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Difference, ...]:
    """Compare two models in each group on the same items.

    Args:
        base: results of the model compared with, one a benchmark, holding every part.
        other: those of the other model.
        groups: name -> the parts that count alike.
        resamples: bootstrap draws for the intervals.
        seed: of the draws.

    Returns:
        One difference a group; p-values are corrected over the groups.

    Raises:
        CompoclipError: as `compare` does.
    """
    mine = {each.benchmark: each for each in base}
    theirs = {each.benchmark: each for each in other}
    pairs = {name: Pair.of(mine[name], theirs[name]) for name in _benchmarks(groups.values())}
    evidence = _evidence(pairs, groups, Pair.evidence, resamples, seed)
    found = []
    for name, parts in groups.items():
        trees = [(pairs[part.benchmark], _tree(pairs[part.benchmark], part)) for part in parts]
        values = [(evaluate(tree, pair.base), evaluate(tree, pair.other)) for pair, tree in trees]
        before, after = np.mean(values, axis=0)
        each = difference(
            benchmark=parts[0].benchmark if len(parts) == 1 else "",
            name=name,
            values=(float(before), float(after)),
            n=sum(len(rows_of(tree)) for _, tree in trees),
            evidence=evidence[name],
        )
        if len(parts) == 1 and parts[0].metric:
            pair, tree = trees[0]
            each = with_counts(each, pair, tree)
        found.append(each)
    return tuple(corrected(found))


def _benchmarks(groups: Iterable[Sequence[ScorePart]]) -> list[str]:
    """Names of all benchmarks with a part, each once, in order."""
    return list(dict.fromkeys(part.benchmark for parts in groups for part in parts))


def _tree(pair: Pair, part: ScorePart) -> Plan:
    """The plan that computes the part from the pair's items."""
    try:
        return pair.leaf(part.name, part.metric) if part.metric else pair.trees[part.name]
    except KeyError as error:
        raise CompoclipError(
            f"{part.benchmark}: the items have no {error} for '{part.name}'; evaluate again"
        ) from error


def _of_base(pair: Pair, trees: Sequence[Plan], resamples: int, seed: int) -> list[Evidence]:
    """The evidence about the base model's value of each tree."""
    drawn = resample(trees, pair.base, pair.clusters, resamples, seed)
    return [Evidence(draws, pair.photos(tree)) for tree, draws in zip(trees, drawn)]


def _evidence(
    pairs: Mapping[str, Pair],
    groups: Groups,
    of: Callable[[Pair, Sequence[Plan], int, int], list[Evidence]],
    resamples: int,
    seed: int,
) -> dict[str, Evidence]:
    """The evidence about each group's mean over its parts; of: that about some trees of a pair.

    Parts of one benchmark are about the same photos, so they make one tree.
    """
    found: dict[str, list[tuple[Evidence, float]]] = {name: [] for name in groups}
    for benchmark, pair in pairs.items():
        trees = {
            name: [_tree(pair, part) for part in parts if part.benchmark == benchmark]
            for name, parts in groups.items()
        }
        own = {
            name: each[0] if len(each) == 1 else MeanOf(tuple(each))
            for name, each in trees.items()
            if each
        }
        known = of(pair, list(own.values()), resamples, own_seed(seed, benchmark))
        for name, each in zip(own, known):
            found[name].append((each, len(trees[name]) / len(groups[name])))
    return {name: joined(parts) for name, parts in found.items()}


def _mean(scores: Sequence[Score], evidence: Evidence) -> Score:
    low, high = evidence.interval

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
        interval="bootstrap" if low is not None else "none",
        chance=float(np.mean([score.chance for score in scores])),
        photos=evidence.photos,
        ties=sum(score.ties for score in scores),
        strict=mean([score.strict for score in scores]),
        fractional=mean([score.fractional for score in scores]),
    )


# --- Kinds of benchmarks, and the few numbers that say what a model is good at. ---

COMPOSITION = "Compositionality"
RECOGNITION = "Zero-shot accuracy"
RETRIEVAL = "Retrieval R@1"
TO_TEXT = "Image-to-text R@1"
TO_IMAGE = "Text-to-image R@1"
SENSITIVITY = "Hard negatives"
INVARIANCE = "Hard negatives and hard positives"
BRITTLENESS = "Brittleness"
MATCH = "Cosine of true pairs, times 100"
LOWER_IS_BETTER = frozenset({BRITTLENESS})
NEITHER_IS_BETTER = frozenset({MATCH})


def kind(results: Results) -> str:
    """The kind of benchmark: "retrieval", "recognition", "invariance", "composition", or "sanity"
    for one that counts in no mean."""
    if (results.known_as or results.benchmark).partition("@")[0] in SANITY_CHECKS:
        return "sanity"
    if all("r1" in metrics for metrics in results.scores.values()):
        return "retrieval"
    if set(results.scores) == {ZERO_SHOT}:
        return "recognition"
    skills = {results.skills.get(subtask) for subtask in results.scores}
    return "invariance" if skills == {"invariance"} else "composition"


def profile_groups(results: Sequence[Results]) -> Groups:
    """The numbers of the first table: headline means by kind of benchmark, and hard positives."""
    groups: dict[str, tuple[ScorePart, ...]] = {
        COMPOSITION: _headlines(results, "composition"),
        RECOGNITION: _headlines(results, "recognition"),
    }
    ranked = [each.benchmark for each in results if kind(each) == "retrieval"]
    groups[RETRIEVAL] = tuple(ScorePart(b, way, "r1") for b in ranked for way in ("i2t", "t2i"))
    groups[TO_TEXT] = tuple(ScorePart(name, "i2t", "r1") for name in ranked)
    groups[TO_IMAGE] = tuple(ScorePart(name, "t2i", "r1") for name in ranked)
    groups |= triple_groups(results)
    return {name: parts for name, parts in groups.items() if parts}


def _headlines(results: Sequence[Results], wanted: str) -> tuple[ScorePart, ...]:
    return tuple(ScorePart(r.benchmark, r.headline, "") for r in results if kind(r) == wanted)


def triple_groups(results: Sequence[Results]) -> dict[str, tuple[ScorePart, ...]]:
    """The numbers about hard positives, where there are any; else empty."""
    places = [
        (each.benchmark, subtask)
        for each in results
        for subtask, metrics in each.scores.items()
        if "brittleness" in metrics
    ]
    if not places:
        return {}
    metrics = {SENSITIVITY: "original", INVARIANCE: "augmented", BRITTLENESS: "brittleness"}
    metrics[MATCH] = POSITIVE_SCORE
    return {
        name: tuple(ScorePart(benchmark, subtask, metric) for benchmark, subtask in places)
        for name, metric in metrics.items()
    }


# --- Means over all benchmarks of a suite: Comp, ZS, I2T and T2I, as published tables quote
# them. ---

_HEADLINES = {"Comp": "comp", "ZS (21)": "elevater", "ZS (20)": "elevater_20"}
_DIRECTIONS = {"I2T Ret": "i2t", "T2I Ret": "t2i"}


def overall_groups(results: Sequence[Results]) -> dict[str, tuple[ScorePart, ...]]:
    """The means that one model's results define, each over all its benchmarks or not at all.

    Comp, ZS (21) and ZS (20): headlines of `registry.SUITES`. I2T Ret, T2I Ret: R@1 on COCO,
    Flickr30k and COCO-Counterfactuals.
    """
    named = {each.benchmark: each for each in results}
    groups: dict[str, tuple[ScorePart, ...]] = {}
    for title, suite in _HEADLINES.items():
        members = [spec.replace(":", "_") for spec in SUITES[suite]]
        if named.keys() >= set(members):
            groups[title] = tuple(ScorePart(each, named[each].headline, "") for each in members)
    for title, direction in _DIRECTIONS.items():
        members = [spec.replace(":", "_") for spec in SUITES["retrieval_3"]]
        if all(each in named and direction in named[each].scores for each in members):
            groups[title] = tuple(ScorePart(each, direction, "r1") for each in members)
    return groups


def overall_scores(
    results: Sequence[Results], resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Score]:
    """One model's means over whole suites (`overall_groups`).

    Args:
        results: one a benchmark.
        resamples: bootstrap draws for the intervals.
        seed: of the draws.

    Returns:
        Name of the mean -> score, of the suites measured in full.

    Raises:
        CompoclipError: the items of a result cannot be read.
    """
    return group_scores(results, overall_groups(results), resamples, seed)


def overall_text(model: str, scores: dict[str, Score]) -> str:
    """An aligned table of the means, with coverage where items are missing; "" without any."""
    if not scores:
        return ""
    rows = [
        [
            name,
            percent(score.value),
            span(score.low, score.high),
            percent(score.chance),
            score.items(),
        ]
        for name, score in scores.items()
    ]
    header = ["mean", "score", "95 % interval", "chance", "items"]
    return f"{model} over whole suites\n{table(rows, header)}"
