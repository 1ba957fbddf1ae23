"""TripletCLIP: negative images beside negative captions."""

from __future__ import annotations

from compoclip.data.plans import GIVEN, NegativeImages, Single
from compoclip.losses.triplet import triplet_clip_loss
from compoclip.methods.base import NEGATIVES, CaptionPlan, LossTerm, Method, Optim

OPTIM = Optim()


def recipe(*, negative_images: bool = True, optim: Optim = OPTIM) -> Method:
    r"""Two contrasts, of images and of generated negative images, each with both captions.

    With image I, caption T, negative caption T' and the image I' made from it,

    .. math::
        L = \mathrm{neg}(I, T, T') + \mathrm{neg}(I', T', T), \quad
        \mathrm{neg}(I, T, T') = \tfrac12 [\mathrm{CE}(I \to [T; T']) + \mathrm{CE}(T \to I)].

    Data: a table with the columns neg_caption and neg_image (a path). Patel et al., TripletCLIP:
    Improving Compositional Reasoning of CLIP via Synthetic Vision-Language Negatives (NeurIPS
    2024). The published runs pre-train; the defaults here fine-tune.

    Args:
        negative_images: Without them only the first term is left, and the run is called
            triplet-clip-text.
        optim: Optimiser and schedule.
    """
    return Method(
        name="triplet-clip" if negative_images else "triplet-clip-text",
        paper="Patel et al., NeurIPS 2024",
        plan=CaptionPlan(rewrites=(GIVEN,)),
        images=NegativeImages() if negative_images else Single(),
        losses=(LossTerm("triplet", triplet_clip_loss, reads=NEGATIVES),),
        optim=optim,
        settings={"negative_images": negative_images},
    )
