"""Optimiser groups and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from compoclip.methods.base import Optim

_NO_DECAY = ("bn", "ln", "bias", "logit_scale")


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: not to gains, biases, normalisation or the logit scale."""
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
    """Make AdamW over the trainable parameters, with and without weight decay.

    Args:
        named_parameters: All parameters of the network. Those that FSDP has split and whole ones
            are not mixed within a group.
        optim: Learning rate, betas, epsilon and weight decay.

    Returns:
        The optimiser, its moments empty.
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
    """The learning rate of a step: linear warm-up, then half a cosine.

    From warmup_lr linearly to lr, reached at step W of the warm-up (lr * (k + 1) / W when it starts
    from 0); then min_lr + (lr - min_lr) / 2 * (1 + cos(pi (k - W) / (N - W))).

    Args:
        step: k, from 0.
        total: N, steps of the whole run.
        optim: Rates and warm-up W.

    Returns:
        The learning rate of that step.
    """
    warmup = optim.warmup_steps(total)
    if step < warmup:
        return optim.warmup_lr + (optim.lr - optim.warmup_lr) * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return optim.min_lr + (optim.lr - optim.min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))
