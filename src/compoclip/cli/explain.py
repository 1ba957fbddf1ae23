"""The verbs that explain models: `wise-ft`, `towers`, `tree-score`, `maps`, `nearest`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from compoclip import config, console
from compoclip.cli.caption_input import read_captions, validation_captions
from compoclip.cli.options import Models, OnDevice, Outcome, Printing
from compoclip.config import (
    BenchmarkName,
    InputFile,
    InputFolder,
    InputPlace,
    ModelName,
    OutputFile,
    OutputFolder,
    Resamples,
    Shown,
)
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import file_stems, write_atomically, write_json, write_jsonl
from compoclip.printed import Table
from compoclip.programs.run import Measuring, load_models, named_models
from compoclip.ranks import device_named
from compoclip.typed import Count, NonNegative, Within

if TYPE_CHECKING:
    from compoclip.analysis.interpolation import BaseAndTuned, Point, Rule
    from compoclip.analysis.trees import TreeScores
    from compoclip.evaluation.statistics import Estimate
    from compoclip.models.checkpoint import LoadedModel


@dataclass(frozen=True)
class WiseFtOptions(Printing):
    """Mix the weights of a fine-tuned model and its base, and write a checkpoint.

    The mix (1 - alpha) BASE + alpha TUNED recovers zero-shot and retrieval accuracy of the base and
    loses some of the gains (WiSE-FT). TUNED may be an adapter folder, which is merged first.

    --sweep measures every alpha from 0 to 1 on benchmarks, in each --scope. OUT/results then has
    one results folder per mix, for compare and report; OUT/trajectory.png and .svg show the
    trade-off; OUT/sweep.json has all numbers. --keep picks the most compositional mix that loses at
    most --max-loss points, and writes it to OUT/model. An interrupted sweep resumes. A tower shared
    by several mixes is encoded once.

    Examples:
        compoclip wise-ft bundled runs/fsc/model --alpha 0.5 --out runs/fsc-half
        compoclip wise-ft bundled runs/fsc/model --sweep --scope all image text --on suite/
            --keep zero-shot --max-loss 1 --out wise

    Args:
        base: The model before training, named as for evaluate.
        tuned: The fine-tuned model.
        out: Checkpoint folder to write; with --sweep, folder for all outputs.
        alpha: Share of TUNED, from 0 to 1.
        scope: Weights to mix: all, or one tower; the other weights are TUNED's. With --sweep, one
            or more of all, image, text.
        mix_scale: Mix the logit scale too; else it is TUNED's (rankings ignore it).
        wise_lora: squared scales the change by an adapter by alpha squared, the axis of published
            curves of LoRA runs; merged (default) by alpha.
        sweep: Measure the whole trade-off.
        steps: Steps of the sweep from alpha 0 to 1.
        keep: Ability to retain when picking a mix; by default no mix is picked.
        max_loss: Most percentage points of --keep that the mix may lose against BASE.
    """

    base: Annotated[ModelName, Shown("BASE", positional=True)]
    tuned: Annotated[ModelName, Shown("TUNED", positional=True)]
    out: OutputFolder
    alpha: Annotated[float, Within(0, 1)] = 0.5
    scope: tuple[Literal["all", "image", "text"], ...] = ("all",)
    mix_scale: bool = False
    wise_lora: Literal["merged", "squared"] = "merged"
    sweep: bool = False
    steps: Count = 10
    keep: Literal["zero-shot", "retrieval"] | None = None
    max_loss: NonNegative = 1.0
    measuring: Measuring = field(default_factory=Measuring)


def wise_ft_main(options: WiseFtOptions) -> Outcome:
    """Make one mix, or measure all."""
    if not options.scope:
        raise UsageError("--scope needs all, image or text")
    if options.sweep:
        config.refuse(options, ("alpha",), unused_with="--sweep")
        config.require_with(options, "keep", "max_loss")
        return _sweep(options)
    if len(options.scope) > 1:
        raise UsageError("several scopes go with --sweep")
    config.refuse(options, ("steps", "keep", "max_loss"), needs="--sweep")
    config.refuse(options.measuring, vars(options.measuring), needs="--sweep")
    from compoclip.models.checkpoint import save_model
    from compoclip.models.conversion import interpolate

    base, tuned = load_both(options.base, options.tuned)
    (scope,) = options.scope
    mixed = interpolate(base, tuned, options.alpha, scope, options.mix_scale, options.wise_lora)
    identity = save_model(mixed, options.out)
    record = {
        "model": str(options.out),
        "weights": identity.weights,
        **mixed.provenance["wise_ft"],
    }
    weights = "all weights" if scope == "all" else f"the {scope} tower"
    text = (
        f"{options.base} -> {options.tuned}, alpha {options.alpha:g} on {weights}: "
        f"{options.out} (weights {identity.weights})"
    )
    return record, text


def load_both(base_spec: str, tuned_spec: str) -> tuple[LoadedModel, LoadedModel]:
    """Load a model and what was trained from it, with a note when the latter does not say so."""
    from compoclip.models.checkpoint import load_model

    base, tuned = load_model(base_spec), load_model(tuned_spec)
    if tuned.identity.base != base.identity.weights:
        made_from = tuned.identity.base or "unknown"
        console.note(
            f"{tuned_spec} does not say that it was trained from {base_spec} (its base: "
            f"{made_from}, these weights: {base.identity.weights})"
        )
    return base, tuned


def _sweep(options: WiseFtOptions) -> Outcome:
    """Measure every mix, write numbers and plot, pick and save one."""
    benchmarks = options.measuring.benchmarks()
    from compoclip.analysis import interpolation as mixes
    from compoclip.report.trajectory import trajectory_plot

    alphas = mixes.shares(options.steps)
    pair = mixes.BaseAndTuned(
        *load_both(options.base, options.tuned), options.mix_scale, options.wise_lora
    )
    settings, device = options.measuring.settings(options.out / ".features")
    place = options.out / "results"
    measured = mixes.sweep(pair, options.scope, alphas, benchmarks, place, settings, device)
    mixed = [place / point.mix.name for line in measured.lines.values() for point in line]
    console.note_others(place, ["*-*"], mixed)
    rule = mixes.Rule(options.keep, options.max_loss) if options.keep else None
    chosen = mixes.choose(measured, rule) if rule else None
    record = {"base": options.base, "tuned": options.tuned, **mixes.sweep_record(measured)}
    texts: list[str | Table] = [measured.table()]
    if rule and chosen:
        record["picked"], text = _picked(options.out / "model", pair, chosen, rule)
        texts.append(text)
    write_json(options.out / "sweep.json", record)
    plots = trajectory_plot(options.out / "trajectory", measured, chosen, rule)
    for path in plots if not options.json else ():
        console.note(f"written to {path}")
    return record, texts


def _picked(
    place: Path, pair: BaseAndTuned, chosen: Point, rule: Rule
) -> tuple[dict[str, Any], str]:
    """Save the picked model, unless it is the base or saved already; return record and text."""
    from compoclip.analysis.interpolation import BASE
    from compoclip.evaluation.numerals import with_interval
    from compoclip.models.checkpoint import current_identity, load_model, save_model

    mix = chosen.mix
    picked = {"rule": asdict(rule), "name": mix.name, "scope": mix.scope, "alpha": mix.alpha}
    if mix.name == BASE:
        return {**picked, "model": None}, f"picked: {rule}: the base itself, so nothing is written"
    mixed = pair.mixed(mix)
    if not (place.is_dir() and any(place.iterdir())):
        save_model(mixed, place, provenance={**mixed.provenance, "picked": str(rule)})
    elif load_model(place).identity.weights != current_identity(mixed).weights:
        raise CompoclipError(
            f"{place}: holds a model that was selected earlier, and the rule now selects "
            f"{mix.name}; delete it or choose another --out (measurements stay)"
        )
    changes = ", ".join(
        f"{name} {with_interval(d.difference, d.low, d.high, '+')}"
        for name, d in chosen.differences.items()
    )
    text = (
        f"picked: {rule}: {mix.name} -> {place}\n"
        f"against the base: {changes}\n"
        "picked on these very benchmarks, so its scores here flatter it: report it on others"
    )
    return {**picked, "model": str(place)}, text


@dataclass(frozen=True)
class TowersOptions(Printing):
    """Measure how much of the gain comes from each tower.

    The models are base, tuned, "tuned-image" (image tower of TUNED, text tower of BASE) and
    "tuned-text" (the reverse), with intervals and paired differences to the base. The last column
    is the effect of both towers beyond the sum of their single effects. OUT/results has results
    for compare and report, OUT/towers.json all numbers. Each tower is encoded once. An interrupted
    run resumes.

    Example:
        compoclip towers bundled runs/fsc/model --on suite/ --out towers

    Args:
        base: The model before training, named as for evaluate.
        tuned: The fine-tuned model.
        out: Folder for results and numbers.
    """

    base: Annotated[ModelName, Shown("BASE", positional=True)]
    tuned: Annotated[ModelName, Shown("TUNED", positional=True)]
    out: OutputFolder
    measuring: Measuring = field(default_factory=Measuring)


def towers_main(options: TowersOptions) -> Outcome:
    """Measure base, tuned and both swaps; print the scores and the differences to the base."""
    benchmarks = options.measuring.benchmarks()
    from compoclip.analysis.interpolation import BaseAndTuned, study_towers, towers_record

    pair = BaseAndTuned(*load_both(options.base, options.tuned))
    settings, device = options.measuring.settings(options.out / ".features")
    study = study_towers(pair, benchmarks, options.out / "results", settings, device)
    record = {"base": options.base, "tuned": options.tuned, "groups": towers_record(study)}
    write_json(options.out / "towers.json", record)
    return record, study.tables()


@dataclass(frozen=True)
class TreeScoreOptions(OnDevice):
    """Measure how well the span vectors of text encoders follow some binary tree.

    A span of words behaves like a constituent if its vector does not change when, from layer h on,
    it attends to itself only. The chart of a caption holds the cosine of both vectors for every
    span. A tree's score is the sum of its constituents' cosines minus the expected sum for random
    splits of the same spans; "best" is the binary tree of the highest score, found exactly. For
    comparison: the tree of the highest sum (in a causal encoder always the left-branching one), the
    greedy tree, and left-branching, right-branching and random trees.

    Examples:
        compoclip tree-score bundled --captions captions.txt
        compoclip tree-score base=ViT-B-32-quickgelu:openai tuned=runs/mosaic/model
            --captions /data/sugarcrepe --out trees

    Args:
        models: Models, written as evaluate takes them; NAME=MODEL gives a name. The others are
            compared with the first.
        captions: A file: .txt (one caption per line), .csv, .tsv, .jsonl, .jsonl.gz, .json or
            .parquet, whose columns named *caption* all count; or a folder of them.
        preset: mosaiclip samples 5,000 captions of validation photos, as its paper does: --captions
            is then COCO's captions_val2014.json or any other data of train; data with splits give
            val.
        sample: Number of distinct captions to sample [default: 1000, or the preset's].
        seed: Seed of the sample, the random trees and the bootstrap.
        threshold: The layers h [default: 0 to half the layers; the last one is the headline].
        batch_size: Captions encoded at once; changes scores by rounding only.
        out: Folder for tree-score.json, plots by layer (.png, .svg) and every caption's tree.
        resamples: Bootstrap resamples.
    """

    models: Models
    captions: InputPlace
    preset: Literal["mosaiclip"] | None = None
    sample: Count | None = None
    seed: int = 0
    threshold: tuple[int, ...] = ()
    batch_size: Count = 64
    out: OutputFolder | None = None
    resamples: Resamples = 2000


def tree_score_main(options: TreeScoreOptions) -> Outcome:
    """Parse, draw captions, measure every model, print and write."""
    models = named_models(options.models)
    captions = (validation_captions if options.preset else read_captions)(options.captions)
    number = options.sample or (5000 if options.preset else 1000)
    distinct = list(dict.fromkeys(captions))
    if len(distinct) < number:
        few = console.counted(len(distinct), "distinct caption")
        console.note(f"{options.captions}: only {few}, all are taken")
    sampled = random.Random(options.seed).sample(distinct, min(number, len(distinct)))

    from compoclip.analysis.trees import BEST, TREES, differences, estimates, measure_trees
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip.models.checkpoint import load_model

    device = device_named(options.device)
    bootstrap = Bootstrap(options.resamples, options.seed)
    models_scores: list[TreeScores] = []
    means, records, tables = [], [], []
    for name, spec in models.items():
        loaded = load_model(spec, device=device)
        scores = measure_trees(
            name, loaded, sampled, options.threshold, options.batch_size, options.seed
        )
        models_scores.append(scores)
        of_trees = {tree: estimates(scores.scores[tree], bootstrap) for tree in TREES}
        means.append(of_trees)
        record: dict[str, Any] = {
            "model": name,
            "weights": scores.weights,
            "layers": scores.layers,
            "headline": scores.headline,
            "captions": len(scores.captions),
            "left_out": dict(scores.left_out),
            "source": str(options.captions),
            "seed": options.seed,
            "scores": {tree: _by_threshold(scores, row) for tree, row in of_trees.items()},
        }
        rows = [[tree, *map(_cell, row)] for tree, row in of_trees.items()]
        base = models_scores[0]
        if scores is not base and scores.thresholds == base.thresholds:
            number, gap = differences(base, scores, bootstrap)
            record["difference"] = {"captions": number, "best": _by_threshold(scores, gap)}
            rows.append(["best, minus first", *(_cell(estimate, "+") for estimate in gap)])
        elif scores is not base:
            console.note(
                f"{base.model} has {base.layers} text layers and {name} {scores.layers}: not "
                "compared; name the layers to compare with --threshold"
            )
        records.append(record)
        layers = console.counted(scores.layers, "text layer")
        captions_measured = console.counted(len(scores.captions), "caption")
        title = f"{name}: {layers}, {captions_measured}{console.left_out_listed(scores.left_out)}"
        columns = [f"h = {h}" for h in scores.thresholds]
        columns[-1] += " (headline)"
        tables.append(Table(rows, ["tree score", *columns, "mean"], title=title))
    if options.out is not None:
        from compoclip.report.trajectory import tree_plot

        write_json(options.out / "tree-score.json", records)
        lines = [
            {
                "model": scores.model,
                "caption": caption,
                "score": round(float(row[-1]), 6),
                "tree": tree,
            }
            for scores in models_scores
            for caption, tree, row in zip(scores.captions, scores.trees, scores.scores[BEST])
        ]
        write_jsonl(options.out / "trees.jsonl", lines)
        for path in tree_plot(options.out / "tree-score", models_scores, means):
            console.note(f"written to {path}")
    return records, tables


def _by_threshold(scores: TreeScores, estimates: Sequence[Estimate]) -> dict[str, Any]:
    names = [*map(str, scores.thresholds), "mean"]
    return {name: asdict(estimate) for name, estimate in zip(names, estimates)}


def _cell(estimate: Estimate, sign: str = "") -> str:
    low, high = estimate.low, estimate.high
    interval = "-" if low is None or high is None else f"{low:{sign}.3f}, {high:{sign}.3f}"
    return f"{estimate.value:{sign}.3f} [{interval}]"


@dataclass(frozen=True)
class MapsOptions(OnDevice):
    """Draw token-patch maps: which patches of an image each word of a caption aligns with.

    Writes one picture per word and model to OUT.

    Examples:
        compoclip maps bundled --image cup.jpg --caption "a red cup" --out maps

    Args:
        models: Models, written as evaluate takes them; NAME=MODEL gives a name.
        image: Image file to map.
        caption: Its caption.
        out: Folder for the pictures.
    """

    models: Models
    image: InputFile
    caption: str
    out: OutputFolder


def maps_main(options: MapsOptions) -> Outcome:
    """Write OUT/MODEL/01-word.png, a picture per word and model."""
    from compoclip.data.decode import decode

    image = decode(options.image, upright=True)
    from compoclip.analysis.maps import overlay, patch_maps

    models = load_models(options.models, options.device)
    records, rows = [], []
    stems = file_stems(models)
    for name, model in models.items():
        maps = patch_maps(model, image, options.caption)
        for place, word in enumerate(maps.words, 1):
            plain = "".join(c for c in word.word if c.isalnum()) or "mark"
            path = options.out / stems[name] / f"{place:02}-{plain}.png"
            picture = overlay(image, word.attention, maps.region)
            write_atomically(path, partial(picture.save, format="PNG"))
            records.append(
                {"model": name, "word": word.word, "cosine": word.cosine, "picture": str(path)}
            )
            rows.append([name, word.word, f"{word.cosine:.3f}", str(path)])
        for lost in maps.left_out:
            console.note(f"{name}: '{lost}' lies beyond the context and has no map")
    pictures = [Path(row[-1]) for row in rows]
    console.note_others(options.out, ["*/[0-9][0-9]*-*.png"], pictures)
    return records, Table(rows, ["model", "word", "cosine", "picture"], left=2)


@dataclass(frozen=True, kw_only=True)
class NearestOptions(OnDevice):
    """Show the captions that models put nearest to some images of a retrieval benchmark.

    Images are sampled among those whose first caption differs between the models. A caption is
    marked if it belongs to the image, or differs from such a caption in one or two words.

    Examples:
        compoclip nearest base=bundled tuned=runs/fsc/model --on retrieval:captions.csv
            --out nearest.html

    Args:
        models: Models, written as evaluate takes them; NAME=MODEL gives a name.
        on: A retrieval benchmark, named as for evaluate; of a suite the first one.
        out: The page to write, an .html file.
        data: Data root in the default layout.
        images: Folder with the photos, if it is not in the data root.
        number: Images to show.
        captions: Captions per image and model.
        seed: Seed of the sample.
    """

    models: Models
    on: BenchmarkName
    out: OutputFile
    data: Path = Path("data")
    images: InputFolder | None = None
    number: Count = 8
    captions: Count = 3
    seed: int = 0


def nearest_main(options: NearestOptions) -> Outcome:
    """Load, rank, print a table of the first captions, and write the page."""
    benchmarks = Measuring(on=(options.on,), data=options.data, images=options.images).benchmarks()

    from compoclip.benchmarks.case import Retrieval

    retrieval = [(b.name, b.content) for b in benchmarks if isinstance(b.content, Retrieval)]
    if not retrieval:
        raise UsageError("--on: name a retrieval benchmark, such as retrieval:coco")
    benchmark, photos = retrieval[0]
    models = load_models(options.models)

    from compoclip.evaluation.encode import EncodeOptions
    from compoclip.search.nearest import nearest_captions, nearest_page

    device = device_named(options.device)
    sample = options.number, options.captions, options.seed
    nearest, differing = nearest_captions(models, photos, EncodeOptions(), device, *sample)
    images = console.counted(len(photos.images), "image")
    captions = console.counted(len(photos.texts), "caption")
    about = f"The nearest of {captions} for {len(nearest)} of {images} of {benchmark}"
    if len(models) > 1:
        about += f"; for {differing:,} of them the first caption differs between the models"
    nearest_page(nearest, f"{about}.", options.out)
    rows = [
        [Path(row.image.photo).name, name, first.kind, first.text]
        for row in nearest
        for name, (first, *_) in row.by_model.items()
    ]
    records = [{**asdict(row), "image": row.image.photo} for row in nearest]
    table = Table(rows, ["image", "model", "first caption is", "first caption"], left=4)
    return records, (table, f"written to {options.out}")
