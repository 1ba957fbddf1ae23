"""Weight interpolation as a trade-off: what each share of the tuned weights gains and costs.

Wortsman et al., Robust fine-tuning of zero-shot models (CVPR 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from compoclip.benchmarks.case import Benchmark
from compoclip.console import note
from compoclip.errors import UsageError
from compoclip.evaluation.comparison import Difference, ScorePart, not_judged
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.groups import (
    COMPOSITION,
    RECOGNITION,
    RETRIEVAL,
    Groups,
    group_differences,
    group_draws,
    group_scores,
    profile_groups,
)
from compoclip.evaluation.numerals import SIGNS, with_interval
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Estimate, bounded_interval
from compoclip.files import only_writer
from compoclip.models.checkpoint import LoadedModel
from compoclip.models.conversion import Scope, WiseLora, interpolate
from compoclip.printed import Table
from compoclip.typed import NonNegative, check_fields

BASE, TUNED = "base", "tuned"
Keep = Literal["zero-shot", "retrieval"]
AXES = (COMPOSITION, RECOGNITION, RETRIEVAL)
KEPT: Mapping[Keep, str] = {"zero-shot": RECOGNITION, "retrieval": RETRIEVAL}
Scores = Mapping[str, Mapping[str, Score]]
Differences = Mapping[str, Mapping[str, Difference]]


@dataclass(frozen=True)
class Mix:
    """Share `alpha` of the tuned weights in `scope`; weights outside the scope are tuned."""

    scope: Scope
    alpha: float

    @property
    def name(self) -> str:
        """Return its name in results: "base", "tuned", or scope and share, e.g. "image-0.3"."""
        if self.alpha == 1:
            return TUNED
        return BASE if self.scope == "all" and self.alpha == 0 else f"{self.scope}-{self.alpha:g}"


IMAGE, TEXT = "tuned-image", "tuned-text"
SWAPPED: Mapping[str, Mix] = {
    BASE: Mix("all", 0.0),
    IMAGE: Mix("text", 0.0),  # the text tower goes back to the base's
    TEXT: Mix("image", 0.0),
    TUNED: Mix("all", 1.0),
}


@dataclass(frozen=True)
class BaseAndTuned:
    """A base and the model trained from it, on the CPU, and the mixes of both (see
    `models.conversion.interpolate`)."""

    base: LoadedModel
    tuned: LoadedModel
    mix_scale: bool = False
    wise_lora: WiseLora = "merged"

    def mixed(self, mix: Mix) -> LoadedModel:
        """Return the model of a mix; at the ends one of the two. Raises as `interpolate`."""
        if mix.name in (BASE, TUNED):
            return self.base if mix.name == BASE else self.tuned
        return interpolate(
            self.base, self.tuned, mix.alpha, mix.scope, self.mix_scale, self.wise_lora
        )


def measure_mixes(
    pair: BaseAndTuned,
    mixes: Mapping[str, Mix],
    benchmarks: Sequence[Benchmark],
    out: Path,
    options: Options,
    device: torch.device,
) -> dict[str, list[Results]]:
    """Measure models between a base and a tuned one: name -> one result per benchmark.

    A tower that several models share is encoded once (with `options.cache`). Existing results are
    not computed again. Raises as `interpolate` and `evaluate` do.

    Args:
        pair: the two models.
        mixes: name in the results -> mix.
        benchmarks: what to measure.
        out: results go below `<out>/<name>/`.
        options: as of `evaluate`.
        device: device of the model being measured; the others stay on the CPU.
    """
    results: dict[str, list[Results]] = {}
    with only_writer(out, folder=True):  # the mixes of another pair have the same names
        for name, mix in mixes.items():
            note(f"measuring {name}")
            loaded = pair.mixed(mix)
            loaded.encoder.to(device)
            try:
                results[name] = evaluate(name, ModelEncoder(loaded), benchmarks, out, options)
            finally:
                loaded.encoder.to("cpu")
    return results


def _compared(
    results: Mapping[str, Sequence[Results]], groups: Groups, options: Options
) -> tuple[Scores, Differences]:
    """Return the scores of the groups by model, and by all but the base the differences to it."""
    scores, differences = {}, {}
    for name, of_model in results.items():
        scores[name] = group_scores(of_model, groups, options.bootstrap)
        if name != BASE:
            changes = group_differences(results[BASE], of_model, groups, options.bootstrap)
            differences[name] = {change.name: change for change in changes}
    return scores, differences


def axes_of(results: Sequence[Results]) -> Groups:
    """Return compositionality, zero-shot accuracy and retrieval, as far as they are measured.

    Raises UsageError without any benchmark.
    """
    groups = profile_groups(results)
    axes = {name: groups[name] for name in AXES if name in groups}
    if not axes:
        raise UsageError(
            "--on names no benchmark of compositionality, zero-shot recognition or retrieval"
        )
    return axes


def _benchmarks(groups: Groups) -> dict[str, tuple[str, ...]]:
    return {name: tuple({part.benchmark: 0 for part in parts}) for name, parts in groups.items()}


# --- What each share of the tuned weights gains and costs. ---


@dataclass(frozen=True)
class Point:
    """One mix. scores: by axis. differences: to the base, by axis; empty for the base."""

    mix: Mix
    scores: Mapping[str, Score]
    differences: Mapping[str, Difference]


@dataclass(frozen=True)
class Sweep:
    """lines: scope -> its points by rising alpha; "tuned" ends all of them, "base" begins that of
    "all". base: the point that differences refer to. axes: axis -> the benchmarks it is the mean
    of."""

    base: Point
    lines: Mapping[Scope, tuple[Point, ...]]
    axes: Mapping[str, tuple[str, ...]]

    @property
    def points(self) -> tuple[Point, ...]:
        """Return every point once, the base first."""
        every = [self.base, *(point for line in self.lines.values() for point in line)]
        return tuple({point.mix.name: point for point in every}.values())

    def table(self) -> Table:
        """Return a row per mix, with the score of each axis."""
        rows = []
        for scope, line in self.lines.items():
            for point in line:
                row = [scope, f"{point.mix.alpha:g}", point.mix.name]
                for axis, score in point.scores.items():
                    change = point.differences.get(axis)
                    mark = SIGNS.get(change.verdict, " ") if change else " "
                    row.append(with_interval(score.value, score.low, score.high) + mark)
                rows.append(row)
        notes = [
            "+ / -: differs from the base "
            "(paired, p < 0.05 after Holm's correction over the columns)",
            *not_judged(change for p in self.points for change in p.differences.items()),
            *(f"{axis}: mean of {', '.join(names)}" for axis, names in self.axes.items()),
        ]
        return Table(rows, ["scope", "alpha", "results", *self.axes], notes=notes)


@dataclass(frozen=True)
class Rule:
    """The most compositional mix that loses at most `max_loss` percentage points of `keep`
    against the base."""

    keep: Keep
    max_loss: NonNegative

    def __post_init__(self) -> None:
        """Raise UsageError for a loss below 0."""
        check_fields(self, "rule: ")

    def __str__(self) -> str:
        return (
            f"the most compositional mix that loses at most {self.max_loss:g} points of "
            f"{self.keep} against the base"
        )


def shares(steps: int) -> tuple[float, ...]:
    """Return 0, 1/steps, ..., 1, without rounding noise."""
    return tuple(float(f"{k / steps:.6g}") for k in range(steps + 1))


def sweep(
    pair: BaseAndTuned,
    scopes: Sequence[Scope],
    alphas: Sequence[float],
    benchmarks: Sequence[Benchmark],
    out: Path,
    options: Options,
    device: torch.device,
    groups_of: Callable[[Sequence[Results]], Groups] = axes_of,
) -> Sweep:
    """Measure all mixes of all scopes, with the base and the tuned model as references.

    Raises UsageError when no benchmark belongs to an axis, else as `measure_mixes`.

    Args:
        pair: the two models.
        scopes: which weights are mixed.
        alphas: shares of the tuned weights.
        benchmarks: what to measure.
        out: folder of the results, with one folder per mix.
        options: as of `evaluate`.
        device: where each model is measured.
        groups_of: what is compared, by the results of the base.
    """
    lines = {scope: [Mix(scope, alpha) for alpha in alphas] for scope in dict.fromkeys(scopes)}
    every = {name: SWAPPED[name] for name in (BASE, TUNED)}
    every |= {mix.name: mix for line in lines.values() for mix in line}
    results = measure_mixes(pair, every, benchmarks, out, options, device)
    groups = groups_of(results[BASE])
    scores, differences = _compared(results, groups, options)
    points = {
        name: Point(mix, scores[name], differences.get(name, {})) for name, mix in every.items()
    }
    by_scope = {scope: tuple(points[mix.name] for mix in line) for scope, line in lines.items()}
    return Sweep(points[BASE], by_scope, _benchmarks(groups))


def choose(measured: Sweep, rule: Rule) -> Point:
    """Pick a point by its scores, not by their intervals.

    Ties go to the point that retains more, then to the smaller share of tuned weights. The base
    always qualifies.

    Args:
        measured: the sweep.
        rule: the axis to retain and the loss allowed on it.

    Raises:
        UsageError: an axis of the rule was not measured.
    """
    retained = KEPT[rule.keep]
    for axis in (COMPOSITION, retained):
        if axis not in measured.axes:
            raise UsageError(f"--keep {rule.keep} needs a benchmark of {axis.lower()} among --on")
    floor = measured.base.scores[retained].value - rule.max_loss / 100 - 1e-9
    able = [point for point in measured.points if point.scores[retained].value >= floor]
    return max(
        able,
        key=lambda p: (p.scores[COMPOSITION].value, p.scores[retained].value, -p.mix.alpha),
    )


def sweep_record(measured: Sweep) -> dict[str, Any]:
    """Return all of a sweep, JSON-ready."""
    lines: dict[str, Any] = {scope: [] for scope in measured.lines}
    for scope, line in measured.lines.items():
        for point in line:
            about = {"name": point.mix.name, "alpha": point.mix.alpha}
            about["scores"] = {name: asdict(score) for name, score in point.scores.items()}
            about["against_base"] = {n: asdict(change) for n, change in point.differences.items()}
            lines[scope].append(about)
    return {"axes": {name: list(names) for name, names in measured.axes.items()}, "lines": lines}


# --- Which tower carries what training gained: each tuned tower put beside the other of the
# base. ---


@dataclass(frozen=True)
class TowerStudy:
    """groups: axes (means over benchmarks) and then every benchmark's headline -> its parts.
    scores: model -> group -> score. differences: model -> group -> difference to the base.
    interplay: group -> what both tuned towers do together beyond the sum of what each does alone:
    tuned - image alone - text alone + base, by a bootstrap over photos."""

    groups: Groups
    scores: Scores
    differences: Differences
    interplay: Mapping[str, Estimate]

    def tables(self) -> list[Table]:
        """Return the scores of all models, and their differences to the base."""
        scores, changes, means = [], [], []
        for group, benchmarks in _benchmarks(self.groups).items():
            of_group = (of_model[group] for of_model in self.scores.values())
            scores.append([group, *(with_interval(s.value, s.low, s.high) for s in of_group)])
            more = self.interplay[group]
            cells = [
                with_interval(d.difference, d.low, d.high, "+") + SIGNS.get(d.verdict, " ")
                for d in (of_model[group] for of_model in self.differences.values())
            ]
            together = f"{with_interval(more.value, more.low, more.high, '+')} "
            changes.append([group, *cells, together])
            if len(self.groups[group]) > 1:
                means.append(f"{group}: mean of {', '.join(benchmarks)}")
        header = ["against the base, points", *self.differences, "beyond the sum"]
        notes = [
            "+ / -: p < 0.05, paired, after Holm's correction over the rows of a model",
            *not_judged(change for d in self.differences.values() for change in d.items()),
        ]
        return [
            Table(scores, ["score", *self.scores], notes=means),
            Table(changes, header, notes=notes),
        ]


def study_towers(
    pair: BaseAndTuned,
    benchmarks: Sequence[Benchmark],
    out: Path,
    options: Options,
    device: torch.device,
) -> TowerStudy:
    """Measure base, tuned, and each tuned tower with the base's other tower; each is encoded once.

    Raises UsageError when no benchmark belongs to an axis, else as `measure_mixes`.

    Args:
        pair: the two models.
        benchmarks: what to measure.
        out: folder of the results, with one folder per model.
        options: as of `evaluate`.
        device: where each model is measured.
    """
    results = measure_mixes(pair, SWAPPED, benchmarks, out, options, device)
    headlines = {
        f"{result.benchmark} {result.headline}": (ScorePart(result.benchmark, result.headline, ""),)
        for result in results[BASE]
    }
    groups = {**axes_of(results[BASE]), **headlines}
    scores, differences = _compared(results, groups, options)
    signs = {TUNED: 1, BASE: 1, IMAGE: -1, TEXT: -1}
    samples = {
        name: group_draws(of_model, groups, options.bootstrap) for name, of_model in results.items()
    }
    interplay = {}
    for group in groups:
        value = sum(sign * scores[name][group].value for name, sign in signs.items())
        draws = sum(sign * samples[name][group] for name, sign in signs.items())
        photos = min(table[group].photos for table in scores.values())
        interval = bounded_interval(np.asarray(draws), photos, lowest=-2.0, highest=2.0)
        interplay[group] = Estimate(value, *interval)
    return TowerStudy(groups, scores, differences, interplay)


def towers_record(study: TowerStudy) -> dict[str, Any]:
    """Return all of a study, JSON-ready."""
    return {
        group: {
            "benchmarks": list(benchmarks),
            "scores": {name: asdict(table[group]) for name, table in study.scores.items()},
            "against_base": {n: asdict(table[group]) for n, table in study.differences.items()},
            "interplay": asdict(study.interplay[group]),
        }
        for group, benchmarks in _benchmarks(study.groups).items()
    }
