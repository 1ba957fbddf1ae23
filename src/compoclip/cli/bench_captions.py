"""`compoclip bench captions`: rewrites per second of stored parses, against tagging every time."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from compoclip import __version__
from compoclip.captions.parse import PARSER_VERSION
from compoclip.captions.tagger import get_tagger, tagger_version
from compoclip.cli.bench_rows import Inputs, Row, machine, shown
from compoclip.cli.caption_input import read_captions
from compoclip.cli.options import parse
from compoclip.cli.rewrite import names_of
from compoclip.console import emit_json
from compoclip.errors import UsageError
from compoclip.rewrites.rewrite_speed import TOGETHER, RewriteSpeed, measure_rewrite_speed

DEFAULT_REWRITES = "negclip,replace,bigram-shuffle"
_TARGET = 20_000.0
_ONLINE = "tags at every step"
_LIMIT = (
    "no stage stands out: reading the parse, the structure of the caption and the candidates of "
    "each rewrite take most, once a caption; draws for several epochs at once share them"
)


@dataclass(frozen=True)
class Options:
    """Rewrites per second of processor time on one core, from stored parses, against tagging each
    caption whenever it is rewritten, as training code of others does. A draw that finds no valid
    rewrite counts as one."""

    captions: Path
    """captions: a .txt, .json, .jsonl file or a folder of them (e.g. SugarCrepe's)"""
    rewrites: str = DEFAULT_REWRITES
    """names joined by commas, or all"""
    repeats: int = 3
    """timed passes after the one that fills the caches"""
    tagger: str = "hanta"
    """hanta, spacy or spacy:MODEL"""
    json: bool = False
    """print JSON"""


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "bench captions", arguments)
    if options.repeats < 1:
        raise UsageError("--repeats must be at least 1")
    names = names_of(options.rewrites)
    texts = read_captions(options.captions)
    speed = measure_rewrite_speed(texts, names, get_tagger(options.tagger), options.repeats)
    setting = {
        "captions": str(options.captions),
        "rewrites": list(names),
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
        f"captions, {', '.join(names)}; {options.repeats} repeats\n"
    )
    print(shown(_rows(speed)))
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """Rewriting from stored parses, one epoch at a time and several at once."""
    texts = read_captions(inputs.captions)[: 1000 if inputs.quick else None]
    names = names_of(DEFAULT_REWRITES)
    return _rows(measure_rewrite_speed(texts, names, get_tagger("hanta"), 1 if inputs.quick else 3))


def _rows(speed: RewriteSpeed) -> list[Row]:
    def row(what: str, value: float, target: float | None = None) -> Row:
        ratio = value / speed.online
        return Row("captions", what, value, speed.online, _ONLINE, ratio, target, "ours", _LIMIT)

    return [
        row("rewrites of stored parses, rewrites/CPU second", speed.stored, _TARGET),
        row(f"the same, {TOGETHER} epochs at once", speed.together),
        Row("captions", "stored parses read, captions/CPU second", speed.decoded),
    ]
