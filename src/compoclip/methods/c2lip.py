"""C2LIP: noun phrases against images, without hard negatives."""

from __future__ import annotations

from functools import partial

from compoclip.data.texts import PhrasePlan
from compoclip.losses import patch_phrase_loss, phrase_loss
from compoclip.methods.base import CLIP, POSITIVES, CaptionPlan, LossTerm, Method, Optim
from compoclip.methods.registry import recipe
from compoclip.rewrites.units import NOUN_PHRASE


@recipe
def c2lip(*, phrase_weight: float = 1.0, patch_weight: float = 0.01, phrases: int = 6) -> Method:
    r"""Contrast of images with the noun phrases of captions, globally and by attention.

    There are no negatives: every noun phrase must match its image and no other, by the vector of
    the image and by its patches as the phrase attends to them. With phrases c_m, labels y_im = 1
    for the phrases of image i, else -1, unit patches v and bias b,

    .. math::
        L = L_{clip} - \tfrac1M \sum_{im} \big[ w_1 \ln \sigma(y_{im} (s\, u_i \cdot c_m + b))
            + w_2 \ln \sigma(y_{im} (s\, c_m \cdot x_{im} + b)) \big], \quad
        x_{im} \propto \sum_p \mathrm{softmax}_p(c_m \cdot v_{ip})\, v_{ip}.

    This is for SigLIP, as published. For a model without a bias, and with `contrast=softmax`, all
    three terms are softmaxes with several positives, which is our choice. Phrases are base noun
    phrases with their articles, or the caption if it has none. The released code labels the phrases
    of several GPUs wrongly and gathers without gradient; here the batch is the global one. C2LIP,
    arXiv 2603.25722 (CVPR 2026).

    Args:
        phrase_weight: Weight of the contrast of images with phrases; 0 leaves it out.
        patch_weight: Weight of the contrast of phrases with patches; 0 leaves it out.
        phrases: Most noun phrases per caption and epoch.
    """
    phrase, patch_phrase = (
        partial(loss, phrase=NOUN_PHRASE) for loss in (phrase_loss, patch_phrase_loss)
    )
    terms = (
        CLIP,
        LossTerm("phrase", phrase, weight=phrase_weight, reads=POSITIVES),
        LossTerm(
            "patch_phrase", patch_phrase, weight=patch_weight, reads=POSITIVES, needs_patches=True
        ),
    )
    return Method(
        paper="C2LIP, CVPR 2026",
        plan=CaptionPlan(texts=(PhrasePlan(phrases),)),
        losses=terms,
        optim=Optim(batch_size=768, lr=1e-5),
    )
