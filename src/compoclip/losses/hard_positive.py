"""Hard positives: rewrites that keep the meaning must score like captions."""

from __future__ import annotations

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role, full_precision
from compoclip.losses.contrastive import match_loss, pair_loss, pairs_at
from compoclip.losses.rows import Selection, caption_index, captions, check, first_of, true_pairs


def hard_positive_loss(features: Features, layout: Layout, symmetric_pos: bool = False) -> Tensor:
    r"""Contrast of images, and of captions, with the hard positives of the batch (L_pos).

    .. math::
        L = \frac{1}{2 |H|} \sum_{i \in H} \Big[ \mathrm{CE}_{j \in H}(s\, u_i \cdot v_j,\ i)
            + \mathrm{CE}_{j \in H}(s\, t_i \cdot v_j,\ i) \Big]

    with H the images that have a hard positive; the others are left out. The second term compares
    texts with texts.

    Args:
        features: `image` u, `text`, `logit_scale` s.
        layout: The first CAPTION t_i and the first POSITIVE v_i of each image; further ones and
            negatives are not read.
        symmetric_pos: Average each term with its reverse, in which the positive v_i, i in H, ranks
            all B images (or all B captions).

    Returns:
        A scalar; exactly zero, with zero gradient, without any positive. ln |H| when all scores are
        equal, (ln |H| + ln B) / 2 with `symmetric_pos`.

    Relation: added to `negclip_loss`, which does not read positives, and to `global_hn_loss` with
    gamma = beta = 0, the L_neg of this objective. For a model with a bias, the first term is the
    sigmoid loss of every pair of an image (in H; in the batch with `symmetric_pos`) and a positive;
    the contrast of texts with texts stays a softmax.
    Reference: Kamath et al., The Hard Positive Truth about Vision-Language Compositionality (ECCV
    2024); the form of the objective is that of Doveh et al., Teaching Structured Vision & Language
    Concepts to Vision & Language Models (CVPR 2023).
    """
    check(features, layout)
    caption, peers = caption_index(layout), layout.peers
    positives: Selection = (first_of, Role.POSITIVE)
    first_positive, owner = layout.indices(*positives)
    (images,), (having, _) = layout.sizes(captions), layout.sizes(*positives)
    rows, in_positives = int(having.sum()), peers.before(having)
    with full_precision(features) as f:
        positive = f.logit_scale * f.text.index_select(0, first_positive)
        every_positive = peers.gathered(positive, having)
        target = torch.arange(len(owner), device=owner.device) + in_positives
        true, back = true_pairs(layout, positives, positives) or (None, None)
        of_owner = None if true is None else true.index_select(0, owner)
        terms = []
        for anchor in (f.image, f.text.index_select(0, caption)):
            if anchor is f.image and f.logit_bias is not None:
                seen = f.image if symmetric_pos else f.image.index_select(0, owner)
                scores = seen @ every_positive.T + f.logit_bias
                right = pairs_at(scores, owner if symmetric_pos else target - in_positives, target)
                loss = pair_loss(scores, right, true if symmetric_pos else of_owner) / max(1, rows)
                terms += [loss] * (1 + symmetric_pos)
                continue
            scores = anchor.index_select(0, owner) @ every_positive.T
            terms.append(match_loss(scores, target, rows, of_owner))
            if symmetric_pos:
                scores = positive @ peers.gathered(anchor, images).T
                terms.append(match_loss(scores, owner + peers.before(images), rows, back))
        return sum(terms[1:], start=terms[0]) / len(terms)
