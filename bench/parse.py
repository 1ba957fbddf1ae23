"""`python -m bench parse`: captions per second of tagging and scene-graph parsing, on one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import OfCaptions, Row, cpu_medians, timed
from bench.made import captions_of
from compoclip.captions.chunks import noun_chunks
from compoclip.captions.graph import parse_graph
from compoclip.captions.parser import parse
from compoclip.captions.tagger import get_tagger

QUICK = ("--repeats=1", "--texts=500")


@dataclass(frozen=True)
class Options(OfCaptions):
    """Captions per second of the scene-graph parser and of its stages, on one core.

    Processor time is counted, not wall time, so that other work on the machine matters less. "cold"
    is the first pass over the captions, with every cache empty; the others are medians.

    Args:
        texts: Captions to take, from the first (default: all).
        repeats: Timed repeats after the cold pass.
        tagger: Hanta, spacy or spacy:MODEL.
    """

    texts: int | None = None
    repeats: int = 3
    tagger: str = "hanta"


def measure(options: Options, folder: Path) -> list[Row]:
    """Time `parse` and its stages on the same texts, with a tagger not yet used."""
    texts, tagger = captions_of(options.captions)[: options.texts], get_tagger(options.tagger)
    _, cold, parsed = timed(lambda: [parse(text, tagger) for text in texts])
    stages: dict[str, Callable[[], Any]] = {
        "all, warm": lambda: [parse(text, tagger) for text in texts],
        "tags": lambda: [tagger.tag(text) for text in texts],
        "noun chunks": lambda: [noun_chunks(caption.tokens) for caption in parsed],
        "scene graphs": lambda: [parse_graph(caption) for caption in parsed],
    }
    times = {"all, cold": cold, **cpu_medians(stages, options.repeats)}
    return [Row(f"{name}, captions/CPU second", len(texts) / t) for name, t in times.items()]
