"""FSC-CLIP as released for CC3M captions."""

from __future__ import annotations

from dataclasses import replace

from compoclip.methods import fsc_clip
from compoclip.methods.base import Method, Optim

OPTIM = Optim()


def recipe(
    *, global_weight: float = 1.0, local_weight: float = 0.2, optim: Optim = OPTIM
) -> Method:
    """FSC-CLIP with the released settings for CC3M captions.

    The paper states 0.5 for the global weight, the released code uses 1.0. All other options, at
    their defaults here, belong to the method `fsc-clip`.

    Args:
        global_weight: Weight of the global hard-negative loss; 0 leaves the loss out.
        local_weight: Weight of the local hard-negative loss; 0 leaves the loss out.
        optim: Optimiser and schedule.
    """
    method = fsc_clip.recipe(global_weight=global_weight, local_weight=local_weight, optim=optim)
    return replace(method, name="fsc-clip-cc3m")
