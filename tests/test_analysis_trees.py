"""Trees over charts: exact against all binary trees, baselines and scores worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from compoclip.analysis.trees import (
    Tree,
    best_tree,
    bracketed,
    greedy_tree,
    left_branching,
    random_tree,
    right_branching,
    splits,
    tree_score,
    tree_value,
)


def every_tree(a: int, b: int) -> Iterator[Tree]:
    if b - a == 1:
        yield ()
    for k in range(a + 1, b):
        for left in every_tree(a, k):
            for right in every_tree(k, b):
                yield ((a, k, b), *left, *right)


def drawn(n: int, seed: int) -> np.ndarray:
    chart = np.random.default_rng(seed).uniform(-1, 1, size=(n + 1, n + 1))
    chart[0, n] = np.nan  # the whole sentence is never looked at
    return chart


@pytest.mark.parametrize("n", range(2, 7))
@pytest.mark.parametrize("seed", range(8))
def test_the_best_tree_beats_every_other(n: int, seed: int) -> None:
    chart, trees = drawn(n, seed), list(every_tree(0, n))
    assert len(trees) == [0, 1, 1, 2, 5, 14, 42][n]  # Catalan
    highest = partial(best_tree, above_blind=False)
    for find, worth in ((best_tree, tree_score), (highest, tree_value)):
        found = find(chart)
        assert sorted(found) in [sorted(tree) for tree in trees]
        assert worth(chart, found) == pytest.approx(max(worth(chart, tree) for tree in trees))


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_alone_finds_nothing_where_beginnings_are_certain(seed: int) -> None:
    chart = drawn(7, seed)
    chart[0, 1:7] = 1.0  # as in every causal encoder
    assert best_tree(chart, above_blind=False) == left_branching(7)
    assert tree_score(chart, best_tree(chart)) > max(0, tree_score(chart, left_branching(7)))


def test_greed_can_miss_the_best_tree() -> None:
    chart = np.zeros((5, 5))
    chart[0, 1], chart[1, 4] = 0.5, 0.3  # 0.8: the best first split
    chart[0, 2], chart[2, 4] = 0.4, 0.1
    chart[1, 2], chart[2, 3], chart[3, 4] = 0.9, 0.3, 0.3
    chart[0, 3] = chart[1, 3] = -1.0
    greedy, best = greedy_tree(chart), best_tree(chart, above_blind=False)
    assert greedy == ((0, 1, 4), (1, 2, 4), (2, 3, 4))
    assert best == ((0, 2, 4), (0, 1, 2), (2, 3, 4))
    assert tree_value(chart, greedy) == pytest.approx(0.8 + (0.9 + 0.1) + 0.6)
    assert tree_value(chart, best) == pytest.approx(0.5 + (0.5 + 0.9) + 0.6)


def test_three_words_by_hand() -> None:
    chart = np.full((4, 4), np.nan)
    chart[0, 1], chart[1, 2], chart[2, 3] = 0.2, 0.4, 0.6
    chart[0, 2], chart[1, 3] = 0.9, 0.5
    assert splits(chart, 0, 3) == pytest.approx([0.2 + 0.5, 0.9 + 0.6])
    left = left_branching(3)
    assert left == ((0, 2, 3), (0, 1, 2))
    assert best_tree(chart) == best_tree(chart, above_blind=False) == greedy_tree(chart) == left
    # root: 1.5 against a mean of (0.7 + 1.5) / 2; the node of two words has one split only
    assert tree_score(chart, left) == pytest.approx(1.5 - 1.1)
    assert tree_score(chart, right_branching(3)) == pytest.approx(0.7 - 1.1)
    assert tree_value(chart, left) == pytest.approx(0.9 + 0.6 + 0.2 + 0.4)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_branching_trees(n: int) -> None:
    assert left_branching(n) == tuple((0, k, k + 1) for k in range(n - 1, 0, -1))
    assert right_branching(n) == tuple((a, a + 1, n) for a in range(n - 1))


def test_random_trees_come_from_the_generator_and_score_nothing_on_average() -> None:
    chart = drawn(6, 3)
    one, same = (random_tree(6, np.random.default_rng(5)) for _ in range(2))
    assert one == same
    rng = np.random.default_rng(0)
    scores = [tree_score(chart, random_tree(6, rng)) for _ in range(4000)]
    assert np.mean(scores) == pytest.approx(0, abs=4 * np.std(scores) / 4000**0.5)


def test_brackets() -> None:
    words = ["a", "(red)", "dog", "runs"]
    assert bracketed(left_branching(4), words) == "(((a -LRB-red-RRB-) dog) runs)"
    assert bracketed(right_branching(3), words[1:]) == "(-LRB-red-RRB- (dog runs))"
    assert bracketed((), ["dog"]) == "dog"
