"""Contrast with generated negative images as well as negative texts (TripletCLIP)."""

from __future__ import annotations

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role, full_precision
from compoclip.losses.contrastive import symmetric_contrast
from compoclip.losses.rows import caption_index, check


def triplet_clip_loss(features: Features, layout: Layout) -> Tensor:
    r"""Two contrasts with hard negatives; in the second, caption and negative change roles.

    .. math::
        L = \mathrm{neg}(I, T, T') + \mathrm{neg}(I', T', T)

    where neg(I, T, T') is `negclip_loss` of images I with captions T and negative texts T'. A row
    of the data is an image I with its caption T; its T' is the caption of its generated image I'
    or, in a row without I', the NEGATIVE texts of I.

    The first term ranks, for every I, all captions T and all T'. The second ranks, for every I',
    the captions of all generated images and all captions T.

    Args:
        features: `image` (B, D), `text` (T, D), `logit_scale`.
        layout: `side` tells data images (0) from generated ones (1), `pair` which data image a
            generated one belongs to. NEGATIVE texts of rows that have an I', and of the I'
            themselves, are not read.

    Returns:
        A scalar; ln(2 B) + ln B when all scores are equal in B full rows.

    Raises:
        ValueError: When an image has no caption, when a generated image has no data image to belong
            to, or when two belong to the same.

    Relation: without generated images only the first term is left, which is `negclip_loss`.
    Reference: Patel et al., TripletCLIP: Improving Compositional Reasoning of CLIP via Synthetic
    Vision-Language Negatives (NeurIPS 2024).
    """
    check(features, layout)
    caption = caption_index(layout)
    side = torch.zeros_like(caption) if layout.side is None else layout.side
    data, generated = (side == 0).nonzero().squeeze(1), (side == 1).nonzero().squeeze(1)
    paired = _paired(layout, side, generated)
    from_row = (layout.role == int(Role.NEGATIVE)) & (side == 0)[layout.owner]
    negative = (from_row & ~paired[layout.owner]).nonzero().squeeze(1)
    with full_precision(features) as f:
        right, wrong = f.text[caption[data]], f.text[caption[generated]]
        return symmetric_contrast(
            f.logit_scale, f.image[data], torch.cat([right, wrong, f.text[negative]])
        ) + symmetric_contrast(f.logit_scale, f.image[generated], torch.cat([wrong, right]))


def _paired(layout: Layout, side: Tensor, generated: Tensor) -> Tensor:
    """(B,) whether a generated image belongs to the image. Raises ValueError for a bad pairing."""
    count = torch.zeros_like(side)
    if generated.numel() == 0:
        return count.bool()
    if layout.pair is None:
        raise ValueError("the layout does not tell to which images the generated ones belong")
    row = layout.pair[generated]
    if (side[row] != 0).any():
        raise ValueError("a generated image belongs to another generated image")
    count = torch.bincount(row, minlength=layout.images)
    if (count > 1).any():
        raise ValueError(f"two generated images belong to image {int(count.argmax())}")
    return count.bool()
