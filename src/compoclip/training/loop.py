"""The training loop, for every method: reads top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from compoclip.data.loader import BatchLoader
from compoclip.errors import CompoclipError, RunInterruptedError
from compoclip.interrupts import StopRequests
from compoclip.losses.contract import StatefulLoss
from compoclip.memory import give_back
from compoclip.methods.base import Method, Optim, Trains
from compoclip.models.config import part_of
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import lora_parameters
from compoclip.models.preprocess import Tokenizer
from compoclip.ranks import SINGLE, PeerLostError, Ranks
from compoclip.training.caches import FrozenImages
from compoclip.training.distributed import (
    GlobalBatch,
    RewriteCounts,
    SharedBatches,
    average_gradients,
    require_same_step,
    seed_dropout,
    sync_batch_norm,
)
from compoclip.training.log import LOG, MetricsLog
from compoclip.training.optim import build_optimizer, learning_rate
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import clip_gradients, shard_training
from compoclip.training.state import Progress, damaged, latest_state, load_state, save_state
from compoclip.training.step import step

T = TypeVar("T")
_MAX_BAD_STEPS = 3  # consecutive steps with a loss that is not finite


def train_loop(
    encoder: DualEncoder,
    tokenize: Tokenizer,
    method: Method,
    batches: BatchLoader,
    settings: RunSettings,
    signature: str,
    report: Callable[[dict[str, float], int], None],
    ranks: Ranks = SINGLE,
    frozen: FrozenImages | None = None,
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
        signature: What a state must have been written under to be resumed.
        report: Called with the record of every logged step and the number of all steps, on rank 0.
        ranks: The processes that train together.
        frozen: Cached features of a frozen image tower.

    Returns:
        Where the run ended.

    Raises:
        CompoclipError: When the loss is not finite three steps in a row, when weights are not
            finite, and for what the data or the disk report.
        RunInterruptedError: After Ctrl-C or SIGTERM, once the step under way is done and saved.
    """
    # What learns decides what the optimiser holds, so freezing comes first.
    total = total_steps(method.optim, batches)
    freeze(encoder.model, method.trains)
    optimizer = build_optimizer(encoder.model.named_parameters(), method.optim)

    # Resume: weights, moments and random state of the newest complete state, if there is one.
    states = settings.out / "state"
    progress = Progress(step=0, epoch=0, epoch_step=0, signature=signature)
    state = latest_state(states) if settings.resume else None
    if state is not None:
        progress = load_state(state, encoder.model, optimizer, signature, batches.steps_per_epoch)
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

    # Only now may modules be replaced and parameters split: states are written and read whole, and
    # the optimiser of a split model takes over the moments that were just restored.
    encoder.train()
    device = torch.device(settings.device)
    sync_batch_norm(encoder.model, device, ranks)
    if settings.fsdp:
        optimizer = shard_training(encoder, optimizer, method.optim, device, ranks)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    bad_steps = 0
    clock = time.monotonic()
    rewrites = RewriteCounts(progress.rewrites)

    def save() -> None:
        if progress.step:
            losses = {name: loss.state_dict() for name, loss in stateful.items()}
            now = replace(progress, losses=losses, rewrites=rewrites.total(ranks))
            save_state(states, encoder.model, optimizer, now, ranks)
            give_back()

    log_file = settings.out / LOG
    with MetricsLog(log_file, progress.step, ranks) as log, StopRequests() as requests:
        shared = SharedBatches(batches, ranks, tokenize.truncated, lambda: requests.asked)

        def stopped() -> RunInterruptedError | None:
            return _stopped(requests.asked, progress.step, total, settings.out)

        while progress.step < total:
            # Batches are a function of (seed, epoch, step): a resumed run goes on mid-epoch. Every
            # batch comes with the layout of the global batch, exchanged before anything is encoded.
            epoch = shared.epoch(progress.epoch, progress.epoch_step)
            for batch, global_batch in _saved_before_failing(epoch, save, stopped):
                lr = learning_rate(progress.step, total, method.optim)
                for group in optimizer.param_groups:
                    group["lr"] = lr

                # Forward and backward. The loss is that of the global batch on every rank, since
                # features are gathered; gradients still differ, by what each rank encoded.
                optimizer.zero_grad(set_to_none=True)
                result = step(encoder, tokenize, method, batch, settings, global_batch, frozen)

                # One batch may go wrong (bf16, a rare outlier): it is skipped and counted. Several
                # in a row mean that the run has diverged. All ranks see the same loss, so that they
                # take the same branch without telling each other.
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
                    # The mean over the ranks is the gradient that one process with the whole batch
                    # would have (see "The algebra" in `distributed`); it is clipped after that.
                    bad_steps = 0
                    average_gradients(parameters, ranks)
                    norm = clip_gradients(parameters, method.optim.clip_grad, ranks)
                    optimizer.step()
                    _clamp_logit_scale(encoder.model, method.optim.max_logit_scale)

                # Account for the step: a skipped one too, or the schedule would not end.
                spent, clock = time.monotonic() - clock, time.monotonic()
                progress = _advance(progress, global_batch, batches.steps_per_epoch, spent)
                if not result.finite:
                    progress = replace(progress, skipped_steps=progress.skipped_steps + 1)
                rewrites.step_is_done(batches.counts)

                # Log. A step that was skipped has no gradient norm to show.
                if bad_steps == 0 and _due(progress.step, settings.log_every, total):
                    record = {
                        "step": progress.step,
                        "epoch": round(progress.step / batches.steps_per_epoch, 4),
                        "lr": lr,
                        "loss": result.loss,
                        **{f"loss/{name}": value for name, value in result.values.items()},
                        "grad_norm": norm,
                        "logit_scale": _logit_scale(encoder.model),
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

                # Save and stop. Saving takes all ranks, so they must agree: with several, what
                # counts is the request that came with the batch, which all of them have seen.
                asked = requests.asked if ranks.world == 1 else global_batch.asked
                stop = settings.stop_after and progress.step >= settings.stop_after
                if stop or asked or _due(progress.step, settings.save_every, total):
                    save()
                if stop or progress.step >= total:
                    return replace(progress, rewrites=rewrites.total(ranks))
                if stop_asked := _stopped(asked, progress.step, total, settings.out):
                    raise stop_asked
    return replace(progress, rewrites=rewrites.total(ranks))


def _stopped(asked: int, step: int, total: int, out: Path) -> RunInterruptedError | None:
    """The error of a run that a signal asked to stop; None for the signal 0."""
    if not asked:
        return None
    done = f"after step {step} of {total}, which is saved in {out}" if step else "before step 1"
    return RunInterruptedError(f"interrupted {done}; the same command with --resume goes on", asked)


def _saved_before_failing(
    epoch: Iterator[T], save: Callable[[], None], interrupted: Callable[[], Exception | None]
) -> Iterator[T]:
    """The batches of an epoch; saves what was learnt when the data (not the caller) fails.

    interrupted: the error to raise instead, if any: the SIGTERM of a scheduler also reaches the
    workers that read data, which are gone then.
    """
    try:
        yield from epoch
    except PeerLostError:
        raise  # saving takes all ranks
    except CompoclipError as error:
        save()
        if (asked := interrupted()) is not None:
            raise asked from error
        raise


def total_steps(optim: Optim, batches: BatchLoader) -> int:
    """Optimiser steps of the whole run.

    Raises:
        CompoclipError: When there is not one full batch.
    """
    if batches.steps_per_epoch < 1:
        raise CompoclipError(
            "the data holds fewer samples than one batch; lower --batch-size or add data"
        )
    return max(1, round(optim.epochs * batches.steps_per_epoch))


def freeze(model: nn.Module, trains: Trains) -> None:
    """Set requires_grad of every parameter; with adapters, only these may learn.

    Args:
        model: The open_clip network, adapters included.
        trains: Which parts learn.
    """
    learns = {
        "image": trains.image_tower,
        "text": trains.text_tower,
        "temperature": trains.logit_scale,
    }
    adapters = {id(parameter) for parameter in lora_parameters(model)}
    for name, parameter in model.named_parameters():
        free = not adapters or id(parameter) in adapters
        parameter.requires_grad_(free and learns[part_of(name)])


def _clamp_logit_scale(model: nn.Module, maximum: float) -> None:
    """Keep s = exp(logit_scale) between 1 and `maximum`, as CLIP does."""
    scale = model.get_parameter("logit_scale")
    if scale.requires_grad:
        with torch.no_grad():
            scale.clamp_(0.0, math.log(maximum))


def _logit_scale(model: nn.Module) -> float:
    return math.exp(model.get_parameter("logit_scale").item())


def _advance(
    progress: Progress, batch: GlobalBatch, steps_per_epoch: int, seconds: float
) -> Progress:
    epoch_step = progress.epoch_step + 1
    return replace(
        progress,
        step=progress.step + 1,
        epoch=progress.epoch + epoch_step // steps_per_epoch,
        epoch_step=epoch_step % steps_per_epoch,
        images=progress.images + batch.merged.block.images,
        texts=progress.texts + len(batch.merged.block.texts),
        skipped=progress.skipped + batch.skipped,
        truncated=progress.truncated + batch.truncated,
        seconds=progress.seconds + seconds,
    )


def _due(step: int, every: int, total: int) -> bool:
    return step == total or (every > 0 and step % every == 0)
