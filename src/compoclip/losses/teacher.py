"""Losses against a teacher that they do not train: a copy of the model (DeGLA), or any model."""

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
    every_image,
    every_text,
    hard_negative_mean,
    hard_negative_rows,
    negatives_by_image,
)

_EVERYTHING = (every_image,), (every_text,)
OwnNegatives = Literal["own", "tiled"]
"""Negatives of a caption: the ones made from it, or the ones the released code's mask selects."""


class WidthError(ValueError):
    """The loss compares vectors, and the teacher's have another width."""


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
        ValueError: When the features come without a teacher's; WidthError for another width.

    Reference: Hu et al., Decoupled Global-Local Alignment for Improving Compositional Understanding
    (ACM Multimedia 2025), self-distillation.
    """
    check(features, layout)
    _require_teacher(features, alike=True)
    total = int(sum(layout.sizes(each)[0].sum() for each in (captions, every_text)))
    with full_precision(features) as f:
        assert f.teacher_image is not None
        assert f.teacher_text is not None
        apart = (f.image - f.teacher_image).square().sum()
        apart = apart + (f.text - f.teacher_text).square().sum()
        return apart / max(1, total if vectors is None else vectors)


def similarity_distillation(features: Features, layout: Layout) -> Tensor:
    r"""Cross entropy of the teacher's distributions over texts and over images with the model's.

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i H(\mathrm{softmax}_j\, s^* u^*_i \cdot x^*_j,\
                \mathrm{softmax}_j\, s\, u_i \cdot x_j)
            + \tfrac1T \sum_j H(\mathrm{softmax}_i\, s^* u^*_i \cdot x^*_j,\
                \mathrm{softmax}_i\, s\, u_i \cdot x_j) \Big]

    over the B images and all T texts of the batch, with H(p, q) = - sum p ln q. Only similarities
    are compared, so the teacher may have another width.

    Args:
        features: `image` u, `text` x, `logit_scale` s, `teacher_image` u*, `teacher_text` x* and
            `teacher_scale` s*, which is s without a gradient where the teacher has none.
        layout: Used for the size of the batch only.

    Returns:
        A scalar, at least the entropy of the teacher's distributions, where its gradient is zero.

    Raises:
        ValueError: When the features come without a teacher's.

    Reference: open_clip, `DistillClipLoss` (--distill-model), whose texts are captions only; Yang
    et al., CLIP-KD (CVPR 2024), contrastive relational distillation.
    """
    check(features, layout)
    _require_teacher(features)
    images, texts = (layout.sizes(*each)[0] for each in _EVERYTHING)
    gathered = layout.peers.gathered
    with full_precision(features) as f:
        assert f.teacher_image is not None
        assert f.teacher_text is not None
        scale = f.logit_scale.detach() if f.teacher_scale is None else f.teacher_scale
        to_texts = _cross_entropy(
            scale * f.teacher_image @ gathered(f.teacher_text, texts).T,
            f.logit_scale * f.image @ gathered(f.text, texts).T,
        )
        to_images = _cross_entropy(
            scale * f.teacher_text @ gathered(f.teacher_image, images).T,
            f.logit_scale * f.text @ gathered(f.image, images).T,
        )
        return (to_texts / int(images.sum()) + to_images / int(texts.sum())) / 2


def _cross_entropy(wanted: Tensor, logits: Tensor) -> Tensor:
    return -(wanted.softmax(dim=1) * logits.log_softmax(dim=1)).sum()


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
        ValueError: When the features come without a teacher's; WidthError for another width.

    Relation: `intra_modal_loss` contrasts image and caption with all negatives of the batch.
    Reference: as for `feature_distillation`, text-grounded contrast.
    """
    check(features, layout)
    _require_teacher(features, alike=True)
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


def _require_teacher(features: Features, alike: bool = False) -> None:
    """Raise ValueError without a teacher, and WidthError where it has to be `alike` and is not."""
    if features.teacher_image is None or features.teacher_text is None:
        raise ValueError("this loss compares with a teacher, and the features come without one")
    if alike and features.teacher_image.shape[1] != features.image.shape[1]:
        raise WidthError(
            f"the teacher has vectors of {features.teacher_image.shape[1]} numbers, the model of "
            f"{features.image.shape[1]}: compare similarities in place of vectors, --terms "
            "+similarity"
        )
