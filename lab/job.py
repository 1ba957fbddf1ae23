"""One job of the lab: train an arm with one rate and seed and measure it; or the base, a bound."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from compoclip.benchmarks.case import Benchmark
from compoclip.data.fingerprint import Fingerprint
from compoclip.data.sources import Source
from compoclip.data.sources.open import open_source
from compoclip.differences import listed
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.results import Results, load_results
from compoclip.evaluation.run import evaluate
from compoclip.files import file_stem, read_json, write_json
from compoclip.methods.base import Method, Optim
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.models.conversion import interpolate
from compoclip.process import give_back
from compoclip.programs.run import Measuring
from compoclip.training.log import read_log
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings
from compoclip.typed import is_a
from compoclip_world.bounds import ORACLE, measure_bound
from lab.data import FILES
from lab.ground import CHOICE_SUITE, DATA, SUITE
from lab.settings import BASE, TERMS, Arm, LabSettings

DONE, TRIED = "done.json", "tried.json"


@dataclass(frozen=True)
class Job:
    """A model to measure: that of an arm, or without one the base or a bound, as `fixed` says.

    out: the lab's folder. weights: identity of the base. rate: peak learning rate. choosing: it is
    measured on the validation suite, for the choice of the rate. The run that is chosen is then
    measured on the test suite without being trained again.
    """

    out: Path
    settings: LabSettings
    arm: Arm | None
    seed: int
    weights: str
    rate: float = 0.0
    choosing: bool = False
    fixed: str = BASE

    @property
    def name(self) -> str:
        """The name of its folder and of its results."""
        if self.arm is None:
            return file_stem(self.fixed)
        return f"{self.arm.name}-lr{self.rate:g}-seed{self.seed}"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out / "runs" / self.name

    @property
    def done(self) -> Path:
        """The file that says that it is finished."""
        return self.folder / (TRIED if self.choosing else DONE)

    @property
    def suite(self) -> Path:
        """The suite that it is measured on."""
        return self.out / (CHOICE_SUITE if self.choosing else SUITE)

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """Those of the suite that it is measured on."""
        return self.settings.ground.measured(self.settings, self.choosing)

    @property
    def results(self) -> Path:
        """The folder of its results."""
        return self.out / ("choice" if self.choosing else "results") / self.name

    def made_from(self) -> dict[str, Any]:
        """All that decides its outcome, as JSON has it."""
        others = {
            *("arms", "effects", "control", "ours", "seeds", "left_out"),
            *("lrs", "lora_lrs", "rates", "quick"),
            # Which data it is, is checked when they are written.
            *("photos", "split", "compare_with"),
        }
        if self.settings.mask_duplicates is None:
            others.add("mask_duplicates")
        if not self.settings.world_seed:
            others.add("world_seed")
        common = {k: v for k, v in asdict(self.settings).items() if k not in others}
        arm = asdict(self.arm.plain) if self.arm else None
        which = {"arm": arm, "rate": self.rate, "seed": self.seed, "weights": self.weights}
        found: dict[str, Any] = json.loads(json.dumps({"common": common, **which}))
        return found


@dataclass(frozen=True)
class Outcome:
    """A finished job. seconds: of the whole job. speed: images a second while training; 0 for the
    base and the bounds."""

    name: str
    seconds: float
    speed: float


def outcome(job: Job) -> Outcome | None:
    """The outcome of a finished job, None for one that is not.

    Raises CompoclipError when its folder was made with other settings.
    """
    path = job.done
    if not path.is_file():
        return None
    record = read_json(path, damaged="delete the folder it is in")
    made_from: Any = record.get("made_from", {}) if isinstance(record, dict) else None
    require(isinstance(made_from, dict), path, "damaged; delete the folder it is in")
    before = Fingerprint(made_from)
    if differences := before.differences(Fingerprint(job.made_from())):
        raise CompoclipError(
            f"{job.folder}: made with other settings ({listed(differences)}); delete it to run it "
            "again, or choose another --out"
        )
    numbers: list[Any] = [record.get(name) for name in ("seconds", "speed")]
    good = all(is_a(each, float) and math.isfinite(each) for each in numbers)
    require(good, path, "damaged; delete the folder it is in")
    return Outcome(job.name, *numbers)


def results_of(job: Job) -> list[Results]:
    """The results of a finished job, in the order of the settings."""
    found = {each.benchmark: each for each in load_results(job.results)}
    missing = [name for name in job.benchmarks if name not in found]
    if missing and job.fixed != ORACLE:  # which leaves some out, see `compoclip_world.bounds`
        raise CompoclipError(f"{job.results}: no result for {missing[0]}; delete {job.folder}")
    return [found[name] for name in job.benchmarks if name in found]


def run_job(job: Job) -> Outcome:
    """Train and measure; what is finished already is not done again. Notes go to `log.txt`.

    Raises what training and evaluation raise.
    """
    finished = outcome(job)
    if finished is not None:
        return finished
    started = time.monotonic()
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        with (job.folder / "log.txt").open("a", encoding="utf-8") as log, redirect_stderr(log):
            method = trained_method(job.arm, job.out / DATA) if job.arm else None
            model, speed = _trained(job, method)
            _measure(job, model)
    except OSError as error:
        raise CompoclipError(
            f"{job.folder}: {error.strerror or error}; free space or choose another --out"
        ) from error
    done = Outcome(job.name, round(time.monotonic() - started, 1), round(speed, 1))
    record = {**asdict(done), "made_from": job.made_from()}
    shutil.rmtree(job.folder / "state", ignore_errors=True)
    give_back()
    write_json(job.done, record)
    return done


def _trained(job: Job, method: Method | None) -> tuple[LoadedModel, float]:
    """The model to measure, and the speed of its training."""
    base = load_model(job.settings.model)
    if job.arm is None or method is None:
        return base, 0.0
    train_arm(job.settings, job.arm, method, job.out / DATA, job.folder, job.seed, job.rate)
    steps = [each for each in read_log(job.folder / "train.jsonl") if "images" in each]
    speed = steps[-1]["images"] / max(steps[-1]["seconds"], 1e-9) if steps else 0.0
    tuned = load_model(str(job.folder / "model"))
    mix = job.arm.wise_ft
    return (tuned if mix == 1 else interpolate(base, tuned, mix)), speed


def train_arm(
    settings: LabSettings, arm: Arm, method: Method, data: Path, out: Path, seed: int, rate: float
) -> None:
    """Train an arm into the run folder `out`, unless its model is there."""
    if (out / "model").is_dir():
        return
    source = open_source(str(data / f"{arm.table}.jsonl"))
    masked = arm.method in MASKED if settings.mask_duplicates is None else settings.mask_duplicates
    run = RunSettings(
        out=out,
        seed=seed,
        crop=False,
        save_every=0,
        log_every=5,
        resume=True,
        cache_frozen=True,
        mask_duplicates=masked,
    )
    optim = optim_of(arm, method, settings, source, rate)
    # An adapter without the whole model is what a run leaves that ended while it was written.
    shutil.rmtree(out / "adapter", ignore_errors=True)
    run_training(load_model(settings.model), replace(method, optim=optim), source, run)


def _measure(job: Job, model: LoadedModel) -> None:
    """Write the results. All models have the base's image tower."""
    ground, out = job.settings.ground, job.results.parent
    measuring = Measuring(
        on=(str(job.suite),), workers=1, device="cpu", allow_partial=ground.partial
    )
    benchmarks = _benchmarks(measuring, job.benchmarks)
    with _kept_features(job) as cache:
        settings, _ = measuring.settings(cache=cache)
        if job.fixed == BASE:
            evaluate(job.name, ModelEncoder(model), benchmarks, out, settings)
            return
        table = job.out / DATA / f"{ground.tables[0]}.jsonl"
        captions = open_source(str(table)).captions()
        measure_bound(job.fixed, job.suite, benchmarks, captions, model, out, settings)


@contextmanager
def _kept_features(job: Job) -> Iterator[Path]:
    """A folder of features for one model, which begins with those of images of models before it.

    What is new of images stays for others with the same tower; features of texts, of which every
    model has its own, go when it is measured.
    """
    kept = job.out / "features"
    with tempfile.TemporaryDirectory(dir=job.folder) as place:
        _link(kept, Path(place))
        yield Path(place)
        _link(Path(place), kept)


def _link(source: Path, target: Path) -> None:
    """Give the feature files of images a name below another folder, too."""
    for path in source.glob("*/images/*.safetensors"):
        name = target / path.relative_to(source)
        name.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(path, name)


@lru_cache(maxsize=2)
def _benchmarks(measuring: Measuring, only: tuple[str, ...]) -> list[Benchmark]:
    """The benchmarks of a suite, read once by a process that measures several models."""
    return measuring.benchmarks(only=only)


def trained_method(arm: Arm, data: Path) -> Method:
    """The arm's method without the image tower, whose features are computed once."""
    method = method_of(arm, data)
    return replace(method, trains=replace(method.trains, image_tower=False))


def method_of(arm: Arm, data: Path) -> Method:
    """The arm's method with its own optimiser defaults; files that it names are the lab's.

    Raises UsageError for an unknown method or setting, and for values the recipe refuses.
    """
    recipe = load_recipe(arm.method)
    settings: dict[str, Any] = {}
    for name, value in arm.settings.items():
        if name == TERMS:
            continue
        if name not in recipe.options:
            raise UsageError(
                f"arm '{arm.name}': {arm.method} has no setting '{name}'; it has: "
                f"{', '.join(recipe.options)}"
            )
        settings[name] = str(data / value) if value in FILES else value
    return compose(recipe(**settings), terms=arm.settings.get(TERMS, ()))


# Recipes whose runs on the pages left equal texts out of contrasts; the others' did not.
MASKED = (
    *("c2lip", "compo", "cs-clip", "mosaic-clip", "mosaic-clip-pretrain", "negclip-original"),
    *("read-clip", "read-clip-align"),
)


def optim_of(arm: Arm, method: Method, settings: LabSettings, source: Source, rate: float) -> Optim:
    """The optimiser that all arms share: as many steps, and as many images in each, for every one.

    A batch of a method that shows further images with each sample has fewer samples.
    """
    samples = max(1, settings.batch_size // method.images.images_per_sample)
    epoch, _ = method.images.schedule(source, samples, 0)
    if epoch < 1:
        raise UsageError(
            f"arm '{arm.name}': {len(source)} samples are fewer than a batch; raise scenes"
        )
    return Optim(
        epochs=settings.steps / epoch,
        batch_size=samples,
        lr=rate,
        warmup=settings.warmup,
        clip_grad=settings.clip_grad,
    )
