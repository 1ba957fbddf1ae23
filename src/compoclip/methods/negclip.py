"""NegCLIP with swap negatives generated during training."""

from __future__ import annotations

from functools import partial

from compoclip.losses.contrastive import negclip_loss
from compoclip.losses.rows import MissingHN
from compoclip.methods.base import NEGATIVES, CaptionPlan, Difference, LossTerm, Method, Optim

OPTIM = Optim()
PLAN = CaptionPlan(rewrites=("negclip",))
DIFFERENCES = (
    Difference(
        "missing_hn",
        "A negative that does not exist is none, not a text with a score of 0.",
        released="zero",
    ),
)


def recipe(*, missing_hn: MissingHN = "mask", optim: Optim = OPTIM) -> Method:
    """Contrastive loss in which swapped captions compete for every image.

    One swap negative a caption, drawn anew every epoch, no hard images; all negatives of the batch
    are columns of the image-to-text softmax. This is the NegCLIP baseline of Oh et al. (EMNLP
    2024); loss after Yuksekgonul et al. (ICLR 2023).

    Args:
        missing_hn: What stands for a negative that could not be made. mask: nothing. zero: a
            logit of 0, as in released code; for comparison only.
        optim: Optimiser and schedule.
    """
    loss = partial(negclip_loss, missing_hn=missing_hn, rewrites=len(PLAN.rewrites))
    return Method(
        name="negclip",
        paper="Yuksekgonul et al., ICLR 2023",
        plan=PLAN,
        losses=(LossTerm("negclip", loss, reads=NEGATIVES),),
        optim=optim,
        settings={"missing_hn": missing_hn},
        differences=DIFFERENCES,
    )
