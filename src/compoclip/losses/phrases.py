"""Contrast of captions' noun phrases with images and patches, without hard negatives (C2LIP)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from compoclip.losses.contract import (
    Features,
    HostLayout,
    Ints,
    Layout,
    Role,
    full_precision,
    normalise,
)
from compoclip.losses.contrastive import pair_loss, pairs_at
from compoclip.losses.rows import captions, check, true_pairs

_TINY = 1e-24  # squared length of a sum of unit vectors that counts as none


def phrase_loss(features: Features, layout: Layout, phrase: str) -> Tensor:
    r"""Contrast of images with all noun phrases of the batch (NPC).

    With c_m the M phrases, z_im = s u_i . c_m + b and y_im = 1 where phrase m is of image i, else
    -1:

    .. math::
        L = - \frac1M \sum_{im} \ln \sigma(y_{im} z_{im})

    For a model without a bias b, with P(i) the phrases of image i:

    .. math::
        L = \tfrac12 \Big[ \mathrm{mean}_i \tfrac{1}{|P(i)|} \sum_{m \in P(i)} \mathrm{CE}(z_i, m)
            + \mathrm{mean}_m \mathrm{CE}_i(z_{im},\ o(m)) \Big]

    Args:
        features: `image` u (B, D), `text` (T, D), `logit_scale` s, `logit_bias` b or None.
        layout: Phrases are POSITIVE texts of the kind `phrase`, any number per image.
        phrase: Their kind.

    Returns:
        A scalar; exactly zero, with zero gradient, without any phrase; B ln 2 in the first form
        when all logits are 0.

    Relation: equals `clip_loss` on the phrases with one phrase per image. `patch_phrase_loss` is
    this loss on patches.
    Reference: C2LIP, arXiv 2603.25722 (CVPR 2026), noun-phrase contrast.
    """
    check(features, layout)
    text, sizes = layout.indices(_phrases, phrase)[0], layout.sizes(_phrases, phrase)[0]
    with full_precision(features) as f:
        every = layout.peers.gathered(f.text.index_select(0, text), sizes)
        return _contrast(layout, f.logit_scale * f.image @ every.T, f, phrase)


def patch_phrase_loss(features: Features, layout: Layout, phrase: str) -> Tensor:
    r"""Contrast of noun phrases with the patches they attend to (XAC).

    With unit patches v_ip of image i and phrase c_m:

    .. math::
        a_{imp} = \mathrm{softmax}_p(c_m \cdot v_{ip}), \quad
        x_{im} = \frac{\sum_p a_{imp} v_{ip}}{\lVert \sum_p a_{imp} v_{ip} \rVert}, \quad
        z_{im} = s\, c_m \cdot x_{im} + b

    and the losses of `phrase_loss`. The softmax has no temperature and passes gradients. x is never
    formed: c . sum a v = sum a (c . v), and the length follows from the products of patches.

    Args:
        features: As for `phrase_loss`, and `patches` (B, P, D), not normalised.
        layout: As for `phrase_loss`.
        phrase: The kind of the phrases.

    Returns:
        A scalar; exactly zero, with zero gradient, without any phrase.

    Raises:
        ValueError: Without patches.

    Relation: equals `phrase_loss` for images of one patch.
    Reference: C2LIP, arXiv 2603.25722 (CVPR 2026), cross-attention contrast.
    """
    check(features, layout)
    if features.patches is None:
        raise ValueError("the loss on patches needs patch features (needs_patches=True)")
    text, sizes = layout.indices(_phrases, phrase)[0], layout.sizes(_phrases, phrase)[0]
    with full_precision(features) as f:
        assert f.patches is not None
        every = layout.peers.gathered(f.text.index_select(0, text), sizes)
        patch = normalise(f.patches)
        alike = patch @ every.T  # (B, P, M)
        attention = alike.softmax(1)
        along = (attention * alike).sum(1)
        square = (attention * (patch @ patch.mT @ attention)).sum(1)
        none = square <= _TINY
        cosine = along * square.masked_fill(none, 1.0).rsqrt().masked_fill(none, 0.0)
        return _contrast(layout, f.logit_scale * cosine, f, phrase)


def _contrast(layout: Layout, logits: Tensor, f: Features, phrase: str) -> Tensor:
    """Images of this process against the phrases of all: logits (B, M), without the bias."""
    peers = layout.peers
    _, image, share, _ = layout.indices(_phrases, phrase)
    phrases, _, _, having = layout.sizes(_phrases, phrase)
    images = layout.sizes(captions)[0]
    in_phrases = peers.before(phrases)
    column = torch.arange(len(image), device=image.device) + in_phrases
    right = pairs_at(logits, image, column)
    masked = true_pairs(layout, (_phrases, phrase), (_phrases, phrase))
    count = max(1, int(phrases.sum()))
    if f.logit_bias is not None:
        return pair_loss(logits + f.logit_bias, right, masked and masked[0]) / count
    # A phrase meets the images of all processes: in their logits, which are fewer than patches.
    back = peers.gathered(logits, images).narrow(1, in_phrases, len(image)).T
    target = logits.view(-1).index_select(0, image * logits.shape[1] + column)
    if masked is not None:
        logits = logits.masked_fill(masked[0] & ~right, -torch.inf)
        back = back.masked_fill(
            masked[1] & ~pairs_at(back, column - in_phrases, image + peers.before(images)),
            -torch.inf,
        )
    to_text = ((logits.logsumexp(1).index_select(0, image) - target) / share).sum()
    to_image = (back.logsumexp(1) - target).sum()
    return (to_text / max(1, int(having.sum())) + to_image / count) / 2


def _phrases(host: HostLayout, phrase: str) -> tuple[Ints, ...]:
    """The phrases, their images, how many each of these has, and the images with any."""
    text = host.of(Role.POSITIVE, phrase)
    image = host.owner[text]
    return text, image, np.bincount(image, minlength=host.images)[image], np.unique(image)
