"""Binary trees over the words of a sentence, and what a chart of span scores says of them.

A chart is an (n + 1, n + 1) array; chart[a, b], a < b, belongs to the words a..b-1. A node is
(a, k, b): the span (a, b) split into (a, k) and (k, b). The value of a tree is the sum over its
nodes of chart(left) + chart(right), and its tree score the sum of [chart(left) + chart(right) -
baseline], where the baseline of a node is the mean over all places where its span could be split:
what splitting blindly yields. Defined after Murty et al., Characterizing Intrinsic Compositionality
in Transformers with Tree Projections (ICLR 2023), with exact instead of greedy search and the
expected instead of a drawn split.

Which tree? That of the highest value is no use for causal encoders: nothing stands before a span
that begins the sentence, so its chart is 1, and the left-branching tree, which has all of them, has
the highest value whatever the model. That of the highest score is not bound so, since the baseline
of a node counts these spans as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Chart = NDArray[np.float64]
Node = tuple[int, int, int]
Tree = tuple[Node, ...]
"""The nodes with a split, the root first; empty for a single word."""


def splits(chart: Chart, a: int, b: int) -> NDArray[np.float64]:
    """chart(left) + chart(right) of the span (a, b) for every split a+1..b-1, in order."""
    both: NDArray[np.float64] = chart[a, a + 1 : b] + chart[a + 1 : b, b]
    return both


def tree_value(chart: Chart, tree: Tree) -> float:
    """The sum over the tree's nodes of chart(left) + chart(right)."""
    return float(sum(chart[a, k] + chart[k, b] for a, k, b in tree))


def tree_score(chart: Chart, tree: Tree) -> float:
    """The value of the tree above that of blind splits of the same spans."""
    return float(tree_value(chart, tree) - sum(splits(chart, a, b).mean() for a, _, b in tree))


def best_tree(chart: Chart) -> Tree:
    """The tree of the highest score among all binary trees; of equal splits the first is taken."""
    return _search(chart, above_blind=True)


def highest_tree(chart: Chart) -> Tree:
    """The tree of the highest value among all binary trees; of equal splits the first is taken."""
    return _search(chart, above_blind=False)


def _search(chart: Chart, above_blind: bool) -> Tree:
    """The tree with the largest sum over its nodes, by dynamic programming over spans.

    above_blind: count what a split is above the mean of its span. Source: Cocke-Younger-Kasami.
    """
    n = len(chart) - 1
    best = np.zeros_like(chart)  # the largest sum below a span
    where = np.zeros(chart.shape, dtype=np.int64)
    for width in range(2, n + 1):
        for a in range(n - width + 1):
            b = a + width
            own = splits(chart, a, b)
            sums = own + best[a, a + 1 : b] + best[a + 1 : b, b]
            at = int(sums.argmax())
            where[a, b] = a + 1 + at
            best[a, b] = sums[at] - (own.mean() if above_blind else 0.0)
    return _grow(n, lambda a, b: int(where[a, b]))


def greedy_tree(chart: Chart) -> Tree:
    """Each span split, from the root down, where chart(left) + chart(right) is highest."""
    return _grow(len(chart) - 1, lambda a, b: a + 1 + int(splits(chart, a, b).argmax()))


def left_branching(n: int) -> Tree:
    """((w1 w2) w3) ...: the last word splits off first."""
    return _grow(n, lambda a, b: b - 1)


def right_branching(n: int) -> Tree:
    """w1 (w2 (w3 ...)): the first word splits off first."""
    return _grow(n, lambda a, b: a + 1)


def random_tree(n: int, rng: np.random.Generator) -> Tree:
    """Every span split at a place drawn evenly, from the root down; its expected score is 0."""
    return _grow(n, lambda a, b: int(rng.integers(a + 1, b)))


def bracketed(tree: Tree, words: Sequence[str]) -> str:
    """The tree in brackets: "((a dog) runs)"; brackets of the words are written -LRB-, -RRB-."""
    split = {(a, b): k for a, k, b in tree}

    def show(a: int, b: int) -> str:
        k = split.get((a, b))
        if k is None:
            return words[a].replace("(", "-LRB-").replace(")", "-RRB-")
        return f"({show(a, k)} {show(k, b)})"

    return show(0, len(words))


def _grow(n: int, split: Callable[[int, int], int]) -> Tree:
    """The tree over n words whose spans are split where `split` says, parents before children."""
    nodes: list[Node] = []
    waiting = [(0, n)]
    while waiting:
        a, b = waiting.pop()
        if b - a > 1:
            k = split(a, b)
            nodes.append((a, k, b))
            waiting += [(k, b), (a, k)]
    return tuple(nodes)
