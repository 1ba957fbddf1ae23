"""Retrieval and classification against brute force, with ties."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest

from compoclip.benchmarks.case import Classification, ImageRef, Retrieval, TiePolicy
from compoclip.errors import CompoclipError
from compoclip.evaluation.forms import retrieval
from compoclip.evaluation.forms.classification import class_embeddings
from compoclip.evaluation.forms.retrieval import rank
from compoclip.evaluation.items import EncodedFeatures
from evaluation_helpers import features_of, ref, score_items, unit


def numbered(n: int) -> tuple[ImageRef, ...]:
    return tuple(ref(f"{k}.jpg") for k in range(n))


def brute_force(scores: np.ndarray, right: list[list[int]]) -> list[int]:
    """Stable sort by falling score; rank of the first right candidate."""
    ranks = []
    for row, own in zip(scores, right):
        order = sorted(range(len(row)), key=lambda j: (-row[j], j))
        ranks.append(1 + min(order.index(j) for j in own))
    return ranks


def tied_features(seed: int, n: int, width: int = 6) -> np.ndarray:
    """Rows with many exact duplicates and small integer values, so that products are exact."""
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 2, size=(n, width)).astype(np.float32)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_ranks_equal_brute_force_with_ties(monkeypatch, block):
    monkeypatch.setattr(retrieval, "SCORES_AT_ONCE", block * 31)
    queries, gallery = tied_features(0, 40), tied_features(1, 31)
    rng = np.random.default_rng(2)
    right = [sorted(rng.choice(31, size=rng.integers(1, 5), replace=False)) for _ in range(40)]
    got, scores = rank(queries, gallery, right), queries @ gallery.T
    assert got.rank.tolist() == brute_force(scores, right)
    assert (got.equal > got.equal_right).any()
    for query, targets in enumerate(right):
        assert got.best[query] in targets
        assert got.rival[query] not in targets
        assert got.rival_score[query] == np.delete(scores[query], targets).max()


def test_fractional_is_the_mean_over_all_orders_of_the_equals():
    """Oracle: 5 candidates with equal scores, every order; share with a right one among the k."""
    gallery = np.ones((5, 2), dtype=np.float32)
    for size, k in itertools.product(range(1, 5), range(1, 6)):
        right = list(range(size))
        got = rank(gallery[:1], gallery, [right]).within(k)
        orders = list(itertools.permutations(range(5)))
        share = sum(any(j in right for j in order[:k]) for order in orders) / len(orders)
        assert got.fractional[0] == pytest.approx(share)
        assert got.chance[0] == pytest.approx(share)
        assert got.strict[0] == (k > 5 - size)


def test_duplicate_candidates_are_ranked_in_index_order_despite_rounding():
    rng = np.random.default_rng(3)
    gallery = unit(rng, 257, 96)
    gallery[100:] = gallery[100]
    got = rank(unit(rng, 50, 96), gallery, [[256]] * 50)
    assert (got.equal == 157).all()
    assert (got.before == 156).all()


def retrieval_set(n: int, captions: int, seed: int) -> tuple[Retrieval, EncodedFeatures]:
    rng = np.random.default_rng(seed)
    texts = tuple(f"caption {k}" for k in range(n * captions))
    pairs = tuple((k // captions, k) for k in range(n * captions))
    content = Retrieval(numbered(n), texts, pairs)
    image = unit(rng, n, 8)
    text = unit(rng, n * captions, 8) + 0.5 * np.repeat(image, captions, axis=0)
    text = (text / np.linalg.norm(text, axis=1, keepdims=True)).astype(np.float32)
    return content, features_of(content, image, text)


def test_retrieval_both_ways_equals_brute_force_and_chance():
    content, features = retrieval_set(20, 3, 4)
    items = score_items(content, features)
    scores = features.images @ features.texts.T
    i2t = brute_force(scores, [[3 * k, 3 * k + 1, 3 * k + 2] for k in range(20)])
    t2i = brute_force(scores.T, [[k // 3] for k in range(60)])
    assert items.extra["rank"] == i2t + t2i
    assert items.subtasks == ["i2t"] * 20 + ["t2i"] * 60
    for k in (1, 5, 10):
        used = items.outcomes[f"r{k}"].used
        assert used[:20].mean() == np.mean([r <= k for r in i2t])
        assert used[20:].mean() == np.mean([r <= k for r in t2i])
        guess = items.outcomes[f"r{k}"].chance
        assert guess[:20] == pytest.approx([1 - comb(57, k) / comb(60, k)] * 20)
        assert guess[20:] == pytest.approx([k / 20] * 60)
    assert items.clusters[20:] == [f"{k // 3}.jpg" for k in range(60)]
    # a million queries would have as many copies of the name of the form, and empty labels
    assert len({id(form) for form in items.forms}) == len({id(row) for row in items.labels}) == 1


def test_retrieval_shows_the_best_rival_and_keeps_unmatched_texts_as_distractors():
    content = Retrieval((ref("a"), ref("b")), ("a", "b", "noise"), ((0, 0), (1, 1)))
    texts = np.array([[0.5, 0], [0, 0.6], [0.9, 0.1]], dtype=np.float32)
    items = score_items(content, features_of(content, np.eye(2, dtype=np.float32), texts))
    assert len(items) == 4
    assert items.texts[0] == ("a", "noise")
    assert items.scores[0] == pytest.approx([0.5, 0.9])
    assert items.outcomes["r1"].used.tolist() == [0, 1, 1, 1]
    assert items.images[2] == ("a", "b")


def classification(labels: list[int], width: int) -> Classification:
    return Classification(
        images=numbered(len(labels)),
        labels=tuple(labels),
        classes=tuple(f"class {c}" for c in range(width)),
        prompts=tuple((f"a photo of {c}", f"a drawing of {c}") for c in range(width)),
    )


def test_class_embedding_is_the_normalised_mean_of_normalised_prompts():
    content = classification([0, 1], 2)
    texts = unit(np.random.default_rng(5), 4, 5)
    features = features_of(content, unit(np.random.default_rng(6), 2, 5), texts)
    got = class_embeddings(content.prompts, features)
    for row, pair in zip(got, (texts[:2], texts[2:])):
        mean = pair.mean(axis=0)
        assert row == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)


def test_accuracy_and_top5_equal_a_plain_loop():
    labels = [k % 8 for k in range(40)]
    content = classification(labels, 8)
    rng = np.random.default_rng(7)
    features = features_of(content, unit(rng, 40, 6), unit(rng, 16, 6))
    items = score_items(content, features)
    weights = class_embeddings(content.prompts, features)
    hits, five = [], []
    for image, label in zip(features.images, labels):
        order = np.argsort(-(weights @ image), kind="stable")
        hits.append(float(order[0] == label))
        five.append(float(label in order[:5]))
    assert items.outcomes["accuracy"].used.tolist() == hits
    assert items.outcomes["top5"].used.tolist() == five
    assert items.labels[9] == {"class": "class 1"}
    assert items.outcomes["accuracy"].chance[0] == pytest.approx(1 / 8)


def test_five_classes_have_no_top5_and_ties_follow_the_policy():
    content = classification([0, 1], 5)
    same = np.tile(unit(np.random.default_rng(8), 1, 4), (10, 1))
    features = features_of(content, same[:2], same)
    first = score_items(content, features).outcomes
    assert set(first) == {"accuracy"}
    assert first["accuracy"].used.tolist() == [1, 0]
    assert first["accuracy"].fractional == pytest.approx([0.2, 0.2])
    strict = score_items(content, features, ties={"": TiePolicy.STRICT}).outcomes
    assert strict["accuracy"].used.tolist() == [0, 0]


def test_a_class_without_prompts_is_an_error():
    eye = np.eye(2, dtype=np.float32)
    features = features_of(classification([0], 1), eye, eye)
    with pytest.raises(CompoclipError, match="class 1: no prompts"):
        class_embeddings([("a photo of 0",), ()], features)


def test_images_that_one_text_matches_are_one_cluster():
    content = Retrieval(numbered(3), ("x", "y", "z"), ((0, 0), (1, 0), (1, 1), (2, 2)))
    eye = np.eye(3, dtype=np.float32)
    clusters = score_items(content, features_of(content, eye, eye)).clusters
    assert clusters[0] == clusters[1] == clusters[3] == clusters[4]
    assert clusters[2] == clusters[5] != clusters[0]
