"""The tables of a comparison at equal effort, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from compoclip.evaluation.comparison import Difference, corrected
from compoclip.evaluation.grounded import Grounded, gain_difference, ground
from compoclip.evaluation.numerals import span
from compoclip.evaluation.results import Results
from compoclip.printed import Table
from lab.columns import mean_and_sd

Runs = Mapping[str, Sequence[Sequence[Results]]]
"""Recipe -> the results of each seed."""
Run = tuple[str, float, int]
"""Recipe, share of the whole compute, seed."""


@dataclass(frozen=True)
class Finished:
    """The columns of the base and of finished runs, by recipe, a run per seed.

    budgets: share of the whole compute -> columns of what is to be learned. The others are at the
    whole compute. retained: columns of what the base can do. apart: those in no mean. columns:
    those that the table of columns has.
    """

    budgets: Mapping[float, Mapping[str, Sequence[Grounded]]]
    retained: Mapping[str, Sequence[Grounded]]
    apart: Mapping[str, Sequence[Grounded]]
    columns: Mapping[str, Sequence[Grounded]]

    @property
    def learned(self) -> Mapping[str, Sequence[Grounded]]:
        """Return the columns of what is to be learned, at the whole compute."""
        return self.budgets[max(self.budgets)]


def ground_on(
    results: Sequence[Results], blind: Sequence[Results], benchmarks: Sequence[str]
) -> Grounded:
    """Return the columns of one run on some benchmarks."""
    return ground([result for result in results if result.benchmark in benchmarks], blind)


def grounded_runs(
    runs: Runs, blind: Sequence[Results], benchmarks: Sequence[str]
) -> dict[str, list[Grounded]]:
    """Return the columns of every run on some benchmarks."""
    return {
        name: [ground_on(results, blind, benchmarks) for results in seeds]
        for name, seeds in runs.items()
    }


def differences_to(name: str, grounded: Mapping[str, Sequence[Grounded]]) -> dict[str, Difference]:
    """Compare each recipe's mean grounded gain with one recipe's, over photos and within seeds.

    The seeds that both have are compared; a model without seeds is compared with every seed.
    p-values are corrected over the recipes.
    """
    differences = {}
    for other, runs in grounded.items():
        base, several = grounded[name], max(len(runs), len(grounded[name]))
        sides = [list(side) * several if len(side) == 1 else side for side in (base, runs)]
        seeds = min(map(len, sides))
        difference = gain_difference(*(side[:seeds] for side in sides))
        if other != name and difference is not None:
            differences[other] = difference
    return dict(zip(differences, corrected([*differences.values()])))


def gains_table(finished: Finished, against: Sequence[str]) -> str:
    """Return the mean grounded gain of every recipe at each budget, and what is retained.

    At the whole compute the recipes are compared with those of `against` that have run.
    """
    budgets, whole = finished.budgets, finished.learned
    references = [name for name in against if name in whole]
    differences = [differences_to(name, whole) for name in references]
    rows = []
    for name in whole:
        cells = [name]
        for runs in budgets.values():
            cells.append(_points([mean_gain(run) for run in runs.get(name, ())]))
        for by_name in differences:
            difference = by_name.get(name)
            cells.append(f"{_change(difference)} {difference.word}" if difference else "")
        cells.append(_points([mean_gain(run) for run in finished.retained[name]]))
        rows.append(cells)
    gains = [f"gain at {share:.2g}" for share in budgets]
    header = ["recipe", *gains, *(f"against {name}" for name in references), "retained"]
    return Table(rows, header).markdown()


def _change(difference: Difference | None) -> str:
    """Return a difference in points with its interval, "" without one."""
    if difference is None:
        return ""
    interval = span(difference.low, difference.high, "+")
    return f"{100 * difference.difference:+.1f} [{interval}]"


def summary_table(finished: Finished, shown: Sequence[str], base: str) -> str:
    """Return what a page for users shows of the whole compute, the highest gain first.

    shown: sub-tasks of the benchmarks apart that get a column.
    """
    differences = differences_to(base, finished.learned)
    columns = [
        (place, column.part.name.replace("_", " "), column.blind)
        for place, column in enumerate(finished.apart[base][0].columns)
        if column.part.name in shown
    ]
    chance = ["chance", "0", "", *(f"{100 * blind:.1f}" for *_, blind in columns), ""]
    rows = []
    for name, runs in finished.learned.items():
        change = _change(differences.get(name))
        scores = [
            f"{100 * fmean(run.columns[place].score for run in finished.apart[name]):.1f}"
            for place, *_ in columns
        ]
        gain = _points([mean_gain(run) for run in runs])
        kept = _points([mean_gain(run) for run in finished.retained[name]])
        rows.append([name, gain, change, *scores, kept])
    rows.sort(key=lambda row: float(row[1].split()[0]), reverse=True)
    titles = [title for _, title, _ in columns]
    header = ["recipe", "mean grounded gain", f"against the {base}", *titles, "retained"]
    return Table([chance, *rows], header).markdown()


def settings_table(
    chosen: Mapping[str, Mapping[str, float]],
    merits: Mapping[str, Sequence[float]],
    steps: Mapping[str, int],
) -> str:
    """Return what every recipe's trials chose: settings, merit in points, and steps of a whole run.

    merits: recipe -> points of its trials, or the lowest and the highest. steps: by recipe.
    """
    rows = []
    for name, point in chosen.items():
        values = ", ".join(f"{setting} {value:g}" for setting, value in point.items())
        judged = merits.get(name, ())
        ends = f"{min(judged):.1f} to {max(judged):.1f}" if judged else "not tried"
        rows.append([name, values, ends, f"{steps[name]:,}"])
    return Table(rows, ["recipe", "chosen", "merit of the trials", "steps"], left=2).markdown()


def columns_table(grounded: Mapping[str, Sequence[Grounded]]) -> str:
    """Return the score of every column, averaged over seeds, in points; a row per column.

    Beside them stands the blind score, which a model without the image reaches.
    """
    first = next(iter(grounded.values()))[0]
    rows = []
    for place, column in enumerate(first.columns):
        cells = [f"{column.part.benchmark.removeprefix('world-')} {column.part.name}"]
        cells.append(f"{100 * column.blind:.1f}")
        for runs in grounded.values():
            cells.append(f"{100 * fmean(run.columns[place].score for run in runs):.1f}")
        rows.append([*cells, column.apart])
    return Table(rows, ["column", "blind", *grounded, ""]).markdown()


def record_table(runs: Mapping[Run, tuple[Grounded, Grounded, Grounded]]) -> str:
    """Return every run's gains and the score of every column, in points, separated by tabs.

    runs: the columns of what is to be learned, of what the base can do, and of the benchmarks that
    are in no mean. The row "blind" has what a model without the image reaches.
    """
    columns = [column for part in next(iter(runs.values())) for column in part.columns]
    names = [f"{c.part.benchmark.removeprefix('world-')} {c.part.name}" for c in columns]
    lines = [["recipe", "share", "seed", "gain", "retained", *names]]
    lines.append(["blind", "", "", "0.0", "0.0", *_points_of(c.blind for c in columns)])
    for (name, share, seed), parts in runs.items():
        learned, retained, _ = parts
        gains = _points_of([mean_gain(learned), mean_gain(retained)])
        scores = _points_of(column.score for part in parts for column in part.columns)
        lines.append([name, f"{share:.2g}", str(seed), *gains, *scores])
    return "".join("\t".join(line) + "\n" for line in lines)


def mean_gain(run: Grounded) -> float:
    """Return the mean grounded gain of a run, nan without any column that counts."""
    mean = run.mean()
    return math.nan if mean is None else mean.value


def _points_of(values: Iterable[float]) -> list[str]:
    return [f"{100 * value:.1f}" for value in values]


def _points(values: Sequence[float]) -> str:
    """Return a mean in points with its deviation over seeds, "" without values."""
    if not values:
        return ""
    mean, deviation = mean_and_sd([100 * value for value in values])
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {deviation:.1f}"
