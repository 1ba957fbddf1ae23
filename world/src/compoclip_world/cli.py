"""`compoclip world WHAT`: scenes with captions, training sets and benchmarks, all procedural."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from compoclip.cli.main import Verbs
from compoclip.cli.options import Models, OnDevice, Outcome, Printing, WorkerCount, processes
from compoclip.config import NewFolder, OutputFile, OutputFolder, Resamples, Shown, require_with
from compoclip.console import columns, counted
from compoclip.errors import UsageError, require
from compoclip.files import write_atomically, write_json
from compoclip.printed import Table
from compoclip.programs.run import load_models
from compoclip.typed import Count, Natural
from compoclip_world.export import require_made

if TYPE_CHECKING:
    from compoclip_world.pointing import MeanShare
    from compoclip_world.scene import Scene, WorldConfig

Split = Literal["train", "val", "test", "novel-attribute", "novel-relation"]
Shares = Mapping[str, Mapping[str, "MeanShare"]]

_MANY = 4096  # scenes that are worth starting processes for


@dataclass(frozen=True, kw_only=True)
class FromWorld(Printing):
    """Options of all that looks at scenes.

    Args:
        seed: Seed of the scenes.
        split: Part of the world to draw; suites never use scenes of train.
    """

    seed: int = 0
    split: Split = "train"


@dataclass(frozen=True, kw_only=True)
class WritesWorld(FromWorld):
    """Options of all that writes many images.

    Args:
        size: Image side in pixels.
        config: JSON file with more settings of the world: objects, colours, caption_weights; or
            bundled, the world of the bundled model; or crowded, the same with several unlike things
            in a scene, which demo trains on.
        workers: Processes; the files do not depend on the number. auto: one per core for thousands
            of images.
    """

    size: int = 64
    config: Annotated[Path | None, Shown("FILE|bundled|crowded")] = None
    workers: WorkerCount = "auto"

    def __post_init__(self) -> None:
        named = self.config is None or str(self.config) in ("bundled", "crowded")
        there = named or (self.config is not None and self.config.is_file())
        require(there, self.config, "no such file; check the path")

    @property
    def world(self) -> WorldConfig:
        """Return the world that scenes are drawn from."""
        from compoclip_world.dataset import bundled_world, crowded, read_world_config
        from compoclip_world.scene import WorldConfig

        if str(self.config) == "bundled":
            config = bundled_world()
        elif str(self.config) == "crowded":
            config = crowded(bundled_world())
        else:
            config = read_world_config(self.config) if self.config else WorldConfig()
        return replace(config, size=self.size)


@dataclass(frozen=True)
class WorldTrainOptions(WritesWorld):
    """Write image-text pairs as webdataset shards; `compoclip train --data OUT` reads them.

    Args:
        out: Folder for the shards.
        count: Scenes to draw.
        suite: Also write the benchmarks of `compoclip world suite` to this new folder.
        suite_items: Items per sub-task of the suite.
        captions: Captions per scene.
    """

    out: NewFolder
    count: Count
    suite: NewFolder | None = None
    suite_items: Count = 250
    captions: Count = 5


@dataclass(frozen=True)
class PairsOptions(WritesWorld):
    """Write minimal pairs: two images that differ in one thing, each with its own caption.

    `compoclip train --data OUT/pairs.jsonl` reads them. The other image and caption of a pair serve
    as negative caption (fsc-clip --texts given), negative image (triplet-clip) or variation
    (gnm-clip).

    Args:
        out: Folder for pairs.jsonl and images/.
        skills: SKILL=COUNT, the number of pairs per skill: swap-colour=1000 relation=2000.
    """

    out: NewFolder
    skills: tuple[str, ...]


@dataclass(frozen=True)
class SuiteOptions(WritesWorld):
    """Write small benchmarks for `compoclip evaluate --on OUT`.

    The core has official formats; foils cover every further task.

    Args:
        out: New folder for the suite.
        items_per_task: Items per sub-task.
        benchmarks: Benchmarks to write, such as sugarcrepe foils. Default: all.
    """

    out: NewFolder
    items_per_task: int = 250
    split: Literal["val", "test"] = field(default="test", kw_only=True)
    benchmarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShowOptions(FromWorld):
    """Draw scenes with their captions on one sheet.

    Args:
        out: Image file to write, such as sheet.png.
        count: Scenes to show.
        captions: Captions per scene.
        size: Image side in pixels, as the model sees it.
        start: Index of the first scene.
    """

    out: Annotated[OutputFile, Shown(short="-o")]
    count: Count = 12
    captions: Count = 3
    size: int = 64
    start: Natural = 0


@dataclass(frozen=True)
class AskOptions(FromWorld):
    """Ask the oracle whether a caption is true of a scene.

    Args:
        caption: E.g. "a red star left of a mug".
        scene: Index of the scene.
    """

    caption: Annotated[str, Shown("CAPTION", positional=True)]
    scene: Natural = 0


def train(options: WorldTrainOptions) -> Outcome:
    """Write a training set."""
    require_with(options, "suite", "suite_items")
    out = options.out.absolute()
    if options.suite is not None and options.suite.absolute() in (out, *out.parents):
        raise UsageError("--suite is a folder of its own, not --out or one around it")
    from compoclip_world.dataset import TrainingSet, write_training_set

    workers = processes(options.workers, options.count, _MANY)
    start = time.monotonic()
    spec = TrainingSet(options.world, options.count, options.seed, options.split, options.captions)
    shards = write_training_set(options.out, spec, workers)
    seconds = time.monotonic() - start
    record: dict[str, Any] = {
        "out": str(options.out),
        "shards": [str(path) for path in shards],
        "scenes": options.count,
        "captions": options.count * options.captions,
        "seconds": round(seconds, 2),
    }
    captions = counted(options.count * options.captions, "caption")
    text = (
        f"{counted(options.count, 'scene')}, {captions}, {counted(len(shards), 'shard')}, "
        f"{seconds:.1f} s -> {options.out}"
    )
    if options.suite is not None:
        shared = {f.name: getattr(options, f.name) for f in fields(WritesWorld)}
        of_suite = SuiteOptions(options.suite, options.suite_items, **{**shared, "split": "test"})
        suite_record, _, total = _suite(of_suite)
        record["suite"] = suite_record
        text += f"\n{total}"
    return record, text


def pairs(options: PairsOptions) -> Outcome:
    """Write minimal pairs."""
    from compoclip_world.pairs import PairSet, write_pair_set

    start = time.monotonic()
    skills = [_skill_count(text) for text in options.skills]
    counts = dict(skills)
    workers = processes(options.workers, sum(counts.values()), _MANY)
    if len(counts) < len(skills):
        raise UsageError("--skills names a skill twice; give its pairs in one SKILL=COUNT")
    rows = write_pair_set(
        options.out, PairSet(options.world, tuple(skills), options.seed, options.split), workers
    )
    seconds = time.monotonic() - start
    record = {"out": str(options.out), "pairs": counts, "rows": rows, "seconds": round(seconds, 2)}
    written = f"{counted(rows // 2, 'pair')}, {counted(rows, 'image')}"
    text = f"{written}, {seconds:.1f} s -> {options.out}"
    return record, text


def _skill_count(text: str) -> tuple[str, int]:
    """A skill and its number of pairs from SKILL=COUNT. Raises UsageError for anything else."""
    from compoclip_world.pairs import TAUGHT_SKILLS

    skill, _, count = text.partition("=")
    if skill not in TAUGHT_SKILLS:
        raise UsageError(f"--skills: no skill '{skill}'; known: {', '.join(TAUGHT_SKILLS)}")
    if not count.isdecimal() or int(count) < 1:
        raise UsageError(f"--skills: '{text}' must be SKILL=COUNT with a count of 1 or more")
    return skill, int(count)


def suite(options: SuiteOptions) -> Outcome:
    """Write the benchmarks."""
    record, rows, total = _suite(options)
    return record, (columns(rows), total)


def _suite(options: SuiteOptions) -> tuple[dict[str, Any], list[list[str]], str]:
    """The benchmarks, written; what there is to say of them: for JSON, each task, and in a line."""
    require_made(options.benchmarks)
    from compoclip_world.export.part import SuiteSpec
    from compoclip_world.export.suite import write_suite

    workers = processes(options.workers, options.items_per_task, _MANY / 4)  # of some 20 tasks
    start = time.monotonic()
    spec = SuiteSpec(options.world, options.items_per_task, options.seed, options.split)
    parts = write_suite(options.out, spec, workers, options.benchmarks)
    seconds = time.monotonic() - start
    images = len({path for part in parts for path in part.images})
    items = sum(count for part in parts for count in part.items.values())
    record = {
        "out": str(options.out),
        "images": images,
        "items": {part.id: dict(part.items) for part in parts},
        "seconds": round(seconds, 2),
    }
    rows = [
        [f"{part.id}/{name}", f"{count:>5}", part.about[name]]
        for part in parts
        for name, count in part.items.items()
    ]
    written = f"{counted(items, 'item')}, {counted(images, 'image')}"
    return record, rows, f"{written}, {seconds:.1f} s -> {options.out}"


def show(options: ShowOptions) -> Outcome:
    """Draw a contact sheet."""
    from PIL import Image

    kind = Image.registered_extensions().get(options.out.suffix.lower())
    if kind not in Image.SAVE:
        raise UsageError(f"{options.out}: no image format of that name; end it in .png")
    from compoclip_world.captions import captions_for
    from compoclip_world.render import contact_sheet
    from compoclip_world.sampling import scene_for
    from compoclip_world.scene import WorldConfig

    config = WorldConfig(size=options.size)
    shown: list[tuple[Scene, list[str]]] = []
    for index in range(options.start, options.start + options.count):
        scene = scene_for(config, options.seed, options.split, index)
        captions = captions_for(scene, config, options.seed, index, options.captions)
        shown.append((scene, [caption.text for caption in captions]))
    sheet = contact_sheet(shown, options.size)
    write_atomically(options.out, lambda place: sheet.save(place, kind))
    record = {
        "sheet": str(options.out),
        "scenes": [
            {"index": options.start + i, "things": _things(scene), "captions": captions}
            for i, (scene, captions) in enumerate(shown)
        ],
    }
    return record, f"{counted(options.count, 'scene')} -> {options.out}"


def ask(options: AskOptions) -> Outcome:
    """Print the oracle's verdict."""
    if not options.caption.strip():
        raise UsageError("the caption is empty")
    from compoclip_world.oracle import Oracle
    from compoclip_world.sampling import scene_for
    from compoclip_world.scene import WorldConfig

    scene = scene_for(WorldConfig(), options.seed, options.split, options.scene)
    verdict = Oracle().verdict(options.caption, scene)
    background = f"{scene.backdrop.texture} {scene.backdrop.colour}"
    record = {
        "caption": options.caption,
        "truth": str(verdict.truth),
        "reason": verdict.reason,
        "foreign": verdict.foreign,
        "things": _things(scene),
        "background": background,
    }
    reason = f" ({verdict.reason})" if verdict.reason else ""
    note = ", with words that name nothing in the world" if verdict.foreign else ""
    seen = [*_things(scene), f"on a {background} background"]
    return record, "\n  ".join([f"{verdict.truth}{reason}{note}", *seen])


# --- `compoclip world pointing MODEL ...`: do words look at what they name? ---


@dataclass(frozen=True)
class PointingOptions(OnDevice):
    """Measure where the words of captions look, on scenes of two things ("a red star and a mug").

    Three measures, each against chance: the share of a word's attention in the box of the thing it
    names, how often its peak lies there, how often that box has more attention per pixel than the
    other one. Further models are compared with the first, scene by scene.

    Examples:
        compoclip world pointing base=bundled tuned=runs/fsc-clip/model

    Args:
        models: As for evaluate; NAME=MODEL gives a name.
        scenes: Number of scenes.
        seed: Seed of the scenes and of the bootstrap.
        resamples: Bootstrap resamples.
        out: Folder for maps.json with the numbers.
    """

    models: Models
    scenes: Count = 500
    seed: int = 0
    resamples: Resamples = 2000
    out: OutputFolder | None = None


def pointing(options: PointingOptions) -> Outcome:
    """Print the pointing accuracy of every model, and its difference to the first."""
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip_world.dataset import bundled_world
    from compoclip_world.pointing import measure_pointing, pointing_scenes, shares

    models = load_models(options.models, options.device)
    size = max(max(model.preprocess.size) for model in models.values())
    scenes = pointing_scenes(bundled_world(), options.scenes, size, options.seed)
    bootstrap = Bootstrap(options.resamples, options.seed)
    measured = {name: measure_pointing(model, scenes) for name, model in models.items()}
    first = next(iter(measured))
    means = {name: shares(values, bootstrap) for name, values in measured.items()}
    gaps = {
        name: shares(measured[name], bootstrap, measured[first])
        for name in measured
        if name != first
    }
    records = [
        {
            "model": name,
            "weights": models[name].identity.weights,
            "scenes": options.scenes,
            "seed": options.seed,
            "shares": _pointing_record(means[name]),
            **({"against_first": _pointing_record(gaps[name])} if name in gaps else {}),
        }
        for name in measured
    ]
    if options.out is not None:
        write_json(options.out / "maps.json", records)
    return records, _pointing_text(options, means, gaps)


def _pointing_record(shares: Shares) -> dict[str, Any]:
    return {kind: {m: asdict(s) for m, s in measures.items()} for kind, measures in shares.items()}


def _pointing_text(
    options: PointingOptions, means: Mapping[str, Shares], gaps: Mapping[str, Shares]
) -> list[str | Table]:
    """A row a model and sort of word; below, the differences to the first model."""
    from compoclip.evaluation.numerals import with_interval
    from compoclip_world.pointing import MEASURES

    def cell(share: MeanShare, sign: str = "") -> str:
        return with_interval(share.value, share.low, share.high, sign)

    kinds = list(next(iter(means.values())))
    rows = []
    for kind in kinds:
        rows += [
            [n, kind, *(cell(model_shares[kind][m]) for m in MEASURES)]
            for n, model_shares in means.items()
        ]
        chance = next(iter(means.values()))[kind]
        rows.append(["chance", kind, *(f"{100 * chance[m].chance:.1f}" for m in MEASURES)])
    texts: list[str | Table] = [Table(rows, ["model", "words", *MEASURES], left=2)]
    if gaps:
        first = next(iter(means))
        rows = [
            [name, kind, *(cell(model_shares[kind][m], "+") for m in MEASURES)]
            for kind in kinds
            for name, model_shares in gaps.items()
        ]
        texts.append(Table(rows, [f"minus {first}", "words", *MEASURES], left=2))
    texts.append(
        "\n".join(f"{name}: {about}" for name, about in MEASURES.items())
        + f"\npercent with 95 % intervals, {counted(options.scenes, 'scene')}, seed "
        f"{options.seed}; chance: a map that is even over the image"
    )
    return texts


WHATS = Verbs(
    "compoclip world",
    "WHAT",
    {
        "train": ("write a training set as webdataset shards", "cli:train"),
        "pairs": ("write a training set of minimal pairs", "cli:pairs"),
        "suite": ("write small benchmarks of every skill", "cli:suite"),
        "show": ("draw scenes with their captions on one sheet", "cli:show"),
        "ask": ("ask whether a caption is true of a scene", "cli:ask"),
        "pointing": (
            "measure whether the words of a caption look at what they name",
            "cli:pointing",
        ),
    },
    package="compoclip_world",
)
main = WHATS.main


def _things(scene: Scene) -> list[str]:
    return [
        f"{thing.size} {thing.pattern} {thing.colour} {thing.kind} at {thing.x:.2f} from the left, "
        f"{thing.y:.2f} from the top"
        for thing in scene.things
    ]
