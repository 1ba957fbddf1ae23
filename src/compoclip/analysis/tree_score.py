"""Tree scores of a text tower over many captions, with intervals."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compoclip.analysis.spans import Sentence, span_charts
from compoclip.analysis.trees import (
    Chart,
    Tree,
    best_tree,
    bracketed,
    greedy_tree,
    highest_tree,
    left_branching,
    random_tree,
    right_branching,
    tree_score,
)
from compoclip.console import track
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.statistics import cluster_weights, percentile_interval
from compoclip.models.loaded import LoadedModel, current_identity
from compoclip.models.text_layers import TextLayers

MOST_WORDS = 25
BEST, HIGHEST, GREEDY = "best", "highest sum", "greedy"
LEFT, RIGHT, RANDOM = "left", "right", "random"
TREES = (BEST, HIGHEST, GREEDY, LEFT, RIGHT, RANDOM)
"""The tree of the highest score, that of the highest value, the greedy one, and three that know
nothing of the model."""
TOO_LONG = f"more than {MOST_WORDS} words"
TOO_SHORT = "fewer than 2 words"
CUT = "more tokens than the model's context"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TreeScores:
    """What one model's text tower made of some captions.

    thresholds: the h of the H columns. captions: the N measured ones. scores: tree -> (N, H).
    trees: the best tree of each caption in brackets, at the last threshold. left_out: reason ->
    captions that could not be measured.
    """

    model: str
    weights: str
    layers: int
    thresholds: tuple[int, ...]
    captions: tuple[str, ...]
    scores: Mapping[str, Floats]
    trees: tuple[str, ...]
    left_out: Mapping[str, int]

    @property
    def headline(self) -> int:
        """The largest threshold, L/2 unless others were asked for."""
        return self.thresholds[-1]


@dataclass(frozen=True)
class Estimate:
    """A mean over captions with its 95 % interval, by a bootstrap over captions; None for one."""

    value: float
    low: float | None
    high: float | None


def thresholds_of(depth: int, asked: Sequence[int] = ()) -> tuple[int, ...]:
    """0..depth // 2, or those `asked` for. Raises UsageError for one outside of 0..depth - 1."""
    wrong = [h for h in asked if not 0 <= h < depth]
    if wrong:
        raise UsageError(
            f"--threshold {wrong[0]}: this text tower has {depth} layers; give 0 to {depth - 1}"
        )
    return tuple(sorted(set(asked))) or tuple(range(depth // 2 + 1))


def measure_trees(
    name: str,
    loaded: LoadedModel,
    captions: Sequence[str],
    thresholds: Sequence[int] = (),
    batch_size: int = 64,
    seed: int = 0,
) -> TreeScores:
    """Tree scores of every caption; seed: of the random trees, each drawn from (seed, caption).

    Captions of one word, of more than MOST_WORDS, or beyond the model's context are left out and
    counted. Raises CompoclipError when none is left, for tokenizers that have no words and text
    towers that are no native open_clip transformers; UsageError for a threshold that is no layer.
    """
    layers = loaded.encoder.text_layers()
    heights = thresholds_of(layers.depth, thresholds)
    left_out: Counter[str] = Counter()
    kept: list[tuple[str, Sentence, list[str]]] = []
    for caption in captions:
        words = loaded.tokenizer.words(caption)
        ids = [each for _, each in words]
        row = loaded.tokenizer.bounded([token for each in ids for token in each])
        reason = _unfit(len(words), len(row), loaded.tokenizer.context_length)
        if reason:
            left_out[reason] += 1
        else:
            kept.append((caption, Sentence.of(ids, row), [word for word, _ in words]))
    if not kept:
        reasons = ", ".join(f"{n} with {reason}" for reason, n in left_out.items())
        raise CompoclipError(
            f"no caption can be measured ({reasons or 'none given'}); give other captions"
        )
    scores = {tree: np.empty((len(kept), len(heights))) for tree in TREES}
    trees = [""] * len(kept)
    training = loaded.encoder.training
    loaded.encoder.eval()
    try:
        for place, charts in _charts(layers, [s for _, s, _ in kept], heights, batch_size):
            caption, _, spelt = kept[place]
            for column, h in enumerate(heights):
                shapes = _trees(charts[h], caption, seed)
                for tree, shape in shapes.items():
                    scores[tree][place, column] = tree_score(charts[h], shape)
            trees[place] = bracketed(shapes[BEST], spelt)
    finally:
        loaded.encoder.train(training)
    return TreeScores(
        model=name,
        weights=current_identity(loaded).weights,
        layers=layers.depth,
        thresholds=heights,
        captions=tuple(caption for caption, _, _ in kept),
        scores=scores,
        trees=tuple(trees),
        left_out=dict(left_out),
    )


def _unfit(words: int, tokens: int, context: int) -> str:
    """Why a caption cannot be measured, "" when it can."""
    if words < 2:
        return TOO_SHORT
    if words > MOST_WORDS:
        return TOO_LONG
    return CUT if tokens > context else ""


def _charts(
    layers: TextLayers, sentences: Sequence[Sentence], thresholds: Sequence[int], batch_size: int
) -> Iterator[tuple[int, dict[int, Chart]]]:
    """(place, charts by threshold) of every sentence; similar lengths share a batch."""
    order = sorted(range(len(sentences)), key=lambda place: len(sentences[place].ids))
    starts = range(0, len(order), batch_size)
    for start in track(starts, "spans", len(starts), "batches"):
        places = order[start : start + batch_size]
        yield from zip(places, span_charts(layers, [sentences[p] for p in places], thresholds))


def _trees(chart: Chart, caption: str, seed: int) -> dict[str, Tree]:
    n = len(chart) - 1
    rng = np.random.default_rng([seed, zlib.crc32(caption.encode())])
    return {
        BEST: best_tree(chart),
        HIGHEST: highest_tree(chart),
        GREEDY: greedy_tree(chart),
        LEFT: left_branching(n),
        RIGHT: right_branching(n),
        RANDOM: random_tree(n, rng),
    }


def estimates(values: Floats, resamples: int, seed: int) -> list[Estimate]:
    """Means of the columns of (N, H) and of each row's mean over them, last, over captions."""
    columns = np.column_stack([values, values.mean(axis=1)])
    n = len(columns)
    draws = np.concatenate([w @ columns / n for w in cluster_weights(n, resamples, seed)])
    return [
        Estimate(float(column.mean()), *percentile_interval(drawn, n))
        for column, drawn in zip(columns.T, draws.T)
    ]


def differences(
    base: TreeScores, other: TreeScores, resamples: int, seed: int
) -> tuple[int, list[Estimate]]:
    """The best trees' scores of `other` minus those of `base` on the captions measured for both:
    (how many, by threshold and for the mean over thresholds, last).

    Both must have the same thresholds. Raises CompoclipError without a common caption.
    """
    place = {caption: row for row, caption in enumerate(base.captions)}
    rows = [(place[c], row) for row, c in enumerate(other.captions) if c in place]
    if not rows:
        raise CompoclipError(f"{base.model} and {other.model}: no caption was measured for both")
    mine, theirs = (list(each) for each in zip(*rows))
    gap = other.scores[BEST][theirs] - base.scores[BEST][mine]
    return len(rows), estimates(gap, resamples, seed)
