"""Hard positives: rewrites that keep the meaning must score like captions."""

from __future__ import annotations

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role, loss_function
from compoclip.losses.contrastive import match_loss, pair_loss, pairs_at
from compoclip.losses.rows import captions, first_of, true_pairs


@loss_function
def hard_positive_loss(f: Features, layout: Layout, symmetric_pos: bool = False) -> Tensor:
    r"""Contrast of images, and of captions, with the hard positives of the batch (L_pos).

    .. math::
        L = \frac{1}{2 |H|} \sum_{i \in H} \Big[ \mathrm{CE}_{j \in H}(s\, u_i \cdot v_j,\ i)
            + \mathrm{CE}_{j \in H}(s\, t_i \cdot v_j,\ i) \Big]

    with v_i the first POSITIVE of image i and H the images that have one. ln |H| when all scores
    are equal, (ln |H| + ln B) / 2 with `symmetric_pos`. For a model with a bias, the first term is
    the sigmoid loss of every pair of an image (in H; in the batch with `symmetric_pos`) and a
    positive; the contrast of texts with texts stays a softmax.

    Args:
        symmetric_pos: Average each term with its reverse, in which the positive v_i, i in H, ranks
            all B images (or all B captions).

    Reference: Kamath et al., The Hard Positive Truth about Vision-Language Compositionality (ECCV
    2024); the form of the objective is that of Doveh et al., Teaching Structured Vision & Language
    Concepts to Vision & Language Models (CVPR 2023).
    """
    peers, positives = layout.peers, (first_of, Role.POSITIVE)
    (caption,), (first_positive, owner) = layout.indices(captions), layout.indices(*positives)
    (images,), (having, _) = layout.sizes(captions), layout.sizes(*positives)
    rows, in_positives = int(having.sum()), peers.before(having)
    positive = f.logit_scale * f.text.index_select(0, first_positive)
    every_positive = peers.gathered(positive, having)
    place = torch.arange(len(owner), device=owner.device)
    true, back = true_pairs(layout, positives, positives) or (None, None)
    of_owner = None if true is None else true.index_select(0, owner)
    terms = []
    for anchor in (f.image, f.text.index_select(0, caption)):
        if anchor is f.image and f.logit_bias is not None:
            pictures = f.image if symmetric_pos else f.image.index_select(0, owner)
            scores = pictures @ every_positive.T + f.logit_bias
            right = pairs_at(scores, owner if symmetric_pos else place, place + in_positives)
            loss = pair_loss(scores, right, true if symmetric_pos else of_owner) / max(1, rows)
            terms += [loss, loss] if symmetric_pos else [loss]
            continue
        scores = anchor.index_select(0, owner) @ every_positive.T
        terms.append(match_loss(scores, place + in_positives, rows, of_owner))
        if symmetric_pos:
            scores = positive @ peers.gathered(anchor, images).T
            terms.append(match_loss(scores, owner + peers.before(images), rows, back))
    return sum(terms[1:], start=terms[0]) / len(terms)
