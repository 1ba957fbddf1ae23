"""The optimiser and the schedule of a method, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compoclip.errors import UsageError


@dataclass(frozen=True)
class Optim:
    """Optimiser and schedule: AdamW, linear warm-up, cosine to zero.

    `training.settings.OptimOptions` describes the fields, which are options of every run.
    """

    epochs: float = 5
    batch_size: int = 256
    lr: float = 5e-6
    warmup_lr: float = 0.0
    min_lr: float = 0.0
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-6
    warmup: int = 50
    warmup_share: float = 1.0
    clip_grad: float = 0.0
    max_logit_scale: float = 100.0

    def __post_init__(self) -> None:
        """Raise UsageError for a value that no training can use."""
        for name, value in vars(self).items():
            low = 1 if name in ("batch_size", "max_logit_scale") else 0
            must = f"--{name.replace('_', '-')} {value:g}: must be"
            if not low <= value < math.inf:
                raise UsageError(f"{must} a number from {low} on")
            # Without eps, a zero gradient is divided by 0.
            if name in ("epochs", "eps") and not value:
                raise UsageError(f"{must} more than 0")
            if name in ("beta1", "beta2") and value >= 1:
                raise UsageError(f"{must} less than 1")
            if name == "warmup_share" and value > 1:
                raise UsageError(f"{must} at most 1")
            if name in ("min_lr", "warmup_lr") and value > self.lr:
                raise UsageError(
                    f"{must} at most --lr {self.lr:g}, the peak: lower it, or raise --lr"
                )

    def warmup_steps(self, total: int) -> int:
        """Return the steps of warm-up in a run of `total` steps."""
        if self.warmup_share == 1:
            return self.warmup
        return min(self.warmup, round(self.warmup_share * total))
