"""Run a table or figure of a paper: its arms with every seed, measured beside the printed numbers.

    OUT/fingerprint.safetensors   scale, data and options that all runs share
    OUT/plans/TABLE.json          arms of a table, what each run was estimated to take, and took
    OUT/runs/NAME                 run folders; tables of one OUT share the runs that are equal
    OUT/results/NAME              results of every run, of the models they start from, and blind
    OUT/TABLE.md                  the page of a table, named by its id

`--scale world` runs the same arms on drawn scenes; what it needs comes from another package through
the entry-point group `compoclip.scales`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from compoclip import plugins
from compoclip.console import counted, duration, note
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.differences import require_same
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.published.protocols import training_photos
from compoclip.evaluation.published.read import (
    Arm,
    PublishedNumber,
    PublishedRow,
    PublishedTable,
)
from compoclip.files import only_writer, read_json, write_json
from compoclip.methods.registry import load_recipe
from compoclip.models.names import BLIND
from compoclip.programs.reproduce import ReproduceOptions
from compoclip.programs.request import TrainRequest
from compoclip.programs.run import EvaluateOptions, evaluate
from compoclip.programs.sweep import folder_name, run_one, slug
from compoclip.typed import read_fields
from compoclip.workers import at_once, available_cores

FULL = "full"
_PLACES = ("data", "images", "on", "eval_data")
"""Options of train that say where files lie, which the folder's record says for all its runs."""
_PLAN = ("table", "budget", "share", "runs", "estimated", "taken_seconds")
BLIND_MODEL = "captions-alone"
"""The name in results of the model that knows the training captions and sees no image."""
CHECKPOINTS = "checkpoints"
"""Folder of a data root for weights that authors published."""


@dataclass(frozen=True)
class Scale:
    """Where the arms of a table run, in place of the paper's data, model and optimiser.

    model: what every arm starts from. data: training data -> its place; an arm names one as
    `Arm.scene_data`. captions: text file with captions that no arm is trained on. on: the
    benchmarks. usual: options of train that an arm may change. by_recipe: the same for the arms of
    a recipe. fixed: options that no arm changes. lr, lora_lr: the learning rates of arms whose
    recipe has none in `by_recipe`, and of adapters. columns: id of a column -> the numbers it is
    the mean of here. about: what differs from the paper, in one sentence.
    """

    model: str
    data: Mapping[str, Path]
    captions: Path
    on: tuple[str, ...]
    usual: Mapping[str, Any]
    by_recipe: Mapping[str, Mapping[str, Any]]
    fixed: Mapping[str, Any]
    lr: float
    lora_lr: float
    columns: Mapping[str, tuple[PublishedNumber, ...]]
    about: str


@dataclass(frozen=True)
class ArmRun:
    """An arm with one seed. name: its folder, in which equal arms of other tables find it."""

    name: str
    arm: Arm
    request: TrainRequest | None = None

    @property
    def out(self) -> Path:
        """Return the run folder of a run that is trained."""
        assert self.request is not None
        return self.request.options.out

    @property
    def model(self) -> str:
        """Return the model to measure: the trained one, or the one that the arm names."""
        return str(self.out / "model") if self.request else self.arm.model


@dataclass(frozen=True)
class RunCost:
    """Seconds that a run takes to train and to measure, and how it fits here.

    micro_batch: images at a time; 0 for the whole batch. save_every: steps between states; 0 for
    the recipe's.
    """

    training: float
    measuring: float
    micro_batch: int = 0
    save_every: int = 0

    @property
    def seconds(self) -> float:
        """Return the seconds of both."""
        return self.training + self.measuring


@dataclass(frozen=True)
class Experiment:
    """A table at a scale.

    runs: label tuple of a row and block -> its runs, one per seed. samples: in the training data
    that the options name; 0 for none. share: of the training data that every run takes. budget:
    seconds that it was shortened to; 0 for none.
    """

    table: PublishedTable
    options: ReproduceOptions
    scale: Scale | None
    runs: Mapping[tuple[tuple[str, ...], str], tuple[ArmRun, ...]]
    samples: int = 0
    share: float = 1.0
    budget: float = 0.0

    @property
    def jobs(self) -> int:
        """Return the number of runs at once."""
        return self.options.jobs or (available_cores() if self.scale else 1)

    @property
    def device(self) -> str:
        """Return the device of every run, as --device names it."""
        automatic = self.options.device == "auto"
        return "cpu" if self.scale and automatic else self.options.device

    @property
    def unique(self) -> tuple[ArmRun, ...]:
        """Return all runs, each once."""
        every = {run.name: run for runs in self.runs.values() for run in runs}
        return tuple(every.values())

    @property
    def trained(self) -> tuple[ArmRun, ...]:
        """Return the runs that have to be trained."""
        return tuple(run for run in self.unique if run.request is not None)

    def measuring(self) -> EvaluateOptions:
        """Return how every model of the table is measured."""
        return EvaluateOptions(
            on=self.scale.on if self.scale else self.table.measure,
            data=self.options.data,
            out=self.options.out / "results",
            device=self.device,
            allow_partial=self.options.allow_partial,
        )


def scale_named(name: str, out: Path) -> Scale | None:
    """Return a scale of another package, None for the paper's own.

    Raise UsageError when no package has it.
    """
    if name == FULL:
        return None
    points = plugins.installed("scales")
    if name not in points:
        choices = ", ".join((FULL, *points))
        hint = "pip install compoclip-world" if name == "world" else f"known: {choices}"
        raise UsageError(f"--scale {name}: no such scale; {hint}")
    scale = plugins.imported(points[name], "scale")(out / name)
    assert isinstance(scale, Scale)
    return scale


def require_arms(table: PublishedTable, arms: Sequence[str]) -> list[PublishedRow]:
    """Return the rows with an arm; raise UsageError for words of --arms that none of them has."""
    rows = [row for row in table.rows if row.arm is not None]
    for words in arms:
        if not any(words.casefold() in row.name.casefold() for row in rows):
            listed = ", ".join(row.name for row in rows)
            raise UsageError(f"--arms {words}: no row of {table.title}; its rows: {listed}")
    return rows


def experiment(
    table: PublishedTable,
    options: ReproduceOptions,
    scale: Scale | None,
    samples: int = 0,
    share: float = 1.0,
    budget: float = 0.0,
) -> Experiment:
    """Choose the arms and seeds of a table, and make their training requests.

    The arguments are the fields of `Experiment`. Raise UsageError for an arm that the table does
    not have, or a table without arms.
    """
    if scale:  # all data sets of the paper are one here
        table = _at_scale(table, scale)
    rows = require_arms(table, options.arms)
    planned = Experiment(table, options, scale, {}, samples, share, budget)
    words = [word.casefold() for word in options.arms]
    names = {row.labels: row.name.casefold() for row in rows}
    runs: dict[tuple[tuple[str, ...], str], tuple[ArmRun, ...]] = {}
    for row in rows:
        chosen = not words or any(word in names[row.labels] for word in words)
        if not (chosen or row.labels == table.reference):
            continue
        assert row.arm is not None
        if scale and row.arm.settings.get("from_scratch"):
            note(f"left out: {row.name}: it trains from scratch, which takes the paper's data")
            continue
        if row.arm.checkpoint:
            if scale:
                continue
            path = _checkpoint(row.arm, options)
            if not path.is_file():
                note(f"left out: {row.name}: put the authors' weights at {path}")
                continue
        for block in table.blocks or ("",):
            arm = replace(row.arm, data=row.arm.block_data.get(block, row.arm.data))
            seeds = (options.seeds or table.seeds) if arm.recipe else (0,)
            runs[row.labels, block] = tuple(_run(arm, seed, planned) for seed in seeds)
    if not runs:
        reason = f"needs {table.needs}" if table.needs else "no row of it is trained here"
        raise UsageError(f"{table.title}: {reason}")
    return replace(planned, runs=runs)


def _at_scale(table: PublishedTable, scale: Scale) -> PublishedTable:
    """Return the table for one set of training data: the columns of its first block, and means."""
    first = next(iter(table.blocks), "")
    columns = []
    values = []
    for number, column in enumerate(table.columns):
        if column.block not in ("", first):
            continue
        sources = [term for term in column.terms if term[0].block in ("", first)]
        whole = 1.0 if column.difference else sum(weight for _, weight in sources)
        terms = [(replace(source, block=""), weight / whole) for source, weight in sources]
        if column.id in scale.columns:
            numbers = scale.columns[column.id]
            terms = [(source, 1 / len(numbers)) for source in numbers]
        columns.append(replace(column, block="", terms=tuple(terms)))
        values.append(number)
    rows = [
        replace(
            row,
            values=tuple(row.values[number] for number in values),
            deviations=tuple(row.deviations[number] for number in values if row.deviations),
        )
        for row in table.rows
    ]
    return replace(table, columns=tuple(columns), blocks={}, rows=tuple(rows))


def _checkpoint(arm: Arm, options: ReproduceOptions) -> Path:
    return options.data / CHECKPOINTS / arm.checkpoint


def _run(arm: Arm, seed: int, planned: Experiment) -> ArmRun:
    """Return the run of an arm with a seed, named by all that decides what it computes."""
    if arm.checkpoint:
        path = _checkpoint(arm, planned.options)
        return ArmRun(path.stem, replace(arm, model=f"{arm.model.partition(':')[0]}@{path}"))
    usual = planned.scale.model if planned.scale else arm.model
    arm = replace(arm, model=planned.options.model or usual)
    if not arm.recipe:
        return ArmRun(slug(f"base-{arm.model}"), arm)
    out = planned.options.out
    values = {**_values(arm, planned), "seed": seed, "out": out}
    request = TrainRequest.of(arm.recipe, values)
    decisive = {name: v for name, v in request.values(repeats=True).items() if name not in _PLACES}
    decisive |= {"trained on": [arm.data, arm.scene_data], "mix": [arm.wise_ft, arm.scope]}
    settings = "_".join(f"{name}-{value}" for name, value in arm.settings.items())
    mix = f"{arm.scope}-{arm.wise_ft:g}" if arm.wise_ft != 1 else ""
    words = "_".join(filter(None, (arm.recipe, settings, mix, f"seed-{seed}")))
    name = folder_name(words, decisive)
    options = replace(request.options, out=out / "runs" / name)
    return ArmRun(name, arm, replace(request, options=options))


def _values(arm: Arm, planned: Experiment) -> dict[str, Any]:
    """Return the options of train for an arm, all but seed and folder."""
    options, scale = planned.options, planned.scale
    more: dict[str, Any] = {"device": planned.device, "model": arm.model}
    if options.max_steps:
        more["max_steps"] = options.max_steps
    share = planned.share * arm.settings.get("fraction", 1.0)
    if scale is None:
        data = training_photos(arm.data)
        captions, images = str(options.data / data.captions), options.data / data.images
        if data.by_hand:
            captions, images = options.captions or "", options.images or options.data
            if planned.samples > data.number:
                share *= data.number / planned.samples
        if share < 1:
            more["fraction"] = share
        return {**arm.settings, **more, "data": captions, "images": images, "workers": "auto"}
    if share < 1:
        more["fraction"] = share
    of_recipe = {"lr": scale.lr, **scale.by_recipe.get(arm.recipe, {})}
    if load_recipe(arm.recipe)().lora:
        of_recipe["lr"] = scale.lora_lr
    arm_settings = {name: value for name, value in arm.settings.items() if name != "lr"}
    values = {**scale.usual, **of_recipe, **arm_settings, **scale.fixed, **more}
    values["data"] = str(scale.data[arm.scene_data])
    if arm.wise_ft != 1 and arm.scope == "image":
        values["freeze"] = ()  # the tower that is mixed has to be trained
    values["cache_frozen"] = "image" in values["freeze"] and values.get("alternate", True)
    return values


# --- Running. ---


def run_experiment(planned: Experiment, costs: Mapping[str, RunCost]) -> None:
    """Train and measure all that is missing; an interrupted table resumes.

    On drawn scenes a model that knows the training captions and sees no image is measured, too.
    costs: what the runs take, from `estimate`. Raise CompoclipError when a run fails, after the
    others are done, and UsageError when OUT holds other options.
    """
    out = planned.options.out
    with only_writer(out, folder=True):
        require_same_place(planned).save(out)
        plan = save_plan(planned, costs)
        interrupted = {run.name for run in planned.trained if run.out.is_dir()}
        measuring = planned.measuring()
        bases = {run.name: run.model for run in planned.unique if run.request is None}
        for run in planned.trained:
            if not run.arm.settings.get("from_scratch"):
                bases[slug(f"base-{run.arm.model}")] = run.arm.model
        if planned.scale:
            scenes = planned.scale.data[planned.unique[0].arm.scene_data]
            bases[BLIND_MODEL] = f"{BLIND}:{scenes}"
        evaluate(measuring, bases)
        failed = []
        for run, error, seconds in _train_all(planned, costs):
            if error:
                failed.append(f"{run.name}: {error}")
            elif run.name not in interrupted:
                expected = RunCost(**plan["estimated"][run.name]).seconds
                note(f"{run.name}: {duration(seconds)}, {duration(expected)} were estimated")
                plan["taken_seconds"][run.name] = round(seconds, 1)
                write_json(_plan_path(planned), plan)
        for run in planned.trained:
            if run.arm.wise_ft != 1 and Path(run.model).exists():
                from compoclip.models.checkpoint import load_model
                from compoclip.models.conversion import interpolate

                base, tuned = load_model(run.arm.model), load_model(run.model)
                mixed = interpolate(base, tuned, run.arm.wise_ft, run.arm.scope)
                evaluate(measuring, {mixed_name(run): mixed})
        if failed:
            raise CompoclipError(f"{len(failed)} of the runs failed; {failed[0]}")


def is_done(run: ArmRun, planned: Experiment) -> bool:
    """Return whether a run is trained and measured."""
    results = planned.options.out / "results" / mixed_name(run)
    return Path(run.model).exists() and results.is_dir()


def _plan_path(planned: Experiment) -> Path:
    return planned.options.out / "plans" / f"{planned.table.id}.json"


def earlier_plan(planned: Experiment) -> dict[str, Any]:
    """Return the plan that an earlier start of the table wrote; empty for none."""
    path = _plan_path(planned)
    if not path.is_file():
        return {}
    plan = read_json(path, damaged="delete it")
    return read_fields(plan, dict.fromkeys(_PLAN, object), str(path), "delete it", others=False)


def save_plan(planned: Experiment, costs: Mapping[str, RunCost]) -> dict[str, Any]:
    """Write what the table will do; what an earlier start estimated and measured stays."""
    before = earlier_plan(planned)
    estimated = {name: asdict(cost) for name, cost in costs.items()}
    plan = {
        "table": planned.table.id,
        "budget": planned.budget,
        "share": planned.share,
        "runs": {run.name: asdict(run.arm) for run in planned.unique},
        "estimated": {**estimated, **before.get("estimated", {})},
        "taken_seconds": before.get("taken_seconds", {}),
    }
    write_json(_plan_path(planned), plan)
    return plan


def _train_all(
    planned: Experiment, costs: Mapping[str, RunCost]
) -> Iterator[tuple[ArmRun, str, float]]:
    """Train and measure the runs, several at once; yield each with its error and seconds."""
    by_name = {run.name: run for run in planned.trained}
    on = planned.measuring().on
    requests = []
    for run in by_name.values():
        assert run.request is not None
        options = replace(
            run.request.options,
            on=on,
            eval_data=planned.options.data,
            allow_partial=planned.options.allow_partial,
        )
        cost = costs[run.name]
        if cost.save_every:
            micro, every = cost.micro_batch, cost.save_every
            options = replace(options, micro_batch=micro, save_every=every)
        requests.append(replace(run.request, options=options))
    note(f"{counted(len(requests), 'run')} -> {planned.options.out / 'runs'}")
    with at_once(min(planned.jobs, len(requests))) as apply:
        for line in apply(_timed, requests):
            yield by_name[line["name"]], line["error"], line["seconds"]


def _timed(request: TrainRequest) -> dict[str, Any]:
    """Train and measure one run in a worker; "seconds" are of the whole."""
    begin = time.monotonic()
    line = run_one(request)
    return {**line, "seconds": time.monotonic() - begin}


def mixed_name(run: ArmRun) -> str:
    """Return the name of a run in results, that of its mix where the arm has one."""
    return f"{run.name}-mixed" if run.arm.wise_ft != 1 else run.name


def require_same_place(planned: Experiment) -> Fingerprint:
    """Return what all runs of OUT share; raise UsageError where OUT holds runs of other options."""
    options = planned.options
    now = Fingerprint(
        {
            "max_steps": options.max_steps or 0,
            "captions": options.captions or "",
            "model": options.model,
            "images": str(options.images.resolve()) if options.images else "",
            "data": planned.scale.about if planned.scale else str(options.data.resolve()),
        }
    )
    if (options.out / FILE).exists():
        differences = Fingerprint.load(options.out).differences(now)
        remedy = "repeat the earlier options, or choose another --out"
        require_same(options.out, differences, "holds runs of other options", remedy)
    return now
