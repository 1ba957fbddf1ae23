"""NegCLIP with swap negatives generated during training."""

from __future__ import annotations

from functools import partial
from typing import Literal

from compoclip.data.images.neighbours import Neighbours
from compoclip.losses import negclip_loss
from compoclip.losses.rows import MissingHN
from compoclip.methods.base import NEGATIVES, NEGCLIP, CaptionPlan, LossTerm, Method, Optim
from compoclip.methods.registry import recipe

PLAN = CaptionPlan(rewrites=("negclip",))


@recipe
def negclip(*, missing_hn: MissingHN = "mask") -> Method:
    """Contrastive loss in which swapped captions compete for every image.

    One swap negative per caption, sampled again every epoch, no hard images; all negatives of the
    batch are columns of the image-to-text softmax. This is the NegCLIP baseline of Oh et al. (EMNLP
    2024); loss after Yuksekgonul et al. (ICLR 2023).

    Args:
        missing_hn: Treatment of missing negatives. mask: left out. zero: a logit of 0, as in the
            released code; for comparison only.
    """
    loss = partial(negclip_loss, missing_hn=missing_hn, kinds=PLAN.kinds)
    return Method(
        paper="Yuksekgonul et al., ICLR 2023",
        plan=PLAN,
        losses=(LossTerm("negclip", loss, reads=NEGATIVES),),
    )


@recipe
def negclip_original(
    *,
    negatives: Literal["given", "negclip"] = "given",
    hard_images: int = 1,
    neighbours: Literal["given", "mined"] = "given",
) -> Method:
    r"""Contrastive loss with swapped captions and similar images of the training set.

    Each image x_i brings a similar image x'_i; both come with caption and negative. With the 2B
    images u, the 2B captions t and the 2B negatives n,

    .. math::
        L = \tfrac12 \big[ \mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot [t; n],\ i)
            + \mathrm{mean}_i \mathrm{CE}(s\, t_i \cdot u,\ i) \big].

    Data: a table with the columns title, filepath, neg_caption (list of texts) and neg_image (list
    of row numbers). Yuksekgonul et al., When and Why Vision-Language Models Behave like
    Bags-of-Words (ICLR 2023); defaults are the released command's.

    Args:
        negatives: given takes one of the negatives of the file, negclip generates swaps instead.
        hard_images: Similar images per sample, sampled from its 3 nearest; 0 to 3 (released: 1).
        neighbours: given reads neg_image; mined finds the nearest images with the model.
    """
    return Method(
        paper="Yuksekgonul et al., ICLR 2023",
        plan=CaptionPlan(rewrites=(negatives,)),
        images=Neighbours(count=hard_images, mined=neighbours == "mined"),
        losses=(NEGCLIP,),
        optim=Optim(lr=1e-6, weight_decay=0.2),
    )
