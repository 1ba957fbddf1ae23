"""Intervals and tests against published values, scipy and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from compoclip.evaluation import statistics
from compoclip.evaluation.statistics import (
    bootstrap_p,
    cluster_weights,
    holm,
    mcnemar,
    percentile_interval,
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


def test_blocks_do_not_change_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(cluster_weights(60, 100, 3)))
    monkeypatch.setattr(statistics, "_DRAWS_AT_ONCE", 130)
    blocks = list(cluster_weights(60, 100, 3))
    assert len(blocks) == 50
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    assert (whole.sum(axis=1) == 60).all()
    assert not np.array_equal(np.concatenate(list(cluster_weights(60, 100, 4))), whole)


def test_standard_error_of_independent_items() -> None:
    values = np.random.default_rng(0).normal(size=400)
    means = np.concatenate([w @ values / 400 for w in cluster_weights(400, 2000, 0)])
    assert means.std() == pytest.approx(values.std() / 20, rel=0.06)


def test_percentile_interval_leaves_out_undefined_draws() -> None:
    draws = np.arange(1001) / 1000
    assert percentile_interval(draws) == pytest.approx((0.025, 0.975))
    assert percentile_interval(draws, 0.5) == pytest.approx((0.25, 0.75))
    with_gaps = np.concatenate([draws, [np.nan, np.nan]])
    assert percentile_interval(with_gaps) == percentile_interval(draws)


def test_bootstrap_p() -> None:
    assert bootstrap_p(np.zeros(2000)) == 1.0
    assert bootstrap_p(np.full(2000, 0.1)) == bootstrap_p(np.full(2000, -0.1)) == 2 / 2001
    assert bootstrap_p(np.array([-1.0, 1, 2, 3, 4, 5, 6, 7, 8])) == pytest.approx(0.4)


def test_bootstrap_p_agrees_with_the_t_test() -> None:
    gap = np.random.default_rng(5).normal(0.08, 1, size=400)
    draws = np.concatenate([w @ gap / 400 for w in cluster_weights(400, 4000, 0)])
    assert bootstrap_p(draws) == pytest.approx(stats.ttest_1samp(gap, 0).pvalue, abs=0.03)


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


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
