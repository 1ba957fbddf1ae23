"""CLIC: composite images of two, with texts of both."""

from __future__ import annotations

from functools import partial
from typing import Literal

from compoclip.config import RecordNames
from compoclip.data.images.composed import CLIC_TEXTS, Composed
from compoclip.losses import clip_loss, composite_contrast_loss, single_negative_loss, unimodal_loss
from compoclip.methods.base import (
    NEGATIVES,
    POSITIVES,
    CaptionPlan,
    LossTerm,
    Method,
    Optim,
    Trains,
)
from compoclip.methods.registry import recipe
from compoclip.rewrites.cross_swap import NAME as CROSS_SWAP


@recipe
def clic(
    *,
    contrast_weight: float = 0.5,
    negative_weight: float = 0.5,
    uni_weight: float = 1.0,
    layout: Literal["squash", "letterbox"] = "squash",
    normalisation: Literal["model", "imagenet"] = "model",
    alternate: bool = True,
    sentences: Literal["auto", "never"] = "auto",
    paraphrases: RecordNames = "",
) -> Method:
    r"""Text tower trained on composites of two images with four captions and a cross-swap negative.

    With texts p_1..p_4 and n of composite images u,

    .. math::
        L = 0.5\, \mathrm{mean}_l L_{clip}(u, p_l) + 0.5\, \mathrm{mean}_{l,i}
            \mathrm{softplus}(s (u_i \cdot n_i - u_i \cdot p_{li}))
            + \mathrm{mean}_i \lVert p_{1i} - p_{2i} \rVert^2;

    every other step is the CLIP loss of single, uncropped images. The image tower is frozen. The
    first caption of a sample is its main caption, the others are extra sentences; long captions are
    split into sentences. Peleg et al., Advancing Compositional Awareness in CLIP with Efficient
    Fine-Tuning (2025).

    Args:
        contrast_weight: Weight of the contrast of composites with each of their texts.
        negative_weight: Weight of the loss that ranks texts above the negative.
        uni_weight: Weight of the distance of the two orders of the main captions.
        layout: squash resizes each image to its half, letterbox keeps its shape.
        normalisation: Normalisation of composites: the model's, or ImageNet's as in the released
            code.
        alternate: Use single images in every other step.
        sentences: auto splits captions into sentences if most images have one long caption, and
            leaves out images with fewer than two sentences; never does not.
        paraphrases: File of paraphrases of the main captions, used as extra sentences: JSON lines
            or Parquet {"caption", "positive"}, with a text, several, or "None".
    """
    contrast = partial(composite_contrast_loss, positives=CLIC_TEXTS)
    negative = partial(single_negative_loss, positives=CLIC_TEXTS, negative=CROSS_SWAP)
    uni = partial(unimodal_loss, positive=CLIC_TEXTS[0])
    both = (*POSITIVES, *NEGATIVES)
    terms = (
        LossTerm("contrast", contrast, weight=contrast_weight, on="composed", reads=POSITIVES),
        LossTerm("negative", negative, weight=negative_weight, on="composed", reads=both),
        LossTerm("uni", uni, weight=uni_weight, on="composed", reads=POSITIVES),
    )
    single = (LossTerm("clip", clip_loss, on="single"),) if alternate else ()
    return Method(
        paper="Peleg et al., 2025",
        plan=CaptionPlan(main=True, written=paraphrases),
        images=Composed(layout, normalisation, alternate, sentences),
        losses=(*terms, *single),
        trains=Trains(image_tower=False),
        crop=False,
        optim=Optim(
            epochs=1,
            batch_size=800,
            lr=1e-6,
            warmup_lr=1e-7,
            min_lr=1e-8,
            warmup=1_000_000,
            warmup_share=0.2,
            eps=1e-8,
        ),
    )
