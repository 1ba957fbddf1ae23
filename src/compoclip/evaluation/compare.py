"""Paired comparison of two models on the items both were measured on (BENCHMARKS 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa

from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import (
    RANKED,
    Leaf,
    Mean,
    Plan,
    evaluate,
    leaf,
    plan_or_none,
    resample_difference,
    rows_of,
    rule_from_json,
)
from compoclip.evaluation.io import load_items
from compoclip.evaluation.items import MAIN, POSITIVE_SCORE
from compoclip.evaluation.outcomes import Indices, Values
from compoclip.evaluation.results import Results
from compoclip.evaluation.statistics import (
    RESAMPLES,
    bootstrap_p,
    holm,
    mcnemar,
    percentile_interval,
)

LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """One number of two models on the same n items.

    name: sub-task or rule. low, high: 95 % interval of other - base, by a paired bootstrap over
    photos. base_only, other_only: items only one of them gets right (None for what is no plain mean
    over items). p: two-sided; McNemar for sub-tasks (not for areas under a curve), bootstrap for
    rules. p_holm: corrected within its family (all sub-tasks, all headlines, or all other rules of
    the comparison). verdict: "higher", "lower" or "no difference", by p_holm at 0.05.
    """

    benchmark: str
    name: str
    base: float
    other: float
    difference: float
    low: float
    high: float
    n: int
    p: float
    p_holm: float = 1.0
    verdict: str = "no difference"
    base_only: int | None = None
    other_only: int | None = None


@dataclass(frozen=True)
class Comparison:
    """base, other: model names. headlines: one a benchmark. rules: the other aggregates. overall:
    mean over the benchmarks' headlines, when there are several (benchmarks drawn independently).
    unmatched: benchmarks only one of them has. partial: benchmarks not complete for both.
    """

    base: str
    other: str
    headlines: tuple[Difference, ...]
    subtasks: tuple[Difference, ...]
    rules: tuple[Difference, ...]
    overall: Difference | None
    unmatched: tuple[str, ...]
    partial: tuple[str, ...]


def compare(
    base: Sequence[Results],
    other: Sequence[Results],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two models, each with one result a benchmark, on every benchmark both have.

    Raises CompoclipError when they have none in common, when annotations, protocol or tie policy
    differ, when a retrieval gallery differs, or when no item is common.
    """
    mine, theirs = _by_benchmark(base), _by_benchmark(other)
    common = [name for name in mine if name in theirs]
    if not common:
        raise CompoclipError(
            f"no benchmark in common: {base[0].model} has {', '.join(mine)}; "
            f"{other[0].model} has {', '.join(theirs)}"
        )
    headlines: list[Difference] = []
    subtasks: list[Difference] = []
    rules: list[Difference] = []
    draws: list[Values] = []
    for name in common:
        pair = Pair.of(mine[name], theirs[name])
        own = own_seed(seed, name)
        for difference, drawn in pair.rules(resamples, own):
            if difference.name == pair.headline:
                headlines.append(difference)
                draws.append(drawn)
            else:
                rules.append(difference)
        subtasks += pair.subtasks(resamples, own)
    return Comparison(
        base=base[0].model,
        other=other[0].model,
        headlines=tuple(corrected(headlines)),
        subtasks=tuple(corrected(subtasks)),
        rules=tuple(corrected(rules)),
        overall=_overall(headlines, draws) if len(common) > 1 else None,
        unmatched=tuple(sorted(mine.keys() ^ theirs.keys())),
        partial=tuple(name for name in common if mine[name].partial or theirs[name].partial),
    )


def own_seed(seed: int, benchmark: str) -> int:
    """The seed of a benchmark's draws: the same whatever else is compared or averaged."""
    return seed + crc32(benchmark.encode())


def one_model(results: Sequence[Results], path: Path) -> list[Results]:
    """`results`, which must all be of one model. Raises CompoclipError naming `path`."""
    models = sorted({each.model for each in results})
    weights = {each.identity.get("weights") for each in results}
    if len(models) > 1 or len(weights) > 1:
        raise CompoclipError(
            f"{path}: holds results of several models ({', '.join(models)}); give the folder of "
            "one, as evaluate writes it: OUT/MODEL"
        )
    return list(results)


def _by_benchmark(results: Sequence[Results]) -> dict[str, Results]:
    found: dict[str, Results] = {}
    for each in results:
        if each.benchmark in found:
            raise CompoclipError(
                f"{each.model} has two results for {each.benchmark}: {found[each.benchmark].items} "
                f"and {each.items}; give the folder of one run"
            )
        found[each.benchmark] = each
    return found


@dataclass(frozen=True)
class Pair:
    """Two models' outcomes on their common items; arrays by metric, "main" being each item's.

    The array of a curve ("auc", "ap11") holds the scores that are ranked. main: the metric of a
    sub-task that is shown first. truth: index of the right candidate, or whether the item is true.
    """

    benchmark: str
    headline: str
    trees: dict[str, Plan]
    subtask_rows: dict[str, Indices]
    clusters: list[str]
    base: dict[str, Values]
    other: dict[str, Values]
    main: str
    truth: list[int]

    @classmethod
    def of(cls, base: Results, other: Results) -> Pair:
        """Join on sub-task and item; rules that the common items do not define are left out.

        Raises CompoclipError as `compare` does.
        """
        _check(base, other)
        tables = load_items(base), load_items(other)
        keys = [_keys(table, each) for table, each in zip(tables, (base, other))]
        place = {key: row for row, key in enumerate(keys[1])}
        rows = [(row, place[key]) for row, key in enumerate(keys[0]) if key in place]
        if not rows:
            raise CompoclipError(f"{base.benchmark}: no item was measured for both models")
        left, right = (tables[k].take([pair[k] for pair in rows]) for k in (0, 1))
        if "retrieval" in left["form"].to_pylist() and not len(rows) == len(keys[0]) == len(
            keys[1]
        ):
            raise CompoclipError(
                f"{base.benchmark}: the galleries differ ({len(keys[0])} and {len(keys[1])} "
                "queries), so ranks cannot be compared; evaluate both on the same images"
            )
        values = _values(left), _values(right)
        applies = {
            name: ~np.isnan(each) & ~np.isnan(values[1][name]) for name, each in values[0].items()
        }
        main = next((each for each in RANKED if each in applies), MAIN)
        truth = left["truth"].to_pylist()
        names = left["subtask"].to_pylist()
        labels = [dict(each) for each in left["labels"].to_pylist()]
        here = set(names)
        try:
            rules = {name: rule_from_json(rule) for name, rule in base.rules.items()}
        except (KeyError, TypeError) as error:
            raise CompoclipError(
                f"{base.benchmark}: the stored aggregate rules of {base.model} are malformed "
                f"({error}); evaluate it again"
            ) from error
        trees = {
            name: plan_or_none(rule, names, labels, applies, main, truth)
            for name, rule in rules.items()
            if here & rule.subtasks()
        }
        subtask_array = np.asarray(names, dtype=object)
        return cls(
            benchmark=base.benchmark,
            headline=base.headline,
            trees={name: tree for name, tree in trees.items() if tree is not None},
            subtask_rows={
                name: np.flatnonzero(subtask_array == name) for name in dict.fromkeys(names)
            },
            clusters=left["cluster"].to_pylist(),
            base=values[0],
            other=values[1],
            main=main,
            truth=truth,
        )

    def leaf(self, subtask: str, metric: str) -> Leaf:
        """How a metric of a sub-task is computed; "main" is the one shown first.

        Raises KeyError for unknown names, CompoclipError when the common items do not give it.
        """
        metric = self.main if metric == MAIN else metric
        rows = self.subtask_rows[subtask]
        known = rows[~np.isnan(self.base[metric][rows]) & ~np.isnan(self.other[metric][rows])]
        found = leaf(metric, known, self.truth)
        if found is None:
            raise CompoclipError(
                f"{self.benchmark}: the items common to both models are too few for {metric} of "
                f"'{subtask}'; evaluate both on the whole benchmark"
            )
        return found

    def draws(self, trees: Sequence[Plan], resamples: int, seed: int) -> list[Values]:
        """Each tree's difference, other minus base, in every draw of photos."""
        return resample_difference(trees, self.base, self.other, self.clusters, resamples, seed)

    def rules(self, resamples: int, seed: int) -> list[tuple[Difference, Values]]:
        """Every rule's difference, with its bootstrap draws."""
        drawn = self.draws(list(self.trees.values()), resamples, seed)
        return [
            (self._difference(name, tree, draws, bootstrap_p(draws)), draws)
            for (name, tree), draws in zip(self.trees.items(), drawn)
        ]

    def subtasks(self, resamples: int, seed: int) -> list[Difference]:
        """Each sub-task's main metric."""
        trees = {name: self.leaf(name, MAIN) for name in self.subtask_rows}
        drawn = self.draws(list(trees.values()), resamples, seed)
        return [
            self.with_mcnemar(self._difference(name, tree, draws, bootstrap_p(draws)), tree)
            for (name, tree), draws in zip(trees.items(), drawn)
        ]

    def with_mcnemar(self, difference: Difference, tree: Plan) -> Difference:
        """The difference with McNemar's p-value and counts, when it is one share of items."""
        if not isinstance(tree, Mean) or tree.metric == POSITIVE_SCORE:
            return difference
        one, two = self.base[tree.metric][tree.rows] > 0.5, self.other[tree.metric][tree.rows] > 0.5
        b, c = int((one & ~two).sum()), int((two & ~one).sum())
        return replace(difference, p=mcnemar(b, c), base_only=b, other_only=c)

    def _difference(self, name: str, tree: Plan, draws: Values, p: float) -> Difference:
        base, other = evaluate(tree, self.base), evaluate(tree, self.other)
        low, high = percentile_interval(draws)
        return Difference(
            benchmark=self.benchmark,
            name=name,
            base=base,
            other=other,
            difference=other - base,
            low=low,
            high=high,
            n=len(rows_of(tree)),
            p=p,
        )


def _check(base: Results, other: Results) -> None:
    for what, mine, theirs in (
        ("annotations", base.data_hash, other.data_hash),
        ("versions of the protocol", base.protocol, other.protocol),
        ("tie policies", base.tie_policy, other.tie_policy),
        ("aggregate rules", base.rules, other.rules),
    ):
        if mine != theirs:
            shown = "" if what == "aggregate rules" else f" ({mine} and {theirs})"
            raise CompoclipError(
                f"{base.benchmark}: {base.model} and {other.model} were measured with different "
                f"{what}{shown}; evaluate both again on the same data"
            )


def _keys(table: pa.Table, results: Results) -> list[tuple[str, str]]:
    try:
        return list(zip(table["subtask"].to_pylist(), table["item"].to_pylist()))
    except KeyError as error:
        raise CompoclipError(f"{results.items}: no column {error}; evaluate again") from error


def _values(table: pa.Table) -> dict[str, Values]:
    """Outcomes by metric under the official policy, nan where a metric does not apply; for
    curves the scores that are ranked.
    """
    values: dict[str, Values] = {}
    main = np.full(table.num_rows, np.nan)
    for column in table.column_names:
        policy, _, metric = column.partition(".")
        if policy == "used" and metric:
            each = np.array(table[column].to_numpy(zero_copy_only=False), dtype=np.float64)
            main = np.where(np.isnan(main), each, main)
            values[metric] = each
    values[MAIN] = main
    ranked = [name for name in RANKED if name in values]
    if ranked:
        scores = np.array([each[0] for each in table["scores"].to_pylist()], dtype=float)
        values |= dict.fromkeys(ranked, scores)
    values[POSITIVE_SCORE] = np.array(
        table[POSITIVE_SCORE].to_numpy(zero_copy_only=False), dtype=np.float64
    )
    return values


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The differences as one family: Holm's p-values and the verdicts that follow from them."""
    return [
        replace(each, p_holm=p, verdict=_verdict(each.difference, p))
        for each, p in zip(differences, holm([each.p for each in differences]))
    ]


def _verdict(difference: float, p: float) -> str:
    if p > LEVEL or difference == 0:
        return "no difference"
    return "higher" if difference > 0 else "lower"


def _overall(headlines: Sequence[Difference], draws: Sequence[Values]) -> Difference:
    mean: Values = np.mean(np.stack(draws), axis=0)
    low, high = percentile_interval(mean)
    p = bootstrap_p(mean)
    base = float(np.mean([each.base for each in headlines]))
    other = float(np.mean([each.other for each in headlines]))
    return Difference(
        benchmark="",
        name="mean of headlines",
        base=base,
        other=other,
        difference=other - base,
        low=low,
        high=high,
        n=sum(each.n for each in headlines),
        p=p,
        p_holm=p,
        verdict=_verdict(other - base, p),
    )
