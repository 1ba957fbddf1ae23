"""How fast captions are rewritten from stored parses, and when each is tagged at every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from compoclip.captions.chunks import noun_chunks
from compoclip.captions.parse import parse
from compoclip.captions.records import decode, encode
from compoclip.captions.tagger import Tagger
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Rewrite, rng_for
from compoclip.rewrites.registry import get_rewrite

#: Epochs that are drawn together, from one reading of the parse.
TOGETHER = 5


@dataclass(frozen=True, slots=True)
class RewriteSpeed:
    """Draws per second of processor time of this process, all caches warm, refusals included.

    stored: reading the stored parse, then one draw of every rewrite. together: the same for
    `TOGETHER` epochs at once. online: tags and noun chunks of the caption made at every step, as
    NegCLIP's code does, then one draw of every rewrite. decoded: stored parses read alone, captions
    a second.
    """

    captions: int
    rewrites: int
    stored: float
    together: float
    online: float
    decoded: float


def measure_rewrite_speed(
    texts: Sequence[str], names: Sequence[str], tagger: Tagger, repeats: int = 3
) -> RewriteSpeed:
    """Median of `repeats` passes over the captions, each kind of pass in turn."""
    rewrites = [get_rewrite(name) for name in names]
    records = [encode(parse(text, tagger)) for text in texts]

    def stored(epochs: int) -> None:
        for number, (text, record) in enumerate(zip(texts, records)):
            caption = decode(text, record)
            for epoch in range(epochs):
                _draw(rewrites, caption, number, epoch)

    def online() -> None:
        for number, text in enumerate(texts):
            tokens = tagger.tag(text)
            _draw(rewrites, Caption(text, tokens, noun_chunks(tokens)), number, 0)

    def decoded() -> None:
        for text, record in zip(texts, records):
            decode(text, record)

    works: list[Callable[[], None]] = [
        lambda: stored(1),
        lambda: stored(TOGETHER),
        online,
        decoded,
    ]
    for work in works:
        work()  # caches
    passes = [[_seconds(work) for work in works] for _ in range(repeats)]
    one, several, each, read = (median(times) for times in zip(*passes))
    draws = len(texts) * len(rewrites)
    return RewriteSpeed(
        len(texts),
        len(rewrites),
        draws / one,
        TOGETHER * draws / several,
        draws / each,
        len(texts) / read,
    )


def _draw(rewrites: Sequence[Rewrite], caption: Caption, number: int, epoch: int) -> None:
    for rewrite in rewrites:
        rewrite(caption, rng_for(0, str(number), epoch, rewrite.name))


def _seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return max(time.process_time() - start, 1e-9)
