"""Contrast with negative images as well as negative texts (TripletCLIP, CounterCurate, TROHN)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, full_precision
from compoclip.losses.contrastive import symmetric_contrast
from compoclip.losses.rows import captions, check, true_pairs


def triplet_clip_loss(features: Features, layout: Layout) -> Tensor:
    r"""Two contrasts with hard negatives; in the second, caption and negative swap roles.

    .. math::
        L = \mathrm{neg}(I, T, T') + \mathrm{neg}(I', T', T)

    where neg(I, T, T') is `negclip_loss` of images I with captions T and negative texts T'. A row
    of the data is an image I with its caption T; T' is the caption of its generated image I' or,
    in a row without I', the NEGATIVE texts of I.

    The first term ranks, for every I, all captions T and all T'. The second ranks, for every I',
    the captions of all generated images and all captions T.

    Args:
        features: `image` (B, D), `text` (T, D), `logit_scale`.
        layout: `side` is 0 for data images and 1 for generated ones, `pair` the data image of a
            generated one. NEGATIVE texts of rows with an I', and of I', are not read.

    Returns:
        A scalar; ln(2 B) + ln B when all scores are equal in B full rows.

    Raises:
        ValueError: When a generated image belongs to no data image, or two to the same.

    Relation: equals `negclip_loss`, the first term, without generated images.
    Reference: Patel et al., TripletCLIP: Improving Compositional Reasoning of CLIP via Synthetic
    Vision-Language Negatives (NeurIPS 2024).
    """
    check(features, layout)
    data, generated, right, wrong, negative = layout.indices(sides)
    rows, others, _, _, negatives = layout.sizes(sides)
    with full_precision(features) as f:
        right_text, wrong_text, other = (
            f.text.index_select(0, each) for each in (right, wrong, negative)
        )
        return symmetric_contrast(
            layout,
            f.logit_scale,
            f.image.index_select(0, data),
            torch.cat([right_text, wrong_text, other]),
            rows,
            rows + others + negatives,
            true_pairs(layout, (of_sides, 2), (of_sides, 2, 3, 4), (of_sides, 0)),
            logit_bias=f.logit_bias,
        ) + symmetric_contrast(
            layout,
            f.logit_scale,
            f.image.index_select(0, generated),
            torch.cat([wrong_text, right_text]),
            others,
            rows + others,
            true_pairs(layout, (of_sides, 3), (of_sides, 3, 2), (of_sides, 1)),
            logit_bias=f.logit_bias,
        )


def grouping_loss(features: Features, layout: Layout) -> Tensor:
    r"""Contrast of all images with all captions, counterfactual ones included.

    A pair (x, c) and its counterpart (x', c'), which differs in one fact, share the batch, so that
    each member is the hardest negative of the other in both directions:

    .. math::
        L = L_{clip}([x; x'],\ [c; c'])

    A row without x' is an ordinary pair whose NEGATIVE texts compete for every image, as in
    `negclip_loss`.

    Args:
        features: `image` (B, D), `text` (T, D), `logit_scale`.
        layout: `side` is 0 for data images and 1 for counterparts, `pair` the data image of a
            counterpart; the caption of a counterpart is c'. NEGATIVE texts of rows with an x', and
            of x', are not read.

    Returns:
        A scalar; ln(2 B) when all scores are equal in B full rows.

    Raises:
        ValueError: As `triplet_clip_loss` does.

    Relation: `clip_loss` when every row has its x', `negclip_loss` when none has; unlike
    `triplet_clip_loss` the x' compete with the images of the data.
    Reference: Zhang et al., CounterCurate: Enhancing Physical and Semantic Visio-Linguistic
    Compositional Reasoning via Counterfactual Examples (Findings of ACL 2024), grouping; Miranda et
    al., BiVLC: Extending Vision-Language Compositionality Evaluation with Text-to-Image Retrieval
    (NeurIPS 2024), TROHN-Img.
    """
    check(features, layout)
    (column,) = layout.indices(_grouped)
    (images,), (texts,) = layout.sizes(captions), layout.sizes(_grouped)
    with full_precision(features) as f:
        text = f.text.index_select(0, column)
        masked = true_pairs(layout, (captions,), (_grouped,))
        return symmetric_contrast(layout, f.logit_scale, f.image, text, images, texts, masked)


def _grouped(host: HostLayout) -> tuple[Ints, ...]:
    return (np.concatenate([*captions(host), sides(host)[-1]]),)


def sides(host: HostLayout) -> tuple[Ints, ...]:
    """The images of the data and the generated ones, the captions of both, and the NEGATIVE texts
    of the rows without a generated image."""
    (caption,) = captions(host)
    side = np.zeros(host.images, int) if host.side is None else host.side
    data, generated = np.flatnonzero(side == 0), np.flatnonzero(side == 1)
    read = (side == 0) & ~_paired(host, side, generated)
    negative = np.flatnonzero((host.role == int(Role.NEGATIVE)) & read[host.owner])
    return data, generated, caption[data], caption[generated], negative


def of_sides(host: HostLayout, *places: int) -> tuple[Ints, ...]:
    """Return some of the arrays of `sides`, by number, as one."""
    arrays = sides(host)
    return (np.concatenate([arrays[place] for place in places]),)


def _paired(host: HostLayout, side: Ints, generated: Ints) -> Ints:
    """(B,) whether a generated image belongs to the image. Raises ValueError for a bad pairing."""
    if len(generated) == 0:
        return np.zeros(host.images, bool)
    if host.pair is None:
        raise ValueError("the layout does not tell to which images the generated ones belong")
    row = host.pair[generated]
    if (side[row] != 0).any():
        raise ValueError("a generated image belongs to another generated image")
    count = np.bincount(row, minlength=host.images)
    if (count > 1).any():
        raise ValueError(f"two generated images belong to image {count.argmax()}")
    return count > 0
