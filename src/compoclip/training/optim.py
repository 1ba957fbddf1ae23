"""Optimiser groups and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from compoclip.methods.base import Optim

_NO_DECAY = ("bn", "ln", "bias", "logit_scale")


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: not to gains, biases, normalisation or the temperature."""
    return parameter.ndim >= 2 and not any(part in name for part in _NO_DECAY)


def ordered(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> list[nn.Parameter]:
    """The trainable parameters in the order by which training states number their moments: those
    with weight decay, then the others."""
    trainable = [(name, p) for name, p in named_parameters if p.requires_grad]
    with_decay = [p for name, p in trainable if decays(name, p)]
    return [*with_decay, *(p for name, p in trainable if not decays(name, p))]


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], optim: Optim
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters in two groups: with and without weight decay.

    Parameters that are split over processes and whole ones are not mixed within a group.
    """
    named = list(named_parameters)
    decaying = {p for name, p in named if decays(name, p)}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in ordered(named):
        split = hasattr(parameter, "full_tensor")
        groups.setdefault((parameter in decaying, split), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": optim.weight_decay if decay else 0.0}
            for (decay, _), parameters in groups.items()
        ],
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        fused=True,
    )


def learning_rate(step: int, total: int, optim: Optim) -> float:
    """The learning rate of step `step` (from 0) of `total`.

    From warmup_lr linearly to lr, reached at step W of the warm-up (lr * (k + 1) / W when it starts
    from 0); then min_lr + (lr - min_lr) / 2 * (1 + cos(pi (k - W) / (N - W))).
    """
    warmup = optim.warmup_steps(total)
    if step < warmup:
        return optim.warmup_lr + (optim.lr - optim.warmup_lr) * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return optim.min_lr + (optim.lr - optim.min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))
