"""Paraphrases aligned with captions, text against text (READ-CLIP)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, full_precision
from compoclip.losses.contrastive import match_loss
from compoclip.losses.rows import caption_index, captions, check, first, true_pairs

Align = Literal["paraphrase", "transpose"]
"""Whether paraphrases rank captions, or captions paraphrases."""


def caption_alignment(
    features: Features,
    layout: Layout,
    positives: tuple[str, ...] = (),
    align: Align = "paraphrase",
) -> Tensor:
    r"""A paraphrase must be closer to its caption than to the other captions (L_align).

    .. math::
        L = \frac{1}{|H|} \sum_{i \in H} \mathrm{CE}_j(s\, t'_i \cdot t_j,\ i)

    with H the images that have a paraphrase, and j all images. Negatives take no part in it.

    Args:
        features: `text` (T, D) and `logit_scale` s.
        layout: The first CAPTION of each image is t_i, its first POSITIVE t'_i.
        positives: The kinds of text that are paraphrases; all POSITIVE texts if none is named.
        align: "transpose" lets caption i, i in H, rank the paraphrases j, j in H, as the paper
            prints it; the released code, and the default, do the above.

    Returns:
        A scalar; exactly zero, with zero gradient, without any paraphrase. ln B when all scores are
        equal, ln |H| transposed.

    Raises:
        ValueError: When an image has no caption.

    Relation: the second half of `hard_positive_loss` is this loss transposed, its columns unmasked.
    Reference: Kwon et al., Enhancing Compositional Reasoning in CLIP via Reconstruction and
    Alignment of Text Descriptions (NeurIPS 2025), sentence-level alignment.
    """
    check(features, layout)
    caption, peers = caption_index(layout), layout.peers
    paraphrase, owner = layout.indices(_paraphrases, positives)
    (images,), (having, _) = layout.sizes(captions), layout.sizes(_paraphrases, positives)
    own = torch.arange(len(owner), device=owner.device) + int(having[: peers.rank].sum())
    with full_precision(features) as f:
        texts = f.text.index_select(0, caption)
        others = f.text.index_select(0, paraphrase)
        if align == "paraphrase":
            scores = f.logit_scale * others @ peers.gathered(texts, images).T
            target = owner + int(images[: peers.rank].sum())
        else:
            scores = f.logit_scale * texts.index_select(0, owner) @ peers.gathered(others, having).T
            target = own
        columns = captions if align == "paraphrase" else _Paraphrases(positives)
        true = true_pairs(layout, captions, columns)
        left_out = None if true is None else true[0].index_select(0, owner)
        return match_loss(scores, target, int(having.sum()), left_out)


def _paraphrases(host: HostLayout, positives: tuple[str, ...]) -> tuple[Ints, ...]:
    """The first paraphrase of every image that has one, and these images."""
    index, valid = first(host, Role.POSITIVE, *positives)
    return index[valid], np.flatnonzero(valid)


@dataclass(frozen=True)
class _Paraphrases:
    """The same as a function of the host alone, equal for equal kinds."""

    positives: tuple[str, ...]

    def __call__(self, host: HostLayout) -> tuple[Ints, ...]:
        return _paraphrases(host, self.positives)
