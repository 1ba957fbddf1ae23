"""CLIP-FT with the optimiser settings of MosaiCLIP."""

from __future__ import annotations

from dataclasses import replace

from compoclip.methods import clip_ft, mosaic_clip
from compoclip.methods.base import Method, Optim

OPTIM = Optim(lr=1e-5)


def recipe(*, optim: Optim = OPTIM) -> Method:
    """Plain fine-tuning as in the MosaiCLIP paper, at twice the learning rate of `clip-ft`.

    Image-caption contrastive loss; the baseline to compare `mosaic-clip` with. Singh et al. (EMNLP
    2023).

    Args:
        optim: Optimiser and schedule.
    """
    return replace(
        clip_ft.recipe(optim=optim),
        name="clip-ft-mosaic",
        paper="Singh et al., EMNLP 2023",
        differences=(mosaic_clip.WEIGHT_DECAY,),
    )
