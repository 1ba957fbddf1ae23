"""Checks, before the first step, for what would make a run pointless."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from compoclip.console import counted
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Source
from compoclip.data.usable import few_samples
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Role
from compoclip.methods.base import Method
from compoclip.ranks import Ranks
from compoclip.training.settings import RunSettings
from compoclip.training.teacher import ExternalTeacher
from compoclip.training.watch import Watch

_LEAST_NEGATIVES = 0.02  # share of samples
_LEAST_TRUE_PAIRS = 0.001  # share of pairs that is worth a line


def require_together(
    method: Method,
    settings: RunSettings,
    ranks: Ranks,
    watch: Watch | None,
    teacher: ExternalTeacher | None = None,
) -> None:
    """Raise UsageError for settings that do not go together, with each other or the method."""
    fsdp = settings.fsdp
    texts = {part.name for part in method.plan.texts}
    lacking = [extra_pass.name for extra_pass in method.passes if extra_pass.needs not in texts]
    if fsdp and ranks.world == 1:
        raise UsageError("--fsdp splits a model over processes: start with torchrun")
    if fsdp and method.lora:
        raise UsageError("--fsdp does not split adapters: leave --fsdp or LoRA out")
    if fsdp and settings.compile:
        raise UsageError("--fsdp cannot be combined with --compile: leave one of them out")
    if fsdp and (method.needs_teacher or method.heads):
        more = "a teacher" if method.needs_teacher else "heads"
        raise UsageError(
            f"--fsdp splits a single model, but {method.name} also has {more}: leave --fsdp out"
        )
    if method.needs_teacher and method.teacher is None and teacher is None:
        raise UsageError(
            f"{method.name} has terms that need a teacher, but it has no teacher: name one in the "
            "recipe, Method(teacher=Teacher(decay=...))"
        )
    if teacher and not method.needs_teacher:
        raise UsageError(
            f"{method.name} has no term that compares with a teacher: add --terms +similarity, or "
            "leave the teacher out"
        )
    if lacking:
        raise UsageError(
            f"{method.name} has terms that read a second pass ({', '.join(lacking)}), but no texts "
            "define it: add them to the recipe, CaptionPlan(texts=...)"
        )
    if method.trains.matrix and (method.lora or fsdp):
        raise UsageError(
            f"{method.name} trains a single matrix, which --lora and --fsdp do not support: leave "
            "them out"
        )
    if fsdp and settings.ema:
        raise UsageError(
            "--ema cannot be combined with --fsdp, which splits the weights: leave one of them out"
        )
    for part, rate in (("image", settings.lr_image), ("text", settings.lr_text)):
        if rate is not None and not method.optim.lr:
            raise UsageError(
                f"--lr-{part} cannot be combined with --lr 0; freeze the rest with --freeze"
            )
    if fsdp and watch is not None:
        raise UsageError(
            "--on needs the whole model, and --fsdp splits it: leave --on out and evaluate the "
            "checkpoint"
        )


def require_precision(settings: RunSettings) -> None:
    """Raise UsageError for fp16 on a CPU, which gains nothing there."""
    if settings.precision == "fp16" and torch.device(settings.device).type == "cpu":
        raise UsageError("--precision fp16 is for GPUs without bf16: on a CPU take fp32 or bf16")


def require_negatives(method: Method, source: Source, plan: TextPlan) -> None:
    """Raise CompoclipError when a recipe finds no negative caption for nearly any sample."""
    reads = {role for term in method.losses for role in term.reads}
    makes_negatives = plan.plan.kinds and plan.plan.hn_fraction and not method.images.kinds
    if Role.NEGATIVE not in reads or not makes_negatives:
        return
    every = copy(plan)
    every.plan = replace(plan.plan, hn_fraction=1.0)
    samples = few_samples(source)
    epoch = math.ceil(method.optim.epochs)
    sampled = [every.draw(sample, epoch)[0] for sample in samples]
    count = sum(any(text.role is Role.NEGATIVE for text in texts) for texts in sampled)
    if count < _LEAST_NEGATIVES * len(samples):
        tried = counted(len(samples), "caption")
        raise CompoclipError(
            f"{method.name} finds negatives for only {count} of {tried} that were "
            f"tried; one of them is {samples[0].captions[0]!r:.60}. Rewrites read English. "
            "--set allow_no_negatives=true trains without negatives"
        )


def notes(method: Method, source: Source, total: int, masks_duplicates: bool = True) -> list[str]:
    """Return what a user should know before the first step, one line each.

    masks_duplicates: whether contrasts leave out pairs that are true by an equal photo or caption.
    """
    lines = [f"  data: {source.describe()}"]
    if method.composed:
        lines.append(f"  the recipe is changed by --{', --'.join(method.composed)}")
    if method.optim.batch_size == 1:
        lines.append(
            "  a batch of one image has no other image to be told apart from: contrasts over the "
            "batch are 0 and teach nothing; raise --batch-size"
        )
    share = true_pair_share(source) if masks_duplicates else 0.0
    if share >= _LEAST_TRUE_PAIRS:
        lines.append(
            f"  {share:.1%} of the pairs of two samples share a photo or a caption; contrasts over "
            "the batch leave them out (--set mask_duplicates=false keeps them)"
        )
    optim, steps = method.optim, method.optim.warmup_steps(total)
    if steps and steps >= total:
        lines.append(
            f"  the warm-up ({counted(optim.warmup, 'step')}) is not shorter than the run "
            f"({total}): --lr is never reached; lower --warmup, for example to "
            f"{max(1, total // 10)}"
        )
    elif steps < optim.warmup < 1_000_000:
        lines.append(
            f"  warm-up: {steps} of {counted(total, 'step')}, not {optim.warmup} "
            "(--warmup N sets it)"
        )
    return lines


def true_pair_share(source: Source) -> float:
    """Return the share of ordered pairs of different samples that share a photo, or a caption.

    A sample of several captions has one of them, each equally often. Texts are compared as they
    are written. Samples with captions of one class count as samples of one photo.
    """
    count = len(source)
    if count < 2:
        return 0.0
    cells = zip(*map(source.column, ("place", "image", "label")))
    photo_keys = (label or (place, image) for place, image, label in cells)
    photos = np.fromiter(map(hash, photo_keys), np.int64)
    _, photo = np.unique(photos, return_inverse=True)
    lengths = np.fromiter(map(len, source.column("captions")), np.int64)
    texts = np.fromiter(map(hash, source.captions()), np.int64)
    _, text = np.unique(texts, return_inverse=True)
    owner = np.repeat(np.arange(count), lengths)
    weight = 1.0 / lengths[owner]
    same_photo = float((np.bincount(photo) ** 2).sum()) - count

    def sharing(groups: NDArray[np.int64]) -> float:
        """The expected number of pairs of samples in one group whose captions are equal."""
        _, cell = np.unique(np.stack([groups, text]), axis=1, return_inverse=True)
        return float((np.bincount(cell.reshape(-1), weight) ** 2).sum())

    with_itself = sharing(owner)
    same_text = sharing(np.zeros_like(owner)) - with_itself
    both = sharing(photo[owner]) - with_itself
    return (same_photo + same_text - both) / (count * (count - 1))
