"""Two models' outcomes on the items both were measured on, and what speaks for a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import (
    FEWEST,
    RANKED,
    Interval,
    Leaf,
    Plan,
    additions,
    leaf,
    percentile_interval,
    plan_or_none,
    resample_difference,
    rows_of,
    rule_from_json,
    sign_flip,
)
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.items import MAIN, POSITIVE_SCORE, Indices, Values
from compoclip.evaluation.results import Results, load_items

_GROUPS = 250


@dataclass(frozen=True)
class Evidence:
    """How far a number can be trusted. draws: its values in bootstrap draws of photos; photos: how
    many it rests on. adds: of a difference, what every photo adds to it."""

    draws: Values
    photos: int
    adds: Values = field(default_factory=lambda: np.zeros(0))

    @property
    def interval(self) -> Interval:
        """The 95 % interval."""
        return percentile_interval(self.draws, self.photos)

    @property
    def p(self) -> float | None:
        """That a difference is not zero, two-sided; None where there are too few photos."""
        return sign_flip(self.adds) if self.photos >= FEWEST else None


def joined(parts: Sequence[tuple[Evidence, float]]) -> Evidence:
    """The evidence about a weighted sum of numbers of different benchmarks, whose photos differ."""
    return Evidence(
        draws=np.sum([weight * each.draws for each, weight in parts], axis=0),
        photos=min(each.photos for each, _ in parts),
        adds=np.concatenate([weight * each.adds for each, weight in parts]),
    )


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
        keys = [
            list(zip(table["subtask"].to_pylist(), table["item"].to_pylist())) for table in tables
        ]
        place = {key: row for row, key in enumerate(keys[1])}
        rows = [(row, place[key]) for row, key in enumerate(keys[0]) if key in place]
        if not rows:
            raise CompoclipError(
                f"{base.benchmark}: no item was measured for both models ({base.items} and "
                f"{other.items}); evaluate both again"
            )
        alone = set(keys[0]) ^ set(keys[1])
        if alone and not (base.partial or other.partial):
            raise CompoclipError(
                f"{base.items} and {other.items} are both complete and hold other items, e.g. "
                f"'{min(alone)[1]}'; evaluate {base.model} and {other.model} again"
            )
        left, right = (tables[k].take([pair[k] for pair in rows]) for k in (0, 1))
        one_gallery = any(FORMS[name].one_gallery for name in set(left["form"].to_pylist()))
        if one_gallery and not len(rows) == len(keys[0]) == len(keys[1]):
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
        rules = {name: rule_from_json(rule) for name, rule in base.rules.items()}
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

    @cached_property
    def codes(self) -> Indices:
        """The number of each item's photo."""
        return np.unique(np.asarray(self.clusters), return_inverse=True)[1]

    @cached_property
    def units(self) -> Indices:
        """What counts as a photo when curves are computed without each: groups of photos where
        there are so many that this would take long."""
        return self.codes % _GROUPS if RANKED.keys() & self.base else self.codes

    def photos(self, tree: Plan) -> int:
        """How many photos a number rests on."""
        return int(np.count_nonzero(np.bincount(self.codes[rows_of(tree)])))

    def evidence(self, trees: Sequence[Plan], resamples: int, seed: int) -> list[Evidence]:
        """What speaks for each tree's difference, other minus base."""
        drawn = resample_difference(trees, self.base, self.other, self.clusters, resamples, seed)
        return [
            Evidence(draws, self.photos(tree), additions(tree, self.base, self.other, self.units))
            for tree, draws in zip(trees, drawn)
        ]


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
