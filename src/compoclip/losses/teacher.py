"""Losses against a teacher that they do not train: a copy of the model (DeGLA), or any model."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Ints, Layout, computed, loss_function
from compoclip.losses.hard_negative import global_hn_loss, selective_calibrated_rows
from compoclip.losses.rows import (
    RowIndex,
    captions,
    every_image,
    every_text,
    negatives_by_image,
)

OwnNegatives = Literal["own", "tiled"]
"""Negatives of a caption: the ones made from it, or the ones the released code's mask selects."""


class WidthError(ValueError):
    """The loss compares vectors, and the teacher's have another width."""


@loss_function
def feature_distillation(f: Features, layout: Layout, vectors: int | None = None) -> Tensor:
    r"""Squared distance of every embedding to the teacher's (L_SD).

    .. math::
        L = \frac1N \Big[ \sum_i \lVert u_i - u^*_i \rVert^2
            + \sum_j \lVert x_j - x^*_j \rVert^2 \Big]

    over the B images and all T texts x of the batch, whatever their role; a star stands for the
    teacher's. Raises ValueError when the features come without a teacher's, WidthError for another
    width.

    Args:
        vectors: N; by default B + T of all processes. A fixed number makes the loss a sum, as
            published, whose weight grows with the batch.

    Reference: Hu et al., Decoupled Global-Local Alignment for Improving Compositional Understanding
    (ACM Multimedia 2025), self-distillation.
    """
    image, text = _teacher(f, alike=True)
    total = int(sum(layout.sizes(selection)[0].sum() for selection in (captions, every_text)))
    apart = (f.image - image).square().sum()
    apart = apart + (f.text - text).square().sum()
    return apart / max(1, total if vectors is None else vectors)


@loss_function
def similarity_distillation(f: Features, layout: Layout) -> Tensor:
    r"""Cross entropy of the teacher's distributions over texts and over images with the model's.

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i H(\mathrm{softmax}_j\, s^* u^*_i \cdot x^*_j,\
                \mathrm{softmax}_j\, s\, u_i \cdot x_j)
            + \tfrac1T \sum_j H(\mathrm{softmax}_i\, s^* u^*_i \cdot x^*_j,\
                \mathrm{softmax}_i\, s\, u_i \cdot x_j) \Big]

    over the B images and all T texts of the batch, with H(p, q) = - sum p ln q, and s* the scale s
    without a gradient where the teacher has none. Only similarities are compared, so the teacher
    may have another width. At least the entropy of the teacher's distributions, where its gradient
    is zero. Raises ValueError when the features come without a teacher's.

    Reference: open_clip, `DistillClipLoss` (--distill-model), whose texts are captions only; Yang
    et al., CLIP-KD (CVPR 2024), contrastive relational distillation.
    """
    teacher_image, teacher_text = _teacher(f)
    images, texts = (layout.sizes(selection)[0] for selection in (every_image, every_text))
    scale = f.logit_scale.detach() if f.teacher_scale is None else f.teacher_scale

    def compared(rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor], n: Ints) -> Tensor:
        theirs, ours = (row @ layout.peers.gathered(c, n).T for row, c in zip(rows, columns))
        return -(theirs.softmax(dim=1) * ours.log_softmax(dim=1)).sum()

    image, text = (scale * teacher_image, f.logit_scale * f.image), (teacher_text, f.text)
    to_texts = compared(image, text, texts)
    image, text = (teacher_image, f.image), (scale * teacher_text, f.logit_scale * f.text)
    to_images = compared(text, image, images)
    return (to_texts / int(images.sum()) + to_images / int(texts.sum())) / 2


@loss_function
def teacher_text_contrast(
    f: Features, layout: Layout, scale: float = 10.0, negatives: OwnNegatives = "own"
) -> Tensor:
    r"""A caption must be closer to the teacher's embedding of it than to its negatives (L_TGC).

    .. math::
        L = \frac{1}{|R|} \sum_{i \in R} \mathrm{CE}\big([\,a\, t_i \cdot t^*_i;\
            a\, t_i \cdot n_{i1} .. a\, t_i \cdot n_{iK}\,],\ 0\big)

    with R the images that have a negative, and t* the teacher's captions. ln(1 + K) when all scores
    are equal. Errors as for `feature_distillation`.

    Args:
        scale: a.
        negatives: "tiled" contrasts caption i with the negatives number m of the batch, counted
            image by image, with m mod B = i. This is the released code, whose mask and negatives
            are ordered differently. For comparison only.

    Reference: as for `feature_distillation`, text-grounded contrast.
    """
    _, teacher_text = _teacher(f, alike=True)
    (caption,) = layout.indices(captions)
    if negatives == "own":

        def scores(f: Features, rows: RowIndex) -> Tensor:
            anchor = f.text.index_select(0, caption.index_select(0, rows.image))
            # The first place of a row is the caption's, by the teacher.
            first = (rows.place % rows.valid.shape[1] == 0)[:, None]
            theirs, ours = (x.index_select(0, rows.texts) for x in (teacher_text, f.text))
            return scale * (anchor * torch.where(first, theirs, ours)).sum(-1)

        return global_hn_loss(f, layout, scores=scores)
    # The contrast with the negatives that the released code's mask leaves to a caption.
    (negative,) = layout.indices(negatives_by_image)
    (images,), (number,) = layout.sizes(captions), layout.sizes(negatives_by_image)
    text, total = f.text.index_select(0, caption), int(images.sum())
    right = (text * teacher_text.index_select(0, caption)).sum(-1, keepdim=True)
    wrong_scores = text @ layout.peers.gathered(f.text.index_select(0, negative), number).T
    place = torch.arange(wrong_scores.shape[1], device=wrong_scores.device) % max(1, total)
    row = torch.arange(len(text), device=wrong_scores.device) + layout.peers.before(images)
    tiled = place == row[:, None]
    valid = torch.cat([tiled.any(1, keepdim=True), tiled], dim=1)
    loss, _ = selective_calibrated_rows(scale * torch.cat([right, wrong_scores], dim=1), valid)
    return loss / max(1, min(total, int(number.sum())))


def _teacher(features: Features, alike: bool = False) -> tuple[Tensor, Tensor]:
    """The teacher's images and texts; alike: which must have the model's width."""
    image, text = computed(features, "teacher_image", "teacher_text")
    if alike and image.shape[1] != features.image.shape[1]:
        raise WidthError(
            f"the teacher's features have {image.shape[1]} dimensions and the model's have "
            f"{features.image.shape[1]}: compare similarities instead, with --terms +similarity"
        )
    return image, text
