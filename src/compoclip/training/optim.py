"""Optimiser groups, the learning-rate schedule, averaged weights, and skipped steps."""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from compoclip.losses.contract import HeadPlan
from compoclip.methods.base import Optim
from compoclip.ranks import mark

_NO_DECAY = ("bn", "ln", "bias", "logit_scale")


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies: not to gains, biases, norms or the logit scale."""
    return parameter.ndim >= 2 and not any(part in name for part in _NO_DECAY)


def ordered(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> list[nn.Parameter]:
    """The trainable parameters in the order by which training states number their moments: those
    with weight decay, then the others."""
    trainable = [(name, p) for name, p in named_parameters if p.requires_grad]
    with_decay = [p for name, p in trainable if decays(name, p)]
    return [*with_decay, *(p for name, p in trainable if not decays(name, p))]


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    optim: Optim,
    factors: Mapping[str, float] = types.MappingProxyType({}),
    heads: Mapping[str, HeadPlan] = types.MappingProxyType({}),
) -> torch.optim.AdamW:
    """Build AdamW over the trainable parameters, with and without weight decay.

    Groups do not mix parameters sharded by FSDP with others; "factor" of a group is its
    parameters'. factors: by name (default 1). heads: by name in `DualEncoder.heads`.
    """
    named = list(named_parameters)
    name_of = {p: name for name, p in named}
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    for parameter in ordered(named):
        name = name_of[parameter]
        factor, decay = factors.get(name, 1.0), optim.weight_decay
        if plan := heads.get(name.split(".")[1]) if name.startswith("heads.") else None:
            factor = plan.factor(optim.lr)
            decay = decay if plan.weight_decay is None else plan.weight_decay
        decay = decay if decays(name, parameter) else 0.0
        key = hasattr(parameter, "full_tensor"), decay, factor
        groups.setdefault(key, []).append(parameter)
    parameter_groups = (
        {"params": p, "weight_decay": d, "factor": f} for (_, d, f), p in groups.items()
    )
    betas = optim.beta1, optim.beta2
    return torch.optim.AdamW(
        list(parameter_groups), lr=optim.lr, betas=betas, eps=optim.eps, fused=True
    )


def learning_rate(step: int, total: int, optim: Optim) -> float:
    """Return the learning rate of a step: linear warm-up, then half a cosine.

    From warmup_lr linearly to lr, reached at step W of the warm-up (lr * (k + 1) / W when it starts
    from 0); then min_lr + (lr - min_lr) / 2 * (1 + cos(pi (k - W) / (N - W))). step: k, from 0.
    total: N.
    """
    warmup = optim.warmup_steps(total)
    if step < warmup:
        return optim.warmup_lr + (optim.lr - optim.warmup_lr) * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return optim.min_lr + (optim.lr - optim.min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Let the next step have that learning rate, times the factor of each group."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]


# --- Averaged weights. ---


class AveragedWeights:
    """The exponential moving average of what learns: a <- a + (1 - decay) (w - a) after a step.

    Weights that stay as they are stay so exactly. The running statistics of batch norms are
    averaged as well. model: the open_clip network, with `requires_grad` decided; the average begins
    with its weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
        ends = ("running_mean", "running_var")
        running = {name: b for name, b in model.named_buffers() if name.endswith(ends)}
        self._decay, self._now = decay, {**learnt, **running}
        self.tensors = {name: value.detach().clone() for name, value in self._now.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Account for a step."""
        averages, now = (
            list(self.tensors.values()),
            [value.detach() for value in self._now.values()],
        )
        torch._foreach_lerp_(averages, now, 1 - self._decay)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from the average of a saved state."""
        for name, value in self.tensors.items():
            value.copy_(tensors[name])

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights of the network and their average."""
        for name, value in self._now.items():
            current = value.detach().clone()
            value.copy_(self.tensors[name])
            self.tensors[name] = current

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the average is the weights of the network."""
        self.swap()
        try:
            yield
        finally:
            self.swap()


# --- Steps whose loss or gradient is not finite: not taken, and counted. ---


def step_if_finite(optimizer: torch.optim.AdamW, loss: Tensor, norm: Tensor) -> Tensor:
    """Take a step unless the loss or the norm of the gradients is not finite.

    Decided on the device, so that nothing waits: AdamW's fused kernel reads `found_inf` and then
    leaves weights, moments and their step counts as they are.

    Returns (2,) bool: whether the loss, and whether the norm, is not finite.
    """
    bad = ~torch.stack([loss, norm]).isfinite()
    if bad.device.type in ("cpu", "cuda"):
        optimizer.found_inf = bad.any().float()  # type: ignore[attr-defined]
        optimizer.step()
    elif not bad.any():  # kernels of other devices are not relied upon to read it
        optimizer.step()
    return bad


class BadSteps:
    """The steps that were not taken, told to the host without making it wait for a GPU.

    A GPU is read one step late, when it has long been past that step; a CPU at once. report: called
    with the number of each bad step and what was not finite. `in_a_row` counts bad steps up to the
    last one that was read.
    """

    def __init__(self, device: torch.device, report: Callable[[int, str], None]) -> None:
        self._device, self._late = device, 1 if device.type == "cuda" else 0
        self._report, self.in_a_row = report, 0
        self._unread: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def add(self, step: int, bad: Tensor) -> None:
        """Account for step number `step`. bad: what `step_if_finite` returned."""
        bad = bad.to("cpu", non_blocking=bad.is_cuda)  # from a GPU to pinned memory
        self._unread.append((step, bad, mark(self._device)))
        self.read(keep=self._late)

    def read(self, keep: int = 0) -> None:
        """Read all steps but the last `keep`; waits for unfinished ones."""
        while len(self._unread) > keep:
            step, bad, copied = self._unread.popleft()
            if copied is not None:
                copied.synchronize()
            loss, gradient = bad.tolist()
            self.in_a_row = self.in_a_row + 1 if loss or gradient else 0
            if self.in_a_row:
                self._report(step, "loss" if loss else "gradient")
