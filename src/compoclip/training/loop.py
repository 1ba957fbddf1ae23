"""The training loop, for every method: reads top to bottom."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from compoclip.console import counted
from compoclip.data.batch import Batch
from compoclip.data.drawn import PlanCounts
from compoclip.data.loader import BatchLoader
from compoclip.data.prepared import Preparation
from compoclip.errors import CompoclipError, RunInterruptedError
from compoclip.interrupts import StopRequests
from compoclip.losses.contract import StatefulLoss
from compoclip.methods.base import Method, Optim, Trains
from compoclip.models.config import part_of
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import lora_parameters
from compoclip.models.preprocess import Tokenizer
from compoclip.models.projection import text_matrix
from compoclip.ranks import SINGLE, PeerLostError, Ranks
from compoclip.training.caches import FrozenTexts
from compoclip.training.distributed import (
    GlobalBatch,
    RewriteCounts,
    SharedBatches,
    require_same_step,
    seed_dropout,
    sync_batch_norm,
)
from compoclip.training.gradients import GradientMean
from compoclip.training.log import LOG, MetricsLog
from compoclip.training.optim import (
    AveragedWeights,
    BadSteps,
    build_optimizer,
    learning_rate,
    set_learning_rate,
    step_if_finite,
)
from compoclip.training.parts import frozen_by, rate_factors
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import clip_gradients, shard_training
from compoclip.training.state import Progress, StateWriter, damaged, latest_state, load_state
from compoclip.training.step import module_name, step
from compoclip.training.teacher import TeacherEncoder
from compoclip.training.watch import Watch

T = TypeVar("T")
_MAX_BAD_STEPS = 3  # one after the other
_HALVINGS = 16  # of the loss scale of fp16, which begins with 2^16, until it is 1


def train_loop(
    encoder: DualEncoder,
    tokenize: Tokenizer,
    method: Method,
    batches: BatchLoader,
    settings: RunSettings,
    report: Callable[[dict[str, Any], int], None],
    ranks: Ranks = SINGLE,
    known: FrozenTexts | None = None,
    watch: Watch | None = None,
) -> Progress:
    """Train an encoder in place until the last step, or until the run is asked to stop.

    The result does not depend on the number of ranks. The state is also saved when the data fails,
    and on Ctrl-C or SIGTERM.

    Args:
        encoder: What learns; on its device.
        tokenize: The encoder's tokenizer.
        method: Losses, what trains, optimiser and schedule.
        batches: This rank's part of every global batch.
        settings: How the run is executed. With `resume` the newest state in OUT is restored first.
        report: Called with the record of every logged step and the number of all steps, on rank 0.
        ranks: The processes that train together.
        known: Remembers texts, see `step`.
        watch: Measures the encoder now and then, and may end the run.

    Returns:
        Where the run ended.

    Raises:
        CompoclipError: When the loss or the gradient is not finite three steps in a row, when
            weights are not finite, and for what the data or the disk report.
        RunInterruptedError: After Ctrl-C or SIGTERM, once the step under way is done and saved.
    """
    # What learns decides what the optimiser holds, so freezing comes first.
    total = total_steps(method.optim, batches, settings.max_steps)
    freeze(encoder.model, method.trains, settings.freeze)
    learner, teacher = encoder.learner, encoder.teacher
    factors = rate_factors(encoder.model, method.optim.lr, settings)
    optimizer = build_optimizer(
        ((name.removeprefix("model."), each) for name, each in learner.named_parameters()),
        method.optim,
        factors,
        {module_name(name): plan for name, plan in method.heads.items()},
    )
    averages = AveragedWeights(encoder.model, settings.ema) if settings.ema else None
    device = torch.device(settings.device)
    scaler = torch.amp.GradScaler(
        device.type, init_scale=2.0**_HALVINGS, enabled=settings.precision == "fp16"
    )

    # Resume: weights, moments and random state of the newest complete state, if there is one.
    states = settings.out / "state"
    progress = Progress(step=0, epoch=0, epoch_step=0)
    state = latest_state(states) if settings.resume else None
    if state is not None:
        progress = load_state(state, learner, optimizer, batches.steps_per_epoch, averages)
        try:
            scaler.load_state_dict(progress.scaler)
        except (KeyError, RuntimeError) as error:
            raise damaged(state, ValueError(f"scaler: {error}")) from error
        if progress.step > total:
            raise damaged(state, ValueError(f"step {progress.step} of {total}"))
    require_same_step(progress.step, ranks)
    seed_dropout(progress.step, ranks)

    # Losses that carry numbers from step to step (adaptive margins) are part of the state as well.
    stateful = {t.name: t.loss for t in method.losses if isinstance(t.loss, StatefulLoss)}
    try:
        for name, loss in stateful.items():
            loss.load_state_dict(progress.losses.get(name, {}))
    except ValueError as error:
        raise damaged(state or states, error) from error
    if watch is not None:
        watch.restore(progress.measured)

    # Only now may modules be replaced and parameters split: states are written and read whole, and
    # the optimiser of a split model takes over the moments that were just restored.
    encoder.train()
    sync_batch_norm(encoder.model, device, ranks)
    if settings.fsdp:
        optimizer = shard_training(encoder, optimizer, method.optim, device, ranks, factors)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    clock = time.monotonic()
    rewrites = RewriteCounts(progress.rewrites)
    owed = False  # a state that was due while steps were bad

    def save(wait: bool = True) -> None:
        bad_steps.read()
        if progress.step:
            losses = {name: loss.state_dict() for name, loss in stateful.items()}
            now = replace(progress, losses=losses, rewrites=rewrites.total(ranks))
            now = replace(now, scaler=scaler.state_dict())
            if watch is not None:
                now = replace(now, measured=watch.state())
            writer.save(learner, optimizer, now, averages)
        if wait:
            writer.finish()

    with (
        MetricsLog(settings.out / LOG, progress.step, ranks) as log,
        StopRequests() as requests,
        StateWriter(states, ranks, beside=device.type == "cuda") as writer,
        GradientMean(parameters, ranks) as mean,
        _host_of(device) as settle,
    ):
        planner = encoder.text_planner(settings.micro_batch)
        batches.prepare_with(Preparation(tokenize, planner), device)
        shared = SharedBatches(batches, ranks, lambda: requests.asked)

        # One batch may go wrong (bf16, a rare outlier): its step is not taken, and counted. Several
        # in a row mean that the run has diverged. All ranks see the same loss and the same
        # gradients, so that they take the same branch without telling each other.
        def skipped(step: int, what: str) -> None:
            nonlocal progress
            progress = replace(progress, skipped_steps=progress.skipped_steps + 1)
            log.write({"step": step, "skipped": f"{what} is not finite"})
            if bad_steps.in_a_row == most:
                kept = latest_state(states)
                raise CompoclipError(
                    f"the {what} was not finite {most} steps in a row up to step {step}; "
                    "lower --lr" + (f", or --resume from {kept}" if kept else "")
                )

        most = _MAX_BAD_STEPS + (_HALVINGS if scaler.is_enabled() else 0)
        bad_steps = BadSteps(device, skipped)

        # Measure the model as it would be handed out now. The clock is that of training; what goes
        # wrong with a benchmark costs no step.
        def look(watch: Watch) -> None:
            nonlocal clock
            try:
                with averages.applied() if averages is not None else nullcontext():
                    record = watch.look(progress.step, encoder.model)
            except PeerLostError:
                raise
            except CompoclipError:
                save()
                raise
            log.write(record)
            if ranks.first:
                report(record, total)
            clock = time.monotonic()

        def stopped() -> RunInterruptedError | None:
            return _stopped(requests.asked, progress.step, total, settings.out)

        # The curve of what is measured begins with the model that training starts from. A run that
        # had ended before its last step, and was killed before its result was written, has ended.
        if watch is not None and progress.step == 0:
            look(watch)
        if watch is not None and watch.over():
            return replace(progress, rewrites=rewrites.total(ranks))

        # Batches are a function of (seed, epoch, step): a resumed run goes on mid-epoch. Every
        # batch comes with what there is to know of the others' parts, exchanged before anything
        # is encoded.
        last = min(total, max(settings.stop_after or total, progress.step + 1))
        over = progress.step >= total
        ahead = _Ahead(shared.steps(progress.step, last), batches, device)
        for batch, global_batch, drawn in _saved_before_failing(ahead, save, stopped):
            lr = learning_rate(progress.step, total, method.optim)
            set_learning_rate(optimizer, lr)

            # Forward and backward. What is told of the loss is that of the global batch on every
            # rank; gradients still differ, by what each rank encoded.
            optimizer.zero_grad(set_to_none=True)
            result = step(
                encoder, tokenize, method, batch, settings, global_batch, mean, scaler, known
            )

            # The next batch is made ready, and sent to the device, while that still computes.
            if progress.step + 1 < last:
                ahead.take()

            # The mean over the ranks is the gradient that one process with the whole batch
            # would have (see "The algebra" in `distributed`); it is clipped after that. What fp16
            # has scaled up is scaled back first.
            mean.finish()
            scaler.unscale_(optimizer)
            norm = clip_gradients(parameters, method.optim.clip_grad, ranks)
            bad = step_if_finite(optimizer, result.total, norm)
            scaler.update()
            _clamp_logit_scale(encoder.model, method.optim.max_logit_scale)
            if isinstance(teacher, TeacherEncoder):
                teacher.follow(encoder)
            if averages is not None:
                averages.update()

            # Account for the step: a skipped one too, or the schedule would not end.
            spent, clock = time.monotonic() - clock, time.monotonic()
            progress = _advance(progress, global_batch, batches.steps_per_epoch, spent)
            rewrites.step_is_done(drawn)
            bad_steps.add(progress.step, bad)
            writer.check()
            settle()

            # Log. Numbers are read on these steps alone; one that was skipped has none to show.
            if _due(progress.step, settings.log_every, total):
                bad_steps.read()
                if not bad_steps.in_a_row:
                    record: dict[str, Any] = {
                        "step": progress.step,
                        "epoch": round(progress.step / batches.steps_per_epoch, 4),
                        "lr": lr,
                        "loss": result.loss,
                        **{f"loss/{name}": value for name, value in result.values.items()},
                        "grad_norm": norm.item(),
                        **_logit_scale(encoder.model),
                        "images": progress.images,
                        "texts": progress.texts,
                        "skipped": progress.skipped,
                        "skipped_steps": progress.skipped_steps,
                        "truncated": progress.truncated,
                        "seconds": round(progress.seconds, 3),
                    }
                    if shares := batches.drawn(progress.step):
                        record["drawn"] = shares
                    log.write(record)
                    if ranks.first:
                        report(record, total)

            if watch is not None and watch.due(progress.step, total):
                look(watch)
            over = progress.step == total or (watch is not None and watch.over())

            # Save and stop. Saving takes all ranks, so they must agree: with several, what
            # counts is the request that came with the batch, which all of them have seen.
            asked = requests.asked if ranks.world == 1 else ahead.asked or global_batch.asked
            stop = 0 < settings.stop_after <= progress.step
            # A state that is due while steps are bad waits for a good one: what is kept until
            # then is what a run that has diverged can go back to.
            ends = stop or asked > 0 or over
            owed = owed or _due(progress.step, settings.save_every, total)
            if owed and not ends:
                bad_steps.read()
            if ends or (owed and not bad_steps.in_a_row):
                save(wait=ends)
                owed = False
            if stop or over:
                break
            if stop_asked := _stopped(asked, progress.step, total, settings.out):
                raise stop_asked
    # The state has the weights of the last step; what is handed out is their average.
    if averages is not None and over:
        averages.apply()
    return replace(progress, rewrites=rewrites.total(ranks))


def _stopped(asked: int, step: int, total: int, out: Path) -> RunInterruptedError | None:
    """The error of a run that a signal asked to stop; None for the signal 0."""
    if not asked:
        return None
    done = f"after step {step} of {total}, which is saved in {out}" if step else "before step 1"
    return RunInterruptedError(f"interrupted {done}; the same command with --resume goes on", asked)


@dataclass(frozen=True)
class _Taken:
    """A batch, the global batch it is part of, and what had been drawn when it was taken."""

    batch: Batch
    whole: GlobalBatch
    drawn: PlanCounts


class _Ahead:
    """The batches of a run; `take` makes the next one ready before it is asked for.

    What goes wrong with a batch is raised when that batch is asked for, so that the step before it
    is done and saved.
    """

    def __init__(
        self,
        batches: Iterator[tuple[Batch, GlobalBatch]],
        loader: BatchLoader,
        device: torch.device,
    ) -> None:
        self._batches, self._loader, self._device = batches, loader, device
        self._next: _Taken | CompoclipError | None = None

    @property
    def asked(self) -> int:
        """The signal that had asked any rank to stop when a batch was taken ahead."""
        return self._next.whole.asked if isinstance(self._next, _Taken) else 0

    def take(self) -> None:
        """Make the next batch ready, its pixels on the way to a GPU."""
        try:
            found = next(self._batches, None)
        except PeerLostError:
            raise
        except CompoclipError as error:
            self._next = error
            return
        if found is None:
            return
        batch, whole = found
        if self._device.type == "cuda":
            pixels = batch.pixels.to(self._device, non_blocking=True)
            batch = replace(batch, pixels=pixels)
        drawn = PlanCounts()
        drawn.add(self._loader.counts)
        self._next = _Taken(batch, whole, drawn)

    def __iter__(self) -> Iterator[tuple[Batch, GlobalBatch, PlanCounts]]:
        while True:
            if self._next is None:
                self.take()
            taken, self._next = self._next, None
            if taken is None:
                return
            if isinstance(taken, CompoclipError):
                raise taken
            yield taken.batch, taken.whole, taken.drawn


_GPU_THREADS = 2  # of this process, whose cores are for those that read data


@contextmanager
def _host_of(device: torch.device) -> Iterator[Callable[[], None]]:
    """While a GPU computes, its host has few threads and does not stop to collect garbage.

    Yields what is to be called after a step: the first time, what lives until then is exempted from
    the collections to come, each of which would go through all of it and hold the GPU up for tenths
    of a second. Does nothing for a CPU.
    """
    if device.type != "cuda":
        yield lambda: None
        return

    settled = False

    def settle() -> None:
        nonlocal settled
        if not settled:
            gc.collect()
            gc.freeze()
            settled = True

    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, _GPU_THREADS))
    try:
        yield settle
    finally:
        torch.set_num_threads(threads)
        gc.unfreeze()


def _saved_before_failing(
    batches: Iterable[T], save: Callable[[], None], interrupted: Callable[[], Exception | None]
) -> Iterator[T]:
    """The batches of a run; saves what was learnt when the data (not the caller) fails.

    interrupted: the error to raise instead, if any: the SIGTERM of a scheduler also reaches the
    workers that read data, which are gone then.
    """
    try:
        yield from batches
    except PeerLostError:
        raise  # saving takes all ranks
    except CompoclipError as error:
        save()
        if (asked := interrupted()) is not None:
            raise asked from error
        raise


def total_steps(optim: Optim, batches: BatchLoader, most: int = 0) -> int:
    """Optimiser steps of the whole run: those of its epochs, or `most` if that is less and not 0.

    Raises:
        CompoclipError: When there is not one full batch.
    """
    if batches.steps_per_epoch < 1:
        raise CompoclipError(
            f"{counted(batches.samples, 'sample')}, fewer samples than one batch of "
            f"{batches.batch_size}; lower --batch-size or add data"
        )
    steps = max(1, round(optim.epochs * batches.steps_per_epoch))
    return min(steps, most) if most else steps


def freeze(model: nn.Module, trains: Trains, words: Sequence[str] = ()) -> None:
    """Set requires_grad of every parameter; with adapters, only these may learn.

    Args:
        model: The open_clip network, adapters included.
        trains: Which parts learn.
        words: What --freeze holds still in them.
    """
    still = {name for names in frozen_by(model, words).values() for name in names}
    learns = {
        "image": trains.image_tower,
        "text": trains.text_tower,
        "temperature": trains.logit_scale,
    }
    adapters = {id(parameter) for parameter in lora_parameters(model)}
    for name, parameter in model.named_parameters():
        free = name not in still and (not adapters or id(parameter) in adapters)
        free = free and (trains.text_norm or "ln_final" not in name.split("."))
        parameter.requires_grad_(free and learns[part_of(name)])
    if trains.matrix:
        text_matrix(model).requires_grad_(True)


def _clamp_logit_scale(model: nn.Module, maximum: float) -> None:
    """Keep s = exp(logit_scale) between 1 and `maximum`, as CLIP does; SigLIP does not, and its
    published models are above 100."""
    scale = model.get_parameter("logit_scale")
    if scale.requires_grad:
        with torch.no_grad():
            scale.clamp_(0.0, math.inf if _has_bias(model) else math.log(maximum))


def _has_bias(model: nn.Module) -> bool:
    return any(name == "logit_bias" for name, _ in model.named_parameters(recurse=False))


def _logit_scale(model: nn.Module) -> dict[str, float]:
    """What scales logits and, where there is one, what is added to them."""
    found = {"logit_scale": math.exp(model.get_parameter("logit_scale").item())}
    if _has_bias(model):
        found["logit_bias"] = model.get_parameter("logit_bias").item()
    return found


def _advance(
    progress: Progress, batch: GlobalBatch, steps_per_epoch: int, seconds: float
) -> Progress:
    epoch_step = progress.epoch_step + 1
    return replace(
        progress,
        step=progress.step + 1,
        epoch=progress.epoch + epoch_step // steps_per_epoch,
        epoch_step=epoch_step % steps_per_epoch,
        images=progress.images + batch.images,
        texts=progress.texts + batch.texts,
        skipped=progress.skipped + batch.skipped,
        truncated=progress.truncated + batch.truncated,
        seconds=progress.seconds + seconds,
    )


def _due(step: int, every: int, total: int) -> bool:
    return step == total or (every > 0 and step % every == 0)
