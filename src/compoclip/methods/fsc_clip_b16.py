"""FSC-CLIP as released for ViT-B/16."""

from __future__ import annotations

from dataclasses import replace

from compoclip.methods import fsc_clip
from compoclip.methods.base import Method, Optim

OPTIM = Optim(batch_size=128)


def recipe(
    *, global_weight: float = 0.5, local_weight: float = 0.5, optim: Optim = OPTIM
) -> Method:
    """FSC-CLIP with the released settings for ViT-B/16.

    Batch of 128, and a local weight of 0.5 in place of 0.2. All other options, at their defaults
    here, belong to the method `fsc-clip`.

    Args:
        global_weight: Weight of the global hard-negative loss; 0 leaves the loss out.
        local_weight: Weight of the local hard-negative loss; 0 leaves the loss out.
        optim: Optimiser and schedule.
    """
    method = fsc_clip.recipe(global_weight=global_weight, local_weight=local_weight, optim=optim)
    return replace(method, name="fsc-clip-b16")
