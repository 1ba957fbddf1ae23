"""The lab from start to table: data, bounds, each arm's learning rate, every seed, one table."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from compoclip.console import counted, note, track
from compoclip.errors import CompoclipError
from compoclip.files import only_writer, require_writable, write_text
from compoclip.models.checkpoint import load_model
from compoclip.version import __version__
from compoclip_world.bounds import BOUNDS, ORACLE
from lab.columns import (
    Column,
    Difference,
    Run,
    agreement,
    best_rate,
    column_value,
    differences,
    merit,
)
from lab.ground import DATA
from lab.job import Job, method_of, outcome, results_of, run_job
from lab.page import Choices, Finding, Line, means_on, record_text, section
from lab.pool import run_all
from lab.settings import BASE, LabSettings

NAME = "lab"


def run_lab(
    settings: LabSettings,
    out: Path,
    arms: Sequence[str] = (),
    budget: float = math.inf,
    workers: int = 2,
    name: str = NAME,
) -> str:
    """Run what is left of the lab in `out`; returns the Markdown section, also in out/NAME.md.

    out/NAME.tsv has all columns of its table.

    Settings that share what all arms share may be run in one folder: a job of both is done once.

    arms: names of those to run now, all when empty; the table has all that are finished. budget:
    seconds. Learning rates are chosen first; then all arms are measured with the first seed before
    any with the second, so that a budget that ends leaves few seeds rather than few arms. name: of
    the section and of the numbers (NAME.json) in `out`. Raises CompoclipError for whatever data,
    models or the disk object to and when another process is at work in `out`, UsageError for
    unknown arms, methods and settings.
    """
    require_writable(out)
    with only_writer(out, folder=True):
        return _run_lab(settings, out, arms, budget, workers, name)


def _run_lab(
    settings: LabSettings, out: Path, arms: Sequence[str], budget: float, workers: int, name: str
) -> str:
    started = time.monotonic()
    chosen = {settings.arm(name).name for name in arms} or {arm.name for arm in settings.arms}
    grids: dict[str, tuple[float, ...]] = {
        arm.name: settings.lora_lrs if method_of(arm, out / DATA).lora else settings.lrs
        for arm in settings.arms
    }
    grids |= {name: (rate,) for name, rate in settings.rates.items() if name in grids}
    weights = load_model(settings.model).identity.weights
    if settings.compare_with:
        means_on(Path(settings.compare_with))  # hours before it is needed
    fixed = [
        Job(out, settings, None, 0, weights, fixed=name) for name in (BASE, *settings.ground.bounds)
    ]
    seeds = {arm.name: arm.seeds or settings.seeds for arm in settings.arms}
    trials = [
        Job(out, settings, arm, seeds[arm.name][0], weights, rate, choosing=True)
        for arm in settings.arms
        for rate in (grids[arm.name] if len(grids[arm.name]) > 1 else ())
    ]
    settings.ground.prepare(settings, out, choosing=bool(trials))

    def finish(jobs: Sequence[Job], what: str) -> int:
        wanted = [job for job in jobs if job.arm is None or job.arm.name in chosen]
        todo = [job for job in wanted if outcome(job) is None]
        if done := len(wanted) - len(todo):
            note(f"{what}: {counted(done, 'job')} of {len(wanted)} finished before")
        note(f"{what}: running {counted(len(todo), 'job')}, {workers} at a time")
        return len(run_all(todo, run_job, workers, budget - (time.monotonic() - started)))

    left = finish([*fixed, *trials], "learning rates")
    columns = settings.ground.columns_for(settings, choosing=True)
    rates = {
        arm.name: _rates(grids[arm.name], [job for job in trials if job.arm == arm], columns)
        for arm in settings.arms
    }
    for job in trials:  # they would take gigabytes
        if rates[job.arm.name if job.arm else ""][1] not in (0.0, job.rate):
            shutil.rmtree(job.folder / "model", ignore_errors=True)
            (job.folder / "train.jsonl").unlink(missing_ok=True)
    finals = [
        Job(out, settings, arm, seeds[arm.name][turn], weights, rates[arm.name][1])
        for turn in range(max(map(len, seeds.values())))
        for arm in settings.arms
        if rates[arm.name][1] and turn < len(seeds[arm.name])
    ]
    left += finish(finals, "measured")
    text = _report(settings, out / name, [*fixed, *finals], trials, rates)
    unchosen = len([name for name in chosen if not rates[name][1]])
    if left or unchosen:
        note(
            f"the budget is spent: {counted(left, 'job')} not run, the rate of "
            f"{counted(unchosen, 'arm')} not chosen; the same command goes on"
        )
    return text


def _rates(
    grid: Sequence[float], trials: Sequence[Job], columns: Sequence[Column]
) -> tuple[Mapping[float, float], float]:
    """The choice among a grid by these columns of the trials that are finished, see `Choices`."""
    measured = {job.rate: results_of(job) for job in trials if outcome(job) is not None}
    merits = {
        rate: merit({c.name: column_value(c, results) for c in columns})
        for rate, results in measured.items()
    }
    if len(grid) == 1:
        return merits, grid[0]
    return merits, best_rate(merits) if len(merits) == len(grid) else 0.0


def _report(
    settings: LabSettings,
    out: Path,
    jobs: Sequence[Job],
    trials: Sequence[Job],
    rates: Choices,
) -> str:
    """Tables of all finished jobs, whichever were asked for, in `out` without its suffix."""
    runs: dict[str, list[Run]] = {}
    speeds: dict[str, list[float]] = {}
    for job in jobs:
        finished = outcome(job)
        if finished is not None:
            name = job.fixed if job.arm is None else job.arm.name
            runs.setdefault(name, []).append(results_of(job))
            speeds.setdefault(name, []).extend([finished.speed] if finished.speed else [])
    if not runs:
        raise CompoclipError(f"{out.parent}: nothing is finished yet; raise --budget-minutes")
    columns = settings.ground.columns_for(settings, choosing=False)

    @cache
    def compared(base: str, other: str) -> Mapping[str, Difference]:
        """By column, other minus base; empty when one of them has not been run."""
        if base == other or {base, other} & {*BOUNDS} or not {base, other} <= runs.keys():
            return {}
        return differences(runs[base], runs[other], base != BASE, columns)

    controls = {arm.name: settings.control_of(arm) for arm in settings.arms}
    lines = [
        Line(
            name=name,
            values={c.name: [_value(c, run, name) for run in runs[name]] for c in columns},
            speeds=speeds[name],
            to_base=compared(BASE, name),
            to_control=compared(controls.get(name, ""), name),
        )
        for name in track(runs, "comparing", unit="arms")
    ]
    findings = [
        Finding(effect, column, compared(effect.against, effect.arm).get(column))
        for effect in settings.effects
        for column in effect.columns
    ]
    ended = [found for job in (*jobs, *trials) if (found := outcome(job)) is not None]
    minutes = sum(each.seconds for each in ended) / 60
    lacking = ", ".join(arm.name for arm in settings.arms if arm.name not in runs)
    made = (
        f"Every recipe has {counted(len(settings.seeds), 'seed')} or more, and trains "
        f"{counted(settings.steps, 'step')} of {settings.batch_size} images from "
        f"`{settings.model}` (weights {jobs[0].weights[:8]}). "
        f"{settings.ground.about(settings)} "
        f"{len(ended)} of {counted(len(jobs) + len(trials), 'job')} ended"
        f"{lacking and f' (not run: {lacking})'} in {minutes:.0f} minutes of one thread "
        f"(compoclip {__version__})."
    )
    agreeing = []
    if settings.compare_with:
        means = {
            line.name: {name: fmean(values) for name, values in line.values.items()}
            for line in lines
            if line.name in controls
        }
        agreeing = agreement(means, means_on(Path(settings.compare_with)))
    beside = {
        name: compared(name, settings.ours)
        for name in track(
            list(runs) if settings.ours else [], f"comparing {settings.ours} with", unit="arms"
        )
    }
    ahead = {name: each for name, each in beside.items() if each}
    partial = ", ".join(
        f"{each.benchmark} ({each.headline_score.items(',')} items)"
        for each in next(iter(runs.values()))[0]
        if each.partial
    )
    text = section(settings, lines, findings, rates, made, partial, agreeing)
    numbers: dict[str, Any] = {"made": made, "lines": [asdict(line) for line in lines]}
    numbers["rates"] = {n: {"merits": all_of, "chosen": one} for n, (all_of, one) in rates.items()}
    numbers["effects"] = [
        {**asdict(replace(each.effect, columns=(each.column,))), "verdict": each.verdict}
        for each in findings
    ]
    if agreeing:
        numbers["agreement"] = agreeing
    numbers["ahead"] = {
        name: {column: asdict(each) for column, each in found.items()}
        for name, found in ahead.items()
    }
    for suffix, content in ((".md", text), (".json", json.dumps(_plain(numbers), indent=1))):
        write_text(out.with_name(out.name + suffix), content + "\n")
    write_text(out.with_name(f"{out.name}.tsv"), record_text(lines))
    return text


def _value(column: Column, run: Run, name: str) -> float:
    """The column's value; what the oracle is not asked for it reaches by construction."""
    if name == ORACLE and not any(column.parts(each) for each in run):
        return 1.0
    return column_value(column, run)


def _plain(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
