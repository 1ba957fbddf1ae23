"""`compoclip world WHAT`: scenes with captions, training sets and benchmarks, all procedural."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from PIL import Image

from compoclip.cli.options import parse
from compoclip.console import emit_json
from compoclip.errors import UsageError
from compoclip.files import write_atomically
from compoclip.world.captions import captions_for
from compoclip.world.dataset import TrainingSet, read_world_config, write_training_set
from compoclip.world.export.part import SuiteSpec
from compoclip.world.export.suite import write_suite
from compoclip.world.oracle import Oracle
from compoclip.world.pairs import TAUGHT_SKILLS, PairSet, write_pair_set
from compoclip.world.render import contact_sheet
from compoclip.world.sampling import scene_for
from compoclip.world.scene import Scene, Thing, WorldConfig

Split = Literal["train", "val", "test", "novel-attribute", "novel-relation"]


@dataclass(frozen=True)
class WorldTrainOptions:
    """Write image-text pairs as webdataset shards; `compoclip train --data OUT` reads them."""

    out: Path
    """folder for the shards"""
    count: int
    """scenes to draw"""
    size: int = 64
    """image side in pixels"""
    captions: int = 5
    """captions per scene"""
    config: Path | None = None
    """JSON with further fields of the configuration: objects, colours, caption_weights"""
    seed: int = 0
    """another seed, other scenes"""
    split: Split = "train"
    """which scenes; suites never show those of train"""
    workers: int = 1
    """processes; the bytes do not depend on it"""
    json: bool = False
    """print JSON"""


@dataclass(frozen=True)
class PairsOptions:
    """Write minimal pairs: two images that differ in one thing, each with a caption that is false
    of the other. `compoclip train --data OUT/pairs.jsonl` reads them, with the twin as given
    negative (fsc-clip --texts given), negative image (triplet-clip) or variation (gnm-clip).
    """

    out: Path
    """folder for pairs.jsonl and images/"""
    skills: tuple[str, ...]
    """SKILL=COUNT: how many pairs of each skill, e.g. swap-colour=1000 relation=2000"""
    size: int = 64
    """image side in pixels"""
    config: Path | None = None
    """JSON with further fields of the configuration: objects, colours, backdrops"""
    seed: int = 0
    """another seed, other scenes"""
    split: Split = "train"
    """which scenes; suites never show those of train"""
    workers: int = 1
    """processes; the bytes do not depend on it"""
    json: bool = False
    """print JSON"""


@dataclass(frozen=True)
class SuiteOptions:
    """Write small benchmarks, a core in official formats and foils for every further task;
    `compoclip evaluate --on OUT` reads them."""

    out: Path
    """new folder for the suite"""
    items_per_task: int = 250
    """items of each sub-task"""
    size: int = 64
    """image side in pixels"""
    seed: int = 0
    """another seed, other scenes"""
    split: Literal["val", "test"] = "test"
    """which scenes; never those of train"""
    benchmarks: tuple[str, ...] = ()
    """which benchmarks, e.g. sugarcrepe foils; all when not given"""
    workers: int = 1
    """processes; the bytes do not depend on it"""
    json: bool = False
    """print JSON"""


@dataclass(frozen=True)
class ShowOptions:
    """Draw scenes with their captions on one sheet."""

    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))]
    """image file to write, e.g. sheet.png"""
    count: int = 12
    """scenes to show"""
    captions: int = 3
    """captions per scene"""
    size: int = 64
    """image side in pixels, as the model sees it"""
    start: int = 0
    """index of the first scene"""
    seed: int = 0
    """another seed, other scenes"""
    split: Split = "train"
    """which scenes"""
    json: bool = False
    """print scenes and captions as JSON"""


@dataclass(frozen=True)
class AskOptions:
    """Ask the oracle whether a caption is true of a scene."""

    caption: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CAPTION")]
    """e.g. "a red star left of a mug\""""
    scene: int = 0
    """index of the scene"""
    seed: int = 0
    """seed of the scenes"""
    split: Split = "train"
    """which scenes"""
    json: bool = False
    """print JSON"""


def train(arguments: Sequence[str]) -> int:
    """Write a training set."""
    options = parse(WorldTrainOptions, "world train", arguments)
    if min(options.count, options.captions, options.workers) < 1:
        raise UsageError("--count, --captions and --workers must be at least 1")
    start = time.monotonic()
    spec = TrainingSet(
        _config(options),
        options.count,
        options.seed,
        options.split,
        options.captions,
    )
    shards = write_training_set(options.out, spec, options.workers)
    seconds = time.monotonic() - start
    if options.json:
        emit_json(
            {
                "out": str(options.out),
                "shards": [str(path) for path in shards],
                "scenes": options.count,
                "captions": options.count * options.captions,
                "seconds": round(seconds, 2),
            }
        )
    else:
        print(
            f"{options.count} scenes, {options.count * options.captions} captions, "
            f"{len(shards)} shards, {seconds:.1f} s -> {options.out}"
        )
    return 0


def pairs(arguments: Sequence[str]) -> int:
    """Write minimal pairs."""
    options = parse(PairsOptions, "world pairs", arguments)
    if options.workers < 1:
        raise UsageError("--workers must be at least 1")
    start = time.monotonic()
    skills = [_skill_count(each) for each in options.skills]
    counts = dict(skills)
    if len(counts) < len(skills):
        raise UsageError("--skills names a skill twice; give its pairs in one SKILL=COUNT")
    spec = PairSet(
        _config(options),
        tuple(skills),
        options.seed,
        options.split,
    )
    rows = write_pair_set(options.out, spec, options.workers)
    seconds = time.monotonic() - start
    if options.json:
        seconds = round(seconds, 2)
        emit_json({"out": str(options.out), "pairs": counts, "rows": rows, "seconds": seconds})
    else:
        print(f"{rows // 2} pairs, {rows} images, {seconds:.1f} s -> {options.out}")
    return 0


def _config(options: WorldTrainOptions | PairsOptions) -> WorldConfig:
    """The world that a set is drawn from."""
    config = read_world_config(options.config) if options.config else WorldConfig()
    return replace(config, size=options.size)


def _skill_count(text: str) -> tuple[str, int]:
    """A skill and its number of pairs from SKILL=COUNT. Raises UsageError for anything else."""
    skill, _, count = text.partition("=")
    if skill not in TAUGHT_SKILLS:
        raise UsageError(f"--skills: no skill '{skill}'; known: {', '.join(TAUGHT_SKILLS)}")
    if not count.isdecimal() or int(count) < 1:
        raise UsageError(f"--skills: '{text}' must be SKILL=COUNT with a count of 1 or more")
    return skill, int(count)


def suite(arguments: Sequence[str]) -> int:
    """Write the benchmarks."""
    options = parse(SuiteOptions, "world suite", arguments)
    if options.workers < 1:
        raise UsageError("--workers must be at least 1")
    start = time.monotonic()
    config = WorldConfig(size=options.size)
    spec = SuiteSpec(config, options.items_per_task, options.seed, options.split)
    parts = write_suite(options.out, spec, options.workers, options.benchmarks)
    seconds = time.monotonic() - start
    images = len({path for part in parts for path in part.images})
    items = sum(count for part in parts for count in part.items.values())
    if options.json:
        emit_json(
            {
                "out": str(options.out),
                "images": images,
                "items": {part.id: dict(part.items) for part in parts},
                "seconds": round(seconds, 2),
            }
        )
        return 0
    width = max(len(f"{part.id}/{name}") for part in parts for name in part.items)
    for part in parts:
        for name, count in part.items.items():
            print(f"{f'{part.id}/{name}':<{width}}  {count:>5}  {part.about[name]}")
    print(f"\n{items} items, {images} images, {seconds:.1f} s -> {options.out}")
    return 0


def show(arguments: Sequence[str]) -> int:
    """Draw a contact sheet."""
    options = parse(ShowOptions, "world show", arguments)
    if min(options.count, options.captions) < 1 or options.start < 0:
        raise UsageError("--count and --captions must be at least 1, --start at least 0")
    config = WorldConfig(size=options.size)
    shown: list[tuple[Scene, list[str]]] = []
    for index in range(options.start, options.start + options.count):
        scene = scene_for(config, options.seed, options.split, index)
        captions = captions_for(scene, config, options.seed, index, options.captions)
        shown.append((scene, [caption.text for caption in captions]))
    _save(contact_sheet(shown, options.size), options.out)
    if options.json:
        emit_json(
            {
                "sheet": str(options.out),
                "scenes": [
                    {"index": options.start + i, "things": _things(scene), "captions": captions}
                    for i, (scene, captions) in enumerate(shown)
                ],
            }
        )
    else:
        print(f"{options.count} scenes -> {options.out}")
    return 0


def ask(arguments: Sequence[str]) -> int:
    """Print the oracle's verdict."""
    options = parse(AskOptions, "world ask", arguments)
    if options.scene < 0:
        raise UsageError("--scene must be 0 or more")
    if not options.caption.strip():
        raise UsageError("the caption is empty")
    scene = scene_for(WorldConfig(), options.seed, options.split, options.scene)
    verdict = Oracle().verdict(options.caption, scene)
    if options.json:
        emit_json(
            {
                "caption": options.caption,
                "truth": str(verdict.truth),
                "reason": verdict.reason,
                "foreign": verdict.foreign,
                "things": _things(scene),
                "background": f"{scene.backdrop.texture} {scene.backdrop.colour}",
            }
        )
        return 0
    reason = f" ({verdict.reason})" if verdict.reason else ""
    note = ", with words that name nothing in the world" if verdict.foreign else ""
    print(f"{verdict.truth}{reason}{note}")
    for line in _things(scene):
        print(f"  {line}")
    print(f"  on a {scene.backdrop.texture} {scene.backdrop.colour} background")
    return 0


# what -> (what it does, the function that runs it)
_WHATS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "train": ("write a training set as webdataset shards", train),
    "pairs": ("write a training set of minimal pairs", pairs),
    "suite": ("write small benchmarks of every skill", suite),
    "show": ("draw scenes with their captions on one sheet", show),
    "ask": ("ask whether a caption is true of a scene", ask),
}


def usage() -> str:
    """The text of `compoclip world --help`."""
    lines = ["usage: compoclip world WHAT [options]    (compoclip world WHAT --help)", ""]
    return "\n".join([*lines, *(f"  {name:<8} {about}" for name, (about, _) in _WHATS.items())])


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    what, rest = arguments[0], arguments[1:]
    if what not in _WHATS:
        raise UsageError(f"nothing called '{what}' in the world; one of {', '.join(_WHATS)}")
    return _WHATS[what][1](rest)


def _things(scene: Scene) -> list[str]:
    return [_thing(thing) for thing in scene.things]


def _thing(thing: Thing) -> str:
    looks = f"{thing.size} {thing.pattern} {thing.colour} {thing.kind}"
    return f"{looks} at {thing.x:.2f} from the left, {thing.y:.2f} from the top"


def _save(sheet: Image.Image, path: Path) -> None:
    """Write the sheet as the kind of image its name says. Raises UsageError or CompoclipError."""
    buffer = io.BytesIO()
    try:
        sheet.save(buffer, Image.registered_extensions()[path.suffix.lower()])
    except (KeyError, OSError, ValueError) as error:
        raise UsageError(f"{path}: no image format of that name; end it in .png") from error
    write_atomically(path, lambda place: place.write_bytes(buffer.getvalue()))
