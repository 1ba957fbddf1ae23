"""Training runs on disk: curves from `train.jsonl`, and the record of the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from compoclip.console import worded
from compoclip.errors import require
from compoclip.models.config import RECORD, read_record
from compoclip.training.log import read_log
from compoclip.typed import is_a

POINTS = 300


@dataclass(frozen=True)
class LogCurve:
    """A quantity of a training run by step: at most POINTS values, and running means over a
    twentieth of the run (`smooth`). Of a benchmark measured while training, all values in percent,
    unsmoothed; interval: lower and upper ends of the 95 % intervals; chance: score of guessing."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    smooth: tuple[float, ...]
    interval: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    chance: float | None = None


@dataclass(frozen=True)
class Run:
    """One run folder. curves: quantity -> curve. facts: label -> text, for the provenance."""

    name: str
    curves: Mapping[str, LogCurve]
    facts: Mapping[str, str] = field(default_factory=dict)


def read_run(folder: Path) -> Run:
    """Read the log and the record of a training run.

    Args:
        folder: the run's --out folder.

    Raises:
        CompoclipError: the log is missing or empty, or the record is malformed.
    """
    path = folder / "train.jsonl"
    require(path.is_file(), path, "no such file; give --runs the --out folder of train")
    records = read_log(path)
    steps = [
        record for record in records if all(is_a(record.get(k), float) for k in ("step", "loss"))
    ]
    require(steps, path, "holds no logged steps; give --runs a run that has begun")
    measured = {f"{name}, %": curve for name, curve in _measured(records).items()}
    order = ["loss", *(k for step in steps for k in step if k.startswith("loss/"))]
    order += [name for name in ("grad_norm", "logit_scale", "logit_bias") if name in steps[-1]]
    curves = {}
    for name in dict.fromkeys(order):
        series = [(step["step"], step[name]) for step in steps if is_a(step.get(name), float)]
        curves[name] = _curve(series)
        if name == "loss":
            curves |= measured
    speed = []
    for before, after in pairwise(steps):
        numbers = [step.get(key) for step in (before, after) for key in ("images", "seconds")]
        if is_a(numbers, list[float]):
            seconds = after["seconds"] - before["seconds"]
            if seconds > 0:
                speed.append((after["step"], (after["images"] - before["images"]) / seconds))
    if speed:
        curves["images per second"] = _curve(speed)
    lost = sum(isinstance(record.get("skipped"), str) for record in records)
    facts = {"last logged step": str(steps[-1]["step"])}
    if lost:
        facts["steps skipped, loss or gradient not finite"] = str(lost)
    return Run(folder.resolve().name, curves, {**_record(folder / "model"), **facts})


def _measured(records: Sequence[Mapping[str, Any]]) -> dict[str, LogCurve]:
    """Return the measurements made while training, by benchmark."""
    points: dict[str, list[tuple[float, ...]]] = {}
    for record in records:
        scores = record.get("eval", {})
        for name, score in scores.items() if isinstance(scores, dict) else ():
            if isinstance(score, dict) and is_a(value := score.get("value"), float):
                # A single photo has no interval: it is drawn as a point.
                usual: dict[str, Any] = {"low": value, "high": value, "chance": math.nan}
                more = (score[k] if is_a(score.get(k), float) else v for k, v in usual.items())
                place = (record["step"], *(100 * number for number in (value, *more)))
                points.setdefault(name, []).append(place)
    curves = {}
    for name, series in points.items():
        steps, values, low, high, chance = zip(*series)
        level = None if math.isnan(chance[0]) else chance[0]
        curves[name] = LogCurve(steps, values, values, (low, high), level)
    return curves


def _curve(series: Sequence[tuple[int, float]]) -> LogCurve:
    """Thinned by means of neighbours, then smoothed."""
    size = -(-len(series) // POINTS)
    groups = [series[k : k + size] for k in range(0, len(series), size)]
    values = [sum(v for _, v in group) / len(group) for group in groups]
    reach = len(values) // 40
    smooth = [
        sum(near) / len(near)
        for k in range(len(values))
        for near in [values[max(0, k - reach) : k + reach + 1]]
    ]
    return LogCurve(tuple(group[-1][0] for group in groups), tuple(values), tuple(smooth))


def _record(checkpoint: Path) -> dict[str, str]:
    """The provenance of the checkpoint as flat text; one entry while the run is unfinished."""
    if not (checkpoint / RECORD).is_file():
        return {"state": "unfinished"}
    identity, provenance = read_record(checkpoint / RECORD)
    facts = {"weights": identity.weights, **provenance}
    return {k: text for k, v in facts.items() if v is not False and (text := worded(v))}
