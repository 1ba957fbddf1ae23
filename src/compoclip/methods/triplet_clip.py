"""TripletCLIP: negative images beside negative captions."""

from __future__ import annotations

from typing import Literal

from compoclip.data.images import NegativeImages, Single
from compoclip.losses import triplet_clip_loss
from compoclip.methods.base import NEGATIVES, CaptionPlan, LossTerm, Method
from compoclip.methods.registry import recipe


@recipe
def triplet_clip(
    *, negatives: Literal["given", "negclip"] = "given", negative_images: bool = True
) -> Method:
    r"""Two contrasts, for images and for generated negative images, each with both captions.

    With image I, caption T, negative caption T' and the image I' made from it,

    .. math::
        L = \mathrm{neg}(I, T, T') + \mathrm{neg}(I', T', T), \quad
        \mathrm{neg}(I, T, T') = \tfrac12 [\mathrm{CE}(I \to [T; T']) + \mathrm{CE}(T \to I)].

    Data: a table with the columns neg_caption and neg_image (a path). Without negative images only
    the first term is left, and the run is called triplet-clip-text. Patel et al., TripletCLIP:
    Improving Compositional Reasoning of CLIP via Synthetic Vision-Language Negatives (NeurIPS
    2024). Images are shown whole, not cropped. The published runs pre-train; the defaults here
    fine-tune.

    Args:
        negatives: given takes the data's negatives; negclip makes swaps instead, without images.
        negative_images: Use the negative images of the data.
    """
    images = negative_images and negatives == "given"
    return Method(
        name="triplet-clip" if images else "triplet-clip-text",
        paper="Patel et al., NeurIPS 2024",
        plan=CaptionPlan(rewrites=(negatives,)),
        images=NegativeImages() if images else Single(),
        losses=(LossTerm("triplet", triplet_clip_loss, reads=NEGATIVES),),
        crop=False,
    )
