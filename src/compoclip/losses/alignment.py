"""Paraphrases aligned with captions, text against text (READ-CLIP)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role, loss_function
from compoclip.losses.contrastive import match_loss
from compoclip.losses.rows import Selection, captions, first_of, true_pairs

Align = Literal["paraphrase", "transpose"]
"""Softmax over captions per paraphrase, or over paraphrases per caption."""


@loss_function
def caption_alignment(
    f: Features, layout: Layout, positives: tuple[str, ...] = (), align: Align = "paraphrase"
) -> Tensor:
    r"""A paraphrase must be closer to its caption than to the other captions (L_align).

    .. math::
        L = \frac{1}{|H|} \sum_{i \in H} \mathrm{CE}_j(s\, t'_i \cdot t_j,\ i)

    with H the images that have a paraphrase t', their first POSITIVE, and j over all images. ln B
    when all scores are equal, ln |H| transposed. The second half of `hard_positive_loss` is this
    loss transposed, its columns unmasked.

    Args:
        positives: The kinds of text that are paraphrases; by default all POSITIVE texts.
        align: "transpose" lets caption i, i in H, rank the paraphrases j, j in H, as printed in
            the paper; the default is the released code, as above.

    Reference: Kwon et al., Enhancing Compositional Reasoning in CLIP via Reconstruction and
    Alignment of Text Descriptions (NeurIPS 2025), sentence-level alignment.
    """
    peers = layout.peers
    paraphrases: Selection = (first_of, Role.POSITIVE, *positives)
    (caption,), (paraphrase, owner) = layout.indices(captions), layout.indices(*paraphrases)
    (images,), (having, _) = layout.sizes(captions), layout.sizes(*paraphrases)
    texts, others = f.text.index_select(0, caption), f.text.index_select(0, paraphrase)
    columns: Selection = (captions,)
    if align == "paraphrase":
        scores = f.logit_scale * others @ peers.gathered(texts, images).T
        target = owner + peers.before(images)
    else:
        scores = f.logit_scale * texts.index_select(0, owner) @ peers.gathered(others, having).T
        target = torch.arange(len(owner), device=owner.device) + peers.before(having)
        columns = paraphrases
    true = true_pairs(layout, (captions,), columns)
    left_out = None if true is None else true[0].index_select(0, owner)
    return match_loss(scores, target, int(having.sum()), left_out)
