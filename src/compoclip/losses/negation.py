"""Losses on negated captions: CoN-CLIP, Omni-NegCLIP, SemCLIP, and negated captions alone."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from compoclip.losses.contract import (
    Features,
    HostLayout,
    Ints,
    Layout,
    Role,
    loss_function,
    normalise,
)
from compoclip.losses.contrastive import match_loss, symmetric_contrast
from compoclip.losses.rows import caption_pairs, first_of, having, told_apart, true_pairs
from compoclip.losses.triplet import of_sides, sides


@loss_function
def conclip_loss(f: Features, layout: Layout, distractor_weight: float = 1.0) -> Tensor:
    r"""Contrast of captions with their negations, for images and distractor images.

    With image u, caption t, negated caption t- and a distractor image u-:

    .. math::
        L = \tfrac13 \Big[ \tfrac1B \sum_i \mathrm{CE}(s\, u_i \cdot [t; t^-],\ i)
            + \tfrac1B \sum_i \mathrm{CE}(s\, t_i \cdot [u; u^-],\ i)
            + \tfrac{w}{|G|} \sum_{i \in G} \mathrm{CE}(s\, u^-_i \cdot [t^-; t],\ i) \Big]

    with G the rows that have a distractor, an image of `side` 1 whose `pair` is u and whose caption
    is t-. In a row without one, the NEGATIVE texts are t-; others are not read. ln(2 B) when all
    scores are equal in B full rows and w is 1.

    Args:
        distractor_weight: w. The third term pairs a distractor with t-, which is often false of it
            ("a dog, not a cat" for a photo without a dog); 0 leaves it out.

    Reference: Singh et al., Learn "No" to Say "Yes" Better: Improving Vision-Language Models via
    Negations (WACV 2025).
    """
    (image_index,), (read,) = layout.indices(of_sides, 0, 1), layout.indices(of_sides, 2, 3, 4)
    rows, others, _, _, negatives = layout.sizes(sides)
    peers, count = layout.peers, len(layout.indices(sides)[0])
    in_images = peers.before(rows + others)
    in_texts = in_images + peers.before(negatives)
    image, text = f.image.index_select(0, image_index), f.text.index_select(0, read)
    to_text = f.logit_scale * image @ peers.gathered(text, rows + others + negatives).T
    if peers.world == 1:
        to_image = to_text[:, :count].T  # the same products
    else:
        to_image = f.logit_scale * text[:count] @ peers.gathered(image, rows + others).T
    target, total = torch.arange(len(image), device=image.device), int(rows.sum())
    masked = true_pairs(layout, (of_sides, 2), (of_sides, 2, 3, 4), (of_sides, 0, 1))
    texts, back = masked or (None, None)
    ours, theirs = (None, None) if texts is None else (texts[:count], texts[count:])
    contrast = match_loss(to_text[:count], target[:count] + in_texts, total, ours)
    contrast = contrast + match_loss(to_image, target[:count] + in_images, total, back)
    apart = match_loss(to_text[count:], target[count:] + in_texts, int(others.sum()), theirs)
    return (contrast + distractor_weight * apart) / 3


@loss_function
def denial_loss(f: Features, layout: Layout) -> Tensor:
    r"""An image's negated caption must score lowest among all negated captions of the batch.

    With image u and a text d, its first NEGATIVE, that negates an object in it ("There is no
    cat."), the contrast of `clip_loss` with -d for d:

    .. math::
        L = \tfrac1{2|R|} \sum_{i \in R} \Big[ \mathrm{CE}_j(-s\, u_i \cdot d_j,\ i)
            + \mathrm{CE}_j(-s\, d_i \cdot u_j,\ i) \Big], \quad j \in R

    with R the images that have a negated caption. A model that ignores the negation scores it
    highest. The negation is false of its image and true of most others, so that no text with an
    absent object is needed. Equal negated captions (`text_id`) are left out of each other's
    softmax. ln |R| when all scores are equal and all negated captions differ. Not published
    elsewhere.
    """
    (same,) = layout.indices(_same_denial, joint=True)
    return symmetric_contrast(
        replace(f, text=-f.text),
        layout,
        (first_of, Role.NEGATIVE),
        images=(having, Role.NEGATIVE),
        masked=(same, same),
    )


@loss_function
def separation_loss(f: Features, layout: Layout, margin: float = 0.9) -> Tensor:
    r"""Push a caption and what else is said of its image apart, text against text.

    With t_i the caption and p_i the first POSITIVE of image i, and R the images that have one:

    .. math::
        L = \tfrac1{|R|} \sum_{i \in R} \max(0,\ t_i \cdot p_i + m)

    1 + m where both are equal. With the published m of 0.9 it is linear in all cosines that occur.

    Args:
        margin: m.

    Reference: Omni-NegCLIP, arXiv 2603.29258 (2026), released code.
    """
    caption, other, total = caption_pairs(f, layout, Role.POSITIVE)
    cosine = (caption * other).sum(-1)
    return (cosine + margin).clamp_min(0).sum() / max(1, total)


def _same_denial(host: HostLayout) -> tuple[Ints, ...]:
    """(n, N) bool: which denials of this process are which of all processes."""
    mine = told_apart(host, host.keys[0] if host.keys else host.text_id, len(host.owner))
    mine = mine[first_of(host, Role.NEGATIVE)[0]]
    (every,) = host.peers.collected([mine])
    return (mine[:, None] == every[None, :],)


# --- SemCLIP: paraphrases and negations, seen along a few fixed directions of the text space. ---


@loss_function
def paraphrase_loss(f: Features, layout: Layout, directions: int = 2, seed: int = 0) -> Tensor:
    r"""Align a caption with its paraphrase in a fixed random projection.

    .. math::
        L = \tfrac1{|R|} \sum_{i \in R} \big( 1 - \cos(P t_i,\ P p_i) \big)

    with R the images whose caption has a paraphrase p, its first POSITIVE, and P (k, D) fixed
    orthonormal random directions.

    Args:
        directions: k.
        seed: Seed of P.

    Reference: SemCLIP (submission to AAAI 2026), paraphrase term.
    """
    cosine, total = _projected(f, layout, Role.POSITIVE, directions, seed)
    return (1 - cosine).sum() / max(1, total)


@loss_function
def projected_negation_loss(
    f: Features, layout: Layout, directions: int = 2, seed: int = 0
) -> Tensor:
    r"""Push a caption and its negation to at least a right angle in a fixed random projection.

    .. math::
        L = \tfrac1{|R|} \sum_{i \in R} \max\big( 0,\ \cos(P t_i,\ P n_i) \big)

    with R the images whose caption has a negation n, its first NEGATIVE, and P as for
    `paraphrase_loss`.

    Args:
        directions: Number of directions of P.
        seed: Seed of P.

    Reference: SemCLIP (submission to AAAI 2026), negation term.
    """
    cosine, total = _projected(f, layout, Role.NEGATIVE, directions, seed)
    return cosine.clamp_min(0).sum() / max(1, total)


def _projected(
    f: Features, layout: Layout, role: Role, directions: int, seed: int
) -> tuple[Tensor, int]:
    """Cosines of captions and their first text of a role, and how many there are in all."""
    caption, other, total = caption_pairs(f, layout, role)
    onto = fixed_directions(f.text.shape[1], directions, seed, f.text.device, f.text.dtype)
    projected = normalise(torch.cat([caption, other]) @ onto)
    return (projected[: len(caption)] * projected[len(caption) :]).sum(-1), total


@lru_cache(16)
def fixed_directions(
    width: int, count: int, seed: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return (width, count) orthonormal random directions, the same on every device.

    Raise ValueError for more directions than dimensions.
    """
    if count > width:
        raise ValueError(f"--directions {count}: the text space has only {width} dimensions")
    gaussian = np.random.default_rng(seed).standard_normal((width, count))
    return torch.from_numpy(np.linalg.qr(gaussian)[0]).to(device, dtype)
