"""The training loop, for every method: reads top to bottom."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import nn

from compoclip.errors import CompoclipError, RunInterruptedError
from compoclip.interrupts import say, unhandled
from compoclip.losses.contract import StatefulLoss
from compoclip.memory import give_back
from compoclip.methods.base import Method, Optim, Trains
from compoclip.models.config import part_of
from compoclip.models.lora import lora_parameters
from compoclip.ranks import ALONE, PeerLostError, Ranks
from compoclip.training.distributed import (
    Batches,
    FirstLog,
    RewriteCounts,
    SharedBatches,
    Whole,
    average_gradients,
    random_of_rank,
    require_same,
    share_batch_norm,
)
from compoclip.training.optim import build_optimizer, learning_rate
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import clip_gradients, shard_training
from compoclip.training.state import Progress, damaged, latest_state, load_state, save_state
from compoclip.training.step import (
    FrozenImages,
    TextTokenizer,
    TrainableEncoder,
    step,
)

# --- Ctrl-C and SIGTERM as requests that are granted between two steps, where a run can be
# resumed ---
#
# exactly.


class Interrupts:
    """While entered, the first Ctrl-C or SIGTERM only sets `asked`, to its number; a second Ctrl-C
    interrupts at once. A second SIGTERM does nothing: launchers and schedulers both send one.

    Does nothing outside the main thread or where a signal has another meaning already (ignored by a
    shell for jobs in the background, handled by a notebook).
    """

    def __init__(self) -> None:
        self.asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if unhandled(number):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = number
            how = "Ctrl-C again stops at once" if number == signal.SIGINT else "SIGTERM"
            say(f"stopping after this step ({how})")
        elif number == signal.SIGINT:
            self._before[number](number, frame)  # which raises KeyboardInterrupt


# --- The training loop, for every method: reads top to bottom. ---

T = TypeVar("T")
_MAX_BAD_STEPS = 3  # consecutive steps with a loss that is not finite


def train_loop(
    encoder: TrainableEncoder,
    tokenize: TextTokenizer,
    method: Method,
    batches: Batches,
    settings: RunSettings,
    signature: str,
    report: Callable[[dict[str, float], int], None],
    ranks: Ranks = ALONE,
    frozen: FrozenImages | None = None,
) -> Progress:
    """Train in place and return where the run ended.

    ranks: the processes that train together; `batches` are this process's parts of all batches, and
    the result is that of one process with the whole ones. The first one writes and reports.

    `report(record, total_steps)` is called for every logged step. Restores the newest state under
    `settings.out` first when `resume` is set; saves the state also when the data fails, or Ctrl-C
    or SIGTERM comes. Raises CompoclipError when three steps in a row give a loss that is not
    finite, when weights are not finite, and what the data or the disk raise; RunInterruptedError
    after Ctrl-C or SIGTERM.
    """
    total = total_steps(method.optim, batches)
    freeze(encoder.model, method.trains)
    optimizer = build_optimizer(encoder.model.named_parameters(), method.optim)
    states = settings.out / "state"
    progress = Progress(step=0, epoch=0, epoch_step=0, signature=signature)
    state = latest_state(states) if settings.resume else None
    if state is not None:
        progress = load_state(state, encoder.model, optimizer, signature, batches.steps_per_epoch)
        if progress.step > total:
            raise damaged(state, ValueError(f"step {progress.step} of {total}"))
    require_same(progress.step, ranks)
    random_of_rank(progress.step, ranks)
    remembering = _remembering(method)
    try:
        for name, stateful in remembering.items():
            stateful.load_state_dict(progress.losses.get(name, {}))
    except ValueError as error:
        raise damaged(state or states, error) from error
    encoder.train()
    device = torch.device(settings.device)
    share_batch_norm(encoder.model, device, ranks)
    if settings.fsdp:
        optimizer = shard_training(encoder, optimizer, method.optim, device, ranks)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    bad_steps = 0
    clock = time.monotonic()
    rewrites = RewriteCounts(progress.rewrites)

    def save() -> None:
        if progress.step:
            losses = {name: stateful.state_dict() for name, stateful in remembering.items()}
            now = replace(progress, losses=losses, rewrites=rewrites.whole(ranks))
            save_state(states, encoder.model, optimizer, now, ranks)
            give_back()

    log_file = settings.out / "train.jsonl"
    with FirstLog(log_file, progress.step, ranks) as log, Interrupts() as interrupts:
        shared = SharedBatches(batches, ranks, tokenize.truncated, lambda: interrupts.asked)

        def stopped() -> RunInterruptedError | None:
            return _stopped(interrupts.asked, progress.step, total, settings.out)

        while progress.step < total:
            epoch = shared.epoch(progress.epoch, progress.epoch_step)
            for batch, whole in _saved_before_failing(epoch, save, stopped):
                lr = learning_rate(progress.step, total, method.optim)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.zero_grad(set_to_none=True)
                result = step(encoder, tokenize, method, batch, settings, whole, frozen)

                if not result.finite:
                    bad_steps += 1
                    log.write({"step": progress.step + 1, "skipped": "loss is not finite"})
                    if bad_steps == _MAX_BAD_STEPS:
                        kept = latest_state(states)
                        raise CompoclipError(
                            f"the loss was not finite {bad_steps} steps in a row up to step "
                            f"{progress.step + 1}; lower --lr"
                            + (f", or --resume from {kept}" if kept else "")
                        )
                else:
                    bad_steps = 0
                    average_gradients(parameters, ranks)
                    norm = clip_gradients(parameters, method.optim.clip_grad, ranks)
                    optimizer.step()
                    _clamp_temperature(encoder.model, method.optim.max_logit_scale)

                spent, clock = time.monotonic() - clock, time.monotonic()
                progress = _advance(progress, whole, batches.steps_per_epoch, spent)
                if not result.finite:
                    progress = replace(progress, skipped_steps=progress.skipped_steps + 1)
                rewrites.step_is_done(batches.counts)
                if bad_steps == 0 and _due(progress.step, settings.log_every, total):
                    record = {
                        "step": progress.step,
                        "epoch": round(progress.step / batches.steps_per_epoch, 4),
                        "lr": lr,
                        "loss": result.loss,
                        **{f"loss/{name}": value for name, value in result.values.items()},
                        "grad_norm": norm,
                        "logit_scale": _temperature(encoder.model),
                        "images": progress.images,
                        "texts": progress.texts,
                        "skipped": progress.skipped,
                        "skipped_steps": progress.skipped_steps,
                        "truncated": progress.truncated,
                        "seconds": round(progress.seconds, 3),
                    }
                    log.write(record)
                    if ranks.first:
                        report(record, total)
                asked = interrupts.asked if ranks.world == 1 else whole.asked
                stop = settings.stop_after and progress.step >= settings.stop_after
                if stop or asked or _due(progress.step, settings.save_every, total):
                    save()
                if stop or progress.step >= total:
                    return replace(progress, rewrites=rewrites.whole(ranks))
                if stop_asked := _stopped(asked, progress.step, total, settings.out):
                    raise stop_asked
    return replace(progress, rewrites=rewrites.whole(ranks))


def _stopped(asked: int, step: int, total: int, out: Path) -> RunInterruptedError | None:
    """The error of a run that a signal asked to stop; None for the signal 0."""
    if not asked:
        return None
    done = f"after step {step} of {total}, which is saved in {out}" if step else "before step 1"
    return RunInterruptedError(f"interrupted {done}; the same command with --resume goes on", asked)


def _saved_before_failing(
    epoch: Iterator[T], save: Callable[[], None], interrupted: Callable[[], Exception | None]
) -> Iterator[T]:
    """The batches of an epoch; what was learnt is saved when the data fails (not the caller).

    interrupted: the error to raise instead, if any: the SIGTERM of a scheduler also reaches the
    workers that read data, which then are gone.
    """
    try:
        yield from epoch
    except PeerLostError:
        raise  # saving takes all processes
    except CompoclipError as error:
        save()
        if (asked := interrupted()) is not None:
            raise asked from error
        raise


def total_steps(optim: Optim, batches: Batches) -> int:
    """Optimiser steps of the whole run. Raises CompoclipError when there is not one full batch."""
    if batches.steps_per_epoch < 1:
        raise CompoclipError(
            "the data holds fewer samples than one batch; lower --batch-size or add data"
        )
    return max(1, round(optim.epochs * batches.steps_per_epoch))


def freeze(model: nn.Module, trains: Trains) -> None:
    """Set requires_grad of every parameter; of a network with adapters, only these may learn."""
    learns = {
        "image": trains.image_tower,
        "text": trains.text_tower,
        "temperature": trains.logit_scale,
    }
    adapters = {id(parameter) for parameter in lora_parameters(model)}
    for name, parameter in model.named_parameters():
        free = not adapters or id(parameter) in adapters
        parameter.requires_grad_(free and learns[part_of(name)])


def _remembering(method: Method) -> dict[str, StatefulLoss]:
    """The losses of a method that remember something from step to step, by name of the term."""
    return {t.name: t.loss for t in method.losses if isinstance(t.loss, StatefulLoss)}


def _clamp_temperature(model: nn.Module, maximum: float) -> None:
    scale = model.get_parameter("logit_scale")
    if scale.requires_grad:
        with torch.no_grad():
            scale.clamp_(0.0, math.log(maximum))


def _temperature(model: nn.Module) -> float:
    return math.exp(model.get_parameter("logit_scale").item())


def _advance(progress: Progress, whole: Whole, steps_per_epoch: int, seconds: float) -> Progress:
    epoch_step = progress.epoch_step + 1
    return replace(
        progress,
        step=progress.step + 1,
        epoch=progress.epoch + epoch_step // steps_per_epoch,
        epoch_step=epoch_step % steps_per_epoch,
        images=progress.images + whole.merged.block.images,
        texts=progress.texts + len(whole.merged.block.texts),
        skipped=progress.skipped + whole.skipped,
        truncated=progress.truncated + whole.truncated,
        seconds=progress.seconds + seconds,
    )


def _due(step: int, every: int, total: int) -> bool:
    return step == total or (every > 0 and step % every == 0)
