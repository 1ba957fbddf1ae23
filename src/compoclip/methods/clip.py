"""CLIP pre-training."""

from __future__ import annotations

from compoclip.losses.contrastive import clip_loss
from compoclip.methods.base import CaptionPlan, LossTerm, Method, Optim

OPTIM = Optim(epochs=30, lr=5e-4, warmup=500)


def recipe(*, optim: Optim = OPTIM) -> Method:
    """Plain CLIP pre-training; use with --from-scratch.

    Image-caption contrastive loss with pre-training optimiser defaults. Reference: Radford et al.
    (ICML 2021).

    Args:
        optim: Optimiser and schedule.
    """
    return Method(
        name="clip",
        paper="Radford et al., ICML 2021",
        plan=CaptionPlan(),
        losses=(LossTerm("clip", clip_loss),),
        optim=optim,
    )
