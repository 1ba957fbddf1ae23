"""ROC-AUC, thresholds and 11-point average precision against plain loops and hand computation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from compoclip.evaluation.curves import (
    balanced_threshold,
    placements,
    weighted_ap_11,
    weighted_auc,
)


def roc_auc(scores: np.ndarray, truth: np.ndarray, tie: float = 0.5) -> float:
    return float(weighted_auc(scores, truth, np.ones((1, len(scores))), tie)[0])


def arrays(scores: list[float], truth: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(scores, dtype=np.float32), np.array(truth, dtype=bool)


def average_precision_11(scores: np.ndarray, truth: np.ndarray, devkit: bool = False) -> float:
    return float(weighted_ap_11(scores, truth, np.ones((1, len(scores))), devkit=devkit)[0])


@pytest.mark.parametrize(
    ("scores", "truth", "auc", "strict"),
    [
        ([0.9, 0.8, 0.2, 0.1], [1, 1, 0, 0], 1.0, 1.0),
        ([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 0], 0.0, 0.0),
        ([0.5, 0.5, 0.5], [1, 0, 0], 0.5, 0.0),
        # pairs: .8>.6, .8>.1, .4<.6, .4>.1
        ([0.8, 0.4, 0.6, 0.1], [1, 1, 0, 0], 3 / 4, 3 / 4),
        # pairs: .6=.6 (half), .6>.1, .1<.6, .1=.1 (half)
        ([0.6, 0.1, 0.6, 0.1], [1, 1, 0, 0], 1 / 2, 1 / 4),
    ],
)
def test_auc_by_hand(scores, truth, auc, strict):
    assert roc_auc(*arrays(scores, truth)) == pytest.approx(auc)
    assert roc_auc(*arrays(scores, truth), tie=0.0) == pytest.approx(strict)


def test_auc_is_the_mann_whitney_statistic_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.integers(0, 6, size=40).astype(np.float32)
        truth = rng.random(40) < 0.4
        statistic = stats.mannwhitneyu(scores[truth], scores[~truth]).statistic
        expected = statistic / (truth.sum() * (~truth).sum())
        assert roc_auc(scores, truth) == pytest.approx(expected)
        for tie in (0.0, 0.5):
            each = placements(scores, truth, tie)
            both = each[truth].mean(), each[~truth].mean()
            assert both == pytest.approx((roc_auc(scores, truth, tie),) * 2)


@pytest.mark.parametrize("curve", [weighted_auc, weighted_ap_11])
def test_weights_count_items_that_often(curve):
    rng = np.random.default_rng(1)
    scores, truth = rng.integers(0, 5, size=15).astype(float), np.arange(15) % 2 == 0
    weights = rng.integers(0, 4, size=(30, 15)).astype(float)
    for row, value in zip(weights.astype(int), curve(scores, truth, weights)):
        once = np.ones((1, row.sum()))
        again = curve(np.repeat(scores, row), np.repeat(truth, row), once)
        assert value == pytest.approx(again[0])
    assert curve(scores, truth, np.ones((1, 15)), 0.0) <= curve(scores, truth, np.ones((1, 15)))
    for kind in (~truth, truth)[: 1 + (curve is weighted_auc)]:  # only one kind has any weight
        assert np.isnan(curve(scores, truth, kind[None].astype(float))).all()


def test_threshold_is_the_best_of_all():
    rng = np.random.default_rng(2)
    for _ in range(30):
        scores = rng.integers(0, 8, size=25).astype(np.float32)
        truth = rng.random(25) < 0.5 + 0.05 * (scores - 4)

        def balanced(threshold, scores=scores, truth=truth):
            above = scores > threshold
            return (above[truth].mean() + (~above)[~truth].mean()) / 2

        best = max(balanced(t) for t in np.arange(-0.5, 9))
        threshold = balanced_threshold(scores, truth)
        assert balanced(threshold) == pytest.approx(best)
        assert all(balanced(t) < best - 1e-9 for t in np.arange(-0.5, threshold - 0.5))


def test_threshold_by_hand():
    assert balanced_threshold(*arrays([0.2, 0.4, 0.8, 1.0], [0, 0, 1, 1])) == pytest.approx(0.6)
    constant = balanced_threshold(*arrays([0.3, 0.3], [1, 0]))
    assert constant < 0.3  # no threshold helps: all are called true
    with pytest.raises(ValueError, match="true and false"):
        balanced_threshold(*arrays([0.1, 0.2], [1, 1]))


def ap_11(scores, truth, devkit=False):
    """By the definition: precision and recall at every distinct score; 1 at recall 0, not in the
    devkit."""
    scores, truth = np.asarray(scores), np.asarray(truth, dtype=bool)
    points = []
    for limit in sorted(set(scores.tolist()), reverse=True):
        kept = scores >= limit
        points.append((int((kept & truth).sum()), (kept & truth).sum() / kept.sum()))
    total = int(truth.sum())
    levels = [max(p for hits, p in points if 10 * hits >= k * total) for k in range(11)]
    return (sum(levels) if devkit else 1 + sum(levels[1:])) / 11


def elevater(scores, truth):
    """The loop of the ELEVATER toolkit, from the curve as its library gives it: by falling recall,
    with a last point of recall 0 and precision 1."""
    points = []
    for limit in sorted(set(scores.tolist())):
        kept = scores >= limit
        points.append(((kept & truth).sum() / kept.sum(), (kept & truth).sum() / truth.sum()))
    points.append((1.0, 0.0))
    found, best, place = [], 0.0, 0
    for level in np.arange(10, -1, -1) / 10:
        while place < len(points) and level <= points[place][1]:
            best, place = max(best, points[place][0]), place + 1
        found.append(best)
    return sum(found) / 11


def test_11_point_average_precision():
    # ranks: true, false, true: recall 1/2 at precision 1, recall 1 at 2/3
    assert average_precision_11(*arrays([0.9, 0.5, 0.1], [1, 0, 1])) == pytest.approx(
        (6 * 1 + 5 * 2 / 3) / 11
    )
    assert average_precision_11(*arrays([0.9, 0.5, 0.1], [1, 1, 0])) == 1.0
    # all equal: everything is retrieved at once, but at recall 0 nothing
    same = arrays([0.5, 0.5, 0.5, 0.5], [1, 0, 0, 0])
    assert average_precision_11(*same, devkit=True) == pytest.approx(0.25)
    assert average_precision_11(*same) == pytest.approx((1 + 10 * 0.25) / 11)
    # ranks: false, true: the best precision is 1/2, also at recall 0
    assert average_precision_11(*arrays([0.9, 0.5], [0, 1]), devkit=True) == pytest.approx(1 / 2)
    assert average_precision_11(*arrays([0.9, 0.5], [0, 1])) == pytest.approx(6 / 11)
    assert np.isnan(average_precision_11(*arrays([0.5], [0])))
    rng = np.random.default_rng(3)
    for _ in range(30):
        scores = rng.integers(0, 12, size=40).astype(np.float32)
        truth = rng.random(40) < 0.3
        truth[0] = True
        for devkit in (False, True):
            expected = ap_11(scores, truth, devkit)
            assert average_precision_11(scores, truth, devkit) == pytest.approx(expected)
        assert average_precision_11(scores, truth) == pytest.approx(elevater(scores, truth))
        order = rng.permutation(40)
        assert average_precision_11(scores[order], truth[order]) == pytest.approx(
            average_precision_11(scores, truth)
        )
