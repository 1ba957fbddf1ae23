"""Aggregate trees against hand-computed values, and their bootstrap."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from compoclip.benchmarks.case import Aggregate, Listed
from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import evaluate, plan, resample, rows_of
from compoclip.evaluation.statistics import Bootstrap
from compoclip.typed import build

SUBTASKS = ["a", "a", "a", "a", "b", "b", "c"]
LABELS = [{"r": v} for v in ("on", "on", "on", "in", "in", "by")] + [{}]
VALUES = {"accuracy": np.array([1.0, 1, 0, 0, 1, 0, 1]), "text": np.array([0.0, 0, 0, 1, 1, 1, 1])}
LISTED = Listed(SUBTASKS, LABELS)
APPLIES = {name: np.ones(7, dtype=bool) for name in VALUES}


def value(rule: Aggregate) -> float:
    return evaluate(plan(rule, LISTED, APPLIES, "accuracy"), VALUES)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Aggregate(("a", "b")), (1 / 2 + 1 / 2) / 2),
        (Aggregate(("a", "b", "c")), (1 / 2 + 1 / 2 + 1) / 3),
        (Aggregate(("a", "b", "c"), "micro"), 4 / 7),
        (Aggregate((Aggregate(("a", "b"), "micro"), "c")), (3 / 6 + 1) / 2),
        (Aggregate((Aggregate(("b", "c")), "a")), ((1 / 2 + 1) / 2 + 1 / 2) / 2),
        # on 2/3, in 1/2, by 0; the item without a label is in no group
        (Aggregate(("a", "b", "c"), macro_by="r"), (2 / 3 + 1 / 2 + 0) / 3),
        (Aggregate(("a", "b"), macro_by="r", min_group=2), (2 / 3 + 1 / 2) / 2),
        (Aggregate(("a", "b"), macro_by="r", exclude=("on",)), (1 / 2 + 0) / 2),
        (Aggregate(("a",), metric="text"), 1 / 4),
        (Aggregate((Aggregate(("a",), metric="text"), "b")), (1 / 4 + 1 / 2) / 2),
        (Aggregate((Aggregate(("a", "b"), "micro"), "b"), metric="text"), (3 / 6 + 1) / 2),
    ],
)
def test_rules_by_hand(rule, expected):
    assert value(rule) == pytest.approx(expected)
    stored = json.loads(json.dumps(asdict(rule)))
    assert build(Aggregate, stored, "f", "mend it") == rule


def test_items_without_the_metric_are_left_out():
    applies = {"accuracy": np.array([True, False, True, True, True, True, False])}
    tree = plan(Aggregate(("a", "b"), "micro"), LISTED, applies, "accuracy")
    assert rows_of(tree).tolist() == [0, 2, 3, 4, 5]
    assert plan(Aggregate(("c",)), LISTED, applies, "accuracy") is None


def test_unknown_metric_and_weighting_are_errors():
    with pytest.raises(CompoclipError, match="metric 'group'"):
        value(Aggregate(("a",), metric="group"))
    with pytest.raises(CompoclipError, match="weighting 'median'"):
        value(Aggregate(("a",), "median"))


def test_bootstrap_draws_equal_a_plain_loop_for_a_nested_rule():
    rng = np.random.default_rng(1)
    n, photos = 60, 12
    subtasks = [("a", "b", "c")[k % 3] for k in range(n)]
    clusters = np.arange(n) % photos
    values = {"accuracy": rng.random(n)}
    applies = {"accuracy": np.ones(n, dtype=bool)}
    rule = Aggregate((Aggregate(("a", "b"), "micro"), "c"))
    tree = plan(rule, Listed(subtasks, [{}] * n), applies, "accuracy")
    (draws,) = resample([tree], values, clusters, Bootstrap(20, 3))
    drawn = np.random.default_rng(3).integers(photos, size=(20, photos))
    for got, photo_list in zip(draws, drawn):
        ab, c = [], []
        for photo in photo_list:
            for k in range(n):
                if clusters[k] == photo:
                    (c if subtasks[k] == "c" else ab).append(values["accuracy"][k])
        parts = [np.mean(each) for each in (ab, c) if each]
        assert got == pytest.approx(np.mean(parts))


def test_items_are_sorted_once_not_per_block_of_draws(monkeypatch):
    """A million photos have a thousand blocks; sorting in each of them made that quadratic."""
    sorts = []
    unique = np.unique
    monkeypatch.setattr(np, "unique", lambda *a, **k: sorts.append(a) or unique(*a, **k))
    monkeypatch.setattr("compoclip.evaluation.statistics._DRAWS_AT_ONCE", 14)
    tree = plan(Aggregate(("a", "b", "c")), LISTED, APPLIES, "accuracy")
    sorts.clear()
    (draws,) = resample([tree], VALUES, np.arange(7), Bootstrap(50, 1))  # in 25 blocks
    assert (len(draws), len(sorts)) == (50, 3)
