"""Contrast with negative images as well as negative texts (TripletCLIP, CounterCurate, TROHN)."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, loss_function
from compoclip.losses.contrastive import symmetric_contrast
from compoclip.losses.rows import captions


@loss_function
def triplet_clip_loss(f: Features, layout: Layout) -> Tensor:
    r"""Two contrasts with hard negatives; in the second, caption and negative swap roles.

    .. math::
        L = \mathrm{neg}(I, T, T') + \mathrm{neg}(I', T', T)

    where neg(I, T, T') is `negclip_loss` of images I with captions T and negative texts T'. A row
    of the data is an image I (`side` 0) with its caption T; T' is the caption of its generated
    image I' (`side` 1, whose `pair` is I) or, in a row without I', the NEGATIVE texts of I. Other
    negatives are not read.

    The first term ranks, for every I, all captions T and all T'. The second ranks, for every I',
    the captions of all generated images and all captions T. ln(2 B) + ln B when all scores are
    equal in B full rows; the first term, `negclip_loss`, without generated images.

    Reference: Patel et al., TripletCLIP: Improving Compositional Reasoning of CLIP via Synthetic
    Vision-Language Negatives (NeurIPS 2024).
    """
    return symmetric_contrast(
        f, layout, (of_sides, 2), (of_sides, 2, 3, 4), (of_sides, 0)
    ) + symmetric_contrast(f, layout, (of_sides, 3), (of_sides, 3, 2), (of_sides, 1))


@loss_function
def grouping_loss(f: Features, layout: Layout) -> Tensor:
    r"""Contrast of all images with all captions, counterfactual ones included.

    A pair (x, c) and its counterpart (x', c'), which differs in one fact, share the batch, so that
    each member is the hardest negative of the other in both directions:

    .. math::
        L = L_{clip}([x; x'],\ [c; c'])

    A row without x' is an ordinary pair whose NEGATIVE texts compete for every image, as in
    `negclip_loss`; other negatives are not read. `side` and `pair` are those of
    `triplet_clip_loss`; unlike there, the x' compete with the images of the data. ln(2 B) when all
    scores are equal in B full rows.

    Reference: Zhang et al., CounterCurate: Enhancing Physical and Semantic Visio-Linguistic
    Compositional Reasoning via Counterfactual Examples (Findings of ACL 2024), grouping; Miranda et
    al., BiVLC: Extending Vision-Language Compositionality Evaluation with Text-to-Image Retrieval
    (NeurIPS 2024), TROHN-Img.
    """
    return symmetric_contrast(f, layout, columns=(_grouped,))


def _grouped(host: HostLayout) -> tuple[Ints, ...]:
    return (np.concatenate([*captions(host), sides(host)[-1]]),)


def sides(host: HostLayout) -> tuple[Ints, ...]:
    """The images of the data and the generated ones, the captions of both, and the NEGATIVE texts
    of the rows without a generated image."""
    (caption,) = captions(host)
    side = np.zeros(host.images, int) if host.side is None else host.side
    data, generated = np.flatnonzero(side == 0), np.flatnonzero(side == 1)
    paired = generated[:0] if host.pair is None else host.pair[generated]
    read = (side == 0) & ~np.isin(np.arange(host.images), paired)
    negative = np.flatnonzero((host.role == int(Role.NEGATIVE)) & read[host.owner])
    return data, generated, caption[data], caption[generated], negative


def of_sides(host: HostLayout, *places: int) -> tuple[Ints, ...]:
    """Return some of the arrays of `sides`, by number, as one."""
    arrays = sides(host)
    return (np.concatenate([arrays[place] for place in places]),)
