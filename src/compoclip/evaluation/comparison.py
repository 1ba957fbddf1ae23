"""Paired comparison of two models on their common items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from compoclip.benchmarks.case import Form
from compoclip.console import counted
from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import (
    RANKED,
    MeanNode,
    additions,
    evaluate,
    leaf,
    mean_of,
    plan,
    resample,
    rows_of,
    ruled_values,
)
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.items import BOTH_IMAGES, MAIN, Indices, Items, Values
from compoclip.evaluation.results import Results, by_benchmark, stored_items
from compoclip.evaluation.statistics import (
    BOOTSTRAP,
    FEWEST,
    NOT_SIGNIFICANT,
    Bootstrap,
    Interval,
    bounded_interval,
    guessing,
    holm,
    is_significant,
    sign_flip,
)

MARGIN = 0.01
"""Largest difference without practical importance: one point."""
_GROUPS = 250


@dataclass(frozen=True)
class Evidence:
    """The statistical evidence about a number.

    draws: its values in bootstrap draws of photos. photos: number of photos behind it. adds: of a
    difference, what every photo adds to it.
    """

    draws: Values
    photos: int
    adds: Values = field(default_factory=lambda: np.zeros(0))

    @property
    def interval(self) -> Interval:
        """The 95 % interval of a difference."""
        return bounded_interval(self.draws, self.photos)

    @property
    def p(self) -> float | None:
        """Two-sided p-value that a difference is not zero; None for too few photos."""
        return sign_flip(self.adds) if self.photos >= FEWEST else None


def joined(parts: Sequence[tuple[Evidence, float]]) -> Evidence:
    """Return the evidence about a weighted sum of numbers of benchmarks, whose photos differ."""
    return Evidence(
        draws=np.sum([weight * evidence.draws for evidence, weight in parts], axis=0),
        photos=min(evidence.photos for evidence, _ in parts),
        adds=np.concatenate([weight * evidence.adds for evidence, weight in parts]),
    )


@dataclass(frozen=True)
class Difference:
    """A score of two models on the same n items.

    name: sub-task or rule. low, high: 95 % interval of other - base, by a paired bootstrap over
    photos; None for a single photo. photos: their number; over several benchmarks, the smallest.
    p: two-sided sign-flip test over photos (`sign_flip`; McNemar's test if each photo has one
    item). p_holm: corrected within its family (all sub-tasks, all headlines, or all other rules, of
    all models compared with the base). verdict: "higher" or "lower" if p_holm is below 0.05; else
    "equivalent within 1 point" if the uncorrected interval lies within `MARGIN` of zero; else "not
    significant". With fewer than `FEWEST` photos there are no p-values, and the verdict is "too few
    photos: 7". base_only, other_only: items that only one of the two gets right (None unless the
    score is a plain mean over items).
    """

    benchmark: str
    name: str
    base: float
    other: float
    difference: float
    low: float | None
    high: float | None
    n: int
    photos: int
    p: float | None
    p_holm: float | None = None
    verdict: str = NOT_SIGNIFICANT
    base_only: int | None = None
    other_only: int | None = None

    @property
    def significant(self) -> bool:
        """Return whether the corrected test finds a difference."""
        return self.verdict in ("higher", "lower")

    @property
    def word(self) -> str:
        """Return what may be said of the difference: "significant", or the verdict."""
        return "significant" if self.significant else self.verdict


@dataclass(frozen=True)
class Pair:
    """Two models' outcomes on their common items; arrays by metric, "main" being each item's.

    The array of a curve ("auc", "ap11") holds the scores that are ranked. main: the metric of a
    sub-task that is shown first. truth: index of the right candidate, or whether the item is true.
    guesses: the base guesses (`Pair.with_guessing`). photos: the number of each item's photo.
    """

    benchmark: str
    headline: str
    trees: dict[str, MeanNode]
    subtask_rows: dict[str, Indices]
    photos: Indices
    base: dict[str, Values]
    other: dict[str, Values]
    main: str
    truth: Sequence[int]
    guesses: bool = False

    @classmethod
    def with_guessing(cls, results: Results) -> Pair:
        """Pair a model with guessing as its base: each item has the chance of its sub-task's score.

        Raises CompoclipError when the items cannot be read.
        """
        pair = cls.of(results, results)
        chances = {metric: np.zeros(len(values)) for metric, values in pair.other.items()}
        chances[BOTH_IMAGES] += 0.25
        for subtask, rows in pair.subtask_rows.items():
            for metric, score in {MAIN: results.main(subtask), **results.scores[subtask]}.items():
                chances[metric][rows] = score.chance
        base = {
            name: np.where(np.isnan(pair.other[name]), np.nan, chances[name]) for name in chances
        }
        return replace(pair, base=base, guesses=True)

    @classmethod
    def of(cls, base: Results, other: Results) -> Pair:
        """Join on sub-task and item; rules that the common items do not define are left out.

        Raises CompoclipError as `compare` does.
        """
        for fact, mine, theirs in (
            ("annotations", base.data_hash, other.data_hash),
            ("versions of the protocol", base.protocol, other.protocol),
            ("tie policies", base.tie_policy, other.tie_policy),
            ("aggregate rules", base.rules, other.rules),
        ):
            both = "" if fact == "aggregate rules" else f" ({mine} and {theirs})"
            if mine != theirs:
                raise CompoclipError(
                    f"{base.benchmark}: {base.model} and {other.model} were measured with "
                    f"different {fact}{both}; evaluate both again on the same data"
                )
        left, right = _common_items(base, other)
        values = [ruled_values(side) for side in (left, right)]
        applies = {name: ~np.isnan(column + values[1][name]) for name, column in values[0].items()}
        main = next((metric for metric in RANKED if metric in applies), MAIN)
        trees = {
            name: tree
            for name, rule in base.rules.items()
            if rule.subtasks() & left.subtask_rows.keys()
            and (tree := plan(rule, left, applies, main)) is not None
        }
        return cls(
            benchmark=base.benchmark,
            headline=base.headline,
            trees=trees,
            subtask_rows=left.subtask_rows,
            photos=left.photos,
            base=values[0],
            other=values[1],
            main=main,
            truth=left.truth,
        )

    @classmethod
    def of_seeds(cls, base: Sequence[Results], other: Sequence[Results]) -> Pair:
        """Pair two recipes by the results of their seeds; outcomes are the means over the seeds.

        Raises CompoclipError as `compare` does.
        """
        first = cls.of(base[0], other[0])
        left = [first.base, *(cls.of(seed, other[0]).base for seed in base[1:])]
        right = [first.other, *(cls.of(base[0], seed).other for seed in other[1:])]
        means = [
            {metric: np.mean([values[metric] for values in seeds], axis=0) for metric in seeds[0]}
            for seeds in (left, right)
        ]
        return replace(first, base=means[0], other=means[1])

    def tree(self, name: str, metric: str = "") -> MeanNode:
        """Return what computes a rule, or a metric of a sub-task; "main" is the one shown first.

        Raises CompoclipError when the common items do not give it.
        """
        metric = self.main if metric == MAIN else metric
        try:
            if not metric:
                return self.trees[name]
            rows = self.subtask_rows[name]
            scored = rows[~np.isnan(self.base[metric][rows] + self.other[metric][rows])]
        except KeyError as error:
            raise CompoclipError(
                f"{self.benchmark}: the items have no {error} for '{name}'; evaluate again"
            ) from error
        tree = leaf(metric, scored, self.truth)
        if tree is None:
            raise CompoclipError(
                f"{self.benchmark}: the items common to both models are too few for {metric} of "
                f"'{name}'; evaluate both on the whole benchmark"
            )
        return tree

    def evidence(
        self, trees: Sequence[MeanNode], bootstrap: Bootstrap, alone: bool = False
    ) -> list[Evidence]:
        """Return the evidence about each tree's difference, or `alone` about the base's value."""
        photos = [int(np.count_nonzero(np.bincount(self.photos[rows_of(t)]))) for t in trees]
        if alone:
            draws = resample(trees, self.base, self.photos, bootstrap)
            return [Evidence(*row) for row in zip(draws, photos)]
        # The jackknife of a curve leaves out groups of photos where there are very many.
        units = self.photos % _GROUPS if RANKED.keys() & self.base else self.photos
        adds = [additions(tree, self.base, self.other, units) for tree in trees]
        draws = resample(trees, self.other, self.photos, bootstrap, self.base)
        return [Evidence(*row) for row in zip(draws, photos, adds)]


def _common_items(base: Results, other: Results) -> tuple[Items, Items]:
    """Return the items that both have, in the order of the base's; raise CompoclipError when they
    cannot be compared."""
    left, right = stored_items(base), stored_items(other)
    if left.ids and (left.subtasks, left.ids) == (right.subtasks, right.ids):
        return left, right
    keys = [list(zip(side.subtasks, side.ids)) for side in (left, right)]
    place = {key: row for row, key in enumerate(keys[1])}
    rows = [(row, place[key]) for row, key in enumerate(keys[0]) if key in place]
    alone = set(keys[0]) ^ set(keys[1])
    if not rows:
        raise CompoclipError(
            f"{base.benchmark}: no item was measured for both models ({base.items} and "
            f"{other.items}); evaluate both again"
        )
    if alone and not (base.partial or other.partial):
        raise CompoclipError(
            f"{base.items} and {other.items} are both complete, but their items differ, e.g. "
            f"'{min(alone)[1]}'; evaluate {base.model} and {other.model} again"
        )
    if keys[0] != keys[1]:
        left, right = (side.take(np.array(at)) for side, at in zip((left, right), zip(*rows)))
    gallery = any(FORMS[Form(name)].one_gallery for name in set(left.forms))
    if alone and gallery:
        raise CompoclipError(
            f"{base.benchmark}: the galleries differ ({len(keys[0])} and "
            f"{counted(len(keys[1]), 'query')}), so ranks cannot be compared; "
            "evaluate both on the same images"
        )
    return left, right


# --- Groups of scores: a group's number is the plain mean of its parts. ---


@dataclass(frozen=True)
class ScorePart:
    """One score of one benchmark: a metric of a sub-task, or an aggregate.

    name: of the sub-task, or of the rule if `metric` is "". metric: "main" is the first one.
    """

    benchmark: str
    name: str
    metric: str = MAIN


Parts = tuple[ScorePart, ...]
K = TypeVar("K")


def evidence_of(
    pairs: Mapping[str, Pair],
    groups: Mapping[K, Parts],
    bootstrap: Bootstrap,
    alone: bool = False,
) -> dict[K, Evidence]:
    """Return the evidence about each group's difference, or `alone` about the base's value.

    Parts of one benchmark share its photos; the photos of several benchmarks differ.
    """
    by_group: dict[K, list[tuple[Evidence, float]]] = {key: [] for key in groups}
    for benchmark, pair in pairs.items():
        trees: dict[K, MeanNode] = {}
        shares = {}
        for key, parts in groups.items():
            nodes = [pair.tree(p.name, p.metric) for p in parts if p.benchmark == benchmark]
            tree = mean_of(nodes)
            if tree is not None:
                trees[key], shares[key] = tree, len(nodes) / len(parts)
        here = bootstrap.of_benchmark(benchmark)
        computed = pair.evidence(list(trees.values()), here, alone)
        for key, evidence in zip(trees, computed):
            by_group[key].append((evidence, shares[key]))
    return {key: joined(parts) for key, parts in by_group.items()}


def differences(
    pairs: Mapping[str, Pair], groups: Mapping[K, Parts], bootstrap: Bootstrap
) -> dict[K, Difference]:
    """Return each group's difference, uncorrected.

    It is called by its key, or by the last part of a key of several.
    """
    evidence = evidence_of(pairs, groups, bootstrap)
    by_group = {}
    for key, parts in groups.items():
        at = [pairs[part.benchmark] for part in parts]
        trees = [pair.tree(part.name, part.metric) for pair, part in zip(at, parts)]
        values = [(evaluate(t, pair.base), evaluate(t, pair.other)) for pair, t in zip(at, trees)]
        base, other = np.mean(values, axis=0).tolist()
        low, high = evidence[key].interval
        p = evidence[key].p
        if p is not None and all(pair.guesses for pair in at):
            p = guessing(evidence[key].adds, evidence[key].photos, other, base)
        difference = Difference(
            benchmark=parts[0].benchmark if len(parts) == 1 else "",
            name=key[-1] if isinstance(key, tuple) else str(key),
            base=base,
            other=other,
            difference=other - base,
            low=low,
            high=high,
            n=sum(len(rows_of(tree)) for tree in trees),
            photos=evidence[key].photos,
            p=p,
        )
        tree = trees[0]
        if len(parts) == 1 and parts[0].metric and tree.share:
            one, two = (v[tree.metric][tree.rows] > 0.5 for v in (at[0].base, at[0].other))
            alone = int((one & ~two).sum()), int((two & ~one).sum())
            difference = replace(difference, base_only=alone[0], other_only=alone[1])
        by_group[key] = difference
    return by_group


# --- Comparisons of models, and the verdicts on differences. ---


@dataclass(frozen=True)
class Comparison:
    """Differences of two models. base, other: model names. headlines: one per benchmark. rules: the
    other aggregates. overall: mean over several headlines (benchmarks resampled independently).
    unmatched: benchmarks of one model only. partial: benchmarks not complete for both.
    """

    base: str
    other: str
    headlines: tuple[Difference, ...]
    subtasks: tuple[Difference, ...]
    rules: tuple[Difference, ...]
    overall: Difference | None
    unmatched: tuple[str, ...]
    partial: tuple[str, ...]


def compare_all(
    base: Sequence[Results],
    others: Sequence[Sequence[Results]],
    bootstrap: Bootstrap = BOOTSTRAP,
) -> list[Comparison]:
    """Compare models with a base, item by item, on their common benchmarks.

    Args:
        base: results of the model compared with, one per benchmark.
        others: results of each other model.
        bootstrap: the draws for the intervals. Without resamples there are no intervals: "higher"
            and "lower" need none, equivalence does.

    Returns:
        One comparison per model. p-values are corrected over all models; a family is all sub-tasks,
        all headlines, all other rules, or all means of headlines.

    Raises:
        CompoclipError: the models have no benchmark or no item in common, a model has two results
            for one benchmark, or annotations, protocol, tie policy, rules or a gallery differ.
    """
    mine = by_benchmark(base)
    theirs = [by_benchmark(other) for other in others]
    uncorrected = [_by_family(mine, results, bootstrap) for results in theirs]
    families = {name: together([of_model[name] for of_model in uncorrected]) for name in _FAMILIES}
    return [
        Comparison(
            base=base[0].model,
            other=other[0].model,
            headlines=tuple(families["headlines"][place]),
            subtasks=tuple(families["subtasks"][place]),
            rules=tuple(families["rules"][place]),
            overall=next(iter(families["overall"][place]), None),
            unmatched=tuple(sorted(mine.keys() ^ theirs[place].keys())),
            partial=tuple(
                name
                for name, results in mine.items()
                if name in theirs[place] and (results.partial or theirs[place][name].partial)
            ),
        )
        for place, other in enumerate(others)
    ]


_FAMILIES = ("headlines", "subtasks", "rules", "overall")


def _by_family(
    base: Mapping[str, Results], other: Mapping[str, Results], bootstrap: Bootstrap
) -> dict[str, list[Difference]]:
    """Return the differences of two models, uncorrected, by family."""
    pairs = {name: Pair.of(base[name], other[name]) for name in base if name in other}
    if not pairs:
        one, two = (next(iter(results.values())).model for results in (base, other))
        raise CompoclipError(
            f"no benchmark in common: {one} has {', '.join(base)}; {two} has {', '.join(other)}"
        )
    groups: dict[tuple[str, ...], Parts] = {}
    for name, pair in pairs.items():
        for rule in pair.trees:
            family = "headlines" if rule == pair.headline else "rules"
            groups[family, name, rule] = (ScorePart(name, rule, ""),)
        groups |= {("subtasks", name, part): (ScorePart(name, part),) for part in pair.subtask_rows}
    headlines = tuple(part for key, (part,) in groups.items() if key[0] == "headlines")
    if len(headlines) > 1:
        groups["overall", "mean of headlines"] = headlines
    families: dict[str, list[Difference]] = {kind: [] for kind in _FAMILIES}
    for key, difference in differences(pairs, groups, bootstrap).items():
        families[key[0]].append(difference)
    return families


def one_model(results: Sequence[Results], path: Path) -> list[Results]:
    """Return the results at `path` if all are of one model and checkpoint; else raise
    CompoclipError."""
    models = sorted({result.model for result in results})
    if len(models) >= 2:
        raise CompoclipError(
            f"{path}: holds results of several models ({', '.join(models)}); give the folder of "
            "one, as evaluate writes it: OUT/MODEL"
        )
    require_one_checkpoint(results)
    return list(results)


def require_one_checkpoint(results: Sequence[Results]) -> None:
    """Raise CompoclipError, naming a file of each, for one model's results of different weights."""
    files = {str(result.identity.get("weights")): result.items for result in reversed(results)}
    if len(files) >= 2:
        raise CompoclipError(
            f"results of {results[0].model}: come from {len(files)} different checkpoints, e.g. "
            f"{' and '.join(sorted(files.values())[:2])}; evaluate it again, or under two names "
            "(NAME=MODEL)"
        )


def not_judged(differences: Iterable[tuple[str, Difference]]) -> list[str]:
    """Return one line with the numbers, by name, that rest on too few photos; or none."""
    few = {name: difference.photos for name, difference in differences if difference.p is None}
    listed = ", ".join(f"{name} {photos}" for name, photos in few.items())
    return [f"not judged, too few photos: {listed}"] if few else []


def family(
    pairs: Mapping[str, Pair], groups: Mapping[K, Parts], bootstrap: Bootstrap
) -> dict[K, Difference]:
    """Return each group's difference, all of them corrected as one family."""
    return dict(zip(groups, corrected([*differences(pairs, groups, bootstrap).values()])))


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences as one family: Holm's p-values and the verdicts that follow from them.

    Those of too few photos do not count in the family.
    """
    family = []
    for difference, p in zip(differences, holm([difference.p for difference in differences])):
        low, high, verdict = difference.low, difference.high, NOT_SIGNIFICANT
        if p is None:
            verdict = too_few(difference.photos)
        elif is_significant(p) and difference.difference:
            verdict = "higher" if difference.difference > 0 else "lower"
        elif low is not None and high is not None and low > -MARGIN and high < MARGIN:
            verdict = equivalent(MARGIN)
        family.append(replace(difference, p_holm=p, verdict=verdict))
    return family


def together(tables: Sequence[Sequence[Difference]]) -> list[list[Difference]]:
    """Return the tables with the differences of all of them corrected as one family."""
    every = iter(corrected([difference for table in tables for difference in table]))
    return [[next(every) for _ in table] for table in tables]


def too_few(photos: int) -> str:
    """Return the remark that replaces a verdict if there are too few photos."""
    return f"too few photos: {photos}"


def equivalent(margin: float) -> str:
    """Return the verdict on a difference whose bounds lie within the margin of zero."""
    points = 100 * margin
    return f"equivalent within {points:g} {'point' if points == 1 else 'points'}"
