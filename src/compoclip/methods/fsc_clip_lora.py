"""FSC-CLIP trained with low-rank adapters."""

from __future__ import annotations

from dataclasses import replace

from compoclip.methods import fsc_clip
from compoclip.methods.base import Lora, Method, Optim

OPTIM = Optim(lr=5e-5)


def recipe(
    *, global_weight: float = 0.5, local_weight: float = 0.2, optim: Optim = OPTIM
) -> Method:
    """FSC-CLIP with low-rank adapters: rank 4, ten times the learning rate.

    Better than FSC-CLIP on compositionality and zero-shot when trained on LAION-COCO, in the
    paper's table. All other options, at their defaults here, belong to the method `fsc-clip`.

    Args:
        global_weight: Weight of the global hard-negative loss; 0 leaves the loss out.
        local_weight: Weight of the local hard-negative loss; 0 leaves the loss out.
        optim: Optimiser and schedule.
    """
    method = fsc_clip.recipe(global_weight=global_weight, local_weight=local_weight, optim=optim)
    return replace(method, name="fsc-clip-lora", lora=Lora())
