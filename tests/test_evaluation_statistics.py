"""Intervals, tests and aggregates against published values, scipy and plain loops."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from compoclip.benchmarks.case import Aggregate, Listed
from compoclip.errors import CompoclipError
from compoclip.evaluation import statistics
from compoclip.evaluation.aggregate import evaluate, plan, resample, rows_of
from compoclip.evaluation.statistics import (
    LEVEL,
    Bootstrap,
    bounded_interval,
    guessing,
    holm,
    is_significant,
    percentile_interval,
    sign_flip,
    wilson,
)
from compoclip.typed import build


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (3, 7), (81, 263), (1000, 1000)])
def test_wilson_scipy(successes: int, n: int, level: float) -> None:
    theirs = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    assert wilson(successes, n, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_edges() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 3)[0] == 0.0
    assert wilson(3, 3)[1] == 1.0
    assert wilson(2.5, 10)[0] < 0.25 < wilson(2.5, 10)[1]
    for bad in ((-1, 3), (4, 3), (math.nan, 3)):
        with pytest.raises(ValueError, match="successes"):
            wilson(*bad)


def test_blocks_do_not_change_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(Bootstrap(100, 3).weights(60)))
    monkeypatch.setattr(statistics, "_DRAWS_AT_ONCE", 190)
    blocks = list(Bootstrap(100, 3).weights(60))
    assert [len(block) for block in blocks] == [*[3] * 33, 1]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    assert (whole.sum(axis=1) == 60).all()
    assert not np.array_equal(np.concatenate(list(Bootstrap(100, 4).weights(60))), whole)


@pytest.mark.parametrize("clusters", [1, 7, 300])
def test_cached_draws_are_the_draws(clusters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (list(Bootstrap(50, 1).weights(clusters)) for _ in range(2))
    monkeypatch.setattr(statistics, "_CACHED_BYTES", 0)
    for one, two, fresh in zip(first, again, Bootstrap(50, 1).weights(clusters), strict=True):
        assert one.dtype == fresh.dtype == np.float64
        assert one.flags.f_contiguous
        np.testing.assert_array_equal(one, fresh)
        np.testing.assert_array_equal(two, fresh)


def test_draws_that_were_used_least_recently_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_cached", {})
    monkeypatch.setattr(statistics, "_CACHED_BYTES", 1000)
    for clusters in (40, 41, 40, 42):  # of 10 bytes per cluster
        list(Bootstrap(10, 0).weights(clusters))
    assert [clusters for _, clusters, _ in statistics._cached] == [40, 42]


def test_percentile_interval_leaves_out_undefined_draws() -> None:
    draws, many = np.arange(1001) / 1000, 10**9
    assert percentile_interval(draws, many) == pytest.approx((0.025, 0.975))
    assert percentile_interval(draws, many, 0.5) == pytest.approx((0.25, 0.75))
    with_gaps = np.concatenate([draws, [np.nan, np.nan]])
    assert percentile_interval(with_gaps, 20) == percentile_interval(draws, 20)


def test_one_photo_or_no_draw_gives_no_interval() -> None:
    for draws, photos in ((np.arange(100.0), 1), (np.zeros(0), 50), (np.full(3, np.nan), 50)):
        assert percentile_interval(draws, photos) == (None, None)


@pytest.mark.parametrize(
    ("value", "photos", "bounds", "low", "high"),
    [
        (0.0, 12, (-1.0, 1.0), -0.2425, 0.2425),  # 1.96^2 / (12 + 1.96^2) may be anything
        (0.0, 1000, (-1.0, 1.0), -0.0038, 0.0038),
        (1.0, 12, (-1.0, 1.0), 0.5150, 1.0),
        (-1.0, 12, (-1.0, 1.0), -1.0, -0.5150),
        (0.5, 12, (-0.5, 0.5), 0.2575, 0.5),  # always right, beside a chance of one half
        (0.0, 12, (-2.0, 2.0), -0.4850, 0.4850),
    ],
)
def test_photos_that_all_agree_leave_room_for_photos_not_measured(
    value: float, photos: int, bounds: tuple[float, float], low: float, high: float
) -> None:
    draws = np.full(200, value)
    assert bounded_interval(draws, photos, *bounds) == pytest.approx((low, high), abs=5e-5)
    assert bounded_interval(draws, 1, *bounds) == (None, None)
    assert bounded_interval(draws, photos, -np.inf, np.inf) == (None, None)
    varied = draws + np.arange(200) / 1000
    assert bounded_interval(varied, photos, *bounds) == percentile_interval(varied, photos)


@pytest.mark.parametrize("n", [10, 30, 100])
def test_the_interval_of_a_mean_is_as_wide_as_students(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    draws = np.concatenate([w @ values / n for w in Bootstrap(60_000, 0).weights(n)])
    low, high = percentile_interval(draws, n)
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    assert high - low == pytest.approx(theirs.high - theirs.low, rel=0.08)


def all_signs(adds: np.ndarray) -> float:
    """Share of all choices of signs whose sum is at least as far from zero as observed."""
    signs = np.array(list(itertools.product([-1, 1], repeat=len(adds))))
    return float((np.abs(signs @ adds) > abs(adds.sum()) - 1e-9).mean())


@pytest.mark.parametrize("seed", range(12))
def test_sign_flips_are_those_that_are_counted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    amounts = (rng.normal(0.4, 1, size=12), rng.integers(-2, 5, size=12) / 3)
    for adds in amounts:
        assert sign_flip(adds) == pytest.approx(all_signs(adds), rel=1e-9)
        assert sign_flip(-7 * adds) == pytest.approx(sign_flip(adds))
        assert sign_flip(np.concatenate([adds, np.zeros(5)])) == pytest.approx(sign_flip(adds))


@pytest.mark.parametrize(
    ("adds", "low", "high"),
    [
        (np.repeat([1.0, -1, 3, 0.3], [30, 20, 4, 7]), 0.999, 1.001),  # few amounts: exact
        (np.linspace(0.999, 1.001, 51) * np.repeat([1, -1], [33, 18]), 1.0, 1.15),  # nearly a grid
        (np.linspace(0.2, 1.8, 60) * np.where(np.arange(60) % 3, 1, -1), 0.99, 1.15),
    ],
)
def test_sign_flips_of_many_photos(adds: np.ndarray, low: float, high: float) -> None:
    rng = np.random.default_rng(0)
    signs = 2.0 * rng.integers(0, 2, size=(200_000, len(adds))) - 1
    counted = (np.abs(signs @ adds) > abs(adds.sum()) - 1e-9).mean()
    noise = 3 * math.sqrt(counted / len(signs))
    assert low * counted - noise < sign_flip(adds) < high * counted + noise


@pytest.mark.parametrize(
    ("one", "two"), [(0, 5), (1, 5), (1, 7), (7, 7), (3, 21), (5, 30), (400, 500), (20_000, 20_500)]
)
def test_sign_flips_of_photos_of_one_weight_are_mcnemars_test(one: int, two: int) -> None:
    adds = np.repeat([0.01, -0.01, 0.0], [one, two, 50])
    assert sign_flip(adds) == pytest.approx(stats.binomtest(one, one + two).pvalue)
    assert sign_flip(np.zeros(9)) == sign_flip(np.array([0.3, -0.3])) == 1.0


def test_sign_flips_of_few_kinds_of_amounts_are_exact() -> None:
    assert sign_flip(np.array([1.0] * 8 + [2, -1])) == pytest.approx(20 / 1024)  # no mid-p
    assert sign_flip(np.linspace(1, 2, 12)) == pytest.approx(2**-11)
    assert sign_flip(np.array([5.0])) == 1.0
    # a photo of all the weight decides alone, however many there are
    assert sign_flip(np.concatenate([[100.0], np.tile([1e-3, -1e-3], 200), [1e-3]])) > 0.4


def test_the_tail_has_no_end_that_a_family_could_fall_off() -> None:
    small = [sign_flip(np.linspace(0.5, 1.5, n) * np.where(np.arange(n) % 7, 1, -1)) for n in
             (50, 100, 200, 400)]  # fmt: skip
    assert all(later < earlier / 1e3 for earlier, later in itertools.pairwise(small))
    assert 0 < small[-1] < 1e-40


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
    assert holm([None, 0.02, None, 0.03]) == [None, 0.04, None, 0.04]
    assert holm([None]) == [None]


# --- Scores against chance. ---


def guessing_by_loops(hits: Sequence[int], chance: float) -> float:
    """The binomial test of independent items, one per photo, term by term."""
    n, seen = len(hits), sum(hits)
    chances = [math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(n + 1)]
    return min(1.0, 2 * sum(chances[seen:]), 2 * sum(chances[: seen + 1]))


@pytest.mark.parametrize(
    ("hits", "n", "chance"),
    [(0, 60, 1 / 60), (1, 60, 1 / 60), (6, 60, 1 / 60), (35, 60, 0.5), (60, 60, 0.5), (5, 60, 0.5)],
)
def test_a_score_against_chance(hits: int, n: int, chance: float) -> None:
    outcomes = np.array([1.0] * hits + [0.0] * (n - hits))
    adds = (outcomes - chance) / n
    exact = guessing_by_loops(outcomes.astype(int).tolist(), chance)
    p = guessing(adds, n, outcomes.mean(), chance)
    assert p >= sign_flip(adds)
    if chance < 0.5 or 0 < hits < n:
        assert math.log(p) == pytest.approx(math.log(max(exact, sign_flip(adds))), abs=0.5)
    assert (p <= LEVEL) == (max(exact, sign_flip(adds)) <= LEVEL)


@pytest.mark.parametrize("chance", [1 / 60, 0.2, 0.5])
def test_guessing_is_rarely_significant_with_rare_hits_and_items_that_share_photos(
    chance: float,
) -> None:
    rng, photos, each, significant = np.random.default_rng(0), 60, 5, 0
    for _ in range(300):
        shared = rng.random((photos, each)) < 0.5  # items that have their photo's outcome
        outcomes = np.where(
            shared, rng.random((photos, 1)) < chance, rng.random((photos, each)) < chance
        )
        adds = (outcomes - chance).sum(1) / outcomes.size
        significant += guessing(adds, photos, outcomes.mean(), chance) <= 0.05
    assert significant / 300 <= 0.07


def test_one_family_decides() -> None:
    corrected = holm([0.01, 0.02, None, 0.04, 0.6])
    assert [is_significant(p) for p in corrected] == [True, False, False, False, False]
    assert is_significant(*holm([0.04]))


# --- Aggregate trees. ---

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
