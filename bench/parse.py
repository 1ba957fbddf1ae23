"""`python -m bench parse`: captions per second of tagging and scene-graph parsing, on one core."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.rows import PROGRAM, Inputs, Row, machine
from compoclip.captions.chunks import noun_chunks
from compoclip.captions.graph import parse_graph
from compoclip.captions.parser import PARSER_VERSION, parse
from compoclip.captions.tagger import Tagger, get_tagger, tagger_version
from compoclip.cli.caption_input import read_captions
from compoclip.cli.options import parse as parse_options
from compoclip.console import emit_json, table
from compoclip.errors import UsageError
from compoclip.version import __version__


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


@dataclass(frozen=True)
class Options:
    """Captions per second of the scene-graph parser and of its stages, on one core.

    Processor time is counted, not wall time, so that other work on the machine matters less. "cold"
    is the first pass over the captions, with every cache empty; the others are medians.

    Args:
        captions: Captions to parse: a .txt, .json, .jsonl file or a folder of them (e.g.
            SugarCrepe's).
        repeats: Timed repeats after the cold pass.
        tagger: Hanta, spacy or spacy:MODEL.
        json: Print JSON.
    """

    captions: Path
    repeats: int = 3
    tagger: str = "hanta"
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse_options(Options, "parse", arguments, PROGRAM)
    if options.repeats < 1:
        raise UsageError("--repeats must be at least 1")
    texts = read_captions(options.captions)
    speed = measure_parse_speed(texts, get_tagger(options.tagger), options.repeats)
    setting = {
        "captions": str(options.captions),
        "tagger": tagger_version(options.tagger),
        "parser": PARSER_VERSION,
        "processor": machine(),
        "versions": {"compoclip": __version__, "python": platform.python_version()},
    }
    if options.json:
        emit_json({"setting": setting, "result": asdict(speed)})
        return 0
    print(
        f"{setting['tagger']}, parser {PARSER_VERSION}, {setting['processor']}; {speed.captions} "
        f"captions of {speed.tokens / speed.captions:.1f} tokens; {options.repeats} repeats\n"
    )
    stages = {
        "tags": speed.tags,
        "noun chunks": speed.chunks,
        "scene graphs": speed.graphs,
        "all, cold": speed.cold,
        "all, warm": speed.warm,
    }
    cells = [[name, f"{value:.0f}"] for name, value in stages.items()]
    print(table(cells, ["", "captions/CPU second"]))
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """Tagging and parsing, from nothing and with warm caches."""
    texts = read_captions(inputs.captions)[: 500 if inputs.quick else None]
    speed = measure_parse_speed(texts, get_tagger("hanta"), repeats=1 if inputs.quick else 3)
    return [
        Row("parse", "captions tagged and parsed, cold, captions/CPU second", speed.cold),
        Row("parse", "the same, caches warm", speed.warm),
    ]
