"""Intervals and tests against published values, scipy and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from compoclip.evaluation import statistics
from compoclip.evaluation.statistics import (
    bootstrap_aggregate,
    cluster_bootstrap,
    holm,
    mcnemar,
    paired_bootstrap,
    resampled_means,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_published(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (3, 7), (500, 1000), (1000, 1000)])
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


def _data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    clusters = rng.integers(60, size=300)
    return (rng.random(300) < 0.3 + 0.4 * (clusters % 2)).astype(float), clusters


def _loop(values: np.ndarray, clusters: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Draw whole clusters one resample at a time, items listed one by one."""
    rng = np.random.default_rng(seed)
    names = sorted(set(clusters.tolist()))
    means = []
    for _ in range(resamples):
        items = [
            v
            for pick in rng.integers(len(names), size=len(names))
            for v, c in zip(values, clusters)
            if c == names[pick]
        ]
        means.append(sum(items) / len(items))
    return np.array(means)


def test_cluster_bootstrap_equals_loop() -> None:
    values, clusters = _data()
    means = _loop(values, clusters, 50, 7)
    expected = tuple(np.quantile(means, [0.025, 0.975]))
    assert cluster_bootstrap(values, clusters, resamples=50, seed=7) == pytest.approx(expected)
    labels, fast = resampled_means(values, clusters, resamples=50, seed=7)
    assert labels == [""]
    np.testing.assert_allclose(fast[:, 0], means)


def test_cluster_bootstrap_with_statistic_equals_mean() -> None:
    values, clusters = _data()
    slow = cluster_bootstrap(values, clusters, lambda v: float(v.mean()), resamples=200, seed=3)
    assert slow == pytest.approx(cluster_bootstrap(values, clusters, resamples=200, seed=3))


def test_cluster_bootstrap_statistic_sees_whole_rows() -> None:
    values, clusters = _data()
    rows = np.stack([values, 2 * values], axis=1)
    low, high = cluster_bootstrap(
        rows, clusters, lambda r: float(np.abs(r[:, 1] - 2 * r[:, 0]).max()), resamples=20
    )
    assert low == high == 0.0


def test_blocks_do_not_change_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values, clusters = _data()
    whole = resampled_means(values, clusters, resamples=100)[1]
    monkeypatch.setattr(statistics, "_DRAWS_AT_ONCE", 130)
    np.testing.assert_array_equal(resampled_means(values, clusters, resamples=100)[1], whole)


def test_cluster_labels_may_be_text_and_order_is_irrelevant() -> None:
    values, clusters = _data()
    named = np.array([f"{c:03d}.jpg" for c in clusters])
    shuffle = np.random.default_rng(1).permutation(len(values))
    plain = cluster_bootstrap(values, clusters, resamples=100)
    assert cluster_bootstrap(values, named, resamples=100) == plain
    assert cluster_bootstrap(values[shuffle], named[shuffle], resamples=100) == pytest.approx(plain)


def test_standard_error_of_independent_items() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=400)
    means = resampled_means(values, np.arange(400))[1]
    assert means.std() == pytest.approx(values.std() / 20, rel=0.06)


def test_clusters_widen_the_interval() -> None:
    base = np.random.default_rng(0).integers(2, size=50).astype(float)
    values, clusters = np.repeat(base, 10), np.repeat(np.arange(50), 10)
    low, high = cluster_bootstrap(values, clusters)
    naive_low, naive_high = cluster_bootstrap(values, np.arange(500))
    assert (high - low) / (naive_high - naive_low) == pytest.approx(math.sqrt(10), rel=0.15)


def test_bootstrap_edges() -> None:
    assert cluster_bootstrap(np.array([0.0, 1.0]), np.array([5, 5])) == (0.5, 0.5)
    assert cluster_bootstrap(np.ones(9), np.arange(9)) == (1.0, 1.0)
    with pytest.raises(ValueError, match="0 values"):
        cluster_bootstrap(np.array([]), np.array([]))
    with pytest.raises(ValueError, match="2 values with 1 cluster"):
        cluster_bootstrap(np.ones(2), np.ones(1))
    with pytest.raises(ValueError, match="one number an item"):
        cluster_bootstrap(np.ones((2, 2)), np.arange(2))


def test_aggregate_is_a_mean_of_means() -> None:
    values, clusters = _data()
    groups = np.where(np.arange(300) < 250, "big", "small")
    labels, means = resampled_means(values, clusters, groups, 300, 2)
    assert labels == ["big", "small"]
    expected = tuple(np.quantile(means.mean(1), [0.025, 0.975]))
    assert bootstrap_aggregate(values, clusters, groups, None, 300, 2) == pytest.approx(expected)
    expected = tuple(np.quantile(means @ [0.75, 0.25], [0.025, 0.975]))
    weights = {"big": 3.0, "small": 1.0}
    got = bootstrap_aggregate(values, clusters, groups, weights, 300, 2)
    assert got == pytest.approx(expected)


def test_aggregate_one_group_is_cluster_bootstrap() -> None:
    values, clusters = _data()
    one = bootstrap_aggregate(values, clusters, np.zeros(300), resamples=100)
    assert one == pytest.approx(cluster_bootstrap(values, clusters, resamples=100))


def test_aggregate_group_missed_by_a_resample() -> None:
    values = np.array([1.0, 1.0, 1.0, 0.0])
    groups = np.array(["a", "a", "a", "b"])
    means = resampled_means(values, np.arange(4), groups, 200)[1]
    assert np.isnan(means).any()
    low, high = bootstrap_aggregate(values, np.arange(4), groups, resamples=200)
    assert (low, high) == (0.5, 1.0)


def test_aggregate_errors() -> None:
    values, clusters = _data()
    with pytest.raises(ValueError, match="no weight for b"):
        bootstrap_aggregate(values[:2], clusters[:2], np.array(["a", "b"]), {"a": 1.0})
    with pytest.raises(ValueError, match="2 values, but 1 group"):
        bootstrap_aggregate(values[:2], clusters[:2], np.array(["a"]))


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 5), (5, 0), (1, 5), (7, 7), (10, 14), (3, 21)])
def test_mcnemar_exact(b: int, c: int) -> None:
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected)


def test_mcnemar_published() -> None:
    # Fagerland et al. 2013, table 1 (airway hyper-responsiveness): 1 and 7 discordant children.
    assert mcnemar(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert mcnemar(7, 1) == mcnemar(1, 7)


@pytest.mark.parametrize(("b", "c"), [(12, 13), (13, 13), (5, 30), (400, 500), (0, 25)])
def test_mcnemar_mid_p(b: int, c: int) -> None:
    n, k = b + c, min(b, c)
    pmf = [math.comb(n, i) / 2**n for i in range(k + 1)]
    assert mcnemar(b, c) == pytest.approx(2 * sum(pmf[:-1]) + pmf[-1])


def test_mcnemar_rejects_negative_counts() -> None:
    with pytest.raises(ValueError, match="negative"):
        mcnemar(-1, 3)


def test_paired_bootstrap_equal_models() -> None:
    values, clusters = _data()
    assert paired_bootstrap(values, values, clusters) == (0.0, 0.0, 0.0, 1.0)


def test_paired_bootstrap_clear_difference() -> None:
    values, clusters = _data()
    worse = values * (np.arange(300) % 3 != 0)
    result = paired_bootstrap(values, worse, clusters)
    assert result.difference == pytest.approx(values.mean() - worse.mean())
    assert 0 < result.low < result.difference < result.high
    assert result.p == pytest.approx(2 / 2001)
    back = paired_bootstrap(worse, values, clusters)
    assert back == pytest.approx((-result.difference, -result.high, -result.low, result.p))


def test_paired_bootstrap_agrees_with_normal_test() -> None:
    rng = np.random.default_rng(5)
    gap = rng.normal(0.08, 1, size=400)
    result = paired_bootstrap(gap, np.zeros(400), np.arange(400), resamples=4000)
    assert result.p == pytest.approx(stats.ttest_1samp(gap, 0).pvalue, abs=0.03)


def test_paired_bootstrap_needs_the_same_items() -> None:
    with pytest.raises(ValueError, match="not the same items"):
        paired_bootstrap(np.ones(2), np.ones(3), np.arange(2))


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_same_seed_same_interval() -> None:
    values, clusters = _data()
    assert cluster_bootstrap(values, clusters) == cluster_bootstrap(values, clusters)
    assert cluster_bootstrap(values, clusters) != cluster_bootstrap(values, clusters, seed=1)
