"""Weight interpolation as a trade-off: what each share of the tuned weights gains and costs.

Wortsman et al., Robust fine-tuning of zero-shot models (CVPR 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from compoclip.analysis.mixes import BASE, Mix, Pair, measure_mixes
from compoclip.benchmarks.case import Benchmark
from compoclip.errors import UsageError
from compoclip.evaluation.compare import Difference
from compoclip.evaluation.groups import Groups, group_differences, group_scores
from compoclip.evaluation.profile import COMPOSITION, RECOGNITION, RETRIEVAL, profile_groups
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.run import Options
from compoclip.models.interpolate import Scope

Keep = Literal["zero-shot", "retrieval"]
AXES = (COMPOSITION, RECOGNITION, RETRIEVAL)
KEPT: Mapping[Keep, str] = {"zero-shot": RECOGNITION, "retrieval": RETRIEVAL}


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
        """Every point once, the base first."""
        every = [self.base, *(point for line in self.lines.values() for point in line)]
        return tuple({point.mix.name: point for point in every}.values())


@dataclass(frozen=True)
class Rule:
    """The most compositional mix that loses at most `max_loss` percentage points of `keep`
    against the base."""

    keep: Keep
    max_loss: float

    def __str__(self) -> str:
        return (
            f"the most compositional mix that loses at most {self.max_loss:g} points of "
            f"{self.keep} against the base"
        )


def shares(steps: int) -> tuple[float, ...]:
    """0, 1/steps, ..., 1, without rounding noise. Raises UsageError for less than one step."""
    if steps < 1:
        raise UsageError("--steps must be at least 1")
    return tuple(float(f"{k / steps:.6g}") for k in range(steps + 1))


def sweep(
    pair: Pair,
    scopes: Sequence[Scope],
    alphas: Sequence[float],
    benchmarks: Sequence[Benchmark],
    out: Path,
    options: Options,
    device: torch.device,
) -> Sweep:
    """Measure all mixes of all scopes, with the base and the tuned model as references.

    Results go below `out`, one folder a mix. Raises what `measure_mixes` raises.
    """
    lines = {scope: [Mix(scope, alpha) for alpha in alphas] for scope in dict.fromkeys(scopes)}
    ends = [Mix("all", 0.0), Mix("all", 1.0)]
    every = {mix.name: mix for mix in [*ends, *(mix for line in lines.values() for mix in line)]}
    results = measure_mixes(pair, every, benchmarks, out, options, device)
    groups = axes_of(results[BASE])
    points = {
        name: Point(
            every[name],
            group_scores(found, groups, options.resamples, options.seed),
            {}
            if name == BASE
            else {
                each.name: each
                for each in group_differences(
                    results[BASE], found, groups, options.resamples, options.seed
                )
            },
        )
        for name, found in results.items()
    }
    return Sweep(
        base=points[BASE],
        lines={scope: tuple(points[m.name] for m in line) for scope, line in lines.items()},
        axes={
            name: tuple(dict.fromkeys(part.benchmark for part in parts))
            for name, parts in groups.items()
        },
    )


def axes_of(results: Sequence[Results]) -> Groups:
    """Compositionality, zero-shot accuracy and retrieval, as far as there are benchmarks of each.

    Raises UsageError when there are none of any.
    """
    groups = profile_groups(results)
    found = {name: groups[name] for name in AXES if name in groups}
    if not found:
        raise UsageError(
            "--on names no benchmark of compositionality, zero-shot recognition or retrieval"
        )
    return found


def choose(measured: Sweep, rule: Rule) -> Point:
    """The point that the rule picks, by the scores themselves, not their intervals.

    Of equals the one that keeps more, then the smaller share of tuned weights. The base always
    qualifies. Raises UsageError when an axis of the rule was not measured, or for a negative loss.
    """
    if not rule.max_loss >= 0:
        raise UsageError("--max-loss must not be negative")
    kept = KEPT[rule.keep]
    for axis in (COMPOSITION, kept):
        if axis not in measured.axes:
            raise UsageError(f"--keep {rule.keep} needs a benchmark of {axis.lower()} among --on")
    floor = measured.base.scores[kept].value - rule.max_loss / 100 - 1e-9
    able = [point for point in measured.points if point.scores[kept].value >= floor]
    return max(
        able,
        key=lambda p: (p.scores[COMPOSITION].value, p.scores[kept].value, -p.mix.alpha),
    )


def sweep_record(measured: Sweep) -> dict[str, Any]:
    """All of a sweep, JSON-ready."""
    return {
        "axes": {name: list(benchmarks) for name, benchmarks in measured.axes.items()},
        "lines": {
            scope: [
                {
                    "name": point.mix.name,
                    "alpha": point.mix.alpha,
                    "scores": {name: asdict(score) for name, score in point.scores.items()},
                    "against_base": {n: asdict(each) for n, each in point.differences.items()},
                }
                for point in line
            ]
            for scope, line in measured.lines.items()
        },
    }
