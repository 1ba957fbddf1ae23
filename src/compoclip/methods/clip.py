"""CLIP pre-training."""

from __future__ import annotations

from dataclasses import replace

from compoclip.methods.base import CLIP, Method, Optim
from compoclip.methods.registry import recipe, variant


@recipe
def clip() -> Method:
    """Plain CLIP pre-training; use with --from-scratch.

    Image-caption contrastive loss with pre-training optimiser defaults. Reference: Radford et al.
    (ICML 2021).
    """
    return Method(
        paper="Radford et al., ICML 2021",
        losses=(CLIP,),
        optim=Optim(epochs=30, lr=5e-4, warmup=500),
    )


@recipe
def clip_ft() -> Method:
    """Plain fine-tuning on image-caption pairs, the baseline without negatives.

    Image-caption contrastive loss; defaults of the baselines in Oh et al. (EMNLP 2024). Gains of
    other methods over this one are due to their negatives or losses, not to the data.
    """
    return Method(paper="Oh et al., EMNLP 2024 (baseline)", losses=(CLIP,))


@variant(clip_ft, optim=Optim(lr=1e-5))
def clip_ft_mosaic(method: Method) -> Method:
    """Plain fine-tuning as in the MosaiCLIP paper, at twice the learning rate of `clip-ft`.

    Image-caption contrastive loss; the baseline to compare `mosaic-clip` with. Singh et al. (EMNLP
    2023).
    """
    return replace(method, paper="Singh et al., EMNLP 2023")
