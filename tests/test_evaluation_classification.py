"""Zero-shot metrics against plain loops: ROC-AUC, thresholds, 11-point mAP, top-5, squashing."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from compoclip.benchmarks.case import Benchmark, Classification, ImageRef, present
from compoclip.errors import CompoclipError
from compoclip.evaluation.curves import (
    balanced_threshold,
    expected_ap_11,
    placements,
    weighted_ap_11,
    weighted_auc,
)
from compoclip.evaluation.forms.classification import log_odds
from compoclip.evaluation.items import EncodedFeatures
from compoclip.evaluation.results import Score
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap
from compoclip.evaluation.summary import summarise
from evaluation_helpers import FakeEncoder, compare, features_of, photos, ref, score_items

CLASSES = ("cat", "dog", "cow")


def near(rng: np.random.Generator, n: int) -> np.ndarray:
    """Unit features (n, 16) whose cosines differ as little as those of real models."""
    rows = np.ones((1, 16)) / 4 + 0.05 * rng.normal(size=(n, 16))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def numbered(n: int) -> tuple[ImageRef, ...]:
    return tuple(ref(f"{k}.png") for k in range(n))


def tagged(n: int, seed: int = 0) -> tuple[Classification, EncodedFeatures]:
    """n images with one or two of three classes."""
    rng = np.random.default_rng(seed)
    tags = tuple(
        tuple(sorted(rng.choice(3, size=int(rng.integers(1, 3)), replace=False).tolist()))
        for _ in range(n)
    )
    prompts = tuple((name,) for name in CLASSES)
    content = Classification(numbered(n), (), CLASSES, prompts, "map11", tags)
    return content, features_of(content, near(rng, n), near(rng, 3))


def softmax(row: list[float]) -> list[float]:
    raised = [math.exp(100 * value - 100 * max(row)) for value in row]
    return [value / sum(raised) for value in raised]


def summary(
    content: Classification, known: EncodedFeatures
) -> tuple[dict[str, dict[str, Score]], dict[str, Score]]:
    return summarise(score_items(content, known), content.rules(), bootstrap=Bootstrap(200))


def test_log_odds_are_those_of_a_softmax_of_100_cosines() -> None:
    cosines = np.array([[0.21, 0.24, 0.2], [0.1, -0.1, 0.08]], dtype=np.float32)
    shares = np.array([softmax([float(v) for v in row]) for row in cosines])
    np.testing.assert_allclose(log_odds(cosines), np.log(shares / (1 - shares)), rtol=1e-6)
    far = log_odds(np.array([[0.9, -0.9], [0.8, -0.9]], dtype=np.float32))
    assert far[0, 0] > far[1, 0]  # both probabilities are 1 in double precision


def test_map_is_the_mean_over_classes_of_11_point_precision() -> None:
    content, known = tagged(40)
    scores, aggregates = summary(content, known)
    shares = [softmax([float(np.float32(i @ t)) for t in known.texts]) for i in known.images]
    for devkit, suffix in ((True, "_devkit"), (False, "")):
        expected = {
            name: ap_11([row[c] for row in shares], [c in tags for tags in content.tags], devkit)
            for c, name in enumerate(CLASSES)
        }
        for name, value in expected.items():
            score = scores[name][f"ap11{suffix}"]
            assert score.value == pytest.approx(value, abs=1e-6)
            true = sum(CLASSES.index(name) in tags for tags in content.tags)
            assert score.chance == expected_ap_11(true, 40, devkit) > true / 40
            assert score.low < score.value < score.high
            assert (score.n, score.interval) == (40, "bootstrap")
        mean = sum(expected.values()) / 3
        assert aggregates[f"map11{suffix}"].value == pytest.approx(mean, abs=1e-6)
    assert next(iter(scores["cat"])) == "ap11"
    # the probabilities matter: ranking by cosine gives another number
    cosine = ap_11((known.images @ known.texts[0]).tolist(), [0 in t for t in content.tags])
    assert abs(cosine - expected["cat"]) > 1e-3


@pytest.mark.parametrize("devkit", [False, True])
@pytest.mark.parametrize(("true", "n"), [(1, 1), (1, 3), (2, 4), (3, 7)])
def test_chance_is_the_mean_over_all_orders(true: int, n: int, devkit: bool) -> None:
    orders = set(permutations([True] * true + [False] * (n - true)))
    values = [ap_11([float(-k) for k in range(n)], list(order), devkit) for order in orders]
    assert expected_ap_11(true, n, devkit) == pytest.approx(sum(values) / len(values), abs=0.02)


def test_a_class_that_no_image_or_every_image_shows_has_no_curve() -> None:
    content, known = tagged(12)
    content = replace(
        content, tags=tuple((0, *(t for t in tags if t == 1)) for tags in content.tags)
    )
    scores, aggregates = summary(content, known)
    assert set(scores["dog"]) == {"ap11", "ap11_devkit", "positive_score"}
    assert "ap11" not in scores["cat"]
    assert aggregates["map11"].value == scores["dog"]["ap11"].value


def test_roc_auc_ranks_by_the_probability_of_class_1() -> None:
    rng = np.random.default_rng(1)
    labels = tuple(int(v) for v in rng.integers(0, 2, size=30))
    names = ("meme", "hatespeech meme")
    content = Classification(numbered(30), labels, names, tuple((n,) for n in names), "auc")
    known = features_of(content, near(rng, 30), near(rng, 2))
    scores, aggregates = summary(content, known)
    shares = [softmax([float(i @ t) for t in known.texts])[1] for i in known.images]
    hateful, harmless = (
        [share for share, label in zip(shares, labels) if label == kind] for kind in (1, 0)
    )
    pairs = [(a > b) + 0.5 * (a == b) for a in hateful for b in harmless]
    assert aggregates["auc"].value == pytest.approx(sum(pairs) / len(pairs))
    assert aggregates["auc"].chance == 0.5
    right = [(share > 0.5) == (label == 1) for share, label in zip(shares, labels)]
    assert aggregates["accuracy"].value == pytest.approx(sum(right) / 30)
    assert next(iter(scores["zero_shot"])) == "auc"
    one_kind = content.without(lambda image: labels[content.images.index(image)] == 1)
    with pytest.raises(CompoclipError, match="needs images of two classes, not 0 of"):
        score_items(one_kind, known)


def test_absent_images_take_their_classes_along(tmp_path: Path) -> None:
    content, _ = tagged(4)
    here = tuple(ImageRef(tmp_path / f"{k}.png") for k in range(4))
    for image in here[:3]:
        image.path.write_bytes(b"x")
    benchmark = Benchmark("zs", replace(content, images=here), "d")
    assert benchmark.content.counts() == dict.fromkeys(CLASSES, 4)
    used, missing = present(benchmark)
    assert (used.tags, used.labels) == (content.tags[:3], ())
    assert missing == (str(here[3].path),)


def test_sets_of_every_metric_are_measured_and_compared(tmp_path: Path) -> None:
    content, _ = tagged(24, seed=2)
    labels = tuple(tags[0] for tags in content.tags)
    refs = photos(tmp_path / "p", [f"{k}_{CLASSES[label]}" for k, label in enumerate(labels)])
    several = replace(content, images=tuple(refs.values()))
    one = replace(several, tags=(), labels=labels, metric="mean-per-class")
    two = replace(one, labels=tuple(min(1, k) for k in labels), metric="auc")
    two = replace(two, classes=CLASSES[:2], prompts=two.prompts[:2])
    benchmarks = [
        Benchmark(name, each, "d", aggregates=each.rules(), headline=each.metric)
        for name, each in (("voc", several), ("memes", two), ("pets", one))
    ]
    good, weak, again = (
        evaluate(name, encoder, benchmarks, tmp_path / "out", Options(resamples=100))
        for name, encoder in (
            ("good", FakeEncoder("a", quality=3.0)),
            ("weak", FakeEncoder("b")),
            ("good", FakeEncoder("a", quality=3.0)),
        )
    )
    assert [each.headline for each in good] == ["map11", "auc", "mean-per-class"]
    assert set(good[0].scores) == set(CLASSES)
    assert good[0].aggregates["map11"].n == 24 * 3
    for each, better, worse in zip(compare(weak, good, resamples=100).headlines, good, weak):
        assert each.base == pytest.approx(worse.headline_score.value)
        assert each.other == pytest.approx(better.headline_score.value)
    assert again == good


# --- Curves. ---


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
