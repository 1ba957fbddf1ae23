"""The lab from start to table: data, bounds, each arm's learning rate, every seed, one table."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from lab.job import Job, Outcome, method_of, outcome, results_of, run_job
from lab.page import Finding, Line, means_on, section
from lab.pool import run_all
from lab.settings import BASE, Arm, LabSettings

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
    grids = {arm.name: _grid(arm, settings, out) for arm in settings.arms}
    weights = load_model(settings.model).identity.weights
    if settings.compare_with:
        means_on(Path(settings.compare_with))  # hours before it is needed
    fixed = [
        Job(out, settings, None, 0, weights, fixed=name) for name in (BASE, *settings.ground.bounds)
    ]
    trials = [
        Job(out, settings, arm, settings.seeds[0], weights, rate, choosing=True)
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
        arm.name: Rates.of(grids[arm.name], [job for job in trials if job.arm == arm], columns)
        for arm in settings.arms
    }
    for job in trials:  # they would take gigabytes
        if rates[job.arm.name if job.arm else ""].chosen not in (0.0, job.rate):
            shutil.rmtree(job.folder / "model", ignore_errors=True)
            (job.folder / "train.jsonl").unlink(missing_ok=True)
    finals = [
        Job(out, settings, arm, seed, weights, rates[arm.name].chosen)
        for seed in settings.seeds
        for arm in settings.arms
        if rates[arm.name].chosen
    ]
    left += finish(finals, "measured")
    text = _report(settings, out / name, [*fixed, *finals], trials, rates)
    unchosen = len([name for name in chosen if not rates[name].chosen])
    if left or unchosen:
        note(
            f"the budget is spent: {counted(left, 'job')} not run, the rate of "
            f"{counted(unchosen, 'arm')} not chosen; the same command goes on"
        )
    return text


@dataclass(frozen=True)
class Rates:
    """The choice of an arm's learning rate. merits: rate -> what it is chosen by, of those tried,
    with none where there is no choice. chosen: 0 when some of several have not been tried."""

    merits: Mapping[float, float]
    chosen: float

    @classmethod
    def of(cls, grid: Sequence[float], trials: Sequence[Job], columns: Sequence[Column]) -> Rates:
        """The choice among a grid by these columns of the trials that are finished."""
        merits = {
            job.rate: merit({c.name: column_value(c, results_of(job)) for c in columns})
            for job in trials
            if outcome(job) is not None
        }
        if len(grid) == 1:
            return cls(merits, grid[0])
        return cls(merits, best_rate(merits) if len(merits) == len(grid) else 0.0)


def _grid(arm: Arm, settings: LabSettings, out: Path) -> tuple[float, ...]:
    """The rates that an arm chooses from."""
    return settings.lora_lrs if method_of(arm, out / "data").lora else settings.lrs


def _report(
    settings: LabSettings,
    out: Path,
    jobs: Sequence[Job],
    trials: Sequence[Job],
    rates: Mapping[str, Rates],
) -> str:
    """Tables of all finished jobs, whichever were asked for, in `out` without its suffix."""
    runs: dict[str, list[Run]] = {}
    done: dict[str, list[Outcome]] = {}
    for job in jobs:
        finished = outcome(job)
        if finished is not None:
            name = job.fixed if job.arm is None else job.arm.name
            runs.setdefault(name, []).append(results_of(job))
            done.setdefault(name, []).append(finished)
    if not runs:
        raise CompoclipError(f"{out.parent}: nothing is finished yet; raise --budget-minutes")
    columns = settings.ground.columns_for(settings, choosing=False)
    compared = _Compared(runs, columns)
    controls = {arm.name: settings.control_of(arm) for arm in settings.arms}
    lines = [
        _line(name, runs, done, compared, controls.get(name, ""), columns)
        for name in track(runs, "comparing", unit="arms")
    ]
    findings = [
        Finding(effect, column, compared.of(effect.against, effect.arm).get(column))
        for effect in settings.effects
        for column in effect.columns
    ]
    ended = [found for job in (*jobs, *trials) if (found := outcome(job)) is not None]
    minutes = sum(each.seconds for each in ended) / 60
    expected = len(jobs) + len(trials)
    made = (
        f"{counted(settings.steps, 'step')} of {settings.batch_size} images, "
        f"{settings.ground.about(settings)}, seeds {', '.join(map(str, settings.seeds))}; "
        f"base `{settings.model}`, weights {jobs[0].weights[:8]}; "
        f"{len(ended)} of {counted(expected, 'job')}, {minutes:.0f} minutes of one thread; "
        f"compoclip {__version__}."
    )
    choices = {name: (each.merits, each.chosen) for name, each in rates.items()}
    numbers: dict[str, Any] = {"made": made, "lines": [asdict(line) for line in lines]}
    agreeing = _agreement(settings, lines)
    others = list(runs) if settings.ours else []
    beside = {
        name: compared.of(name, settings.ours)
        for name in track(others, f"comparing {settings.ours} with", unit="arms")
    }
    ahead = {name: each for name, each in beside.items() if each}
    text = section(settings, lines, findings, choices, made, _partial(runs), agreeing, ahead)
    numbers["rates"] = {name: asdict(each) for name, each in rates.items()}
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
    return text


def _partial(runs: Mapping[str, Sequence[Run]]) -> str:
    """The benchmarks of which items are missing, with how many are there."""
    first = next(iter(runs.values()))[0]
    return ", ".join(
        f"{each.benchmark} ({each.headline_score.items(',')} items)"
        for each in first
        if each.partial
    )


def _agreement(settings: LabSettings, lines: Sequence[Line]) -> list[tuple[str, int, float, float]]:
    """Column by column, how the recipes rank here and in the other lab."""
    if not settings.compare_with:
        return []
    arms = {arm.name for arm in settings.arms}
    mine = {
        line.name: {name: fmean(values) for name, values in line.values.items()}
        for line in lines
        if line.name in arms
    }
    return agreement(mine, means_on(Path(settings.compare_with)))


class _Compared:
    """Differences between arms, each worked out once."""

    def __init__(self, runs: Mapping[str, Sequence[Run]], columns: Sequence[Column]) -> None:
        self._runs, self._columns = runs, columns
        self._known: dict[tuple[str, str], dict[str, Difference]] = {}

    def of(self, base: str, other: str) -> Mapping[str, Difference]:
        """By column, other minus base; empty when one of them has not been run."""
        if base == other or {base, other} & {*BOUNDS} or not {base, other} <= self._runs.keys():
            return {}
        if (base, other) not in self._known:
            self._known[base, other] = differences(
                *(self._runs[base], self._runs[other]), base != BASE, self._columns
            )
        return self._known[base, other]


def _line(
    name: str,
    runs: Mapping[str, Sequence[Run]],
    done: Mapping[str, Sequence[Outcome]],
    compared: _Compared,
    control: str,
    columns: Sequence[Column],
) -> Line:
    return Line(
        name=name,
        values={c.name: [_value(c, run, name) for run in runs[name]] for c in columns},
        speeds=[each.speed for each in done[name] if each.speed],
        to_base=compared.of(BASE, name),
        to_control=compared.of(control, name),
    )


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
