"""TROHN: generated hard negatives, as texts (TROHN-Text) and as whole counterfactual pairs."""

from __future__ import annotations

from typing import Literal

from compoclip.data.images import NegativeImages, Single
from compoclip.losses import grouping_loss
from compoclip.methods.base import NEGATIVES, NEGCLIP, CaptionPlan, LossTerm, Method, Optim
from compoclip.methods.registry import recipe

OPTIM = Optim(epochs=10, batch_size=400, lr=1e-6)
PAPER = "Miranda et al., NeurIPS 2024"


@recipe
def trohn_text(*, negatives: Literal["given", "negclip"] = "given") -> Method:
    r"""NegCLIP's loss with one generated negative per caption (TROHN-Text).

    With all captions t and all negatives n of the batch,

    .. math::
        L = \tfrac12 [\mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot [t; n],\ i)
            + \mathrm{mean}_i \mathrm{CE}(s\, t_i \cdot u,\ i)].

    Data: TROHN-Text as published, or any table with a column neg_caption. Miranda et al., BiVLC:
    Extending Vision-Language Compositionality Evaluation with Text-to-Image Retrieval (NeurIPS
    2024). The published run keeps the epoch of the best validation accuracy. Its loader loses
    captions that do not end in a full stop; here all are kept.

    Args:
        negatives: given takes the data's negatives; negclip makes swaps instead.
    """
    return Method(
        paper=PAPER,
        plan=CaptionPlan(rewrites=(negatives,)),
        losses=(NEGCLIP,),
        optim=OPTIM,
        crop=False,
    )


@recipe
def trohn_img(*, negatives: Literal["given", "negclip"] = "given") -> Method:
    r"""Contrast of pairs with their generated counterparts, images and texts (TROHN-Img).

    With pairs (x, c) and counterparts (x', c') that differ in one fact,

    .. math::
        L = L_{clip}([x; x'],\ [c; c']).

    Data: TROHN-Img as published, or any table with the columns neg_caption and neg_image. A row
    without x' is an ordinary pair with a hard negative; where no row has one, the run is called
    trohn-img-text and its loss is NegCLIP's. All else as `trohn-text`: Miranda et al. (NeurIPS
    2024).

    Args:
        negatives: given takes the data's counterparts; negclip makes swaps instead, without images.
    """
    from_rows = negatives == "given"
    return Method(
        name="trohn-img" if from_rows else "trohn-img-text",
        paper=PAPER,
        plan=CaptionPlan(rewrites=(negatives,)),
        images=NegativeImages() if from_rows else Single(),
        losses=(LossTerm("grouping", grouping_loss, reads=NEGATIVES),),
        optim=OPTIM,
        crop=False,
    )
