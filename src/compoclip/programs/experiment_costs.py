"""Estimate what the runs of a table take, and find the share of its data that fits a budget."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from compoclip.console import counted, duration, note, track
from compoclip.errors import UsageError, interruption_said
from compoclip.evaluation.published.protocols import training_photos
from compoclip.programs.estimate import (
    INTERRUPTED,
    measure,
    measuring_seconds,
    micro_batch,
    pilot,
    step_seconds,
    steps_between_states,
    usual_precision,
)
from compoclip.programs.experiments import (
    ArmRun,
    Experiment,
    RunCost,
    earlier_plan,
    experiment,
    is_done,
)
from compoclip.programs.request import TrainRequest
from compoclip.programs.run import evaluate
from compoclip.ranks import silent
from compoclip.workers import at_once

_PILOT_STEPS = 12
_SMALLEST_SHARE = 1 / 16
"""Of the training data with --budget: fewer samples may be less than a batch."""


def estimate(planned: Experiment) -> dict[str, RunCost]:
    """Return run name -> what it takes, from a short measurement here.

    Runs that are done take nothing, and what an earlier start of the same table measured counts. At
    the paper's own scale speed is measured with random weights and generated photos
    (`compoclip.programs.estimate`). At another scale a few steps of each arm are trained in a
    temporary folder and thrown away, and the first of these models is measured.
    """
    earlier = earlier_plan(planned).get("estimated", {})
    costs: dict[str, RunCost] = {}
    unknown = []
    for run in planned.trained:
        if is_done(run, planned):
            costs[run.name] = RunCost(0.0, 0.0)
        elif run.name in earlier:
            costs[run.name] = RunCost(**earlier[run.name])
        else:
            unknown.append(run)
    if not unknown:
        return costs
    if planned.scale is None:
        return {**costs, **_from_speed(planned, unknown)}
    return {**costs, **_from_pilots(planned, unknown)}


def _from_pilots(planned: Experiment, runs: Sequence[ArmRun]) -> dict[str, RunCost]:
    """Measure as many at once as the table will run, since runs slow one another."""
    requests: dict[str, TrainRequest] = {}
    for run in runs:
        assert run.request is not None
        requests.setdefault(_arm_key(run), run.request)
    frozen = sorted({_has_frozen_images(request) for request in requests.values()})
    with TemporaryDirectory() as name:
        folder = Path(name)
        note(f"measuring {counted(len(requests), 'kind')} of runs for the estimate")
        for data in {request.options.data: request for request in requests.values()}.values():
            _pilot(data, folder / "first", stop_after=1)  # features of images are made once
            rmtree(folder / "first")
        measuring = planned.measuring()
        cache = measuring.out / ".features"
        assert planned.scale is not None
        with silent():
            elsewhere = replace(measuring, out=folder / "results", cache=cache)
            evaluate(elsewhere, {"base": planned.scale.model})
        tasks: list[Callable[[], float]] = [
            partial(_training_seconds, request, folder / str(number), planned.options.max_steps)
            for number, request in enumerate(requests.values())
        ]
        tasks += [partial(_measuring_seconds, planned, folder, images) for images in frozen]
        with at_once(planned.jobs, in_order=True) as apply, interruption_said(INTERRUPTED):
            seconds = [*track(apply(operator.call, tasks), "measuring", len(tasks), "tasks")]
    training = dict(zip(requests, seconds))
    measured = dict(zip(frozen, seconds[len(requests) :]))
    return {
        run.name: RunCost(training[_arm_key(run)], measured[_has_frozen_images(run.request)])
        for run in runs
        if run.request is not None
    }


def _arm_key(run: ArmRun) -> str:
    return json.dumps(asdict(run.arm), default=str)


def _has_frozen_images(request: TrainRequest) -> bool:
    return "image" in request.options.freeze


def _training_seconds(request: TrainRequest, folder: Path, max_steps: int | None) -> float:
    """Return the seconds that a whole run takes to begin and to do its steps.

    The beginning is timed on all data. The steps are timed in a run on so small a part of them that
    it has few steps and yet all its epochs, as later epochs of a recipe may have more texts.
    """
    begin = time.monotonic()
    total, ends = _pilot(request, folder / "begun", stop_after=1)
    beginning = time.monotonic() - begin - ends[0]
    if total > _PILOT_STEPS and not max_steps:
        share = request.options.fraction * _PILOT_STEPS / total
        _, ends = _pilot(request, folder / "run", fraction=share)
    else:
        _, ends = _pilot(request, folder / "run", stop_after=min(_PILOT_STEPS, total))
    per_step = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else ends[0]
    return beginning + per_step * total


def _pilot(request: TrainRequest, out: Path, **changed: float) -> tuple[int, list[float]]:
    """Train; return the steps of the whole run, and the seconds at the end of every step done."""
    options = replace(request.options, out=out, log_every=1, **changed)  # type: ignore[arg-type]
    return pilot(replace(request, options=options))


def _measuring_seconds(planned: Experiment, folder: Path, frozen: bool) -> float:
    """Time another model; with a frozen image tower only its texts are encoded."""
    import torch

    from compoclip.models.checkpoint import load_model

    assert planned.scale is not None
    measuring = planned.measuring()
    with silent():
        changed = load_model(planned.scale.model)
        parts = ("token_embedding",) if frozen else ("token_embedding", "visual")
        names = list(changed.encoder.model.named_parameters())
        with torch.no_grad():
            for part in parts:
                next(value for name, value in names if part in name).mul_(1.001)
        begin = time.monotonic()
        # Features of images that nobody reads again go to a folder of their own.
        cache = measuring.out / ".features" if frozen else folder / "features"
        evaluate(
            replace(measuring, out=folder / f"measured-{frozen}", cache=cache), {"pilot": changed}
        )
    return time.monotonic() - begin


def _from_speed(planned: Experiment, runs: Sequence[ArmRun]) -> dict[str, RunCost]:
    from compoclip.ranks import device_named

    device = device_named(planned.device)
    precision = usual_precision(device, small=False)
    speeds = {}
    costs = {}
    for run in runs:
        assert run.request is not None
        arm, options = run.arm, run.request.options
        optim = run.request.composed().optim
        data = training_photos(arm.data)
        key = arm.recipe, arm.model, data.sentences
        if key not in speeds:
            note(f"measuring {arm.recipe} from {arm.model} on {device} for the estimate")
            batch, sentences = optim.batch_size, data.sentences
            speeds[key] = measure(arm.recipe, arm.model, {}, sentences, batch, device, precision)
        micro, _ = micro_batch(speeds[key], optim.batch_size, device)
        steps = optim.epochs * (round(options.fraction * data.number) // optim.batch_size)
        if planned.options.max_steps:
            steps = min(steps, planned.options.max_steps)
        step = step_seconds(speeds[key], optim.batch_size, micro)
        measuring = measuring_seconds(speeds[key], planned.table.measure)
        costs[run.name] = RunCost(steps * step, measuring, micro, steps_between_states(step))
    return costs


def within_budget(planned: Experiment, limit: float) -> tuple[Experiment, dict[str, RunCost]]:
    """Return a table on the share of its training data with which it fits into a time.

    The share is 1, 1/2, 1/4, ... of what every run takes; an interrupted table keeps its share.

    Args:
        planned: the table on all data.
        limit: seconds.

    Returns:
        The table and what its runs take.

    Raises:
        UsageError: if the smallest share takes longer.
    """
    earlier = earlier_plan(planned)
    if earlier.get("budget") == limit:
        again = _with_share(planned, earlier["share"], limit)
        return again, estimate(again)
    costs = estimate(planned)
    training = sum(cost.training for cost in costs.values())
    measuring = sum(cost.measuring for cost in costs.values())
    available = limit * planned.jobs
    share = 1.0
    while share * training + measuring > available and share > _SMALLEST_SHARE:
        share /= 2
    needed = share * training + measuring
    if needed > available:
        raise UsageError(
            f"--budget: {planned.table.title} takes {duration(needed / planned.jobs)} on "
            f"{share:g} of its training data, the least; give more, or fewer --arms"
        )
    again = _with_share(planned, share, limit)
    whole = [costs[run.name] for run in planned.trained]
    return again, {
        run.name: replace(cost, training=share * cost.training)
        for run, cost in zip(again.trained, whole)
    }


def _with_share(planned: Experiment, share: float, limit: float) -> Experiment:
    return experiment(
        planned.table, planned.options, planned.scale, planned.samples, share, budget=limit
    )
