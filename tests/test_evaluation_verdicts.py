"""How often verdicts are wrong and how often they see what is there, simulated: the functions that
`compare` makes, on data sets of equal and of unequal models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from compoclip.evaluation.aggregate import MeanNode, additions, evaluate
from compoclip.evaluation.comparison import (
    Difference,
    Pair,
    ScorePart,
    corrected,
    differences,
)
from compoclip.evaluation.items import MAIN
from compoclip.evaluation.run import Options
from compoclip.evaluation.run import evaluate as measure
from compoclip.evaluation.statistics import Bootstrap, sign_flip
from evaluation_helpers import FakeEncoder, choice_benchmark, compare

SETS = 40
FAMILIES = (1, 10, 60)


@dataclass(frozen=True)
class Shape:
    """photos and items a photo of every sub-task; alike: how much of what makes an item hard for a
    model is its photo (0: nothing, items are independent)."""

    photos: int
    items: int
    alike: float = 0.0


def data_sets(
    shape: Shape, sets: int, seed: int, gain: float = 0.0, subtasks: int = max(FAMILIES)
) -> Iterator[list[Difference]]:
    """For each data set the differences of all its sub-tasks, uncorrected.

    An item is right where a sum of normal variables is positive: how hard it is for all, how hard
    its photo is for the model, and the rest. gain: by how much the other model's sum is higher.
    """
    rng = np.random.default_rng(seed)
    shown = (subtasks, shape.photos, shape.items)
    n = int(np.prod(shown))
    names = [f"photo {k}" for k in np.broadcast_to(np.arange(shape.photos)[:, None], shown).ravel()]
    rows = np.arange(n).reshape(subtasks, -1)
    base, other = np.zeros(n), np.zeros(n)
    pair = Pair(
        benchmark="simulated",
        headline="",
        trees={},
        subtask_rows={f"part {k}": own for k, own in enumerate(rows)},
        photos=np.unique(names, return_inverse=True)[1],
        base={MAIN: base},
        other={MAIN: other},
        main=MAIN,
        truth=[],
    )
    parts = {(name,): (ScorePart("simulated", name),) for name in pair.subtask_rows}
    for _ in range(sets):
        hard = rng.standard_normal(shown, dtype=np.float32)
        for values, better in ((base, 0.0), (other, gain)):
            photo = rng.standard_normal((*shown[:2], 1), dtype=np.float32)
            rest = rng.standard_normal(shown, dtype=np.float32)
            own = np.sqrt(shape.alike) * photo + np.sqrt(1 - shape.alike) * rest
            values[:] = (hard + own + better > 0).ravel()
        yield [*differences({"simulated": pair}, parts, Bootstrap(0)).values()]


def wrong(shape: Shape, sets: int, seed: int = 0) -> dict[int, int]:
    """Size of the family -> families of equal models that hold a wrong verdict.

    Sub-tasks are drawn independently, so a data set holds as many families as fit into it.
    """
    found = dict.fromkeys(FAMILIES, 0)
    for changes in data_sets(shape, sets, seed):
        for size in FAMILIES:
            for first in range(0, len(changes), size):
                family = corrected(changes[first : first + size])
                found[size] += any(each.verdict in ("higher", "lower") for each in family)
    return found


def seen(shape: Shape, sets: int, gain: float, seed: int = 0) -> dict[int, float]:
    """Size of the family -> share of its sub-tasks that are called higher, where all are."""
    found = dict.fromkeys(FAMILIES, 0.0)
    for changes in data_sets(shape, sets, seed, gain):
        for size in FAMILIES:
            verdicts = [each.verdict for each in corrected(changes[:size])]
            found[size] += verdicts.count("higher") / size / sets
    return found


def by_chance(families: int, error: float = 0.05) -> tuple[float, float]:
    """How many wrong families come up in 99 of 100 simulations of a test with that error."""
    low, high = stats.binom.interval(0.99, families, error)
    return float(low), float(high)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(10, 1),
        Shape(30, 1),
        Shape(100, 1),
        Shape(10, 5, alike=0.3),
        Shape(30, 5, alike=0.0),
        Shape(30, 5, alike=0.3),
    ],
    ids=str,
)
def test_equal_models_are_told_apart_in_5_percent_of_families(shape: Shape) -> None:
    found = wrong(shape, SETS, seed=1)
    assert found.keys() == {1, 10, 60}
    for size, count in found.items():
        families = SETS * 60 // size
        assert count <= by_chance(families)[1], size
        if (shape.photos >= 30 and shape.items >= 5) or shape.photos >= 100:
            assert count >= by_chance(families, 0.03)[0], size  # not merely careful


def test_many_items_of_many_photos() -> None:
    found = wrong(Shape(100, 30, alike=0.3), 12, seed=1)
    for size, count in found.items():
        least, most = by_chance(12 * 60 // size)
        assert least <= count <= most, size


@pytest.mark.parametrize(
    "shape", [Shape(30, 5, alike=0.3), Shape(100, 1), Shape(60, 30, alike=0.5)]
)
def test_a_clear_difference_is_seen_in_any_family(shape: Shape) -> None:
    assert seen(shape, sets=3, gain=3.0) == dict.fromkeys(FAMILIES, 1.0)


def test_verdicts_do_not_depend_on_the_number_of_draws(tmp_path: Path) -> None:
    toy = choice_benchmark(tmp_path / "p", n=60, shared=20)
    one, two = (
        measure(name, FakeEncoder(name), [toy], tmp_path / "out", Options(resamples=20))
        for name in ("one", "two")
    )
    p_values = {
        tuple((d.p, d.p_holm, d.verdict) for d in (*found.headlines, *found.subtasks))
        for found in (compare(one, two, resamples, seed) for resamples, seed in ((0, 0), (9, 4)))
    }
    assert len(p_values) == 1


def test_ten_photos_say_what_ten_photos_can() -> None:
    (changes,) = data_sets(Shape(10, 30), 1, seed=0, gain=9.0)
    assert {each.p for each in changes} == {2 * 2**-10}
    assert {each.verdict for each in corrected(changes[:25])} == {"higher"}
    assert {each.verdict for each in corrected(changes[:26])} == {"not significant"}


def test_what_photos_add_makes_up_the_difference() -> None:
    rng = np.random.default_rng(0)
    n, photos = 90, 14
    base, other = ({"m": rng.random(n), "auc": rng.random(n)} for _ in range(2))
    units = rng.integers(photos, size=n)
    rows = np.arange(n)
    inner = MeanNode(parts=(MeanNode("m", rows[20:25]), MeanNode("auc", rows, true=40)))
    tree = MeanNode(parts=(MeanNode("m", rows[:30]), inner))
    adds = additions(tree, base, other, units)
    assert len(adds) == photos
    assert adds.sum() == pytest.approx(evaluate(tree, other) - evaluate(tree, base))
    gap = other["m"] - base["m"]
    (only,) = [additions(each, base, other, units) for each in (tree.parts[0],)]
    assert only == pytest.approx(np.bincount(units[:30], gap[:30] / 30, minlength=photos))


@pytest.mark.parametrize(("true", "false", "a_photo"), [(15, 45, 1), (30, 30, 3), (4, 60, 1)])
def test_equal_areas_under_a_curve_are_told_apart_in_5_percent(true, false, a_photo) -> None:
    rng = np.random.default_rng(3)
    n, found = true + false, 0
    curve = MeanNode("auc", np.arange(n), true)
    units = np.arange(n) % (n // a_photo)
    kind = (np.arange(n) < true).astype(float)
    for _ in range(100):
        shared = rng.normal(size=n) + kind
        base, other = (
            {"auc": shared + rng.normal(size=n) + rng.normal(size=n)[units]} for _ in range(2)
        )
        found += sign_flip(additions(curve, base, other, units)) <= 0.05
    assert found <= by_chance(100)[1]
    better = {"auc": base["auc"] + 5 * kind}
    assert sign_flip(additions(curve, base, better, units)) < (0.05 if true > 4 else 0.3)
