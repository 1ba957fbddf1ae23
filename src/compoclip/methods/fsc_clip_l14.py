"""FSC-CLIP as released for ViT-L/14."""

from __future__ import annotations

from dataclasses import replace

from compoclip.methods import fsc_clip
from compoclip.methods.base import Method, Optim

OPTIM = Optim(batch_size=256)


def recipe(
    *, global_weight: float = 0.5, local_weight: float = 0.5, optim: Optim = OPTIM
) -> Method:
    """FSC-CLIP with the released settings for ViT-L/14.

    Batch of 256 (released: 64 on each of 4 devices), and a local weight of 0.5 in place of 0.2.
    All other options, at their defaults here, belong to the method `fsc-clip`.

    Args:
        global_weight: Weight of the global hard-negative loss; 0 leaves the loss out.
        local_weight: Weight of the local hard-negative loss; 0 leaves the loss out.
        optim: Optimiser and schedule.
    """
    method = fsc_clip.recipe(global_weight=global_weight, local_weight=local_weight, optim=optim)
    return replace(method, name="fsc-clip-l14")
