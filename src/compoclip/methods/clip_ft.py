"""CLIP-FT: the plain fine-tuning baseline."""

from __future__ import annotations

from compoclip.losses.contrastive import clip_loss
from compoclip.methods.base import CaptionPlan, LossTerm, Method, Optim

OPTIM = Optim()


def recipe(*, optim: Optim = OPTIM) -> Method:
    """Plain fine-tuning on image-caption pairs, the baseline without negatives.

    Image-caption contrastive loss; defaults of the baselines in Oh et al. (EMNLP 2024). Any gain
    that other methods show over this one is due to their negatives or losses, not to the data.

    Args:
        optim: Optimiser and schedule.
    """
    return Method(
        name="clip-ft",
        paper="Oh et al., EMNLP 2024 (baseline)",
        plan=CaptionPlan(),
        losses=(LossTerm("clip", clip_loss),),
        optim=optim,
    )
