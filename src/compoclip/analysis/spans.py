"""How much a text tower changes a span of words when it sees the rest of the sentence.

For a span of words, c is the sum of its states after the last layer (before the last norm) in the
ordinary forward pass, f the same sum when from layer h on nothing but the start token, the end
token and the span itself may be looked at; the causal mask, where there is one, holds as well.
The chart of a sentence has cos(c, f) for every span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from compoclip.analysis.trees import Chart
from compoclip.errors import CompoclipError
from compoclip.models.text_layers import TextLayers
from compoclip.models.text_plan import Bucket, choose_buckets

_BUCKET_COST = 256  # token positions that one more bucket must save


@dataclass(frozen=True)
class Sentence:
    """ids: start, the tokens of the words, end. starts: (n + 1) the position of each word's first
    token, and of the end token; so the words a..b-1 are at starts[a]..starts[b]-1."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, words: Sequence[Sequence[int]], row: Sequence[int]) -> Sentence:
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
    layers: TextLayers, sentences: Sequence[Sentence], thresholds: Sequence[int]
) -> list[dict[int, Chart]]:
    """For each sentence, threshold h -> chart; the whole sentence, and what is no span, is nan.

    The layers below h are run once for all spans. In a causal tower neither the words before a span
    nor those behind it matter from layer h on, so that one pass from a word to the end of the
    sentence holds f of every span that begins there, and spans that begin the sentence are what
    they are in context: 1. All sentences in one batch. Raises CompoclipError when states are not
    finite.
    """
    lengths = [len(each.ids) for each in sentences]
    longest = layers.context_length if layers.sees_ahead else max(lengths)
    ids = torch.zeros(len(sentences), longest, dtype=torch.int64)
    for row, each in zip(ids, sentences):
        row[: len(each.ids)] = torch.tensor(each.ids)
    with torch.inference_mode():
        below, last = _ordinary(layers, ids.to(layers.device), thresholds)
        context = last.double().cumsum(1)
    passes = sorted(_passes(sentences, layers.sees_ahead), key=lambda each: len(each.places))
    buckets = choose_buckets([len(each.places) for each in passes], _BUCKET_COST) if passes else []
    charts = [
        {h: _empty(each.words, begin_known=not layers.sees_ahead) for h in thresholds}
        for each in sentences
    ]
    for bucket in buckets:
        run = passes[bucket.start : bucket.stop]
        with torch.inference_mode():
            _fill(charts, layers, sentences, run, bucket, below, context)
    return charts


def _ordinary(
    layers: TextLayers, ids: Tensor, thresholds: Sequence[int]
) -> tuple[dict[int, Tensor], Tensor]:
    """The ordinary forward: states before each threshold layer, and after the last one."""
    x = layers.embed(ids)
    below: dict[int, Tensor] = {}
    done = 0
    for h in sorted(thresholds):
        x = layers.run(x, done, h)
        below[h], done = x, h
    return below, layers.run(x, done, layers.depth)


def _passes(sentences: Sequence[Sentence], sees_ahead: bool) -> Iterator[_Pass]:
    for number, each in enumerate(sentences):
        n, stop = each.words, each.starts[-1]
        if not sees_ahead:
            for a in range(1, n):
                ends = tuple(range(a + 1, n + 1))
                yield _Pass(number, (0, *range(each.starts[a], stop)), a, ends)
            continue
        for a in range(n):
            for b in range(a + 1, n + 1):
                if b - a < n:
                    span = range(each.starts[a], each.starts[b])
                    yield _Pass(number, (0, *span, stop), a, (b,))


def _empty(n: int, begin_known: bool) -> Chart:
    chart = np.full((n + 1, n + 1), np.nan)
    if begin_known:
        chart[0, 1:n] = 1.0
    return chart


def _fill(
    charts: Sequence[dict[int, Chart]],
    layers: TextLayers,
    sentences: Sequence[Sentence],
    passes: Sequence[_Pass],
    bucket: Bucket,
    below: Mapping[int, Tensor],
    context: Tensor,
) -> None:
    """Run the passes of one bucket above every threshold and write their spans into the charts."""
    device = context.device
    places = torch.zeros(len(passes), bucket.length, dtype=torch.int64)
    keys = torch.zeros(len(passes), bucket.length, dtype=torch.bool)
    for row, each in enumerate(passes):
        places[row, : len(each.places)] = torch.tensor(each.places)
        keys[row, : len(each.places)] = True
    source = torch.tensor([each.sentence for each in passes], device=device)
    places, keys = places.to(device), keys.to(device)

    spans = [(row, each, end) for row, each in enumerate(passes) for end in each.ends]
    starts = [sentences[each.sentence].starts for _, each, _ in spans]
    begin = torch.tensor([at[each.start] for at, (_, each, _) in zip(starts, spans)])
    stop = torch.tensor([at[end] for at, (_, _, end) in zip(starts, spans)])
    rows = torch.tensor([row for row, _, _ in spans])
    owner = torch.tensor([each.sentence for _, each, _ in spans])
    begin, stop, rows, owner = (each.to(device) for each in (begin, stop, rows, owner))
    # cumulative sums: the span's states are what is added between its first token and its end
    seen = context[owner, stop - 1] - context[owner, begin - 1]
    for h, states in below.items():
        alone = layers.run(states[source[:, None], places], h, layers.depth, keys)
        sums = alone.double().cumsum(1)
        free = sums[rows, stop - begin] - sums[rows, 0]
        cosines = F.cosine_similarity(seen, free, dim=1).cpu().numpy()
        if not np.isfinite(cosines).all():
            raise CompoclipError(
                "the text tower's states are not finite numbers; its weights are damaged, or "
                "training diverged: use another checkpoint"
            )
        for (_, each, end), value in zip(spans, cosines):
            charts[each.sentence][h][each.start, end] = value
