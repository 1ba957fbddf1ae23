"""Contrastive losses over the whole batch: CLIP, and NegCLIP with generated negatives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, full_precision
from compoclip.losses.rows import (
    MissingHN,
    caption_index,
    captions,
    check,
    missing,
    true_pairs,
)


def match_loss(logits: Tensor, target: Tensor, rows: int, left_out: Tensor | None = None) -> Tensor:
    """Return this process's share of the mean over rows of CE(logits_i, target_i).

    `logits` (n, M), `target` (n,) int64; rows: how many there are in all processes; `left_out`
    (n, M) bool: entries to leave out as well, but for targets. Zero without any row.
    """
    if left_out is not None:
        logits = logits.masked_fill(left_out.scatter(1, target[:, None], False), -torch.inf)
    return F.cross_entropy(logits, target, reduction="sum") / max(1, rows)


def pair_loss(logits: Tensor, right: Tensor, left_out: Tensor | None = None) -> Tensor:
    r"""Sum -ln sigma(y z) over pairs, the loss of SigLIP: y = 1 where `right`, else -1.

    `logits` z of any shape; `right`, and `left_out` for pairs that do not count, bool of the same.
    Reference: Zhai et al., Sigmoid Loss for Language Image Pre-Training (ICCV 2023), equation 1.
    """
    wrongness = torch.where(right, -logits, logits)
    if left_out is not None:
        wrongness = wrongness.masked_fill(left_out & ~right, -torch.inf)
    return F.softplus(wrongness).sum()


def pairs_at(logits: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return (n, M) bool, as `logits`: True at the places (row, column), each (k,) int64."""
    places = logits.new_zeros(logits.shape, dtype=torch.bool)
    places.view(-1).index_fill_(0, row * logits.shape[1] + column, True)
    return places


def symmetric_contrast(
    layout: Layout,
    logit_scale: Tensor,
    image: Tensor,
    text: Tensor,
    images: Ints,
    texts: Ints,
    masked: tuple[Tensor, Tensor] | None = None,
    phantoms: int | None = None,
    logit_bias: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    r"""Half the contrast of images with texts, half that of captions with images.

    The shared core of every loss of the CLIP kind, and the one place that makes it one of SigLIP's
    kind: with a bias b, every pair of an image and a text counts once,

    .. math::
        L = - \frac1B \sum_{ij} \ln \sigma(y_{ij} (s\, u_i \cdot t_j + b)), \quad
        y_{ij} = 1 \text{ for an image and its caption, else } -1.

    Args:
        layout: The batch, which several processes may share.
        logit_scale: Scalar s.
        image: (B, D).
        text: (B+N, D), the caption of each image, then N texts that are columns for every image but
            have no image to rank.
        images: (world,) how many images every process has.
        texts: (world,) the same of texts.
        masked: (B, all texts) bool and (B, all images) bool, pairs to leave out of one direction
            and of the other; targets may be among them, and stay.
        phantoms: How many columns of similarity 0 join every image.
        logit_bias: Scalar b; None makes both directions softmaxes.
        own: (B,) s u . n of one more text of each image, which no other image meets; -inf where
            there is none.
    """
    peers, count = layout.peers, len(image)
    to_text = logit_scale * image @ peers.gathered(text, texts).T
    rows, place = int(images.sum()), torch.arange(count, device=image.device)
    in_texts, in_images = peers.before(texts), peers.before(images)
    of_images, of_texts = masked or (None, None)
    margin = layout.whole.near_margin
    if margin is not None:
        most = (to_text.diagonal(in_texts)[:count, None] + margin * logit_scale).detach()
        near = (to_text > most) & _captions_among(images, texts).to(image.device)
        of_images = near if of_images is None else near | of_images
    if logit_bias is not None:
        right = pairs_at(to_text, place, place + in_texts)
        loss = pair_loss(to_text + logit_bias, right, of_images)
        if phantoms is not None:
            loss = loss + count * phantoms * F.softplus(logit_bias)
        if own is not None:
            loss = loss + F.softplus(own + logit_bias).sum()
        return loss / max(1, rows)
    if peers.world == 1:
        to_image = to_text[:, :count].T  # the same products
    else:
        to_image = logit_scale * text[:count] @ peers.gathered(image, images).T
    if margin is not None:
        near = to_image > most
        of_texts = near if of_texts is None else near | of_texts
    if of_images is not None:
        of_images.diagonal(in_texts)[:count].fill_(False)
        to_text = to_text.masked_fill(of_images, -torch.inf)
    if of_texts is not None:
        of_texts.diagonal(in_images)[:count].fill_(False)
        to_image = to_image.masked_fill(of_texts, -torch.inf)
    if phantoms is not None:
        # m columns of logit 0 weigh as much as one of ln m; ln 0 = -inf is no column at all.
        phantom = to_text.new_full((count, 1), math.log(phantoms) if phantoms else -math.inf)
        to_text = torch.cat([to_text, phantom], dim=1)
    if own is not None:
        to_text = torch.cat([to_text, own[:, None]], dim=1)
    return (
        match_loss(to_text, place + in_texts, rows) + match_loss(to_image, place + in_images, rows)
    ) / 2


def _captions_among(images: Ints, texts: Ints) -> Tensor:
    """Return (all texts,) bool: True for captions, which come first in the part of a process."""
    parts = [np.arange(count) < captions for captions, count in zip(images, texts)]
    return torch.from_numpy(np.concatenate(parts))


def clip_loss(features: Features, layout: Layout) -> Tensor:
    r"""Symmetric contrastive loss between images and their captions.

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i \mathrm{CE}_j(s\, u_i \cdot t_j,\ i)
            + \tfrac1B \sum_i \mathrm{CE}_j(s\, t_i \cdot u_j,\ i) \Big]

    Args:
        features: `image` u, `text`, `logit_scale` s.
        layout: The first CAPTION of each image is t_i; other texts are not read.

    Returns:
        A scalar, in at least float32; ln B when all scores are equal.

    Relation: equals `negclip_loss` without negatives. For a model with a bias it is the sigmoid
    loss of SigLIP (`symmetric_contrast`), B ln 2 when all logits are 0.
    Reference: Radford et al., Learning Transferable Visual Models From Natural Language
    Supervision (ICML 2021), figure 3.
    """
    check(features, layout)
    (images,) = layout.sizes(captions)
    masked = true_pairs(layout, (captions,), (captions,))
    with full_precision(features) as f:
        text = f.text.index_select(0, caption_index(layout))
        return symmetric_contrast(
            layout, f.logit_scale, f.image, text, images, images, masked, None, f.logit_bias
        )


def negclip_loss(
    features: Features,
    layout: Layout,
    missing_hn: MissingHN = "mask",
    kinds: Sequence[str] = (),
) -> Tensor:
    r"""Contrastive loss whose image-to-text direction also ranks every negative of the batch.

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i \mathrm{CE}(s\, u_i \cdot [t_1 .. t_B, n_1 .. n_N],\ i)
            + \tfrac1B \sum_i \mathrm{CE}_j(s\, t_i \cdot u_j,\ i) \Big]

    The text-to-image direction reads captions only: a negative has no image. With hard images (the
    original NegCLIP) the batch holds neighbours as well: 2B images, the 2B captions and the
    negatives of both. Neighbours may already be in the batch: a layout that masks duplicates
    leaves them out.

    Args:
        features: `image` u, `text`, `logit_scale` s.
        layout: The first CAPTION of each image is t_i; n_1 .. n_N are all NEGATIVE texts of all
            images.
        missing_hn: "mask" leaves out missing negatives; "zero" gives each a column of logit 0, like
            the zero-filled features of the released code.
        kinds: The kinds of negative a caption should have; used with "zero" only.

    Returns:
        A scalar, in at least float32.

    Relation: equals `clip_loss` without negatives (with "mask"); unlike in `global_hn_loss`, the
    negatives share the softmax with the other captions. For a model with a bias, every pair of an
    image and a text, negatives included, counts once (`symmetric_contrast`).
    Reference: Yuksekgonul et al., When and Why Vision-Language Models Behave like Bags-of-Words
    (ICLR 2023), section 4; negatives generated anew each step as in the NegCLIP baseline of Oh et
    al., Preserving Multi-Modal Capabilities of Pre-trained VLMs (EMNLP 2024).
    """
    check(features, layout)
    (column,) = layout.indices(_captions_and_negatives)
    (images,), (texts,) = layout.sizes(captions), layout.sizes(_captions_and_negatives)
    masked = true_pairs(layout, (captions,), (_captions_and_negatives,))
    phantoms = None
    if missing_hn == "zero":
        phantoms = int(layout.sizes(missing, tuple(kinds))[1].sum())
    with full_precision(features) as f:
        text = f.text.index_select(0, column)
        return symmetric_contrast(
            layout, f.logit_scale, f.image, text, images, texts, masked, phantoms, f.logit_bias
        )


def _captions_and_negatives(host: HostLayout) -> tuple[Ints, ...]:
    return (np.concatenate([*captions(host), host.of(Role.NEGATIVE)]),)
