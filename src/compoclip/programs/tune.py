"""Tune a model on a user's own captioned photos: train, interpolate, measure, say what it brought.

A composition of `train`, `evaluate` and the sweep of `wise-ft`. The choices are rows of `RULES`.
Photos are in three parts: those that train, those that choose the point between base and tuned
model, and those that the verdict is measured on.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from compoclip.config import (
    BenchmarkName,
    DataName,
    DeviceName,
    InputFolder,
    ModelName,
    OutputFolder,
    Shown,
)
from compoclip.console import counted, left_out_listed, note, prose
from compoclip.errors import CompoclipError, UsageError, interruption_said
from compoclip.files import file_stem, only_writer, write_json
from compoclip.models.names import BUNDLED_KNOWS
from compoclip.notebook import preformatted
from compoclip.programs.request import TrainRequest
from compoclip.programs.run import train

if TYPE_CHECKING:
    from compoclip.analysis.interpolation import Point
    from compoclip.benchmarks.case import Benchmark
    from compoclip.data.sources import Source
    from compoclip.data.sources.open import OpenedPart
    from compoclip.evaluation.comparison import Difference
    from compoclip.evaluation.groups import Groups
    from compoclip.evaluation.results import Results, Score
    from compoclip.search import Lookup


@dataclass(frozen=True)
class SizeRule:
    """The settings for data of a size. Measurements: reports/tune.md.

    Args:
        photos: Up to how many photos, all parts together, the rule is for.
        method: The recipe.
        parameters: Of the recipe.
        lr: Learning rate of models of at most `SMALL` parameters.
        lr_large: Of larger ones; the papers' range, not measured here.
        steps: Of training.
        batch_size: At most; never more than there are photos to train on.
        held_out: Share of the photos that choose, and share of those that judge.
        freeze: What does not learn.
    """

    photos: float
    method: str
    parameters: Mapping[str, Any]
    lr: float
    lr_large: float
    steps: int
    batch_size: int
    held_out: float
    freeze: tuple[str, ...] = ("image",)


SMALL = 3e7
_ANCHOR = {"distill_weight": 2.56}  # three times the recipe's: few photos lose retrieval first
RULES = (
    SizeRule(200, "compo", _ANCHOR, 2e-4, 2e-6, 10, 64, 0.2),
    SizeRule(600, "compo", _ANCHOR, 5e-4, 2e-6, 60, 64, 0.15),
    SizeRule(2_000, "compo", _ANCHOR, 5e-4, 5e-6, 100, 64, 0.1),
    SizeRule(float("inf"), "compo", _ANCHOR, 5e-4, 5e-6, 200, 128, 0.1),
)
LEAST = 50  # photos; fewer leave too few to judge by
_STEPS = 4  # of the interpolation from base to tuned model
_MOST = 250  # items of a sub-task of the suite
RECALL = "Recall (mean of R@1, R@5, R@10)"
_WEAK = 0.25  # R@1 below which a search among the photos disappoints
NO_MODEL = (
    "name the model to begin from: --model ViT-B-32-quickgelu:openai, or a checkpoint folder; "
    f"bundled {BUNDLED_KNOWS}"
)


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Fine-tune a model on your captioned photos, and say whether that helped.

    The number of photos and the size of the model decide recipe, learning rate, steps and what is
    frozen. The splits are train, val and test of the data; without them, a hash of each photo
    decides. The photos of val choose between the base, the tuned model and mixes of the two. The
    verdict is measured on test. OUT/model is the model to use, which is the base if nothing helped.
    OUT/run has the training run and its config.yaml. OUT/results has the results for compare and
    report. OUT/found.html shows which photos three captions find before and after tuning.

    Examples:
        compoclip tune captions.csv --images photos/ --model ViT-B-32-quickgelu:openai --out tuned

    Args:
        data: Captioned photos in a form that train --data takes.
        out: Folder for everything.
        images: Folder that image paths in the data are relative to.
        image_column: Column with image paths, for tables.
        caption_column: Column or columns (comma-separated) with captions, for tables.
        templates: Make captions of class labels; "a photo of a {}.", a file, or a published set.
        held_out: Share of the photos in val, and again in test, if the hash decides.
        model: The model to begin from, written as for train.
        on: Further benchmarks for the base and OUT/model, named as for evaluate, such as
            zero_shot:mine,images=DIR.
        device: cpu, cuda, cuda:N or mps; auto uses a GPU if there is one.
        seed: Seed of training and of the hash.
        json: Print the verdict as JSON.
    """

    data: Annotated[DataName, Shown("DATA", positional=True)]
    out: OutputFolder
    images: InputFolder | None = None
    image_column: str | None = None
    caption_column: str | None = None
    templates: str | None = None
    held_out: Annotated[float | None, Shown(hint="(default: 0.1 to 0.2, by their number)")] = None
    model: Annotated[ModelName, Shown(hint=f"(required; bundled {BUNDLED_KNOWS})")] = ""
    on: Annotated[tuple[BenchmarkName, ...], Shown("BENCHMARK ...")] = ()
    device: DeviceName = "auto"
    seed: int = 0
    json: bool = False


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of `tune`, shown as the command prints it.

    Args:
        model: The folder with the model to use.
        alpha: Share of the tuned weights in it; 0 is the base.
        sentences: Whether it helped, what it cost, and what the model is and reaches.
        photos: In each part.
        rule: What was chosen, see `SizeRule`.
        chosen_by: On the photos that choose, by share: axis -> difference to the base.
        differences: On the photos that judge, axis -> difference of the model to the base.
        tuned: The same of the tuned model itself.
        seconds: Of training.
        config: The file that repeats the training.
        lookups: Sampled captions of the photos that judge, with the rank of their photo by the base
            and by the model; none where the model is the base.
        page: The page that shows what these captions find.
    """

    model: Path
    alpha: float
    sentences: tuple[str, ...]
    photos: Mapping[str, int]
    rule: SizeRule
    chosen_by: Mapping[float, Mapping[str, Difference]]
    differences: Mapping[str, Difference]
    tuned: Mapping[str, Difference] = field(default_factory=dict)
    seconds: float = 0.0
    config: Path = Path()
    lookups: tuple[Lookup, ...] = ()
    page: Path | None = None

    def __repr__(self) -> str:
        return "\n".join(
            [
                prose(self.sentences),
                f"{self.model}: the model to use",
                f"to search photos: compoclip index PHOTOS --model {self.model} --out photos.index",
                f"to repeat the training: compoclip train --config {self.config} --out RUN",
                *self._rank_lines(),
            ]
        )

    def _rank_lines(self) -> Iterator[str]:
        """Yield lines with the ranks of the photos that captions look for, before and after."""
        if self.page is None:
            return
        among = f"among the {counted(self.photos['test'], 'photo')} that judge"
        yield f"rank {among} of the photo of {len(self.lookups)} sampled captions, before and after"
        for lookup in self.lookups:
            before, after = lookup.ranks.values()
            yield f"{before:>7,} -> {after:<5,}  {lookup.caption}"
        yield f"see the photos: {self.page.absolute().as_uri()}"

    def _repr_html_(self) -> str:
        return preformatted(repr(self))

    def record(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        page = self.page and str(self.page)
        return {**asdict(self), "model": str(self.model), "config": str(self.config), "page": page}


def rule_for(photos: int, data: str = "data", left_out: str = "") -> SizeRule:
    """Return the rule for a number of photos; raise UsageError for fewer than `LEAST`.

    data: where they are, and left_out: what of them is left out, for the message.
    """
    if photos < LEAST:
        raise UsageError(
            f"{data}: {counted(photos, 'photo')}{left_out}; tune needs {LEAST}: fewer leave too "
            "few to judge by"
        )
    return next(rule for rule in RULES if photos <= rule.photos)


def tune(options: TuneOptions) -> Tuned:
    """Train, measure every mix on one part of the held-out photos, judge the best on another.

    Raise UsageError without a model, for too few photos, and data that name some splits only.
    """
    if not options.model:
        raise UsageError(NO_MODEL)
    from compoclip.data.sources.open import OpenedPart, Request
    from compoclip.data.usable import require_trainable

    # A mistake in the data is said before torch is loaded.
    shared = ("images", "image_column", "caption_column", "templates")
    reading = {name: getattr(options, name) for name in shared} | {"split_seed": options.seed}
    source = Request(options.data, split="all", **reading).open()
    rule = rule_for(len(source), options.data, left_out_listed(source.left_out))
    reading["held_out"] = rule.held_out if options.held_out is None else options.held_out
    parts = Request(options.data, **reading).parts_of(source, ("train", "val", "test"))
    photos = {split: len(part) for split, part in parts.items()}
    _require_photos(source)
    require_trainable(source)

    from compoclip.analysis import interpolation as mixes
    from compoclip.benchmarks.case import Retrieval
    from compoclip.benchmarks.registry import require_present
    from compoclip.data.fingerprint import Fingerprint, make_once
    from compoclip.evaluation.run import Options
    from compoclip.models.checkpoint import load_model, save_model
    from compoclip.programs.run import Measuring
    from compoclip.ranks import device_named
    from compoclip.search import look_up

    device = device_named(options.device)
    base = load_model(options.model)
    size = sum(parameter.numel() for parameter in base.encoder.model.parameters())
    lr = rule.lr if size <= SMALL else rule.lr_large
    batch = min(rule.batch_size, photos["train"])
    chosen_is = f"{rule.method}, learning rate {lr:g}, about {rule.steps} steps of {batch} photos"
    uses = {"train": "train", "val": "choose", "test": "judge"}
    listed = ", ".join(f"{number:,} photos {uses[part]}" for part, number in photos.items())
    rest = {"photo of none of these parts": len(source) - sum(photos.values())}
    listed += left_out_listed({**source.left_out, **rest})
    note(f"{listed}; {chosen_is}, {' and '.join(rule.freeze)} frozen")
    file = Path(options.data)
    choosing, judging = (
        _benchmarks(OpenedPart(file, split, parts[split]), options.templates)
        for split in ("val", "test")
    )
    others = Measuring(on=options.on).benchmarks() if options.on else []
    for benchmark in (*choosing, *judging):
        require_present(benchmark, allow_partial=False)
    values: dict[str, Any] = {
        **{name: getattr(options, name) for name in ("data", "model", "device", "seed")},
        **reading,
        **rule.parameters,
        "split": "train",
        "out": options.out / "run",
        "freeze": rule.freeze,
        "cache_frozen": True,
        "crop": False,
        "lr": lr,
        "batch_size": batch,
        "epochs": rule.steps * batch / photos["train"],
        "resume": (options.out / "run").is_dir(),
    }
    chosen = {name: value for name, value in values.items() if value is not None}
    request = TrainRequest.of(rule.method, chosen)
    with only_writer(options.out, folder=True):
        with interruption_said():
            _, summary = train(
                request.options,
                request.composed(),
                config=request.text(repeats=True),
                inputs=(parts["train"], []),
            )
        tuned = load_model(str(options.out / "run" / "model"))
        pair = mixes.BaseAndTuned(base, tuned)
        settings = Options(cache=options.out / ".features")
        note(f"choosing a mix of base and tuned model on {photos['val']} photos")
        alphas, place = mixes.shares(_STEPS), options.out / "choice"
        first = mixes.sweep(
            pair, ("all",), alphas, choosing, place, settings, device, _axes_and_recall
        )
        line = together_corrected(first.lines["all"])
        mix = best(line)
        note(f"judging the choice on {photos['test']} photos")
        ends, place = sorted({mix.mix.alpha, 1.0}), options.out / "results"
        benchmarks = [*judging, *others]
        last = mixes.sweep(pair, ("all",), ends, benchmarks, place, settings, device)
        _remove_others(place, [point.mix.name for point in last.points], benchmarks)
        points = {point.mix.alpha: point for point in last.points}
        trained, by = points[mix.mix.alpha or 1.0], f"{photos['val']} photos that choose"
        if mix.mix.alpha and not holds(trained):
            mix, by = points[0.0], f"{photos['test']} photos that judge"
        model, alpha = options.out / "model", mix.mix.alpha
        mixed = {"base": asdict(base.identity), "tuned": asdict(tuned.identity), "alpha": alpha}
        make_once(model, Fingerprint(mixed), lambda: save_model(pair.mixed(mix.mix), model))
        page = options.out / "found.html"
        lookups: tuple[Lookup, ...] = ()
        page.unlink(missing_ok=True)  # of an earlier call
        if alpha:
            content = judging[0].content
            assert isinstance(content, Retrieval)
            both = {"the base": base, "the model": pair.mixed(mix.mix)}
            lookups = look_up(both, content, settings, device, options.seed, page)
        verdict = Tuned(
            model=model,
            alpha=alpha,
            sentences=sentences(points[alpha], trained, photos["test"], summary.seconds, by),
            photos=photos,
            rule=rule,
            chosen_by={point.mix.alpha: point.differences for point in line},
            differences=points[alpha].differences,
            tuned=points[1.0].differences,
            seconds=summary.seconds,
            config=options.out / "run" / "config.yaml",
            lookups=lookups,
            page=page if lookups else None,
        )
        write_json(options.out / "tune.json", verdict.record())
    return verdict


def _require_photos(source: Source) -> None:
    """Raise CompoclipError when a photo is missing."""
    images = (source.bare(index).image for index in range(len(source)))
    gone = [image for image in images if isinstance(image, Path) and not image.is_file()]
    if gone:
        raise CompoclipError(
            f"{source.describe()}: {counted(len(gone), 'photo')} missing, such as {gone[0]}; name "
            "their folder with --images, or remove their rows (compoclip data audit counts them)"
        )


def _benchmarks(part: OpenedPart, templates: str | None) -> list[Benchmark]:
    """Retrieval and the suite of rewrites of a part of the photos."""
    from compoclip.benchmarks.registry import load_benchmark
    from compoclip.benchmarks.targets import FILES

    options: dict[str, dict[str, Any]] = {"retrieval": {}, "rewrites": {"most": _MOST}}
    return [
        load_benchmark(FILES[name], Path("data"), opened=part, templates=templates, **more)
        for name, more in options.items()
    ]


def _axes_and_recall(results: Sequence[Results]) -> Groups:
    """Return the axes, and the mean of R@1, R@5 and R@10, which varies less than R@1."""
    from compoclip.analysis.interpolation import axes_of
    from compoclip.evaluation.comparison import ScorePart
    from compoclip.evaluation.groups import RETRIEVAL, profile_groups

    recall = tuple(
        ScorePart(part.benchmark, name, metric)
        for part in profile_groups(results)[RETRIEVAL]
        for name in ("i2t", "t2i")
        for metric in ("r1", "r5", "r10")
    )
    return {**axes_of(results), RECALL: recall}


def together_corrected(points: Sequence[Point]) -> list[Point]:
    """Correct the gains that the choice looks at, of all points, as one family.

    points: The base first.
    """
    from compoclip.evaluation.comparison import together
    from compoclip.evaluation.groups import COMPOSITION

    base, *mixed = points
    tables = together([[p.differences[axis] for axis in (COMPOSITION, RECALL)] for p in mixed])
    return [
        base,
        *(
            replace(point, differences={**point.differences, **{d.name: d for d in table}})
            for point, table in zip(mixed, tables)
        ),
    ]


def _remove_others(place: Path, names: Sequence[str], benchmarks: Sequence[Benchmark]) -> None:
    """Remove results of an earlier call, of mixes and benchmarks that this one did not measure."""
    measured = {file_stem(benchmark.name) for benchmark in benchmarks}
    for folder in place.iterdir():
        if not re.fullmatch(r"base|tuned|all-[\d.]+", folder.name):
            continue
        if folder.name not in names:
            shutil.rmtree(folder)
            continue
        for file in (*folder.glob("*.json"), *folder.glob("*.parquet")):
            if file.stem not in measured:
                file.unlink()


def best(points: Sequence[Point]) -> Point:
    """Return the point to hand out, by the photos that choose.

    Of the points that lose at most `comparison.MARGIN` of recall it is the one that gains most in
    the sum of recall and compositionality, if either gain is significant; else the base.

    points: From the base on, by rising share of the tuned weights, as `together_corrected`.
    """
    from compoclip.evaluation.comparison import MARGIN
    from compoclip.evaluation.groups import COMPOSITION

    def gain(point: Point) -> float:
        return sum(point.differences[axis].difference for axis in (COMPOSITION, RECALL))

    able = [
        point
        for point in points[1:]
        if point.differences[RECALL].difference >= -MARGIN
        and any(point.differences[axis].verdict == "higher" for axis in (COMPOSITION, RECALL))
    ]
    return max(able, key=gain, default=points[0])


def holds(point: Point) -> bool:
    """Return whether the photos that judge find a significant gain, and no significant loss of
    retrieval or zero-shot accuracy."""
    from compoclip.evaluation.groups import COMPOSITION, RECOGNITION, RETRIEVAL

    verdicts = {axis: difference.verdict for axis, difference in point.differences.items()}
    return "higher" in (verdicts[COMPOSITION], verdicts[RETRIEVAL]) and "lower" not in (
        verdicts.get(RECOGNITION),
        verdicts[RETRIEVAL],
    )


def sentences(
    chosen: Point, trained: Point, judged: int, seconds: float, by: str
) -> tuple[str, ...]:
    """Return sentences: whether it helped, what it cost, and what the model is and reaches.

    A last one says so if retrieval is too weak for search.

    Args:
        chosen: The point that is handed out.
        trained: The same, or where that is the base, the point that is not handed out.
        judged: Number of photos that judge.
        seconds: Of training.
        by: Which photos decided for the base.
    """
    from compoclip.evaluation.groups import COMPOSITION, RECOGNITION, RETRIEVAL
    from compoclip.evaluation.numerals import with_interval
    from compoclip.evaluation.statistics import NOT_SIGNIFICANT

    names = {
        COMPOSITION: "the suite of rewritten captions",
        RETRIEVAL: "retrieval R@1",
        RECOGNITION: "zero-shot accuracy",
    }

    def verdict(difference: Difference) -> str:
        corrected = " after correction" if difference.verdict == NOT_SIGNIFICANT else ""
        return difference.verdict + corrected

    def changes(differences: Mapping[str, Difference], axes: Sequence[str]) -> str:
        return ", ".join(
            f"{names[axis]} {100 * d.base:.1f} -> {100 * d.other:.1f} "
            f"({with_interval(d.difference, d.low, d.high, '+')}, {verdict(d)})"
            for axis in axes
            if (d := differences.get(axis))
        )

    def levels(scores: Mapping[str, Score]) -> str:
        return ", ".join(
            f"{names[axis]} {100 * scores[axis].value:.1f} (chance {100 * scores[axis].chance:.1f})"
            for axis in names
            if axis in scores
        )

    base = chosen.mix.alpha == 0
    differences = trained.differences if base else chosen.differences
    lower = [axis for axis in names if axis in differences and differences[axis].verdict == "lower"]
    unseen = "training did not see" if base else "neither training nor the choice saw"
    photos = f"on {counted(judged, 'photo')} that {unseen}"
    alpha = (trained if base else chosen).mix.alpha
    share = f"{100 * alpha:.0f} % of the way from the base to the tuned model"
    cost = f"It cost {seconds:.0f} s of training"
    recall = chosen.scores[RETRIEVAL].value if RETRIEVAL in chosen.scores else 1.0
    weak = (
        f"Retrieval ranks the right one of {counted(judged, 'photo')} first in {100 * recall:.0f} "
        "% of the searches: that is too weak for search; begin from a larger CLIP, such as "
        "--model ViT-B-32-quickgelu:openai.",
    )
    warning = weak if recall < _WEAK else ()
    if base:
        return (
            f"Fine-tuning did not help, according to the {by}. The model that was not taken is "
            f"{share}. It scores {photos}: {changes(differences, [*names])}.",
            f"{cost}; no accuracy, since the base is kept.",
            f"The model is the base itself and reaches {levels(chosen.scores)}.",
            *warning,
        )
    helped = "It helped in part" if lower else "It helped"
    loss = f"lost: {changes(differences, lower)}" if lower else "nothing was lost significantly"
    zero = changes(differences, [RECOGNITION])
    zero = zero or "zero-shot accuracy was not measured (--on BENCHMARK)"
    return (
        f"{helped}: {photos}, {changes(differences, [COMPOSITION, RETRIEVAL])}.",
        f"{cost}; {loss}; {zero}.",
        f"The model is {share} and reaches {levels(chosen.scores)}.",
        *warning,
    )
