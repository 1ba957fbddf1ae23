"""The lab from start to table: data once, base once, every arm with every seed, one table."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from compoclip.console import counted, note
from compoclip.errors import CompoclipError
from compoclip.files import only_writer, read_json, require_writable, write_text
from compoclip.models.checkpoint import load_model
from compoclip.version import __version__
from compoclip.world.dataset import bundled_world, crowded
from compoclip.world.export.part import SuiteSpec
from compoclip.world.export.suite import write_suite
from compoclip.world.scene import WorldConfig
from lab.columns import COLUMNS, Difference, Run, column_value, differences
from lab.data import DataSpec, write_data
from lab.job import Job, Outcome, method_of, outcome, results_of, run_job
from lab.page import Finding, Line, section
from lab.pool import run_all
from lab.settings import BASE, LabSettings

SECTION, NUMBERS = "table.md", "lab.json"


def run_lab(
    settings: LabSettings,
    out: Path,
    arms: Sequence[str] = (),
    budget: float = math.inf,
    workers: int = 2,
) -> str:
    """Run what is left of the lab in `out`; returns the Markdown section, also in out/table.md.

    arms: names of those to run now, all when empty; the table has all that are finished. budget:
    seconds. All arms are run with the first seed before any with the second, so that a budget that
    ends leaves few seeds rather than few arms. Raises CompoclipError for whatever data, models or
    the disk object to and when another process is at work in `out`, UsageError for unknown arms,
    methods and settings.
    """
    require_writable(out)
    with only_writer(out, folder=True):
        return _run_lab(settings, out, arms, budget, workers)


def _run_lab(
    settings: LabSettings, out: Path, arms: Sequence[str], budget: float, workers: int
) -> str:
    started = time.monotonic()
    chosen = {settings.arm(name).name for name in arms} or {arm.name for arm in settings.arms}
    for arm in settings.arms:
        method_of(arm, out / "data")
    weights = load_model(settings.model).identity.weights
    jobs = [Job(out, settings, None, 0, weights)]
    jobs += [
        Job(out, settings, arm, seed, weights) for seed in settings.seeds for arm in settings.arms
    ]
    wanted = [job for job in jobs if job.arm is None or job.arm.name in chosen]
    todo = [job for job in wanted if outcome(job) is None]
    _prepare(settings, out)
    if len(todo) < len(wanted):
        note(f"{counted(len(wanted) - len(todo), 'job')} of {len(wanted)} finished before")
    note(f"running {counted(len(todo), 'job')}, {workers} at a time")
    left = run_all(todo, run_job, workers, budget - (time.monotonic() - started))
    text = _report(settings, out, jobs)
    if left:
        note(
            f"the budget is spent: {counted(len(left), 'job')} of {len(wanted)} not run, the first "
            f"is {left[0].name}; the same command goes on"
        )
    return text


def lab_world(world: WorldConfig) -> WorldConfig:
    """The world that arms train on: the demo's scenes, whose captions also mention relations."""
    pairs = crowded(world)
    weights = {**dict(pairs.caption_weights), "conjunction": 0.72, "relation": 0.2}
    return replace(pairs, caption_weights=tuple(sorted(weights.items())))


def _prepare(settings: LabSettings, out: Path) -> None:
    """Training data and test suite, unless they are there."""
    world = bundled_world()
    write_data(out / "data", DataSpec(lab_world(world), settings.scenes))
    suite, spec = out / "suite", SuiteSpec(world, settings.items)
    made_by = json.loads(json.dumps({"compoclip": __version__, **asdict(spec)}))
    if not (suite / "suite.json").is_file():
        note(f"writing the test suite -> {suite}")
        write_suite(suite, spec)
    found = read_json(suite / "suite.json")
    if found.get("made_by") != made_by:
        raise CompoclipError(
            f"{suite}: made with other settings; delete it or choose another --out"
        )
    names = [each["id"] for each in found["benchmarks"]]
    for name in settings.benchmarks:
        if name not in names:
            raise CompoclipError(f"no benchmark '{name}' in {suite}; it has: {', '.join(names)}")


def _report(settings: LabSettings, out: Path, jobs: Sequence[Job]) -> str:
    """Tables of all finished jobs, whichever were asked for."""
    runs: dict[str, list[Run]] = {}
    done: dict[str, list[Outcome]] = {}
    for job in jobs:
        finished = outcome(job)
        if finished is not None:
            name = BASE if job.arm is None else job.arm.name
            runs.setdefault(name, []).append(results_of(job))
            done.setdefault(name, []).append(finished)
    if not runs:
        raise CompoclipError(f"{out}: nothing is finished yet; raise --budget-minutes")
    compared = _Compared(runs)
    lines = [_line(name, runs, done, compared, settings.control) for name in runs]
    findings = [
        Finding(effect, column, compared.of(effect.against, effect.arm).get(column))
        for effect in settings.effects
        for column in effect.columns
    ]
    minutes = sum(each.seconds for found in done.values() for each in found) / 60
    made = (
        f"{counted(settings.steps, 'step')} of {settings.batch_size} images, {settings.scenes} "
        f"scenes, learning rate {settings.lr:g} ({settings.lora_lr:g} for adapters), seeds "
        f"{', '.join(map(str, settings.seeds))}; base `{settings.model}`, weights "
        f"{jobs[0].weights[:8]}; {counted(sum(map(len, done.values())), 'job')} of {len(jobs)}, "
        f"{minutes:.0f} minutes of one thread; compoclip {__version__}."
    )
    text = section(settings, lines, findings, made)
    numbers = {"made": made, "lines": [asdict(line) for line in lines]}
    numbers["effects"] = [
        {**asdict(replace(each.effect, columns=(each.column,))), "verdict": each.verdict}
        for each in findings
    ]
    for name, content in ((SECTION, text), (NUMBERS, json.dumps(_plain(numbers), indent=1))):
        write_text(out / name, content + "\n")
    return text


class _Compared:
    """Differences between arms, each worked out once."""

    def __init__(self, runs: Mapping[str, Sequence[Run]]) -> None:
        self._runs = runs
        self._known: dict[tuple[str, str], dict[str, Difference]] = {}

    def of(self, base: str, other: str) -> Mapping[str, Difference]:
        """By column, other minus base; empty when one of them has not been run."""
        if base == other or not {base, other} <= self._runs.keys():
            return {}
        if (base, other) not in self._known:
            self._known[base, other] = differences(
                self._runs[base], self._runs[other], trained=base != BASE
            )
        return self._known[base, other]


def _line(
    name: str,
    runs: Mapping[str, Sequence[Run]],
    done: Mapping[str, Sequence[Outcome]],
    compared: _Compared,
    control: str,
) -> Line:
    return Line(
        name=name,
        values={c.name: [column_value(c, run) for run in runs[name]] for c in COLUMNS},
        speeds=[each.speed for each in done[name] if each.speed],
        to_base=compared.of(BASE, name),
        to_control=compared.of(control, name) if name != BASE else {},
    )


def _plain(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
