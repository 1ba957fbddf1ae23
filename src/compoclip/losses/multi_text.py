"""Contrast of images with several positives and negatives per image."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, loss_function
from compoclip.losses.contrastive import several_targets
from compoclip.losses.rows import captions, every_text

TextReduction = Literal["mean", "sum"]
"""Average over images, and over positive texts, or sum both up as printed in the paper."""


@loss_function
def multi_text_loss(f: Features, layout: Layout, reduction: TextReduction = "mean") -> Tensor:
    r"""Multi-caption contrastive loss (L_MC): every positive text of an image is a target.

    With z_ij = s u_i . v_j over all T texts, P(i) the positive texts (CAPTION and POSITIVE) of
    image i, P all positive texts and o(j) the owner of text j:

    .. math::
        L_{i2t} = \frac1B \sum_i \frac{1}{|P(i)|} \sum_{k \in P(i)} [\mathrm{LSE}_j z_{ij} - z_{ik}]

        L_{t2i} = \frac{1}{|P|} \sum_{j \in P} [\mathrm{LSE}_i z_{ij} - z_{o(j) j}], \quad
        L = \tfrac12 (L_{i2t} + L_{t2i})

    The softmax of an image runs over all texts, including its other positives; the softmax of a
    positive text over all images. Negatives are columns only, so their owner does not matter:
    sentences of earlier batches (a sentence cache) join as NEGATIVE texts of any image. Equals
    `clip_loss` with captions only. For a model with a bias it is the sigmoid loss of every pair of
    an image and a text, divided by |P| (`pair_loss`).

    Args:
        reduction: "sum" drops the factors 1/B and 1/|P| (but not 1/|P(i)|), as printed in the
            paper.

    Reference: Singh et al., Coarse-to-Fine Contrastive Learning in Image-Text-Graph Space for
    Improved Vision-Language Compositionality (EMNLP 2023), the multi-caption loss.
    """
    column, row, share = layout.indices(_targets)
    (images,), (texts,) = layout.sizes(captions), layout.sizes(every_text)
    positives, peers = layout.sizes(_targets)[0], layout.peers

    def to_image() -> Tensor:
        text = f.logit_scale * f.text.index_select(0, column)
        return text @ peers.gathered(f.image, images).T

    return several_targets(
        f,
        layout,
        f.logit_scale * f.image @ peers.gathered(f.text, texts).T,
        to_image,
        (row, column, share),
        (_targets,),
        (every_text,),
        (int(images.sum()), int(positives.sum())) if reduction == "mean" else (1, 1),
    )


def _targets(host: HostLayout) -> tuple[Ints, ...]:
    """The positive texts, their images, and how many each of these has."""
    captions(host)  # an image without any positive text has no target
    column = np.flatnonzero(host.role != int(Role.NEGATIVE))
    row = host.owner[column]
    return column, row, np.bincount(row, minlength=host.images)[row]
