"""Contrast of captions' noun phrases with images and patches, without hard negatives (C2LIP)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from compoclip.losses.contract import (
    Features,
    HostLayout,
    Ints,
    Layout,
    Role,
    computed,
    inverse_length,
    loss_function,
    normalise,
)
from compoclip.losses.contrastive import several_targets
from compoclip.losses.rows import captions


@loss_function
def phrase_loss(f: Features, layout: Layout, phrase: str) -> Tensor:
    r"""Contrast of images with all noun phrases of the batch (NPC).

    With c_m the M phrases, z_im = s u_i . c_m + b and y_im = 1 where phrase m is of image i, else
    -1:

    .. math::
        L = - \frac1M \sum_{im} \ln \sigma(y_{im} z_{im})

    For a model without a bias b, with P(i) the phrases of image i:

    .. math::
        L = \tfrac12 \Big[ \mathrm{mean}_i \tfrac{1}{|P(i)|} \sum_{m \in P(i)} \mathrm{CE}(z_i, m)
            + \mathrm{mean}_m \mathrm{CE}_i(z_{im},\ o(m)) \Big]

    B ln 2 in the first form when all logits are 0. Equals `clip_loss` on the phrases with one
    phrase per image.

    Args:
        phrase: The kind of the phrases, POSITIVE texts, any number per image.

    Reference: C2LIP, arXiv 2603.25722 (CVPR 2026), noun-phrase contrast.
    """
    return _contrast(f, layout, phrase, lambda every: f.image @ every.T)


@loss_function
def patch_phrase_loss(f: Features, layout: Layout, phrase: str) -> Tensor:
    r"""Contrast of noun phrases with the patches they attend to (XAC).

    With unit patches v_ip of image i and phrase c_m:

    .. math::
        a_{imp} = \mathrm{softmax}_p(c_m \cdot v_{ip}), \quad
        x_{im} = \frac{\sum_p a_{imp} v_{ip}}{\lVert \sum_p a_{imp} v_{ip} \rVert}, \quad
        z_{im} = s\, c_m \cdot x_{im} + b

    and the losses of `phrase_loss`, which it equals for images of one patch. The softmax has no
    temperature and passes gradients. x is never formed: c . sum a v = sum a (c . v), and the length
    follows from the products of patches. Reads `patches`, and raises ValueError without.

    Args:
        phrase: The kind of the phrases.

    Reference: C2LIP, arXiv 2603.25722 (CVPR 2026), cross-attention contrast.
    """
    (patches,) = computed(f, "patches")
    patch = normalise(patches)

    def attended(every: Tensor) -> Tensor:
        alike = patch @ every.T  # (B, P, M)
        attention = alike.softmax(1)
        along = (attention * alike).sum(1)
        square = (attention * (patch @ patch.mT @ attention)).sum(1)
        return along * inverse_length(square)

    return _contrast(f, layout, phrase, attended)


def _contrast(
    f: Features, layout: Layout, phrase: str, cosine: Callable[[Tensor], Tensor]
) -> Tensor:
    """Images of this process against the phrases of all; cosine: (M, D) -> (B, M)."""
    peers, phrases = layout.peers, (_phrases, phrase)
    text, image, share, _ = layout.indices(*phrases)
    count, _, _, having = layout.sizes(*phrases)
    (images,) = layout.sizes(captions)
    logits = f.logit_scale * cosine(peers.gathered(f.text.index_select(0, text), count))

    def to_image() -> Tensor:
        # A phrase meets the images of all processes: in their logits, fewer than patches.
        return peers.gathered(logits, images).narrow(1, peers.before(count), len(image)).T

    place = torch.arange(len(image), device=image.device)
    divisors = max(1, int(having.sum())), max(1, int(count.sum()))
    return several_targets(
        f, layout, logits, to_image, (image, place, share), phrases, phrases, divisors
    )


def _phrases(host: HostLayout, phrase: str) -> tuple[Ints, ...]:
    """The phrases, their images, how many each of these has, and the images with any."""
    text = host.of(Role.POSITIVE, phrase)
    image = host.owner[text]
    return text, image, np.bincount(image, minlength=host.images)[image], np.unique(image)
