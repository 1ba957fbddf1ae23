"""Contrast of images with several positives and negatives per image."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, full_precision
from compoclip.losses.contrastive import pair_loss, pairs_at
from compoclip.losses.rows import caption_index, captions, check, every_text, true_pairs

TextReduction = Literal["mean", "sum"]
"""Average over images, and over positive texts, or sum both up as printed in the paper."""


def multi_text_loss(
    features: Features,
    layout: Layout,
    reduction: TextReduction = "mean",
) -> Tensor:
    r"""Multi-caption contrastive loss (L_MC): every positive text of an image is a target.

    With z_ij = s u_i . v_j over all T texts, P(i) the positive texts (CAPTION and POSITIVE) of
    image i, P all positive texts and o(j) the owner of text j:

    .. math::
        L_{i2t} = \frac1B \sum_i \frac{1}{|P(i)|} \sum_{k \in P(i)} [\mathrm{LSE}_j z_{ij} - z_{ik}]

        L_{t2i} = \frac{1}{|P|} \sum_{j \in P} [\mathrm{LSE}_i z_{ij} - z_{o(j) j}], \quad
        L = \tfrac12 (L_{i2t} + L_{t2i})

    The softmax of an image runs over all texts, including its other positives; the softmax of a
    positive text over all images. Negatives are columns only, so their owner does not matter:
    sentences of earlier batches (a sentence cache) join as NEGATIVE texts of any image.

    Args:
        features: `image` u (B, D), `text` v (T, D), `logit_scale` s.
        layout: Roles and owners of all texts; every image has a CAPTION.
        reduction: "sum" drops the factors 1/B and 1/|P| (but not 1/|P(i)|), as printed in the
            paper.

    Returns:
        A scalar, in at least float32.

    Relation: equals `clip_loss` with captions only. Unlike in `negclip_loss`, positives are targets
    too. For a model with a bias it is the sigmoid loss of every pair of an image and a text,
    divided by |P| (`pair_loss`).
    Reference: Singh et al., Coarse-to-Fine Contrastive Learning in Image-Text-Graph Space for
    Improved Vision-Language Compositionality (EMNLP 2023), the multi-caption loss.
    """
    check(features, layout)
    caption_index(layout)  # an image without any positive text has no target
    column, row, share = layout.indices(_targets)
    (images,), (texts,) = layout.sizes(captions), layout.sizes(every_text)
    positives, peers = layout.sizes(_targets)[0], layout.peers
    masked = true_pairs(layout, (_targets,), (every_text,))
    in_texts, in_images = peers.before(texts), peers.before(images)
    with full_precision(features) as f:
        # Images of this process against all texts, its positive texts against all images.
        to_text = f.logit_scale * f.image @ peers.gathered(f.text, texts).T
        if f.logit_bias is not None:
            right = pairs_at(to_text, row, column + in_texts)
            loss = pair_loss(to_text + f.logit_bias, right, masked and masked[0])
            return loss / int(positives.sum()) if reduction == "mean" else loss
        to_image = f.logit_scale * f.text.index_select(0, column)
        to_image = to_image @ peers.gathered(f.image, images).T
        pair = row * to_text.shape[1] + column + in_texts
        target = to_text.view(-1).index_select(0, pair)
        if masked is not None:
            of_images, of_texts = masked
            of_images.view(-1).index_fill_(0, pair, False)
            of_texts.scatter_(1, row[:, None] + in_images, False)
            to_text = to_text.masked_fill(of_images, -torch.inf)
            to_image = to_image.masked_fill(of_texts, -torch.inf)
        loss_text = ((to_text.logsumexp(1).index_select(0, row) - target) / share).sum()
        loss_image = (to_image.logsumexp(1) - target).sum()
        if reduction == "mean":
            loss_text, loss_image = loss_text / int(images.sum()), loss_image / int(positives.sum())
        return (loss_text + loss_image) / 2


def _targets(host: HostLayout) -> tuple[Ints, ...]:
    """The positive texts, their images, and how many each of these has."""
    column = np.flatnonzero(host.role != int(Role.NEGATIVE))
    row = host.owner[column]
    share = np.bincount(row, minlength=host.images)[row]
    return column, row, share
