"""Which skill a recipe acquires after how many samples: long runs, measured on the way.

    python -m lab.curves --out curves-out --samples 500000

The data, the suite, the rates and the settings of the recipes are the lab's (recipes/lab.json):
text towers alone, on cached image features. A run that was stopped goes on. Prints a table for
every skill, of all runs in OUT, and draws OUT/curves.svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes

from compoclip.console import end_with
from compoclip.data.sources.open import open_source
from compoclip.evaluation.results import load_results
from compoclip.evaluation.run import watch_model
from compoclip.models.checkpoint import load_model
from compoclip.printed import Table
from compoclip.programs.run import Measuring
from compoclip.report.plotting import Theme, write_figure
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings, WatchSettings
from lab.columns import COLUMNS, Column, column_value
from lab.ground import DATA, SUITE
from lab.job import MASKED, optim_of, trained_method
from lab.settings import LabSettings, read_settings

SETTINGS = Path(__file__).parents[1] / "recipes" / "lab.json"
ARMS = ("clip-ft", "negclip", "fsc-clip", "hard-positives", "degla", "compo")
FOILS = (
    *("bind_colour", "bind_size", "bind_pattern", "role", "left_right", "above_below", "position"),
    *("inside", "front_behind", "bigger_smaller", "count", "negation", "negation_missing"),
)
"""Skills of which each has pictures in pairs that differ in nothing else; chance is 50 %."""
LEAST = 20.0  # points that an axis spans
SHOWN = (
    *(Column(name, (), "accuracy", name, ("world-foils",)) for name in FOILS),
    *(c for c in COLUMNS if c.name in ("order", "look-alikes", "style", "i2t", "zero-shot")),
    *(c for c in COLUMNS if c.name in ("augmented", "brittleness")),
)


def train(arm: str, settings: LabSettings, options: argparse.Namespace) -> None:
    """Train the arm on what is left of it, and measure it on the way."""
    out, chosen = options.out, settings.arm(arm)
    run = out / "runs" / arm
    if (run / "model").is_dir():
        return
    source = open_source(str(out / DATA / f"{chosen.table}.jsonl"))
    method = trained_method(chosen, out / DATA)
    optim = optim_of(chosen, method, settings, source, settings.rates[arm])
    model = load_model(settings.model)
    measuring = Measuring(on=(str(out / SUITE),), workers=1, device="cpu")
    benchmarks = measuring.benchmarks(only=settings.benchmarks)
    run_training(
        model,
        replace(method, optim=optim),
        source,
        RunSettings(
            out=run,
            seed=options.seed,
            precision=options.precision,
            crop=False,
            save_every=options.every,
            resume=True,
            cache_frozen=True,
            mask_duplicates=arm in MASKED,
        ),
        watch=watch_model(model, benchmarks, WatchSettings(eval_every=options.every), run),
    )


def curve(run: Path, batch: int) -> dict[int, dict[str, float]]:
    """Samples -> column -> value, of every measurement of a run."""
    steps = sorted(int(place.name.removeprefix("step-")) for place in run.glob("eval/step-*"))
    found = {step * batch: load_results(run / "eval" / f"step-{step:08d}") for step in steps}
    return {at: {c.name: column_value(c, run) for c in SHOWN} for at, run in found.items()}


def draw(
    axes: Axes, theme: Theme, curves: dict[str, dict[int, dict[str, float]]], name: str
) -> None:
    """One skill: a line for each arm, percent over thousands of samples."""
    for position, (arm, points) in enumerate(curves.items()):
        values = [100 * each[name] for each in points.values()]
        axes.plot([at / 1000 for at in points], values, label=arm, **theme.line(position))
    low, high = axes.get_ylim()
    room = max(0.0, LEAST - (high - low)) / 2  # so that noise looks like noise
    axes.set_ylim(low - room, high + room)
    axes.set_xlabel("thousand samples")


def draw_legend(axes: Axes, theme: Theme, arms: Collection[str]) -> None:
    """One legend for all panels, which have no room for their own."""
    for position, arm in enumerate(arms):
        axes.plot([], [], label=arm, **theme.line(position))
    axes.set_axis_off()
    axes.legend(loc="center", fontsize=12)


def main() -> int:
    """Run what is left, print the table, draw the curves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="*", default=ARMS)
    parser.add_argument("--samples", type=int, default=500_000)
    parser.add_argument("--every", type=int, default=500, help="steps between measurements")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    settings = read_settings(SETTINGS)
    settings = replace(settings, steps=options.samples // settings.batch_size)
    settings.ground.prepare(settings, options.out, choosing=False)
    for arm in options.arms:
        train(arm, settings, options)
    runs = {arm: options.out / "runs" / arm for arm in ARMS}
    curves = {
        arm: curve(run, settings.batch_size) for arm, run in runs.items() if (run / "eval").is_dir()
    }
    for column in SHOWN:
        ats = sorted({at for points in curves.values() for at in points})
        rows = [
            [arm, *(f"{100 * points[at][column.name]:.1f}" if at in points else "" for at in ats)]
            for arm, points in curves.items()
        ]
        print(Table(rows, [column.name, *(f"{at // 1000}k" for at in ats)]))
    (options.out / "curves.json").write_text(json.dumps(curves, indent=1))
    panels = [(c.name, partial(draw, curves=curves, name=c.name)) for c in SHOWN]
    panels.append(("", partial(draw_legend, arms=curves)))
    write_figure(options.out / "curves", panels, (300, 220))
    return 0


if __name__ == "__main__":
    end_with(main, "lab.curves")
