"""`compoclip evaluate MODEL ... --on BENCHMARK ...`: measure models on benchmarks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from compoclip import console
from compoclip.cli.options import device_named, joined, parse, require_seeds
from compoclip.errors import UsageError
from compoclip.files import require_writable
from compoclip.ranks import meeting

if TYPE_CHECKING:
    import torch

    from compoclip.benchmarks.case import Benchmark
    from compoclip.evaluation.results import Results
    from compoclip.evaluation.run import Options
    from compoclip.models.checkpoint import LoadedModel


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure models on benchmarks; results go to OUT/MODEL/BENCHMARK.json and .parquet.

    Every distinct image and text is encoded once for all benchmarks. An interrupted run goes on
    where it stopped; results that are already there for the same weights, data, protocol and
    draws are not computed again. torchrun shares the encoding among processes. Several models
    also get one table side by side, the first as the base.

    Examples:
        compoclip evaluate bundled --on sugarcrepe --data /data
        compoclip evaluate base=ViT-B-32-quickgelu:openai tuned=runs/fsc/model --on suite/
        compoclip evaluate bundled --on sugarcrepe,annotations=/a/sugarcrepe,images=/coco/val2017
        compoclip evaluate bundled --on all --data /data
        torchrun --nproc-per-node 2 -m compoclip evaluate bundled --on all --device cuda

    Args:
        models: Checkpoint folder, ARCHITECTURE:TAG (open_clip weights), ARCHITECTURE@FILE,
            hf-hub:ID or "bundled"; NAME=MODEL gives it a name in the results.
        on: Benchmarks: NAME, NAME:PART (e.g. sugarcrepe:swap_*, retrieval:coco, zero_shot:dtd),
            with its own places and options as NAME,root=DIR,images=DIR,annotations=PATH,id=NAME;
            or a suite: a folder with suite.json, or a data root of which everything found is taken;
            or "all": everything found in the data root; or comp, elevater, elevater_20,
            imagenet_shifts, retrieval_3: suites of the literature.
        data: Data root in the default layout.
        images: Folder with the photos, when it is not in the data root.
        out: Folder for the results.
        score: itc is the cosine of features; itm, of BLIP, what its matching head says of a pair:
            slow, and for benchmarks of items only.
        batch_size: Images or texts encoded at once; changes scores by rounding (1e-6) only.
        workers: Threads that read images.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        activation: Override the activation that a checkpoint states.
        allow_partial: Score what is there when images or items are missing, and mark it.
        exclude_faulty: Also score without the items that an audit finds faulty, ties wrong (see
            data audit); both numbers are shown and stored.
        max_bad: Damaged images to leave out before giving up.
        cache: Folder for encoded features [default: OUT/.features].
        fresh: Measure again even where results are already there.
        resamples: Bootstrap resamples for intervals.
        seed: Seed of the bootstrap.
        json: Print the results as JSON.
    """

    on: Annotated[tuple[str, ...], tyro.conf.arg(metavar="BENCHMARK ...")]
    models: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL ...", help_behavior_hint="(required)"),
    ] = ()
    data: Path = Path("data")
    images: Path | None = None
    out: Path = Path("results")
    score: Literal["itc", "itm"] = "itc"
    batch_size: int = 64
    workers: int = 2
    device: str = "auto"
    activation: Literal["gelu", "quick_gelu"] | None = None
    allow_partial: bool = False
    exclude_faulty: bool = False
    max_bad: int = 0
    cache: Path | None = None
    fresh: bool = False
    resamples: int = 2000
    seed: int = 0
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, evaluate every model, print a table a benchmark."""
    options = parse(EvaluateOptions, "evaluate", joined(argv, "--on"))
    return run(options)


def run(options: EvaluateOptions) -> int:
    """Measure every model, print a table a benchmark."""
    if not options.models:
        raise UsageError("name at least one model and one benchmark; see evaluate --help")
    models = named_models(options.models)
    results = measure(options, models, _silent if options.json else _shown(options))
    if not results:  # the first process has them
        return 0
    if options.json:
        console.emit_json([asdict(each) for each in results])
    elif len(models) > 1:
        from compoclip.evaluation.tables import overview_text

        print(overview_text(results, base=next(iter(models))))
    return 0


def measure(
    options: EvaluateOptions,
    models: Mapping[str, str | LoadedModel],
    done: Callable[[str, list[Results]], None],
) -> list[Results]:
    """Load benchmarks, then one model after the other: all their results.

    models: by name, to load or loaded (then where it is); `options.models` is not looked at. done:
    called with the results of each model. Under torchrun all processes encode; only the first has
    results and calls `done`. Raises UsageError for wrong options, and what loading
    and `evaluation.run.evaluate` raise.
    """
    if not options.on:
        raise UsageError("name at least one model and one benchmark; see evaluate --help")
    for name in ("batch_size", "workers", "resamples"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
    if options.max_bad < 0:
        raise UsageError("--max-bad must not be negative")
    require_seeds(options)
    require_writable(options.out)

    from compoclip.evaluation.targets import parse_targets

    targets = parse_targets(options.on, options.data, options.images)
    benchmarks = [target.load() for target in targets]

    from compoclip.evaluation.run import Options, evaluate, require_data

    require_data(benchmarks, options.allow_partial)
    device = device_named(options.device)
    from compoclip.benchmarks.audit import audit
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model

    settings = Options(
        batch_size=options.batch_size,
        workers=options.workers,
        max_bad=options.max_bad,
        allow_partial=options.allow_partial,
        cache=options.cache or options.out / ".features",
        resamples=options.resamples,
        seed=options.seed,
        fresh=options.fresh,
        score=options.score,
        audits={each.name: audit(each) for each in benchmarks} if options.exclude_faulty else {},
    )
    everything: list[Results] = []
    with meeting(device) as ranks:
        settings = replace(settings, ranks=ranks)
        for name, spec in models.items():
            loaded = (
                load_model(spec, activation=options.activation, device=device)
                if isinstance(spec, str)
                else spec
            )
            results = evaluate(name, ModelEncoder(loaded), benchmarks, options.out, settings)
            everything += results
            if ranks.first:
                done(name, results)
    return everything


def _silent(name: str, results: list[Results]) -> None:
    """What is printed of each model when all are printed at the end."""


def _shown(options: EvaluateOptions) -> Callable[[str, list[Results]], None]:
    """Prints the tables of a model's results."""

    def show(name: str, results: list[Results]) -> None:
        from compoclip.evaluation.groups import overall_scores, overall_text
        from compoclip.evaluation.tables import results_text

        print("\n\n".join(results_text(each) for each in results), end="\n\n", flush=True)
        means = overall_scores(results, options.resamples, options.seed)
        if means:
            print(overall_text(name, means), end="\n\n", flush=True)

    return show


def named_models(texts: Sequence[str]) -> dict[str, str]:
    """Name -> what to load, from "NAME=MODEL" or "MODEL".

    What a run leaves, RUN/model or RUN/adapter, is called RUN. Raises UsageError when two models
    have one name.
    """
    models: dict[str, str] = {}
    for text in texts:
        match = re.fullmatch(r"([\w.@+-]+)=(.+)", text)
        if match:
            name, spec = match[1], match[2]
        else:
            path = Path(text.removeprefix("local-dir:"))
            own = path.parent.name if path.name in ("model", "adapter") else path.name
            name, spec = (own if path.is_dir() and own else text), text
        if name in models:
            raise UsageError(f"two models are called '{name}'; name them: NAME=MODEL")
        models[name] = spec
    return models


# --- Options of the verbs that measure models made on the way. ---


@dataclass(frozen=True)
class Measuring:
    """How to measure, as for evaluate."""

    on: tuple[str, ...] = ()
    """benchmarks or suites, written as for evaluate --on"""
    data: Path = Path("data")
    """data root in the default layout"""
    images: Path | None = None
    """folder with the photos, when it is not in the data root"""
    batch_size: int = 64
    """images or texts encoded at once"""
    workers: int = 2
    """threads that read images"""
    device: str = "auto"
    """cpu, cuda, cuda:N or mps; auto takes a GPU when there is one"""
    allow_partial: bool = False
    """score what is there when images or items are missing, and mark it"""
    max_bad: int = 0
    """damaged images to leave out before giving up"""
    resamples: int = 2000
    """bootstrap resamples for intervals"""
    seed: int = 0
    """seed of the bootstrap"""
    fresh: bool = False
    """measure again even where results are already there"""


def benchmarks_of(measuring: Measuring) -> list[Benchmark]:
    """What --on names, checked as far as it can be without a model.

    Raises UsageError for wrong options and names, CompoclipError for missing data.
    """
    if not measuring.on:
        raise UsageError("name what to measure on: --on BENCHMARK ...")
    for name in ("batch_size", "workers", "resamples"):
        if getattr(measuring, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
    if measuring.max_bad < 0:
        raise UsageError("--max-bad must not be negative")
    from compoclip.evaluation.run import require_data
    from compoclip.evaluation.targets import parse_targets

    targets = parse_targets(measuring.on, measuring.data, measuring.images)
    benchmarks = [target.load() for target in targets]
    require_data(benchmarks, measuring.allow_partial)
    return benchmarks


def settings_of(measuring: Measuring, cache: Path) -> tuple[Options, torch.device]:
    """Settings of `evaluate`, with features kept in `cache`, and the device."""
    from compoclip.evaluation.run import Options

    settings = Options(
        batch_size=measuring.batch_size,
        workers=measuring.workers,
        max_bad=measuring.max_bad,
        allow_partial=measuring.allow_partial,
        cache=cache,
        resamples=measuring.resamples,
        seed=measuring.seed,
        fresh=measuring.fresh,
    )
    return settings, device_named(measuring.device)
