"""`python -m bench captions`: rewrites per second of stored parses, against tagging every time."""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.rows import PROGRAM, Inputs, Row, machine, shown
from compoclip.captions.chunks import noun_chunks
from compoclip.captions.parser import PARSER_VERSION, parse
from compoclip.captions.store import decode, encode
from compoclip.captions.tagger import Tagger, get_tagger, tagger_version
from compoclip.captions.types import Caption
from compoclip.cli.caption_input import read_captions
from compoclip.cli.options import parse as parse_options
from compoclip.console import emit_json
from compoclip.errors import UsageError
from compoclip.rewrites.base import Rewrite, get_rewrite, rewrites_named, rng_for
from compoclip.version import __version__
from compoclip_world.captions import captions_for
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig

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
    rewrite counts as one.

    Args:
        captions: Captions: a .txt, .json, .jsonl file or a folder of them (e.g. SugarCrepe's).
        rewrites: Names joined by commas, or all.
        repeats: Timed passes after the one that fills the caches.
        tagger: Hanta, spacy or spacy:MODEL.
        json: Print JSON.
    """

    captions: Path
    rewrites: str = DEFAULT_REWRITES
    repeats: int = 3
    tagger: str = "hanta"
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse_options(Options, "captions", arguments, PROGRAM)
    if options.repeats < 1:
        raise UsageError("--repeats must be at least 1")
    names = rewrites_named(options.rewrites)
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
    names = rewrites_named(DEFAULT_REWRITES)
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


# --- Captions for other benches. ---


def world_captions(count: int = 2000) -> list[str]:
    """Captions of made scenes, four a scene, for a machine without real ones."""
    config = WorldConfig()
    return [
        caption.text
        for index in range(count // 4)
        for caption in captions_for(scene_for(config, 0, "train", index), config, 0, index, 4)
    ]


def drawn_captions(path: Path | None, count: int, seed: int, remedy: str) -> list[str]:
    """`count` captions of a file or folder, or of the world, drawn without replacement.

    remedy: the options to lower. Raises UsageError when there are not as many.
    """
    captions = read_captions(path) if path else world_captions()
    if len(captions) < count:
        raise UsageError(
            f"{path or 'the world'}: {len(captions)} captions, fewer than the {count} asked for; "
            f"lower {remedy}"
        )
    return random.Random(seed).sample(captions, count)
