"""What low-rank adaptation is asked for (Hu et al., LoRA, ICLR 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from compoclip.errors import UsageError

Towers = Literal["both", "image", "text"]
Targets = Literal["linear", "+conv"]
Init = Literal["zero", "xavier_ab"]


@dataclass(frozen=True)
class Lora:
    """How a network is adapted (METHODS 0.3).

    rank: r. alpha: numerator of the scaling alpha / r. towers: which towers get adapters.
    targets: "linear" is attention in- and out-projections and both MLP layers; "+conv" adapts the
    patch embedding too, as in the code released with FSC-CLIP (k x k patches have rank r * k).
    init: "zero" is B = 0, so that training starts from the base exactly; "xavier_ab" draws A and B
    of in-projections from Xavier's uniform distribution, as in that code.
    """

    rank: int = 4
    alpha: float = 1.0
    towers: Towers = "both"
    targets: Targets = "linear"
    init: Init = "zero"

    def __post_init__(self) -> None:
        """Raises UsageError for a rank or alpha that is not positive, and unknown words."""
        if not isinstance(self.rank, int):
            raise UsageError(f"LoRA rank {self.rank}: must be a whole number")
        if self.rank < 1:
            raise UsageError(f"LoRA rank {self.rank}: must be at least 1")
        if not 0 < self.alpha < math.inf:
            raise UsageError(f"LoRA alpha {self.alpha}: must be a positive number")
        for name, known in (
            ("towers", ("both", "image", "text")),
            ("targets", ("linear", "+conv")),
            ("init", ("zero", "xavier_ab")),
        ):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise UsageError(f"LoRA {name} '{value}' is not one of {', '.join(known)}")

    @property
    def scaling(self) -> float:
        """What B A is multiplied with."""
        return self.alpha / self.rank

    def describe(self) -> str:
        """For identities and logs: "lora rank 4, alpha 1, both towers"."""
        where = "both towers" if self.towers == "both" else f"{self.towers} tower"
        targets = ", +conv" if self.targets == "+conv" else ""
        init = f", init {self.init}" if self.init != "zero" else ""
        return f"lora rank {self.rank}, alpha {self.alpha:g}, {where}{targets}{init}"
