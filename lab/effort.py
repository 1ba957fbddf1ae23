"""Recipes compared at equal effort: as many trials, and as much compute a run, for each.

    python -m lab.effort --out effort-out [--budget-minutes 120] [--page reports/effort.md]
    python -m lab.effort --out effort-other-out --draw 1 --recipes clip-ft negclip
    python -m lab.effort --photos DATA --base MODEL --page reports/effort-photos.md

Every recipe tries the same number of settings (rates and weights), proposed by the same sampler of
Optuna and judged on the validation suite. The best of them is then trained on several budgets of
compute with several seeds, and measured on the test suite. Compute is counted in positions of texts
that pass through a text tower; one with a backward pass counts three times. What is finished is not
done again: after a stop, the same command goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import optuna
import torch

from compoclip.console import end_with, note
from compoclip.errors import UsageError, require
from compoclip.evaluation.results import Results
from compoclip.files import (
    only_writer,
    read_json,
    read_text,
    require_writable,
    write_json,
    write_text,
)
from compoclip.models.checkpoint import load_model
from compoclip.models.text_tower import TextTower
from compoclip_world.bounds import TEXT_ONLY
from lab.effort_page import (
    Finished,
    Run,
    columns_table,
    gains_table,
    ground_on,
    grounded_runs,
    mean_gain,
    record_table,
    settings_table,
    summary_table,
)
from lab.ground import DATA
from lab.job import Job, outcome, results_of, run_job, train_arm, trained_method
from lab.page import lab_parser, publish, write_section
from lab.pool import run_all
from lab.settings import BASE, Arm, LabSettings, read_settings, record_of

_RECIPES = Path(__file__).parents[1] / "recipes"
_WORLD, _PHOTOS = _RECIPES / "effort.json", _RECIPES / "effort-photos.json"
RATE = "lr"
_ASKED_AGAIN = {"world-foils", "world-sugarcrepe"}  # by strict pairs and SugarCrepe++
_SAMPLED_AT_RANDOM = 4  # trials of a recipe before the sampler looks at what they gave
_COUNTED_STEPS = 4

Point = Mapping[str, float]
"""The settings of one trial: the rate, and weights by name."""


@dataclass(frozen=True)
class Searched:
    """A recipe and what its trials vary.

    settings: fixed ones. search: setting -> the ends of its range, on a log scale; `RATE` is the
    peak learning rate. chosen: the point that earlier trials chose; with it, none are run. merits:
    the lowest and the highest of these trials, in points. table: which training table, the ground's
    first when empty. seeds: those of the file when empty.
    """

    name: str
    method: str
    search: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)
    merits: tuple[float, ...] = ()
    table: str = ""
    seeds: tuple[int, ...] = ()
    about: str = ""


@dataclass(frozen=True)
class Effort:
    """The settings of a comparison at equal effort.

    lab: file of settings that all runs share. positions: compute of a whole run. shares: of it, the
    budgets that are measured. trials: of every recipe, each with `trial_share` of a whole run.
    judged_on: benchmarks of what is to be learned. kept_on: benchmarks of what the base can do. The
    merit of a trial is the mean of the mean grounded gains on both. apart: benchmarks in no mean:
    strict pairs, which ask again for the facts of others, and texts without images. seeds: of the
    runs. against: what all are compared with, the base or recipes. shown: sub-tasks of the
    benchmarks apart that have a column in the summary.
    """

    lab: str
    recipes: tuple[Searched, ...]
    positions: int
    trials: int
    judged_on: tuple[str, ...]
    kept_on: tuple[str, ...]
    apart: tuple[str, ...] = ()
    trial_share: float = 0.25
    shares: tuple[float, ...] = (0.25, 1.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    against: tuple[str, ...] = (BASE,)
    shown: tuple[str, ...] = ()

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """All benchmarks that a run is measured on."""
        return (*self.judged_on, *self.kept_on, *self.apart)

    def only(self, names: Sequence[str]) -> Effort:
        """Return the comparison of these recipes. Raises UsageError for an unknown one."""
        known = [recipe.name for recipe in self.recipes]
        for name in names:
            if name not in known:
                raise UsageError(f"no recipe '{name}'; there are: {', '.join(known)}")
        return replace(self, recipes=tuple(r for r in self.recipes if r.name in names))


def read_effort(path: Path) -> tuple[Effort, LabSettings]:
    """Read a comparison and the lab's settings that it is based on.

    Raises CompoclipError, naming the file, for what is malformed.
    """
    data = read_json(path, damaged="fix the file")
    require(isinstance(data, dict), path, "no object; fix the file")
    rows = data.get("recipes", ())
    require(isinstance(rows, list) and rows, path, "'recipes' must be a list")
    recipes = tuple(record_of(Searched, row, f"{path}: recipes[{i}]") for i, row in enumerate(rows))
    effort = record_of(Effort, {**data, "recipes": recipes}, path)
    settings = read_settings(path.with_name(effort.lab))
    return effort, replace(settings, benchmarks=effort.benchmarks, rates={}, mask_duplicates=True)


# --- Compute. ---


@contextmanager
def counted_positions() -> Iterator[list[int]]:
    """Count positions of texts in text towers, three times those with a backward pass."""
    counts: list[int] = []
    encode = TextTower._encode

    def counting(tower: TextTower, group: Any, *options: Any) -> Any:
        counts.append(group.ids.numel() * (3 if torch.is_grad_enabled() else 1))
        return encode(tower, group, *options)

    with patch.object(TextTower, "_encode", counting):
        yield counts


def positions_a_step(name: str, out: Path, settings: LabSettings, arm: Arm, rate: float) -> float:
    """Return the compute of one step of a recipe, counted over the first steps of a run; recorded.

    Weights do not change it, as long as they are not zero.
    """
    path = out / "costs" / f"{name}.json"
    if path.is_file():
        return float(read_json(path, damaged="delete it")["positions"])
    short = replace(settings, steps=_COUNTED_STEPS, warmup=1)
    method = trained_method(arm, out / DATA)
    with counted_positions() as counts:
        train_arm(short, arm, method, out / DATA, out / "costs" / name, seed=0, rate=rate)
    positions = sum(counts) / _COUNTED_STEPS
    write_json(path, {"positions": positions})
    return positions


# --- Trials and runs. ---


@dataclass(frozen=True)
class Lab:
    """A comparison in a folder."""

    effort: Effort
    settings: LabSettings
    out: Path
    weights: str

    def job(self, recipe: Searched, point: Point, share: float, seed: int, choosing: bool) -> Job:
        """Return the run of a recipe at a point on a share of the whole compute."""
        weights = {name: value for name, value in point.items() if name != RATE}
        digits = "".join(f"-{name.replace('_', '-')}{value:.4g}" for name, value in weights.items())
        name = f"{recipe.name}{digits}".replace(".", "p").replace("+", "")
        arm = Arm(
            name,
            recipe.method,
            {**recipe.settings, **weights},
            table=recipe.table or self.settings.ground.tables[0],
        )
        cost = positions_a_step(recipe.name, self.out, self.settings, arm, point[RATE])
        steps = max(2 * self.settings.warmup, round(share * self.effort.positions / cost))
        settings = replace(self.settings, steps=steps)
        arm = replace(arm, name=f"{name}-{round(1000 * share):04d}")
        return Job(self.out, settings, arm, seed, self.weights, point[RATE], choosing)

    def fixed(self, name: str, choosing: bool = False) -> Job:
        """Return the measurement of the base, or of a bound."""
        return Job(self.out, self.settings, None, 0, self.weights, choosing=choosing, fixed=name)

    def merit(self, job: Job) -> float:
        """Return the mean of the mean grounded gains of a trial: learned, and retained."""
        blind = results_of(self.fixed(TEXT_ONLY, choosing=True))
        gains = [
            mean_gain(ground_on(results_of(job), blind, benchmarks))
            for benchmarks in (self.effort.judged_on, self.effort.kept_on)
        ]
        return sum(gains) / len(gains)

    def finished(self, jobs: Mapping[Run, Job]) -> Finished:
        """Return the columns of the base and of the runs that are finished."""
        effort, base = self.effort, results_of(self.fixed(BASE))
        blind = results_of(self.fixed(TEXT_ONLY))
        by_share: dict[float, dict[str, list[list[Results]]]] = {}
        for (name, share, _), job in jobs.items():
            if outcome(job) is not None:
                by_share.setdefault(share, {BASE: [base]}).setdefault(name, [])
                by_share[share][name].append(results_of(job))
        whole = by_share[max(by_share)] if by_share else {BASE: [base]}
        left_out = _ASKED_AGAIN if effort.apart else set()
        names = [name for name in effort.judged_on if name not in left_out]
        return Finished(
            {
                share: grounded_runs(runs, blind, effort.judged_on)
                for share, runs in sorted(by_share.items())
            },
            grounded_runs(whole, blind, effort.kept_on),
            grounded_runs(whole, blind, effort.apart),
            grounded_runs(whole, blind, [*effort.apart, *names]),
        )

    def record(self, jobs: Mapping[Run, Job]) -> str:
        """Return the table of all finished runs and columns, see `record_table`."""
        blind = results_of(self.fixed(TEXT_ONLY))
        runs = {(BASE, 0.0, 0): results_of(self.fixed(BASE))}
        runs |= {run: results_of(job) for run, job in jobs.items() if outcome(job) is not None}
        learned, retained, apart = self.effort.judged_on, self.effort.kept_on, self.effort.apart
        return record_table(
            {
                run: (
                    ground_on(results, blind, learned),
                    ground_on(results, blind, retained),
                    ground_on(results, blind, apart),
                )
                for run, results in runs.items()
            }
        )


def propose(recipe: Searched, judged: Sequence[tuple[Point, float]]) -> Point:
    """Return the next point of a recipe after those whose merit is known; a function of them."""
    space: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(low, high, log=True)
        for name, (low, high) in recipe.search.items()
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=_SAMPLED_AT_RANDOM),
    )
    for _, merit in judged:
        study.tell(study.ask(space), merit)
    point = study.ask(space).params
    return {name: float(f"{value:.4g}") for name, value in point.items()}


def run_effort(
    effort: Effort, settings: LabSettings, out: Path, budget: float, workers: int = 2
) -> tuple[dict[str, Any], str]:
    """Run what is left; return the trials and the tables, also in out/effort.json and .md."""
    require_writable(out)
    with only_writer(out, folder=True):
        started = time.monotonic()

        def run(jobs: Sequence[Job]) -> list[Job]:
            todo = [job for job in jobs if outcome(job) is None]
            note(f"{len(todo)} of {len(jobs)} runs to do")
            return run_all(todo, run_job, workers, budget - (time.monotonic() - started))

        lab = Lab(effort, settings, out, load_model(settings.model).identity.weights)
        searched = [recipe for recipe in effort.recipes if not recipe.chosen]
        settings.ground.prepare(settings, out, choosing=bool(searched))
        fixed = [lab.fixed(BASE), lab.fixed(TEXT_ONLY)]
        if searched:
            fixed.append(lab.fixed(TEXT_ONLY, choosing=True))
        left = run(fixed)
        trials: dict[str, list[tuple[Point, float]]] = {recipe.name: [] for recipe in searched}
        for number in range(effort.trials):
            jobs, points = [], {}
            for recipe in searched:
                if len(trials[recipe.name]) == number:
                    point = propose(recipe, trials[recipe.name])
                    job = lab.job(recipe, point, effort.trial_share, effort.seeds[0], choosing=True)
                    points[recipe.name] = (point, job)
                    jobs.append(job)
            note(f"trial {number + 1} of {effort.trials}")
            left += run(jobs)
            for name, (point, job) in points.items():
                if outcome(job) is not None:
                    trials[name].append((point, lab.merit(job)))
        chosen = {recipe.name: recipe.chosen for recipe in effort.recipes if recipe.chosen}
        chosen |= {
            name: max(judged, key=lambda pair: pair[1])[0]
            for name, judged in trials.items()
            if len(judged) == effort.trials
        }
        finals = {
            (recipe.name, share, seed): lab.job(
                recipe, chosen[recipe.name], share, seed, choosing=False
            )
            for share in effort.shares
            for place in range(max(len(recipe.seeds or effort.seeds) for recipe in effort.recipes))
            for recipe in effort.recipes
            if recipe.name in chosen
            for seed in (recipe.seeds or effort.seeds)[place : place + 1]
        }
        left += run([*finals.values()])
        if left:
            note(f"the budget is spent: {len(left)} runs not done; the same command goes on")
        numbers: dict[str, Any] = {
            "trials": {name: [list(pair) for pair in judged] for name, judged in trials.items()},
            "chosen": chosen,
        }
        write_json(out / "effort.json", numbers)
        longest = max(effort.shares)
        steps = {
            name: job.settings.steps for (name, share, _), job in finals.items() if share == longest
        }
        merits: dict[str, Sequence[float]] = {
            name: [100 * merit for _, merit in judged] for name, judged in trials.items() if judged
        }
        merits |= {recipe.name: recipe.merits for recipe in effort.recipes if recipe.merits}
        finished = lab.finished(finals)
        if not finished.budgets:
            text = summary = "No run is finished yet."
        else:
            summary = summary_table(finished, effort.shown, BASE)
            tables = (
                gains_table(finished, effort.against),
                columns_table(finished.columns),
                settings_table(chosen, merits, steps),
            )
            text = "\n\n".join(tables)
        write_text(out / "effort.md", text + "\n")
        write_text(out / "summary.md", summary + "\n")
        write_text(out / "effort.tsv", lab.record(finals))
        return numbers, text


def main() -> int:
    """Run what is left of a comparison, and print what was chosen."""
    parser = lab_parser(__doc__, "effort-out, photo-effort-out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--recipes", nargs="+", metavar="NAME", help="only these")
    parser.add_argument(
        "--draw", type=int, default=0, help="other scenes, or another split of the photos"
    )
    parser.add_argument("--summary", type=Path, help="page to put the summary into")
    options = parser.parse_args()
    effort, settings = read_effort(options.settings or (_PHOTOS if options.photos else _WORLD))
    settings = settings.at(options.photos, options.base, options.draw)
    if options.recipes:
        effort = effort.only(options.recipes)
    out = options.out or Path("photo-effort-out" if options.photos else "effort-out")
    seconds = 60 * options.budget_minutes
    numbers, text = run_effort(effort, settings, out, seconds, options.workers)
    print(json.dumps(numbers["chosen"], indent=1))
    publish(text, options.page)
    if options.summary is not None:
        write_section(options.summary, read_text(out / "summary.md").rstrip())
    if options.page is not None:
        write_text(options.page.with_suffix(".tsv"), read_text(out / "effort.tsv"))
    return 0


if __name__ == "__main__":
    end_with(main, "lab.effort")
