"""`python -m bench captions`: rewrites per second of stored parses, against tagging every time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import OfCaptions, Row, cpu_medians
from bench.made import captions_of
from compoclip.captions.chunks import noun_chunks
from compoclip.captions.parser import parse
from compoclip.captions.store import decode, encode
from compoclip.captions.tagger import get_tagger
from compoclip.captions.types import Caption
from compoclip.rewrites.base import get_rewrite, rewrites_named, rng_for

TOGETHER = 5  # epochs that are drawn together, from one reading of the parse
_TARGET = 20_000.0
_ONLINE = "tags at every step"
_LIMIT = (
    "no stage stands out: reading the parse, the structure of the caption and the candidates of "
    "each rewrite take most, once a caption; draws for several epochs at once share them"
)
QUICK = ("--repeats=1", "--texts=1000")


@dataclass(frozen=True)
class Options(OfCaptions):
    """Rewrites per second of processor time on one core, from stored parses, against tagging each
    caption whenever it is rewritten, as training code of others does. A draw that finds no valid
    rewrite counts as one.

    Args:
        texts: Captions to take, from the first (default: all).
        rewrites: Names joined by commas, or all.
        repeats: Timed passes after the one that fills the caches.
        tagger: Hanta, spacy or spacy:MODEL.
    """

    texts: int | None = None
    rewrites: str = "negclip,replace,bigram-shuffle"
    repeats: int = 3
    tagger: str = "hanta"


def measure(options: Options, folder: Path) -> list[Row]:
    """Time passes over the captions, each kind of pass in turn."""
    rewrites = [get_rewrite(name) for name in rewrites_named(options.rewrites)]
    texts, tagger = captions_of(options.captions)[: options.texts], get_tagger(options.tagger)
    records = [encode(parse(text, tagger)) for text in texts]

    def draw(caption: Caption, number: int, epoch: int) -> None:
        for rewrite in rewrites:
            rewrite(caption, rng_for(0, str(number), epoch, rewrite.name))

    def stored(epochs: int) -> None:
        for number, (text, record) in enumerate(zip(texts, records)):
            caption = decode(text, record)
            for epoch in range(epochs):
                draw(caption, number, epoch)

    def online() -> None:  # as NegCLIP's code does
        for number, text in enumerate(texts):
            tokens = tagger.tag(text)
            draw(Caption(text, tokens, noun_chunks(tokens)), number, 0)

    def decoded() -> None:
        for text, record in zip(texts, records):
            decode(text, record)

    ways = {"one": partial(stored, 1), "several": partial(stored, TOGETHER)}
    spent = cpu_medians({**ways, "online": online, "read": decoded}, options.repeats)
    draws = len(texts) * len(rewrites)

    def row(what: str, value: float, target: float | None = None) -> Row:
        return Row(what, value, draws / spent["online"], _ONLINE, None, target, "ours", _LIMIT)

    return [
        row("rewrites of stored parses, rewrites/CPU second", draws / spent["one"], _TARGET),
        row(f"the same, {TOGETHER} epochs at once", TOGETHER * draws / spent["several"]),
        Row("stored parses read, captions/CPU second", len(texts) / spent["read"]),
    ]
