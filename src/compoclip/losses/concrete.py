"""A contrast whose margin on a negative grows with how concrete the replaced word is."""

from __future__ import annotations

from collections.abc import Sequence

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
)
from compoclip.losses.contrastive import captions_and_negatives, symmetric_contrast
from compoclip.losses.rows import by_owner


@loss_function
def cement_loss(f: Features, layout: Layout, margin: float, kinds: Sequence[str]) -> Tensor:
    r"""NegCLIP's contrast with a margin on an image's own negatives, as concrete as they are.

    With captions t, all N negatives n of the batch, and c_j from 0 to 1 the concreteness of the
    word that n_j replaces,

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i \mathrm{CE}([s\, u_i \cdot t_1 .. t_B,\
            s (u_i \cdot n_j + m\, c_j\, [j \text{ is of } i])],\ i)
            + \tfrac1B \sum_i \mathrm{CE}_j(s\, t_i \cdot u_j,\ i) \Big].

    The margin raises the share of an image's own negatives in the softmax, so that the many easy
    captions of the batch do not drown them. m = 0 is `negclip_loss`. Negatives of other rewrites
    count as the least concrete. For a model with a bias the added weight e^(s m c) - 1 of a
    negative is a pair of its own.

    Args:
        margin: m, in units of cosines.
        kinds: The kinds of the negatives, from the least concrete to the most: 1/N, 2/N .. 1.

    Reference: Im et al., Concrete Jungle, arXiv 2604.13313 (2026), of which we know that the Cement
    loss has a margin that follows concreteness; the equation is ours.
    """
    index, valid, level = layout.indices(_negatives_of, tuple(kinds))
    if not margin:
        return symmetric_contrast(f, layout, columns=(captions_and_negatives,))
    texts = f.text.index_select(0, index.flatten()).view(*index.shape, f.text.shape[1])
    scores = f.logit_scale * (f.image[:, None] * texts).sum(-1)
    raised = f.logit_scale * margin * level.clamp_min(1) / len(kinds)
    # What lifts e^z to e^(z + r): e^z (e^r - 1), as one more text of the image.
    added = scores + raised + torch.log1p(-torch.exp(-raised))
    extra = added.masked_fill(~valid, -torch.inf).logsumexp(1)
    return symmetric_contrast(f, layout, columns=(captions_and_negatives,), extra=extra)


def _negatives_of(host: HostLayout, kinds: tuple[str, ...]) -> tuple[Ints, ...]:
    """The negatives of each image, which there are, and the level of each."""
    index, valid = by_owner(host, Role.NEGATIVE)
    level = np.zeros(len(host.owner), np.int64)
    for place, kind in enumerate(kinds, start=1):
        level[host.kind(kind)] = place
    return index, valid, level[index]
