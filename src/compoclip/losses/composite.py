"""Losses for composites of two images with several descriptions each and one negative (CLIC).

Image i has the descriptions p_1i (its CAPTION) and p_2i, p_3i, ... (POSITIVE texts, one kind each;
the caller names the kinds in this order), and its NEGATIVE texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, loss_function
from compoclip.losses.contrastive import symmetric_contrast
from compoclip.losses.rows import caption_pairs, captions


def _descriptions(host: HostLayout, positives: tuple[str, ...]) -> list[Ints]:
    """The L = 1 + len(positives) descriptions of every image, each (B,).

    One that an image lacks is replaced by the one two places before it, the second by the caption:
    of four, p_2 and p_3 fall back to p_1, and p_4 to p_2 (which is the same two captions in the
    other order).
    """
    descriptions = [*captions(host)]
    for place, kind in enumerate(positives, start=1):
        index, valid = host.first(Role.POSITIVE, kind)
        descriptions.append(np.where(valid, index, descriptions[max(place - 2, 0)]))
    return descriptions


def _description(host: HostLayout, positives: tuple[str, ...], place: int) -> tuple[Ints, ...]:
    return (_descriptions(host, positives)[place],)


def _described_negatives(
    host: HostLayout, positives: tuple[str, ...], negative: str | None
) -> tuple[Ints, ...]:
    """(N,) negatives, their images, and (L, N) the descriptions of these images."""
    negatives = host.of(Role.NEGATIVE, *(() if negative is None else (negative,)))
    owner = host.owner[negatives]
    return negatives, owner, np.stack(_descriptions(host, positives))[:, owner]


@loss_function
def composite_contrast_loss(f: Features, layout: Layout, positives: Sequence[str]) -> Tensor:
    r"""Mean over kinds of description of the contrast with all images (L_cont).

    .. math::
        L = \frac1L \sum_l \tfrac12 \Big[ \tfrac1B \sum_i \mathrm{CE}_j(s\, u_i \cdot p_{lj},\ i)
            + \tfrac1B \sum_i \mathrm{CE}_j(s\, p_{li} \cdot u_j,\ i) \Big]

    With captions alone this is `clip_loss`. Unlike in `multi_text_loss`, descriptions of different
    kinds never meet in one softmax.

    Args:
        positives: The kinds of p_2, p_3, ...

    Reference: Peleg et al., Advancing Compositional Awareness in CLIP with Efficient Fine-Tuning
    (2025).
    """
    return torch.stack(
        [
            symmetric_contrast(f, layout, (_description, tuple(positives), place))
            for place in range(1 + len(positives))
        ]
    ).mean()


@loss_function
def single_negative_loss(
    f: Features, layout: Layout, positives: Sequence[str], negative: str | None = None
) -> Tensor:
    r"""Every description of an image must score above the negative of the image (L_sneg).

    .. math::
        L = \frac{1}{L |N|} \sum_l \sum_{(i, n) \in N} \ln(1 + e^{s\, u_i \cdot (n - p_{li})})

    with N the pairs of an image and one of its negatives: one per image in the published method.
    ln 2 when all scores are equal; equals `global_hn_loss` with one negative and one description
    per image.

    Args:
        positives: The kinds of p_2, p_3, ...
        negative: The kind of the negatives; None reads all NEGATIVE texts.

    Reference: as for `composite_contrast_loss`.
    """
    request = _described_negatives, tuple(positives), negative
    negatives, owner, description = layout.indices(*request)
    pairs = len(description) * layout.total(*request)
    right = f.text.index_select(0, description.view(-1))
    apart = f.text.index_select(0, negatives) - right.view(*description.shape, f.text.shape[1])
    margin = (f.image.index_select(0, owner) * apart).sum(-1)
    return F.softplus(f.logit_scale * margin).sum() / max(1, pairs)


@loss_function
def unimodal_loss(f: Features, layout: Layout, positive: str) -> Tensor:
    r"""Squared distance of an image's caption to its description of another order (L_uni).

    .. math::
        L = \frac{1}{|R|} \sum_{i \in R} \lVert p_{1i} - p_{2i} \rVert^2

    with R the images that have a p_2.

    Args:
        positive: The kind of p_2.

    Reference: as for `composite_contrast_loss`.
    """
    caption, other, pairs = caption_pairs(f, layout, Role.POSITIVE, positive)
    return (caption - other).square().sum(-1).sum() / max(1, pairs)
