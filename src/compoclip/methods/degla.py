"""DeGLA: a teacher that follows slowly, as an anchor and as the positive of a contrast of texts."""

from __future__ import annotations

from functools import partial
from typing import Literal

from compoclip.data.caption_plan import OneOf
from compoclip.data.text_names import GIVEN
from compoclip.losses import feature_distillation, global_hn_loss, teacher_text_contrast
from compoclip.losses.teacher import OwnNegatives
from compoclip.methods.base import NEGATIVES, NEGCLIP, CaptionPlan, LossTerm, Method, Optim, Teacher
from compoclip.methods.registry import recipe

EXCHANGE = OneOf("exchange", ("ce-swap", "crepe-swap"))
PLAN = CaptionPlan(rewrites=("bigram-shuffle", EXCHANGE, "ce-adj", "ce-noun"))
GIVEN_PLAN = CaptionPlan(rewrites=(GIVEN, GIVEN, GIVEN, GIVEN))
VECTORS = 1536  # of a published batch: 256 images, each with a caption and four negatives
STAND_INS = {
    "ce-noun": "using rule-based negatives; the paper used four per caption from a language model "
    "(--negatives given takes the data's)"
}


@recipe
def degla(
    *,
    negatives: Literal["rules", "given"] = "rules",
    image_weight: float = 0.1,
    text_weight: float = 0.1,
    distill_weight: float = 7.68,
    decay: float = 0.9996,
    text_scale: float = 10.0,
    tgc_mask: OwnNegatives = "own",
    distill: Literal["mean", "sum"] = "mean",
) -> Method:
    r"""Hard negatives, with distillation from a slowly updated copy of the model.

    With captions t, negatives n, and the teacher's embeddings u*, x* of images and of all texts,

    .. math::
        L = L_{clip+neg} + 0.1\, \mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot [t_i, n_i],\ 0)
            + 0.1\, \mathrm{mean}_i \mathrm{CE}(a\, t_i \cdot [t^*_i, n_i],\ 0)
            + 7.68\, \mathrm{mean}\, \lVert x - x^* \rVert^2,

    where the last mean is over all images and texts of the batch, and the teacher's weights are a
    moving average of the model's with decay 0.9996. Four negatives per caption: words reordered,
    two words swapped, an adjective replaced, a noun replaced. Decoupled Global-Local Alignment for
    Improving Compositional Understanding (ACM Multimedia 2025, arXiv 2504.16801).

    Args:
        negatives: rules makes them; given takes four of the data's negatives.
        image_weight: Weight of images against the negatives of their captions; 0 leaves it out.
        text_weight: Weight of captions against their negatives; 0 leaves it out.
        distill_weight: Weight of the distance to the teacher; 0 leaves it out.
        decay: Decay of the teacher's moving average; 1 freezes it.
        text_scale: Scale a of the contrast among texts.
        tgc_mask: Negatives of a caption in the text contrast: own are made from it, tiled are other
            captions' as in the released code; for comparison only.
        distill: mean over the embeddings of a batch; sum divides by 1,536, the embeddings of a
            published batch: 0.005 times the sum, as published.
    """
    contrast = partial(teacher_text_contrast, scale=text_scale, negatives=tgc_mask)
    distance = partial(feature_distillation, vectors=VECTORS if distill == "sum" else None)
    terms = (
        NEGCLIP,
        LossTerm("image_contrast", global_hn_loss, weight=image_weight, reads=NEGATIVES),
        LossTerm(
            "text_contrast", contrast, weight=text_weight, reads=NEGATIVES, needs_teacher=True
        ),
        LossTerm("distill", distance, weight=distill_weight, needs_teacher=True),
    )
    return Method(
        paper="Hu et al., ACM MM 2025",
        plan=GIVEN_PLAN if negatives == "given" else PLAN,
        losses=terms,
        optim=Optim(lr=1e-6),
        teacher=Teacher(decay),
        stand_ins=STAND_INS,
    )
