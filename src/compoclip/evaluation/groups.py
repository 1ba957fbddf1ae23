"""Means over parts of several benchmarks: per skill, compositionality, zero-shot accuracy.

A group is a plain mean of its parts. Its interval comes from a bootstrap over photos in which
parts of one benchmark share the draws and benchmarks are drawn independently, as in `compare`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from compoclip.benchmarks.case import PROBED, ZERO_SHOT
from compoclip.benchmarks.names import SUITES
from compoclip.benchmarks.registry import SANITY_CHECKS
from compoclip.errors import CompoclipError
from compoclip.evaluation.comparison import (
    Difference,
    Pair,
    Parts,
    ScorePart,
    evidence_of,
    family,
)
from compoclip.evaluation.items import POSITIVE_SCORE, Values
from compoclip.evaluation.results import Results, Score, by_benchmark
from compoclip.evaluation.statistics import BOOTSTRAP, Bootstrap, percentile_interval, wilson

K = TypeVar("K")
Groups = Mapping[str, Parts]


def skill_groups(results: Sequence[Results]) -> dict[str, Parts]:
    """Group the sub-tasks of one model's benchmarks by skill; one without a skill forms the group
    "benchmark: sub-task"."""
    groups: dict[str, Parts] = {}
    for result in results:
        for subtask in result.scores:
            name = result.skills.get(subtask, f"{result.benchmark}: {subtask}")
            groups[name] = (*groups.get(name, ()), ScorePart(result.benchmark, subtask))
    return groups


UNLIKE = 0.20
"""Sub-tasks of one skill whose scores lie further apart have no mean that says something."""
DIRECTIONS = {"t2i": "text to image", "i2t": "image to text"}


def like_groups(models: Sequence[Sequence[Results]]) -> dict[str, Parts]:
    """Group sub-tasks by skill as `skill_groups` does, as far as they are alike.

    The sub-tasks of a skill stand alone, as "binding: bind_colour", when scores of any of the
    models lie more than `UNLIKE` apart. So do the two directions of every retrieval benchmark. The
    sub-tasks of zero-shot benchmarks are called `RECOGNITION`, as their mean is elsewhere.

    Args:
        models: results of each model on the same benchmarks.
    """
    groups: dict[str, Parts] = {}
    named = [by_benchmark(results) for results in models]
    skills = skill_groups(models[0])
    names = Counter(part.name for parts in skills.values() for part in parts)
    directions = retrieval_directions(models[0])
    groups_of_retrieval = {(p.benchmark, p.name): name for name, (p,) in directions.items()}
    for skill, parts in skills.items():
        retrieval = [groups_of_retrieval.get((part.benchmark, part.name)) for part in parts]
        scores = [
            [
                results[part.benchmark].main(part.name).value
                for part in parts
                if part.name in results[part.benchmark].scores
            ]
            for results in named
        ]
        alike = all(max(values) - min(values) <= UNLIKE for values in scores if values)
        if len(parts) == 1 or (alike and not any(retrieval)):
            kinds = {kind(named[0][part.benchmark]) for part in parts}
            groups[retrieval[0] or (RECOGNITION if kinds == {"recognition"} else skill)] = parts
            continue
        for part, direction in zip(parts, retrieval):
            place = f"{part.benchmark} {part.name}" if names[part.name] > 1 else part.name
            groups[direction or f"{skill}: {place}"] = (part,)
    return groups


def part_score(results: Mapping[str, Results], part: ScorePart) -> Score:
    """Return the stored score of a part; raise CompoclipError when the results do not have it."""
    result = results[part.benchmark]
    score = result.stored(part.name, part.metric)
    if score is None:
        raise CompoclipError(
            f"{result.model} on {result.benchmark}: no {part.metric or 'aggregate'} of "
            f"'{part.name}'; evaluate again"
        )
    return score


def group_scores(
    results: Sequence[Results], groups: Groups, bootstrap: Bootstrap = BOOTSTRAP
) -> dict[str, Score]:
    """Average one model's scores, one result per benchmark, in each group of equally weighted
    parts.

    A group of one part has that part's stored score. In other groups n, expected and ties are sums
    over the parts, photos is the minimum over benchmarks, all other fields are plain means. Where
    all resamples are alike, as of parts that are all right, the interval is Wilson's. Raises
    CompoclipError when results lack a part, or their items cannot be read.
    """
    named = by_benchmark(results)
    several = {name: parts for name, parts in groups.items() if len(parts) > 1}
    evidence = evidence_of(_pairs(results, results, several), several, bootstrap, alone=True)
    scores = {}
    for name, parts in groups.items():
        stored = [part_score(named, part) for part in parts]
        if len(stored) == 1:
            scores[name] = stored[0]
            continue
        value, photos = float(np.mean([score.value for score in stored])), evidence[name].photos
        low, high = percentile_interval(evidence[name].draws, photos)
        kind_of = "bootstrap" if low is not None else "none"
        if low is not None and high is not None and high - low < 1e-9 and 0 <= value <= 1:
            # Redrawing constants tells nothing.
            (low, high), kind_of = wilson(value * photos, photos), "wilson"
        mean: dict[str, Any] = {}
        for key in ("value", "chance", "strict", "fractional"):
            values = [getattr(score, key) for score in stored]
            mean[key] = None if None in values else float(np.mean(values))
        scores[name] = Score(
            metric="+".join(dict.fromkeys(score.metric for score in stored)),
            n=sum(score.n for score in stored),
            expected=sum(score.expected for score in stored),
            low=low,
            high=high,
            interval=kind_of,
            photos=photos,
            ties=sum(score.ties for score in stored),
            **mean,
        )
    return scores


def group_draws(
    results: Sequence[Results], groups: Groups, bootstrap: Bootstrap = BOOTSTRAP
) -> dict[str, Values]:
    """Return one model's value of each group in each bootstrap draw of photos.

    Draws of a benchmark depend on its name and the seed alone, so those of two models on the same
    items go together. Arguments and errors: as `group_scores`.
    """
    by_group = evidence_of(_pairs(results, results, groups), groups, bootstrap, alone=True)
    return {name: evidence.draws for name, evidence in by_group.items()}


def group_differences(
    base: Sequence[Results],
    other: Sequence[Results],
    groups: Groups,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> tuple[Difference, ...]:
    """Compare two models in each group on the same items; p-values are corrected over the groups.

    Raises CompoclipError as `compare_all` does.
    """
    return tuple(family(_pairs(base, other, groups), groups, bootstrap).values())


def against_chance(results: Sequence[Results], groups: Mapping[K, Parts]) -> dict[K, Difference]:
    """Compare one model with guessing in each group; p-values are corrected over the groups.

    Returns group -> difference of the model to chance. Raises CompoclipError when items cannot be
    read.
    """
    named = by_benchmark(results)
    benchmarks = dict.fromkeys(part.benchmark for parts in groups.values() for part in parts)
    pairs = {name: Pair.with_guessing(named[name]) for name in benchmarks}
    return family(pairs, groups, Bootstrap(resamples=0))


RATES = ("brittleness", "both_below", POSITIVE_SCORE)
"""Metrics that are no accuracies: guessing has none of them."""
Flags = Mapping[tuple[str, str], str]
"""(sub-task, metric), or ("", rule) -> where the score stands to chance, as of `chance_flag`."""


def chance_flag(difference: Difference, score: Score) -> str:
    """Return "at chance", "below chance" or "too few photos: 7"; "" for a score above chance.

    Where all items tie, the rule for ties alone makes the score, and the flag says that.

    difference: of the score to guessing, corrected in its family (`against_chance`).
    """
    if difference.p is None:
        return difference.verdict
    if score.ties == score.n:
        return "all items tie"
    return {"higher": "", "lower": "below chance"}.get(difference.verdict, "at chance")


def chance_flags(results: Results) -> Flags:
    """Return the flag of every accuracy of one model on one benchmark.

    p-values are corrected over the metrics of all sub-tasks, and over all aggregates.
    """
    name = results.benchmark
    metrics = [(part, metric) for part, scores in results.scores.items() for metric in scores]
    rules = [rule for rule, score in results.aggregates.items() if score.metric not in RATES]
    families: list[dict[tuple[str, str], Parts]] = [
        {key: (ScorePart(name, *key),) for key in metrics if key[1] not in RATES},
        {("", rule): (ScorePart(name, rule, ""),) for rule in rules},
    ]
    pairs = {name: Pair.with_guessing(results)}
    compared = [family(pairs, groups, Bootstrap(resamples=0)) for groups in families]
    scores = {"": results.aggregates, **results.scores}
    return {
        (part, metric): chance_flag(difference, scores[part][metric])
        for differences in compared
        for (part, metric), difference in differences.items()
    }


def _pairs(base: Sequence[Results], other: Sequence[Results], groups: Groups) -> dict[str, Pair]:
    """Return by benchmark the items that two models (or one and itself) have in common."""
    mine, theirs = by_benchmark(base), by_benchmark(other)
    names = dict.fromkeys(part.benchmark for parts in groups.values() for part in parts)
    return {name: Pair.of(mine[name], theirs[name]) for name in names}


# --- Kinds of benchmarks, and the few numbers that say what a model is good at. ---

COMPOSITION = "Compositionality"
RECOGNITION = "Zero-shot accuracy"
PROBES = "Accuracy of linear probes"
RETRIEVAL = "Retrieval R@1"
SENSITIVITY = "Hard negatives"
INVARIANCE = "Hard negatives and hard positives"
BRITTLENESS = "Brittleness"
MATCH = "Cosine of true pairs, times 100"
LOWER_IS_BETTER = frozenset({BRITTLENESS})
NEITHER_IS_BETTER = frozenset({MATCH})


def kind(results: Results) -> str:
    """The kind of benchmark: "retrieval", "recognition", "probe", "invariance", "composition", or
    "sanity" for one that counts in no mean."""
    if results.reader_name.partition("@")[0] in SANITY_CHECKS:
        return "sanity"
    if all("r1" in metrics for metrics in results.scores.values()):
        return "retrieval"
    if set(results.scores) == {ZERO_SHOT}:
        return "recognition"
    if set(results.scores) == {PROBED}:
        return "probe"
    skills = {results.skills.get(subtask) for subtask in results.scores}
    return "invariance" if skills == {"invariance"} else "composition"


def profile_groups(results: Sequence[Results]) -> Groups:
    """The numbers of the first table: headline means by kind of benchmark, and hard positives."""
    groups = {
        name: tuple(ScorePart(r.benchmark, r.headline, "") for r in results if kind(r) == kind_name)
        for name, kind_name in (
            (COMPOSITION, "composition"),
            (RECOGNITION, "recognition"),
            (PROBES, "probe"),
        )
    }
    ranked = [result.benchmark for result in results if kind(result) == "retrieval"]
    groups[RETRIEVAL] = tuple(ScorePart(b, way, "r1") for b in ranked for way in ("i2t", "t2i"))
    groups |= triple_groups(results)
    return {name: parts for name, parts in groups.items() if parts}


def retrieval_directions(results: Sequence[Results]) -> dict[str, Parts]:
    """Return R@1 in both directions of every retrieval benchmark, each a group of its own.

    A mean over benchmarks would hide that captions of one style are found more often and those of
    another style less often.
    """
    return {
        f"{measured.benchmark} R@1, {direction}": (ScorePart(measured.benchmark, way, "r1"),)
        for measured in results
        if kind(measured) == "retrieval"
        for way, direction in DIRECTIONS.items()
        if way in measured.scores
    }


def triple_groups(results: Sequence[Results]) -> dict[str, Parts]:
    """Return the numbers about hard positives; empty without hard positives."""
    places = [
        (result.benchmark, subtask)
        for result in results
        for subtask, metrics in result.scores.items()
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

_OVERALL = {  # title -> suite, and the sub-task whose R@1 counts in place of the headline
    "Comp": ("comp", ""),
    "ZS (21)": ("elevater", ""),
    "ZS (20)": ("elevater_20", ""),
    "I2T Ret": ("retrieval_3", "i2t"),
    "T2I Ret": ("retrieval_3", "t2i"),
}


def overall_groups(results: Sequence[Results]) -> dict[str, Parts]:
    """Return the means of `names.SUITES` of which one model has all benchmarks: headlines for
    Comp and ZS, R@1 for I2T Ret and T2I Ret. Of results of one benchmark under several names, the
    first count."""
    named = {result.reader_name: result for result in reversed(results)}
    groups: dict[str, Parts] = {}
    for title, (suite, way) in _OVERALL.items():
        members = [named.get(spec.replace(":", "_")) for spec in SUITES[suite]]
        whole = [result for result in members if result and (not way or way in result.scores)]
        if len(whole) == len(members):
            parts = ((result.benchmark, way or result.headline, way and "r1") for result in whole)
            groups[title] = tuple(ScorePart(*part) for part in parts)
    return groups
