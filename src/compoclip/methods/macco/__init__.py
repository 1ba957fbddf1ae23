"""MACCO: what a caption says is hidden in one modality and has to be found in the other."""

from __future__ import annotations

from typing import Literal

from compoclip.config import FileName
from compoclip.losses import masked_contrast, masked_match
from compoclip.methods.base import CaptionPlan, LossTerm, Method, Optim
from compoclip.methods.macco.heads import PatchPrediction, TokenPrediction
from compoclip.methods.macco.hidden import MaskVectors
from compoclip.methods.macco.masks import MaskPlan
from compoclip.methods.registry import recipe

OPTIM = Optim(lr=5e-7, weight_decay=0.2)
Hidden = Literal["both", "words"]
HIDDEN = MaskVectors()


@recipe
def macco(
    *,
    concepts: FileName = "",
    hidden: Hidden = "both",
    match_weight: float = 0.1,
    word_weight: float = 20.0,
    patch_weight: float = 250.0,
    word_layers: int = 2,
    patch_layers: int = 3,
    rectangles: float = 0.1,
) -> Method:
    r"""Masked words and patches, reconstructed from the other modality; no negatives.

    A second pass of both towers masks the words of attributes and relations, and a part of the
    image; t', u' are its features of captions and images. With U = [u; u'], T = [t; t'],

    .. math::
        L = L_{clip}(U, T \mid t, u) + 0.1 \cdot \tfrac12 [L_{clip}(t', t) + L_{clip}(u', u)]
            + 20\, L_{words} + 250\, L_{patches},

    where in the first term every row, masked or not, must rank its unmasked partner first. Masked
    words are predicted from patches, masked pixels from tokens, by heads outside of the model.
    Masked Compositional Concept Modelling (MACCO, ACL 2026, arXiv 2606.13288).

    Args:
        concepts: File with the words and boxes of captions, with the columns of the published
            table; by default words come from the scene graph and rectangles replace boxes.
        hidden: Mask both words and patches, or words only.
        match_weight: Weight of the contrast of masked with unmasked inputs; 0 leaves it out.
        word_weight: Weight of the prediction of words; 0 leaves it out.
        patch_weight: Weight of the prediction of patches; 0 leaves it out.
        word_layers: Layers of the predictor of words.
        patch_layers: Layers of the predictor of patches.
        rectangles: With a file, share of captions with a rectangle instead of boxes.
    """
    of_words, of_patches = TokenPrediction(word_layers), PatchPrediction(patch_layers)
    images = hidden == "both"
    weight = patch_weight if images else 0.0
    terms = (
        LossTerm("contrast", masked_contrast, extra=HIDDEN),
        LossTerm("match", masked_match, weight=match_weight, extra=HIDDEN),
        LossTerm("words", of_words, weight=word_weight, needs_local=True, extra=HIDDEN),
        LossTerm("patches", of_patches, weight=weight, needs_local=True, extra=HIDDEN),
    )
    return Method(
        paper="MACCO, ACL 2026",
        plan=CaptionPlan(texts=(MaskPlan(images, concepts, rectangles),)),
        losses=terms,
        optim=OPTIM,
    )
