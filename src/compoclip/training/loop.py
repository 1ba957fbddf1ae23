"""The training loop of all methods, in reading order."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from compoclip.console import counted
from compoclip.data.batch import Batch
from compoclip.data.drawing import PlanCounts
from compoclip.data.loader import BatchLoader
from compoclip.data.prepared import Preparation
from compoclip.errors import CompoclipError, RunInterruptedError
from compoclip.interrupts import StopRequests
from compoclip.losses.contract import StatefulLoss
from compoclip.methods.base import Method, Optim, Trains
from compoclip.models.config import part_of
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import lora_parameters
from compoclip.models.projection import text_matrix
from compoclip.models.tokenizer import Tokenizer
from compoclip.ranks import SINGLE, PeerLostError, Ranks
from compoclip.training.caches import FrozenTexts, ImageBank
from compoclip.training.distributed import GlobalBatch, shared_batches, sync_batch_norm
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
from compoclip.training.parts import frozen_by, later_blocks, rate_factors
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import clip_gradients, shard_training
from compoclip.training.state import Progress, damaged, latest_state, load_state, save_state
from compoclip.training.step import StepResult, module_name, step
from compoclip.training.teacher import TeacherEncoder
from compoclip.training.watch import Watch, due

_MAX_BAD_STEPS = 3  # one after the other
_HALVINGS = 16  # of the loss scale of fp16, which begins with 2^16, until it is 1


@dataclass
class TrainingLoop:
    """Trains an encoder in place until the last step or a stop.

    The result does not depend on the number of ranks. The state is also saved when the data fails,
    and on Ctrl-C or SIGTERM. With `resume` the newest state in OUT is restored first.

    Args:
        batches: This rank's part of every global batch.
        report: Called on rank 0 with the record of every logged step and the total of steps.
        frozen_texts: See `step`.
        bank: Images of the whole data, see `step`.
        watch: Measures the encoder during training, and may end the run.
    """

    encoder: DualEncoder
    tokenize: Tokenizer
    method: Method
    batches: BatchLoader
    settings: RunSettings
    report: Callable[[dict[str, Any], int], None]
    ranks: Ranks = SINGLE
    frozen_texts: FrozenTexts | None = None
    bank: ImageBank | None = None
    watch: Watch | None = None

    def __post_init__(self) -> None:
        encoder, method, settings = self.encoder, self.method, self.settings
        ranks, batches = self.ranks, self.batches
        self.states = settings.out / "state"
        # What learns decides what the optimiser holds, so freezing comes first.
        self.total = total_steps(method.optim, batches, settings.max_steps)
        freeze(encoder.model, method.trains, settings.freeze)
        self.learner = encoder.learner
        factors = rate_factors(encoder.model, method.optim.lr, settings)
        self.optimizer = build_optimizer(
            ((n.removeprefix("model."), p) for n, p in self.learner.named_parameters()),
            method.optim,
            factors,
            {module_name(name): plan for name, plan in method.heads.items()},
        )
        self.averages = AveragedWeights(encoder.model, settings.ema) if settings.ema else None
        self.device = torch.device(settings.device)
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=2.0**_HALVINGS, enabled=settings.precision == "fp16"
        )
        # Losses that carry numbers from step to step (adaptive margins) are part of the state.
        self.stateful = {t.name: t.loss for t in method.losses if isinstance(t.loss, StatefulLoss)}
        self.progress = self._resumed()
        # Only now may modules be replaced and parameters split: states are written and read whole,
        # and the optimiser of a split model takes over the moments that were just restored.
        encoder.train()
        sync_batch_norm(encoder.model, self.device, ranks)
        if settings.fsdp:
            self.optimizer = shard_training(
                encoder, self.optimizer, method.optim, self.device, ranks, factors
            )
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.mean = GradientMean(self.parameters, ranks)
        before = self.progress.rewrites
        self.before = PlanCounts.from_json(before) if before else PlanCounts()
        self.local_counts = PlanCounts()  # by this rank since it started, for steps that are done
        self.ahead: tuple[Batch, GlobalBatch] | CompoclipError | None = None
        self.most_bad = _MAX_BAD_STEPS + (_HALVINGS if self.scaler.is_enabled() else 0)
        self.bad_steps = BadSteps(self.device, self._skipped)
        self.owed = False  # a state that was due while steps were bad
        self.ending: tuple[float, float] | None = None  # loss of the last step, and at chance
        self.clock = time.monotonic()

    def _resumed(self) -> Progress:
        """Restore the newest state of the run: weights, moments, random state; return its place."""
        progress = Progress(step=0, epoch=0, epoch_step=0)
        state = latest_state(self.states) if self.settings.resume else None
        if state is not None:
            per_epoch = self.batches.steps_per_epoch
            progress = load_state(state, self.learner, self.optimizer, per_epoch, self.averages)
        try:
            if progress.step > self.total:
                raise ValueError(f"step {progress.step} of {self.total}")
            if state is not None:
                self.scaler.load_state_dict(progress.scaler)
            for name, loss in self.stateful.items():
                loss.load_state_dict(progress.losses.get(name, {}))
        except (KeyError, RuntimeError, ValueError) as error:
            raise damaged(state or self.states, error) from error
        steps = sorted(set(self.ranks.exchange(progress.step)))
        if len(steps) > 1:
            raise CompoclipError(
                f"the processes found training states of different steps ({steps}): --out must be "
                "on a disk that all machines share"
            )
        if not self.ranks.first:  # draws its dropout like a single process
            torch.manual_seed(torch.initial_seed() + 1_000_003 * self.ranks.rank + progress.step)
        if self.watch is not None:
            self.watch.restore(progress.measured)
        return progress

    def run(self) -> Progress:
        """Take all remaining steps.

        A step with a non-finite loss or gradient (bf16, a rare outlier) is skipped and counted.
        All ranks have equal losses and gradients, so that they take the same branch without
        communication.

        Raises:
            CompoclipError: When the loss or the gradient is not finite three steps in a row, when
                weights are not finite, and for errors of data or disk.
            RunInterruptedError: After Ctrl-C or SIGTERM, once the current step is done and saved.
        """
        settings, ranks = self.settings, self.ranks
        with (
            MetricsLog(settings.out / LOG, self.progress.step, ranks) as self.log,
            StopRequests() as self.requests,
            _host_of(self.device) as self.settle,
        ):
            self._steps()
        # The state has the weights of the last step; what is handed out is their average.
        if self.averages is not None and self._over:
            self.averages.swap()
        return replace(self.progress, rewrites=self._rewrites())

    def _steps(self) -> None:
        planner = self.encoder.text_planner(self.settings.micro_batch)
        self.batches.prepare_with(Preparation(self.tokenize, planner), self.device)
        # The curve of what is measured begins with the model that training starts from. A run that
        # had ended before its last step, and was killed before its result was written, has ended.
        if self.progress.step == 0:
            self._measure()
        if self.watch is not None and self.watch.over():
            return
        # Batches are a function of (seed, epoch, step): a resumed run continues mid-epoch.
        # Every batch comes with what is known of the others' parts, exchanged before encoding.
        stop_after, begin = self.settings.stop_after, self.progress.step
        self.last = min(self.total, max(stop_after or self.total, begin + 1))
        self.coming = shared_batches(
            self.batches, self.ranks, lambda: self.requests.stop_signal, begin, self.last
        )
        while self.progress.step < self.last:
            if (taken := self._next()) is None:
                return
            self._step(*taken)
            self._measure()
            # Saving takes all ranks, so they must agree to stop: with several, what counts is the
            # request that came with the batch, which all of them have seen.
            stop_signal = self.requests.stop_signal
            if self.ranks.world > 1:
                ahead = self.ahead[1].stop_signal if isinstance(self.ahead, tuple) else 0
                stop_signal = ahead or taken[1].stop_signal
            stop = self._over or 0 < stop_after <= self.progress.step
            self._save_if_due(stop or stop_signal > 0)
            if stop:
                return
            self._stop_if(stop_signal)

    @property
    def _over(self) -> bool:
        """Return whether the run is over, and not only stopped."""
        ended = self.watch is not None and self.watch.over()
        return ended or self.progress.step >= self.total

    def _next(self) -> tuple[Batch, GlobalBatch] | None:
        """The next batch; when the data fails (SIGTERM ends workers too), save the state first."""
        if self.ahead is None:
            self.take()
        taken, self.ahead = self.ahead, None
        if isinstance(taken, CompoclipError):
            self._save()
            self._stop_if(self.requests.stop_signal, taken)
            raise taken
        return taken

    def take(self) -> None:
        """Prefetch the next batch and start the copy of its pixels to a GPU.

        The error of a batch is raised when that batch is used, so that the previous step is done
        and saved.
        """
        try:
            pair = next(self.coming, None)
        except PeerLostError:
            raise  # saving takes all ranks
        except CompoclipError as error:
            self.ahead = error
            return
        if pair is None:
            return
        batch, whole = pair
        if self.device.type == "cuda":
            batch = replace(batch, pixels=batch.pixels.to(self.device, non_blocking=True))
        self.ahead = batch, whole

    def _step(self, batch: Batch, global_batch: GlobalBatch) -> None:
        """Take a step, and account for it."""
        optim, optimizer = self.method.optim, self.optimizer
        lr = learning_rate(self.progress.step, self.total, optim)
        set_learning_rate(optimizer, lr)

        # Forward and backward. The reported loss is of the global batch on every rank; gradients
        # still differ, by what each rank encoded.
        optimizer.zero_grad(set_to_none=True)
        result = step(
            self.encoder,
            self.tokenize,
            self.method,
            batch,
            self.settings,
            global_batch,
            self.mean,
            self.scaler,
            self.frozen_texts,
            bank=self.bank,
            with_chance=self.progress.step + 1 == self.total,
        )

        # The next batch is made ready, and sent to the device, while that still computes.
        if self.progress.step + 1 < self.last:
            self.take()

        # The mean over the ranks is the gradient that one process with the whole batch would have
        # (see "The algebra" in `distributed`); it is clipped after that. What fp16 has scaled up is
        # scaled back first.
        self.scaler.unscale_(optimizer)
        norm = clip_gradients(self.parameters, optim.clip_grad, self.ranks)
        bad = step_if_finite(optimizer, result.total, norm)
        self.scaler.update()
        # s = exp(logit_scale) stays between 1 and a maximum, as in CLIP; SigLIP has none, and its
        # published models are above 100.
        if (scale := self.encoder.logit_scale).requires_grad:
            biased = self.encoder.logit_bias is not None
            with torch.no_grad():
                scale.clamp_(0.0, math.inf if biased else math.log(optim.max_logit_scale))
        if isinstance(self.encoder.teacher, TeacherEncoder):
            self.encoder.teacher.follow(self.encoder)
        if self.averages is not None:
            self.averages.update()

        # Account for the step: a skipped one too, or the schedule would not end.
        now = time.monotonic()
        before = self.progress
        added = ("images", "texts", "skipped", "truncated")
        counts: Any = {n: getattr(before, n) + getattr(global_batch, n) for n in added}
        epochs, epoch_step = divmod(before.epoch_step + 1, self.batches.steps_per_epoch)
        self.progress = replace(
            before,
            step=before.step + 1,
            epoch=before.epoch + epochs,
            epoch_step=epoch_step,
            seconds=before.seconds + now - self.clock,
            **counts,
        )
        self.clock = now
        self.local_counts.add(batch.counts)
        self.bad_steps.add(self.progress.step, bad)
        self.settle()
        if due(self.progress.step, self.settings.log_every, self.total):
            self._log_step(lr, result, norm)

    def _log_step(self, lr: float, result: StepResult, norm: torch.Tensor) -> None:
        """Numbers are read on logged steps alone; one that was skipped has none to show."""
        self.bad_steps.read()
        if self.bad_steps.in_a_row:
            return
        progress, bias = self.progress, self.encoder.logit_bias
        counts = ("images", "texts", "skipped", "skipped_steps", "truncated")
        record: dict[str, Any] = {
            "step": progress.step,
            "epoch": round(progress.step / self.batches.steps_per_epoch, 4),
            "lr": lr,
            **result.numbers(),
            **({} if result.chance is None else {"chance": result.chance.item()}),
            "grad_norm": norm.item(),
            "logit_scale": math.exp(self.encoder.logit_scale.item()),
            **({} if bias is None else {"logit_bias": bias.item()}),
            **{name: getattr(progress, name) for name in counts},
            "seconds": round(progress.seconds, 3),
        }
        if shares := self.batches.samples_by_source(progress.step):
            record["drawn"] = shares
        if result.chance is not None:
            self.ending = record["loss"], record["chance"]
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        self.log.write(record)
        if self.ranks.first:
            self.report(record, self.total)

    def _skipped(self, step: int, quantity: str) -> None:
        """Account for a step that was not taken."""
        self.progress = replace(self.progress, skipped_steps=self.progress.skipped_steps + 1)
        self.log.write({"step": step, "skipped": f"{quantity} is not finite"})
        if self.bad_steps.in_a_row == self.most_bad:
            state = latest_state(self.states)
            raise CompoclipError(
                f"the {quantity} was not finite {self.most_bad} steps in a row up to step {step}; "
                "lower --lr" + (f", or --resume from {state}" if state else "")
            )

    def _measure(self) -> None:
        """Measure the model as it would be saved now, if due; the clock counts training only."""
        if self.watch is None or not self.watch.due(self.progress.step, self.total):
            return
        try:
            with self.averages.applied() if self.averages is not None else nullcontext():
                record = self.watch.look(self.progress.step, self.encoder.model)
        except PeerLostError:
            raise
        except CompoclipError:
            self._save()
            raise
        self._write(record)
        self.clock = time.monotonic()

    def _save(self) -> None:
        self.bad_steps.read()
        if not self.progress.step:
            return
        now = replace(
            self.progress,
            losses={name: loss.state_dict() for name, loss in self.stateful.items()},
            rewrites=self._rewrites(),
            scaler=self.scaler.state_dict(),
            measured={} if self.watch is None else self.watch.state(),
        )
        save_state(self.states, self.learner, self.optimizer, now, self.averages, self.ranks)

    def _rewrites(self) -> dict[str, Any]:
        """Return counts of the texts of all finished steps, over all ranks and restarts."""
        total = PlanCounts()
        total.add(self.before)
        for part in self.ranks.exchange(self.local_counts.to_json()):
            total.add(PlanCounts.from_json(part))
        return total.to_json()

    def _save_if_due(self, ends: bool) -> None:
        """Save a due state; during bad steps wait for a good one, so that a diverged run can go
        back to the older state."""
        self.owed |= due(self.progress.step, self.settings.save_every, self.total)
        if self.owed and not ends:
            self.bad_steps.read()
        if ends or (self.owed and not self.bad_steps.in_a_row):
            self._save()
            self.owed = False

    def _stop_if(self, stop_signal: int, cause: CompoclipError | None = None) -> None:
        """Raise RunInterruptedError if a signal asked the run to stop; `stop_signal`: it, or 0."""
        if stop_signal:
            step, place = self.progress.step, "before step 1"
            if step:
                place = f"after step {step} of {self.total}, which is saved in {self.settings.out}"
            raise RunInterruptedError(
                f"interrupted {place}; the same command with --resume continues", stop_signal
            ) from cause


_GPU_THREADS = 2  # of this process; the other cores are for data workers


@contextmanager
def _host_of(device: torch.device) -> Iterator[Callable[[], None]]:
    """While a GPU computes, its host has few threads and collects no old garbage.

    Yields what to call after a step: it exempts what lives then from collections, each of which
    would hold the GPU up for tenths of a second.
    """
    if device.type != "cuda":
        yield lambda: None
        return

    @cache
    def settle() -> None:
        gc.collect()
        gc.freeze()

    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, _GPU_THREADS))
    try:
        yield settle
    finally:
        torch.set_num_threads(threads)
        gc.unfreeze()


def total_steps(optim: Optim, batches: BatchLoader, max_steps: int = 0) -> int:
    """Return the optimiser steps of the whole run: of its epochs, or `max_steps` if fewer, not 0.

    Raise CompoclipError when there is not one full batch.
    """
    if batches.steps_per_epoch < 1:
        raise CompoclipError(
            f"{counted(batches.samples, 'sample')} are fewer samples than one batch of "
            f"{batches.batch_size}; lower --batch-size or add data"
        )
    steps = max(1, round(optim.epochs * batches.steps_per_epoch))
    return min(steps, max_steps) if max_steps else steps


def freeze(model: nn.Module, trains: Trains, words: Sequence[str] = ()) -> None:
    """Set requires_grad of every parameter; with adapters, only of these.

    Args:
        model: The open_clip network, with adapters.
        trains: The trained parts.
        words: The values of --freeze.
    """
    still = {name for names in frozen_by(model, words).values() for name in names}
    still |= later_blocks(model, trains.text_blocks)
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
