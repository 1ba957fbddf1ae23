"""Binary trees over the words of a sentence, and their scores from a chart of spans.

A chart is an (n + 1, n + 1) array; chart[a, b], a < b, belongs to the words a..b-1. A node is
(a, k, b): the span (a, b) split into (a, k) and (k, b). The value of a tree is the sum over its
nodes of chart(left) + chart(right), and its tree score the sum of [chart(left) + chart(right) -
baseline], where the baseline of a node is the mean over all splits of its span, that is the
expected value of a random split. Defined after Murty et al., Characterizing Intrinsic
Compositionality in Transformers with Tree Projections (ICLR 2023), with exact instead of greedy
search and the expected instead of a sampled split.

The tree of the highest value is no use for causal encoders. No word precedes a span that begins
the sentence, so its chart is 1, and the left-branching tree, which holds all these spans, has the
highest value for any model. The tree of the highest score does not have this fault, since the
baseline of a node counts these spans as well.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from compoclip.console import track
from compoclip.errors import UsageError, require
from compoclip.evaluation.encoder import evaluating, require_finite
from compoclip.evaluation.statistics import Bootstrap, Estimate
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.text_plan import choose_buckets
from compoclip.models.text_tower import TextLayers

Chart = NDArray[np.float64]
Node = tuple[int, int, int]
Tree = tuple[Node, ...]
"""The nodes with a split, the root first; empty for a single word."""


def splits(chart: Chart, a: int, b: int) -> NDArray[np.float64]:
    """Return chart(left) + chart(right) of the span (a, b) for every split a+1..b-1, in order."""
    both: NDArray[np.float64] = chart[a, a + 1 : b] + chart[a + 1 : b, b]
    return both


def tree_value(chart: Chart, tree: Tree) -> float:
    """Return the sum over the tree's nodes of chart(left) + chart(right)."""
    return float(sum(chart[a, k] + chart[k, b] for a, k, b in tree))


def tree_score(chart: Chart, tree: Tree) -> float:
    """Return the value of the tree minus the value of blind splits of the same spans."""
    return float(tree_value(chart, tree) - sum(splits(chart, a, b).mean() for a, _, b in tree))


def best_tree(chart: Chart, above_blind: bool = True) -> Tree:
    """Return the binary tree of the highest score, of equal splits the first, by dynamic
    programming over spans (Cocke-Younger-Kasami). above_blind: else the tree of the highest value.
    """
    n = len(chart) - 1
    best = np.zeros_like(chart)  # the largest sum below a span
    split_at = np.zeros(chart.shape, dtype=np.int64)
    for width in range(2, n + 1):
        for a in range(n - width + 1):
            b = a + width
            split_values = splits(chart, a, b)
            sums = split_values + best[a, a + 1 : b] + best[a + 1 : b, b]
            at = int(sums.argmax())
            split_at[a, b] = a + 1 + at
            best[a, b] = sums[at] - (split_values.mean() if above_blind else 0.0)
    return grown(n, lambda a, b: int(split_at[a, b]))


def greedy_tree(chart: Chart) -> Tree:
    """Split each span, from the root down, where chart(left) + chart(right) is highest."""
    return grown(len(chart) - 1, lambda a, b: a + 1 + int(splits(chart, a, b).argmax()))


def left_branching(n: int) -> Tree:
    """Return ((w1 w2) w3) ...: the last word splits off first."""
    return grown(n, lambda a, b: b - 1)


def right_branching(n: int) -> Tree:
    """Return w1 (w2 (w3 ...)): the first word splits off first."""
    return grown(n, lambda a, b: a + 1)


def random_tree(n: int, rng: np.random.Generator) -> Tree:
    """Split every span at a place drawn evenly, from the root down; the expected score is 0."""
    return grown(n, lambda a, b: int(rng.integers(a + 1, b)))


def grown(n: int, split: Callable[[int, int], int]) -> Tree:
    """Return the tree over n words whose spans are split where `split` says, parents first."""
    nodes: list[Node] = []
    waiting = [(0, n)]
    while waiting:
        a, b = waiting.pop()
        if b - a > 1:
            k = split(a, b)
            nodes.append((a, k, b))
            waiting += [(k, b), (a, k)]
    return tuple(nodes)


def bracketed(tree: Tree, words: Sequence[str]) -> str:
    """Return the tree in brackets, "((a dog) runs)"; brackets in words become -LRB-, -RRB-."""
    split = {(a, b): k for a, k, b in tree}

    def show(a: int, b: int) -> str:
        k = split.get((a, b))
        if k is None:
            return words[a].replace("(", "-LRB-").replace(")", "-RRB-")
        return f"({show(a, k)} {show(k, b)})"

    return show(0, len(words))


# --- How much a text tower changes a span of words when it sees the rest of the sentence. ---
#
# For a span of words, c is the sum of its states after the last layer (before the last norm) in the
# ordinary forward pass, f the same sum when from layer h on nothing but the start token, the end
# token and the span itself may be looked at; the causal mask, where there is one, holds as well.
# The chart of a sentence has cos(c, f) for every span.

_BUCKET_COST = 256  # token positions that one more bucket must save


@dataclass(frozen=True)
class TokenSentence:
    """ids: start, the tokens of the words, end. starts: (n + 1) the position of each word's first
    token, and of the end token; so the words a..b-1 are at starts[a]..starts[b]-1."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, words: Sequence[Sequence[int]], row: Sequence[int]) -> TokenSentence:
        """words: ids by word. row: all ids with start and end."""
        return cls(tuple(row), tuple(accumulate((len(ids) for ids in words), initial=1)))

    @property
    def words(self) -> int:
        """Number of words."""
        return len(self.starts) - 1


@dataclass(frozen=True)
class _Pass:
    """One run of the upper layers: over `places` of sentence `sentence`, the start token first,
    and the spans whose f can be read from it, each up to its word `end`."""

    sentence: int
    places: tuple[int, ...]
    start: int
    ends: tuple[int, ...]


def span_charts(
    layers: TextLayers, sentences: Sequence[TokenSentence], thresholds: Sequence[int]
) -> list[dict[int, Chart]]:
    """Return for each sentence, threshold h -> chart; the whole sentence, and no spans, are nan.

    The layers below h are run once for all spans. In a causal tower, one pass from a word to the
    end of the sentence holds f of every span that begins there, and spans that begin the sentence
    are 1. All sentences in one batch. Raises CompoclipError when states are not finite.
    """
    lengths = [len(sentence.ids) for sentence in sentences]
    longest = layers.context_length if layers.sees_ahead else max(lengths)
    ids = torch.zeros(len(sentences), longest, dtype=torch.int64)
    for row, sentence in zip(ids, sentences):
        row[: len(sentence.ids)] = torch.tensor(sentence.ids)
    below: dict[int, Tensor] = {}  # states before each threshold layer
    with torch.inference_mode():
        states, done = layers.embed(ids.to(layers.device)), 0
        for h in sorted(thresholds):
            below[h] = states = layers.run(states, done, h)
            done = h
        context = layers.run(states, done, layers.depth).double().cumsum(1)
    passes = sorted(_passes(sentences, layers.sees_ahead), key=lambda one: len(one.places))
    buckets = choose_buckets([len(one.places) for one in passes], _BUCKET_COST) if passes else []
    charts: list[dict[int, Chart]] = []
    for sentence in sentences:
        chart = np.full((sentence.words + 1, sentence.words + 1), np.nan)
        chart[0, 1 : sentence.words] = np.nan if layers.sees_ahead else 1.0
        charts.append({h: chart.copy() for h in thresholds})
    device = context.device
    for bucket in buckets:
        run = passes[bucket.start : bucket.stop]
        places = torch.zeros(len(run), bucket.length, dtype=torch.int64)
        keys = torch.zeros(len(run), bucket.length, dtype=torch.bool)
        for row, one in enumerate(run):
            places[row, : len(one.places)] = torch.tensor(one.places)
            keys[row, : len(one.places)] = True
        source = torch.tensor([one.sentence for one in run], device=device)
        places, keys = places.to(device), keys.to(device)

        spans = [(row, one, end) for row, one in enumerate(run) for end in one.ends]
        columns = []
        for row, one, end in spans:
            at = sentences[one.sentence].starts
            columns.append((row, one.sentence, at[one.start], at[end]))
        rows, owner, begin, stop = torch.tensor(columns, device=device).T
        with torch.inference_mode():
            # cumulative sums: the span's states are what is added between its first token and its
            # end
            in_context = context[owner, stop - 1] - context[owner, begin - 1]
            for h, states in below.items():
                alone = layers.run(states[source[:, None], places], h, layers.depth, keys)
                sums = alone.double().cumsum(1)
                free = sums[rows, stop - begin] - sums[rows, 0]
                cosines = F.cosine_similarity(in_context, free, dim=1).cpu().numpy()
                require_finite(cosines, "text tower")
                for (_, one, end), value in zip(spans, cosines):
                    charts[one.sentence][h][one.start, end] = value
    return charts


def _passes(sentences: Sequence[TokenSentence], sees_ahead: bool) -> Iterator[_Pass]:
    for number, sentence in enumerate(sentences):
        n, stop = sentence.words, sentence.starts[-1]
        for a in range(n if sees_ahead else 0):
            for b in range(a + 1, n + 1):
                if b - a < n:
                    span = range(sentence.starts[a], sentence.starts[b])
                    yield _Pass(number, (0, *span, stop), a, (b,))
        for a in range(1, 0 if sees_ahead else n):
            yield _Pass(
                number, (0, *range(sentence.starts[a], stop)), a, tuple(range(a + 1, n + 1))
            )


# --- Tree scores of a text tower over many captions, with intervals. ---

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
    """Tree scores of one model's text tower on some captions.

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
        """Return the largest threshold, L/2 by default."""
        return self.thresholds[-1]


def thresholds_of(depth: int, thresholds: Sequence[int] = ()) -> tuple[int, ...]:
    """Return 0..depth // 2, or those asked for; raise UsageError outside of 0..depth - 1."""
    for h in thresholds:
        if not 0 <= h < depth:
            raise UsageError(
                f"--threshold {h}: this text tower has {depth} layers; give 0 to {depth - 1}"
            )
    return tuple(sorted(set(thresholds))) or tuple(range(depth // 2 + 1))


def measure_trees(
    name: str,
    loaded: LoadedModel,
    captions: Sequence[str],
    thresholds: Sequence[int] = (),
    batch_size: int = 64,
    seed: int = 0,
) -> TreeScores:
    """Compute the tree scores of every caption.

    Captions of one word, of more than MOST_WORDS, or beyond the model's context are left out and
    counted.

    Args:
        name: name of the model in the scores.
        loaded: the model; its text tower must be a native open_clip transformer.
        captions: the captions.
        thresholds: layers from which a span attends to itself only; 0 to half the depth by default.
        batch_size: captions encoded at once.
        seed: seed of the random trees, each sampled from (seed, caption).

    Raises:
        UsageError: a threshold is not a layer.
        CompoclipError: no caption is left, the tokenizer has no words, or the text tower is of
            another kind.
    """
    layers = loaded.encoder.text_tower.layers()
    heights = thresholds_of(layers.depth, thresholds)
    left_out: Counter[str] = Counter()
    measured: list[tuple[str, TokenSentence, list[str]]] = []
    for caption in captions:
        words = loaded.tokenizer.words(caption)
        ids = [word_ids for _, word_ids in words]
        row = loaded.tokenizer.bounded([token for word_ids in ids for token in word_ids])
        if len(words) < 2:
            left_out[TOO_SHORT] += 1
        elif len(words) > MOST_WORDS:
            left_out[TOO_LONG] += 1
        elif len(row) > loaded.tokenizer.context_length:
            left_out[CUT] += 1
        else:
            measured.append((caption, TokenSentence.of(ids, row), [word for word, _ in words]))
    reasons = ", ".join(f"{n} with {reason}" for reason, n in left_out.items()) or "none given"
    require(measured, "no caption can be measured", f"{reasons}; give other captions")
    scores = {tree: np.empty((len(measured), len(heights))) for tree in TREES}
    trees = ["" for _ in measured]
    order = sorted(range(len(measured)), key=lambda place: len(measured[place][1].ids))
    starts = range(0, len(order), batch_size)  # similar lengths share a batch
    with evaluating(loaded.encoder):
        for start in track(starts, "spans", len(starts), "batches"):
            places = order[start : start + batch_size]
            batch = [measured[place][1] for place in places]
            for place, charts in zip(places, span_charts(layers, batch, heights)):
                caption, _, spelt = measured[place]
                for column, h in enumerate(heights):
                    chart, n = charts[h], len(spelt)
                    rng = np.random.default_rng([seed, zlib.crc32(caption.encode())])
                    shapes = {
                        BEST: best_tree(chart),
                        HIGHEST: best_tree(chart, above_blind=False),
                        GREEDY: greedy_tree(chart),
                        LEFT: left_branching(n),
                        RIGHT: right_branching(n),
                        RANDOM: random_tree(n, rng),
                    }
                    for tree, shape in shapes.items():
                        scores[tree][place, column] = tree_score(chart, shape)
                trees[place] = bracketed(shapes[BEST], spelt)
    return TreeScores(
        model=name,
        weights=current_identity(loaded).weights,
        layers=layers.depth,
        thresholds=heights,
        captions=tuple(caption for caption, _, _ in measured),
        scores=scores,
        trees=tuple(trees),
        left_out=dict(left_out),
    )


def estimates(values: Floats, bootstrap: Bootstrap) -> list[Estimate]:
    """Return H estimates of means over captions, by threshold, then that of the mean over
    thresholds.

    Args:
        values: (N, H), captions by thresholds.
        bootstrap: over captions.
    """
    columns = np.column_stack([values, values.mean(axis=1)])
    return Estimate.of_means(columns, bootstrap)


def differences(
    base: TreeScores, other: TreeScores, bootstrap: Bootstrap
) -> tuple[int, list[Estimate]]:
    """Return the number of captions measured for two models, and the means over these of other
    minus base, of the best trees' scores, as `estimates` gives them.

    Args:
        base: the scores of the model compared with.
        other: the same of the other model, at the same thresholds.
        bootstrap: the draws for the intervals.

    Raises CompoclipError when they have no caption in common.
    """
    place = {caption: row for row, caption in enumerate(base.captions)}
    rows = [(place[c], row) for row, c in enumerate(other.captions) if c in place]
    require(rows, f"{base.model} and {other.model}", "no caption was measured with both models")
    mine, theirs = (list(column) for column in zip(*rows))
    gap = other.scores[BEST][theirs] - base.scores[BEST][mine]
    return len(rows), estimates(gap, bootstrap)
