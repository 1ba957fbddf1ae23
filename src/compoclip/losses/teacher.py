"""Losses against a teacher, a copy of the model that they do not train (DeGLA)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, full_precision
from compoclip.losses.hard_negative import selective_calibrated_rows
from compoclip.losses.rows import (
    caption_index,
    captions,
    check,
    every_text,
    hard_negative_mean,
    hard_negative_rows,
    negatives_by_image,
)

OwnNegatives = Literal["own", "tiled"]
"""Negatives of a caption: the ones made from it, or the ones the released code's mask selects."""


def feature_distillation(features: Features, layout: Layout, vectors: int | None = None) -> Tensor:
    r"""Squared distance of every embedding to the teacher's (L_SD).

    .. math::
        L = \frac1N \Big[ \sum_i \lVert u_i - u^*_i \rVert^2
            + \sum_j \lVert x_j - x^*_j \rVert^2 \Big]

    over the B images and all T texts of the batch, whatever their role.

    Args:
        features: `image` u and `teacher_image` u* (B, D), `text` x and `teacher_text` x* (T, D).
        layout: Used for the size of the batch only.
        vectors: N; by default B + T of all processes. A fixed number makes the loss a sum, as
            published, whose weight grows with the batch.

    Returns:
        A scalar; exactly zero, with zero gradient, if model and teacher agree.

    Raises:
        ValueError: When the features come without a teacher's.

    Reference: Hu et al., Decoupled Global-Local Alignment for Improving Compositional Understanding
    (ACM Multimedia 2025), self-distillation.
    """
    check(features, layout)
    _require_teacher(features)
    total = int(sum(layout.sizes(each)[0].sum() for each in (captions, every_text)))
    with full_precision(features) as f:
        assert f.teacher_image is not None
        assert f.teacher_text is not None
        apart = (f.image - f.teacher_image).square().sum()
        apart = apart + (f.text - f.teacher_text).square().sum()
        return apart / max(1, total if vectors is None else vectors)


def teacher_text_contrast(
    features: Features, layout: Layout, scale: float = 10.0, negatives: OwnNegatives = "own"
) -> Tensor:
    r"""A caption must be closer to the teacher's embedding of it than to its negatives (L_TGC).

    .. math::
        L = \frac{1}{|R|} \sum_{i \in R} \mathrm{CE}\big([\,a\, t_i \cdot t^*_i;\
            a\, t_i \cdot n_{i1} .. a\, t_i \cdot n_{iK}\,],\ 0\big)

    with R the images that have a negative.

    Args:
        features: `text` (T, D), captions t and negatives n, both with gradient, and `teacher_text`
            (T, D), whose captions are t*.
        layout: The first CAPTION of each image is t_i; its NEGATIVE texts, any number, are n_ik.
        scale: a.
        negatives: "tiled" contrasts caption i with the negatives number m of the batch, counted
            image by image, with m mod B = i. This is the released code, whose mask and negatives
            are ordered differently. For comparison only.

    Returns:
        A scalar; exactly zero, with zero gradient, without negatives; ln(1 + K) when all scores are
        equal.

    Raises:
        ValueError: When the features come without a teacher's.

    Relation: `intra_modal_loss` contrasts image and caption with all negatives of the batch.
    Reference: as for `feature_distillation`, text-grounded contrast.
    """
    check(features, layout)
    _require_teacher(features)
    if negatives == "tiled":
        return _tiled(features, layout, scale)
    rows = hard_negative_rows(layout)
    with full_precision(features) as f:
        assert f.teacher_text is not None
        anchor = f.text.index_select(0, caption_index(layout).index_select(0, rows.image))
        # The first place of a row is the caption's, by the teacher.
        first = (rows.place % rows.valid.shape[1] == 0)[:, None]
        other = torch.where(
            first, f.teacher_text.index_select(0, rows.texts), f.text.index_select(0, rows.texts)
        )
        logits = rows.spread(scale * (anchor * other).sum(-1))
        total, _ = selective_calibrated_rows(logits, rows.valid)
        return hard_negative_mean(layout, total, "valid")


def _tiled(features: Features, layout: Layout, scale: float) -> Tensor:
    """The contrast with the negatives that the released code's mask leaves to a caption."""
    caption, peers = caption_index(layout), layout.peers
    (negative,) = layout.indices(negatives_by_image)
    (images,), (negatives,) = layout.sizes(captions), layout.sizes(negatives_by_image)
    total = int(images.sum())
    with full_precision(features) as f:
        assert f.teacher_text is not None
        text = f.text.index_select(0, caption)
        right = (text * f.teacher_text.index_select(0, caption)).sum(-1, keepdim=True)
        wrong = text @ peers.gathered(f.text.index_select(0, negative), negatives).T
        number = torch.arange(wrong.shape[1], device=wrong.device) % max(1, total)
        row = torch.arange(len(text), device=wrong.device) + peers.before(images)
        theirs = number == row[:, None]
        valid = torch.cat([theirs.any(1, keepdim=True), theirs], dim=1)
        found, _ = selective_calibrated_rows(scale * torch.cat([right, wrong], dim=1), valid)
        return found / max(1, min(total, int(negatives.sum())))


def _require_teacher(features: Features) -> None:
    if features.teacher_image is None or features.teacher_text is None:
        raise ValueError("this loss compares with a teacher, and the features come without one")
