"""Which parts of a method do what: all of them switched on and off at once, on validation suites.

    python -m lab.screen recipes/compo-screen.json [--out FOLDER] [--photos DATA --base MODEL]

The settings are those of a lab and `screen`: the `method`, the `settings` that all runs have, and
`factors`, name -> [settings of the recipe without it, with it]. The runs are a fractional
factorial: 16 with the first seed, which switch up to 15 factors so that each is on in half of them
whatever any other is, and with the second seed their mirror image, all switches turned round.
Together they tell the effect of a factor from that of any two others together (resolution IV). The
effect is the mean of the runs that have the factor less the mean of those that have not; its error
is Lenth's, of all 31 contrasts of the design. What is finished is not done again. The table is
printed and written to OUT/screen.md, its numbers to OUT/screen.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy.linalg import hadamard
from scipy.stats import t as student

from compoclip.console import end_with, table
from compoclip.errors import CompoclipError
from compoclip.files import read_json, write_text
from lab.columns import learnt_and_kept, means_of, merit
from lab.run import NAME, run_lab
from lab.settings import BASE, Arm, LabSettings, settings_of

RUNS = 16
SECTION, FOUND = "screen.md", "screen.json"
# The columns of a two-level design of 16 runs in the order in which factors take them: first those
# that are no product of two others among them.
_COLUMNS = (1, 2, 4, 8, 7, 11, 13, 14, 15, 3, 5, 6, 9, 10, 12)


@dataclass(frozen=True)
class Factor:
    """A part of a method: settings of the recipe without it, and with it."""

    name: str
    off: Mapping[str, Any]
    on: Mapping[str, Any]


@dataclass(frozen=True)
class Effect:
    """What a factor does to a column: `value`, with the half width of its 95 % interval."""

    value: float
    margin: float

    def __str__(self) -> str:
        """In points, marked when the interval leaves out zero."""
        return f"{100 * self.value:+.1f}{'*' if abs(self.value) > self.margin else ' '}"


def design(factors: int) -> list[tuple[int, ...]]:
    """The switches of every run, -1 or 1 for each factor: 16 runs, then their mirror image.

    Raises CompoclipError for more factors than 16 runs can tell apart.
    """
    if not 1 <= factors <= len(_COLUMNS):
        raise CompoclipError(f"{factors} factors: {RUNS} runs tell apart 1 to {len(_COLUMNS)}")
    half = hadamard(RUNS)[:, _COLUMNS[:factors]]
    return [tuple(int(each) for each in run) for run in np.concatenate([half, -half])]


def effects(values: Sequence[float], runs: Sequence[Sequence[int]]) -> list[Effect]:
    """Each factor's effect on a column, from the column's value in every run of `design`.

    The error is Lenth's pseudo standard error: 1.5 times the median size of those contrasts that
    are below 2.5 times 1.5 the median of all, with a third as many degrees of freedom as there are
    contrasts (Lenth, Quick and easy analysis of unreplicated factorials, Technometrics 1989).
    """
    sizes = np.abs(hadamard(len(values))[1:] @ np.asarray(values)) * 2 / len(values)
    first = 1.5 * median(sizes)
    error = 1.5 * median([size for size in sizes if size <= 2.5 * first])
    margin = error * float(student.ppf(0.975, len(sizes) / 3))
    return [
        Effect(2 / len(values) * sum(v * run[k] for v, run in zip(values, runs)), margin)
        for k in range(len(runs[0]))
    ]


@dataclass(frozen=True)
class Screen:
    """What is screened: a recipe, the settings that all runs have, and the factors."""

    method: str
    settings: Mapping[str, Any]
    factors: tuple[Factor, ...]

    def arm(self, number: int, table: str) -> Arm:
        """The arm of a run of the design."""
        switched = zip(self.factors, design(len(self.factors))[number])
        chosen = [f.on if switch > 0 else f.off for f, switch in switched]
        every = {name: value for part in (self.settings, *chosen) for name, value in part.items()}
        return Arm(f"run{number:02}", self.method, every, table)


def read_screen(path: Path) -> tuple[LabSettings, Screen]:
    """A lab's settings and what is screened, of a file.

    Raises CompoclipError, naming the file, when it is missing or malformed.
    """
    data = read_json(path, damaged="fix the file")
    screen: Any = data.pop("screen", None) if isinstance(data, dict) else None
    try:
        factors = tuple(Factor(name, *pair) for name, pair in screen["factors"].items())
        found = Screen(str(screen["method"]), dict(screen.get("settings", {})), factors)
        known = all(isinstance(each, dict) for f in factors for each in (f.off, f.on))
    except (TypeError, KeyError, AttributeError, ValueError):
        known = False
    if not known:
        raise CompoclipError(
            f"{path}: 'screen' must hold 'method' and 'factors', NAME: [settings without, with]"
        )
    settings = settings_of(data, str(path))
    if len(settings.seeds) != 2:
        raise CompoclipError(f"{path}: 'seeds' must be two, one for each half of the design")
    return settings, found


def run_screen(settings: LabSettings, screen: Screen, out: Path) -> str:
    """Train and measure every run of the design; returns the table of effects.

    Raises what `run_lab` raises.
    """
    runs = design(len(screen.factors))
    values: dict[str, list[float]] = {}
    controls: dict[str, dict[str, list[float]]] = {}
    for half, seed in enumerate(settings.seeds):
        table_of = settings.ground.tables[0]
        arms = [screen.arm(half * RUNS + run, table_of) for run in range(RUNS)]
        # The arms of the file are run beside them, to compare with.
        part = replace(settings, arms=(*settings.arms, *arms), seeds=(seed,), left_out=None)
        run_lab(part, out)
        means = means_of(out / f"{NAME}.json")
        for arm in arms:
            for column, value in _with_sums(means[arm.name]).items():
                values.setdefault(column, []).append(value)
        for name in (BASE, *(arm.name for arm in settings.arms)):
            for column, value in _with_sums(means[name]).items():
                controls.setdefault(name, {}).setdefault(column, []).append(value)
    found = {column: effects(each, runs) for column, each in values.items()}
    rows = [
        *(
            [name, *(f"{100 * fmean(each):.1f} " for each in of.values())]
            for name, of in controls.items()
        ),
        ["mean of the runs", *(f"{100 * fmean(each):.1f} " for each in values.values())],
        *(
            [factor.name, *(str(found[column][k]) for column in values)]
            for k, factor in enumerate(screen.factors)
        ),
        ["95 % +-", *(f"{100 * found[column][0].margin:.1f} " for column in values)],
    ]
    text = table(rows, ["factor", *values])
    numbers = {
        "screen": asdict(screen),
        "runs": [dict(zip((f.name for f in screen.factors), run)) for run in runs],
        "values": values,
        "controls": controls,
        "effects": {column: [asdict(each) for each in of] for column, of in found.items()},
    }
    write_text(out / SECTION, text + "\n")
    write_text(out / FOUND, json.dumps(numbers, indent=1) + "\n")
    return text


def _with_sums(means: Mapping[str, float]) -> dict[str, float]:
    """The columns, and three sums of them: what is learnt, what is kept, and the mean of both."""
    learnt, kept = learnt_and_kept(means)
    return {**means, "learnt": learnt, "kept": kept, "both": merit(means)}


def main() -> int:
    """Run the screening of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=Path, help="a lab's settings and what is screened")
    parser.add_argument("--out", type=Path, default=Path("screen-out"), help="folder")
    parser.add_argument("--photos", metavar="DATA", help="on the photos of this folder")
    parser.add_argument("--base", metavar="MODEL", help="what every run starts from")
    options = parser.parse_args()
    settings, screen = read_screen(options.settings)
    settings = settings.at(options.photos, options.base)
    print(run_screen(settings, screen, options.out))
    return 0


if __name__ == "__main__":
    end_with(main, "lab.screen")
