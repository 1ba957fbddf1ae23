"""The columns of the lab's table: what each is a mean of, and what a difference is worth.

A column is the plain mean over all sub-tasks, of all benchmarks measured, that test its skills.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean, stdev

import numpy as np
from scipy.stats import rankdata, spearmanr

from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import MeanNode, evaluate
from compoclip.evaluation.comparison import Evidence, Pair, joined
from compoclip.evaluation.results import Results
from compoclip.evaluation.statistics import (
    BOOTSTRAP,
    Bootstrap,
    holm,
    is_significant,
)

SDS = 2.0
"""How many standard deviations of the seeds a difference must exceed."""


@dataclass(frozen=True)
class Column:
    """skills: those of `benchmarks.skills`, any when empty. metric: of the sub-tasks. subtask: of
    those that match alone. benchmarks: of these alone, of all when empty."""

    name: str
    skills: tuple[str, ...]
    metric: str
    subtask: str = "*"
    benchmarks: tuple[str, ...] = ()

    def parts(self, results: Results) -> list[str]:
        """The sub-tasks of a benchmark that belong to it."""
        if self.benchmarks and results.benchmark not in self.benchmarks:
            return []
        return [
            part
            for part, metrics in results.scores.items()
            if (not self.skills or results.skills.get(part) in self.skills)
            and self.metric in metrics
            and fnmatchcase(part, self.subtask)
        ]


COLUMNS: tuple[Column, ...] = (
    Column("object", ("object",), "accuracy"),
    Column("attribute", ("attribute",), "accuracy"),
    Column("binding", ("binding",), "accuracy"),
    Column("relation", ("relation", "spatial"), "accuracy"),
    Column("role", ("role",), "accuracy"),
    Column("order", ("order",), "accuracy"),
    Column("negation", ("negation",), "accuracy", "negation"),
    Column("missing", ("negation",), "accuracy", "negation_missing"),
    Column("group", (), "group"),
    Column("augmented", ("invariance",), "augmented"),
    Column("brittleness", ("invariance",), "brittleness"),
    Column("zero-shot", ("recognition",), "accuracy"),
    Column("i2t", (), "r1", "i2t", ("world-retrieval",)),
    Column("t2i", (), "r1", "t2i", ("world-retrieval",)),
    Column("style", (), "r1", "*", ("world-retrieval-style",)),
    Column("look-alikes", (), "r1", "*", ("world-confusable",)),
)

KEPT = ("zero-shot", "i2t", "t2i", "style")
"""The columns of recognition and retrieval; the others are of compositionality."""
LOWER_IS_BETTER = ("brittleness",)

Run = Sequence[Results]
"""The results of one model, one a benchmark."""


@dataclass(frozen=True)
class Difference:
    """The difference between two arms in a column; all values lie in [0, 1].

    value: difference of the means over seeds. low, high: its 95 % interval over items, by a paired
    bootstrap over images of the outcomes averaged over seeds (None for one image); p: of these
    outcomes by the test of `compare`, corrected (Holm) for the columns of the comparison (None for
    too few images). sd: of the difference of one run of each, nan with a single seed. runs: seeds
    of the arm that has fewer. photos: images, of the benchmark with the fewest.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    sd: float
    runs: int
    photos: int

    @property
    def least(self) -> float:
        """Lower bound of the difference, by the items and by twice its standard error over seeds.

        nan with a single seed or image.
        """
        by_seeds = self.value - SDS * self.sd / math.sqrt(self.runs)
        return math.nan if self.low is None or self.runs < 2 else min(self.low, by_seeds)

    @property
    def most(self) -> float:
        """Upper bound, as `least` is the lower one."""
        by_seeds = self.value + SDS * self.sd / math.sqrt(self.runs)
        return math.nan if self.high is None or self.runs < 2 else max(self.high, by_seeds)

    @property
    def sign(self) -> int:
        """1 or -1 for a significant difference of more than `SDS` deviations over seeds, else 0."""
        if not is_significant(self.p) or not abs(self.value) > SDS * self.sd:
            return 0
        return 1 if self.value > 0 else -1


def column_value(column: Column, run: Run) -> float:
    """The column's value of one model. Raises CompoclipError when nothing belongs to it."""
    values = [each.scores[part][column.metric].value for each in run for part in column.parts(each)]
    if not values:
        raise CompoclipError(
            f"column '{column.name}': no sub-task that was measured tests it; add benchmarks"
        )
    return fmean(values)


def merit(values: Mapping[str, float]) -> float:
    """The one number that learning rates are chosen by, from the values of all columns.

    Half is the mean of the columns of compositionality, half that of what the base can do already
    (KEPT): what is learnt and what is forgotten count the same, for every arm.
    """
    good = {name: 1 - v if name in LOWER_IS_BETTER else v for name, v in values.items()}
    kept = fmean(value for name, value in good.items() if name in KEPT)
    return (kept + fmean(value for name, value in good.items() if name not in KEPT)) / 2


def best_rate(merits: Mapping[float, float]) -> float:
    """The rate of the highest merit, of equals the smallest."""
    return min(merits, key=lambda rate: (-merits[rate], rate))


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, nan for a single value."""
    return fmean(values), stdev(values) if len(values) > 1 else math.nan


def differences(
    base: Sequence[Run],
    other: Sequence[Run],
    trained: bool = True,
    columns: Sequence[Column] = COLUMNS,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> dict[str, Difference]:
    """Each column's difference between two arms, each the runs of its seeds; other minus base.

    trained: whether `base` depends on a seed; the model before training does not, and the deviation
    is then that of `other` alone. Raises CompoclipError for results of different benchmarks or
    data.
    """
    pairs = _averaged(base, other)
    varied = (base, other) if trained else (other,)
    sds = [
        math.hypot(*(mean_and_sd([column_value(each, run) for run in runs])[1] for runs in varied))
        for each in columns
    ]
    found = _by_column(columns, base[0], pairs, bootstrap)
    corrected = holm([evidence.p for _, evidence in found.values()])
    runs = min(len(each) for each in varied)
    return {
        name: Difference(value, *each.interval, p, sd, runs, each.photos)
        for (name, (value, each)), sd, p in zip(found.items(), sds, corrected)
    }


def _averaged(base: Sequence[Run], other: Sequence[Run]) -> Mapping[str, Pair]:
    """By benchmark, the items of both with outcomes averaged over the seeds of each."""
    runs = [{each.benchmark: each for each in run} for run in (*base, *other)]
    if any(run.keys() != runs[0].keys() for run in runs):
        raise CompoclipError(
            f"{base[0][0].model} and {other[0][0].model} were measured on different benchmarks; "
            "choose another --out and run both again"
        )
    mine, theirs = runs[: len(base)], runs[len(base) :]
    return {
        name: Pair.of_seeds([run[name] for run in mine], [run[name] for run in theirs])
        for name in runs[0]
    }


def _by_column(
    columns: Sequence[Column], run: Run, pairs: Mapping[str, Pair], bootstrap: Bootstrap
) -> dict[str, tuple[float, Evidence]]:
    """Each column's difference, and what speaks for it. Columns of a benchmark share its draws."""
    found: dict[str, list[tuple[float, Evidence, int]]] = {each.name: [] for each in columns}
    for number, results in enumerate(run):
        pair = pairs[results.benchmark]
        trees = {
            column.name: MeanNode(parts=tuple(pair.tree(part, column.metric) for part in parts))
            for column in columns
            if (parts := column.parts(results))
        }
        if not trees:
            continue
        shifted = replace(bootstrap, seed=bootstrap.seed + number)
        speaking = pair.evidence(list(trees.values()), shifted)
        for (name, tree), each in zip(trees.items(), speaking):
            value = evaluate(tree, pair.other) - evaluate(tree, pair.base)
            found[name].append((value, each, len(tree.parts)))
    return {name: _joined(of) for name, of in found.items()}


def _joined(found: Sequence[tuple[float, Evidence, int]]) -> tuple[float, Evidence]:
    """The mean over sub-tasks of several benchmarks, each of so many."""
    count = sum(parts for _, _, parts in found)
    return (
        sum(value * parts for value, _, parts in found) / count,
        joined([(each, parts / count) for _, each, parts in found]),
    )


# --- Do two labs agree? The rank correlation of their recipes, column by column. ---

_DRAWS = 10_000
_FEWEST = 4
"""Recipes; of fewer a rank correlation says nothing."""

Means = Mapping[str, Mapping[str, float]]
"""Arm -> column -> mean over the seeds."""


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation; nan when all values of a list are equal."""
    if min(len(set(a)), len(set(b))) < 2:
        return float("nan")
    return float(spearmanr(a, b).statistic)


def chance_of(a: Sequence[float], b: Sequence[float]) -> float:
    """Return how often a random order of `b` correlates with `a` at least as much, either way."""
    rng, found = np.random.default_rng(0), abs(spearman(a, b))
    x, y = (rankdata(each) - (len(each) + 1) / 2 for each in (a, b))
    scale = float(np.sqrt((x @ x) * (y @ y)))
    drawn = np.array([abs(float(x @ rng.permutation(y))) / scale for _ in range(_DRAWS)])
    return float((1 + (drawn >= found - 1e-12).sum()) / (1 + _DRAWS))


def agreement(mine: Means, other: Means) -> list[tuple[str, int, float, float]]:
    """(column, recipes in both labs, rank correlation, its p) of every column that both have.

    Columns that do not vary, or that fewer than four recipes share, are left out.
    """
    arms = [name for name in mine if name in other]
    rows = []
    for column in next(iter(mine.values()), {}):
        shared = [name for name in arms if column in mine[name] and column in other[name]]
        if len(shared) < _FEWEST:
            continue
        a, b = ([lab[name][column] for name in shared] for lab in (mine, other))
        rho = spearman(a, b)
        if not np.isnan(rho):
            rows.append((column, len(shared), rho, chance_of(a, b)))
    return rows
