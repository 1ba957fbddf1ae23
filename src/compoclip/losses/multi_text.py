"""Contrast of images with several positives and several negatives each."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role, full_precision
from compoclip.losses.rows import caption_index, check, true_pairs

TextReduction = Literal["mean", "sum"]
"""Average over images, and over positive texts, or sum both up as printed in the paper."""


def multi_text_loss(
    features: Features,
    layout: Layout,
    reduction: TextReduction = "mean",
    mask_duplicates: bool = False,
) -> Tensor:
    r"""Multi-caption contrastive loss (L_MC): every positive text of an image is a target.

    With z_ij = s u_i . v_j over all T texts, P(i) the positive texts (CAPTION and POSITIVE) of
    image i, P all positive texts and o(j) the owner of text j:

    .. math::
        L_{i2t} = \frac1B \sum_i \frac{1}{|P(i)|} \sum_{k \in P(i)} [\mathrm{LSE}_j z_{ij} - z_{ik}]

        L_{t2i} = \frac{1}{|P|} \sum_{j \in P} [\mathrm{LSE}_i z_{ij} - z_{o(j) j}], \quad
        L = \tfrac12 (L_{i2t} + L_{t2i})

    The softmax of an image runs over all texts, its own other positives among them; the softmax of
    a positive text over all images. Negatives are columns only, so it does not matter which image
    owns one: sentences of earlier batches (a sentence cache) join as NEGATIVE texts of any image.

    Args:
        features: `image` u (B, D), `text` v (T, D), `logit_scale` s.
        layout: Of all texts; every image has a CAPTION.
        reduction: "sum" drops the factors 1/B and 1/|P| (but not 1/|P(i)|), as printed in the
            paper.
        mask_duplicates: Leave out of both directions the pairs of image and text that are true
            without being a target: the text equals a positive of the image or of the same photo
            (`true_pairs`).

    Returns:
        A scalar, in at least float32.

    Raises:
        ValueError: When an image has no caption, or when duplicates are to be masked and the layout
            tells neither which texts nor which images are the same.

    Relation: with captions alone this is `clip_loss`. Unlike `negclip_loss`, positives are targets
    too.
    Reference: Singh et al., Coarse-to-Fine Contrastive Learning in Image-Text-Graph Space for
    Improved Vision-Language Compositionality (EMNLP 2023), the multi-caption loss.
    """
    check(features, layout)
    caption_index(layout)  # an image without any positive text has no target
    column = (layout.role != int(Role.NEGATIVE)).nonzero().squeeze(1)
    row = layout.owner[column]
    share = torch.bincount(row, minlength=layout.images)[row]
    with full_precision(features) as f:
        scores = f.logit_scale * f.image @ f.text.T
        target = scores[row, column]
        if mask_duplicates:
            other = true_pairs(layout)
            other[row, column] = False
            scores = scores.masked_fill(other, -torch.inf)
        to_text = ((scores.logsumexp(1)[row] - target) / share).sum()
        to_image = (scores[:, column].logsumexp(0) - target).sum()
        if reduction == "mean":
            to_text, to_image = to_text / layout.images, to_image / column.numel()
        return (to_text + to_image) / 2
