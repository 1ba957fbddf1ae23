"""How fast captions are tagged and parsed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from compoclip.captions.chunks import noun_chunks
from compoclip.captions.graph import parse_graph
from compoclip.captions.parse import parse
from compoclip.captions.tagger import Tagger


@dataclass(frozen=True, slots=True)
class ParseSpeed:
    """Captions per second of processor time of this process.

    `cold`: the first pass over the captions, caches empty; `warm`: a later pass (median); `tags`,
    `chunks`, `graphs`: each stage alone, warm.
    """

    captions: int
    tokens: int
    cold: float
    warm: float
    tags: float
    chunks: float
    graphs: float


def measure_parse_speed(texts: Sequence[str], tagger: Tagger, repeats: int = 3) -> ParseSpeed:
    """Time `parse` and its stages on the same texts; `cold` wants a tagger not yet used."""
    cold = _seconds(lambda: [parse(text, tagger) for text in texts])
    parsed = [parse(text, tagger) for text in texts]
    stages: list[Callable[[], Any]] = [
        lambda: [parse(text, tagger) for text in texts],
        lambda: [tagger.tag(text) for text in texts],
        lambda: [noun_chunks(caption.tokens) for caption in parsed],
        lambda: [parse_graph(caption) for caption in parsed],
    ]
    times = [cold, *(median(_seconds(stage) for _ in range(repeats)) for stage in stages)]
    tokens = sum(len(caption.tokens) for caption in parsed)
    return ParseSpeed(len(texts), tokens, *(len(texts) / seconds for seconds in times))


def _seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return max(time.process_time() - start, 1e-9)
