"""Captions against negatives within the text modality, and an adaptive margin (CE-CLIP)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from compoclip.losses.contract import (
    Features,
    HostLayout,
    Ints,
    Layout,
    Role,
    check,
    full_precision,
    loss_function,
)
from compoclip.losses.contrastive import match_loss
from compoclip.losses.rows import captions, negatives_by_image

Imc = Literal["paper", "head"]
"""With the image-caption score, or without it as in the last released code."""


@loss_function
def intra_modal_loss(f: Features, layout: Layout, imc: Imc = "paper") -> Tensor:
    r"""An image and its caption must be closer than the caption and any negative text (L_IMC).

    .. math::
        L = \frac1B \sum_i \mathrm{CE}\big([\,s\, u_i \cdot t_i;\ s\, t_i \cdot n_1 .. s\, t_i \cdot
            n_N\,],\ 0\big)

    with all N negatives of all images. ln(1 + N) when all scores are equal.

    Args:
        imc: "head" leaves out the first score, as the last released code does. The target of every
            caption is then one negative, the first in the batch: all captions are pulled towards
            it, and the loss depends on the order of the batch. For comparison only.

    Reference: Zhang et al., Contrasting Intra-Modal and Ranking Cross-Modal Hard Negatives to
    Enhance Visio-Linguistic Compositional Understanding (CVPR 2024), intra-modal contrast.
    """
    (negative,) = layout.indices(negatives_by_image)
    (negatives,) = layout.sizes(negatives_by_image)
    caption = f.text.index_select(0, layout.indices(captions)[0])
    wrong_texts = layout.peers.gathered(f.text.index_select(0, negative), negatives)
    logits = f.logit_scale * caption @ wrong_texts.T
    if imc == "paper" or logits.shape[1] == 0:
        match = f.logit_scale * (f.image * caption).sum(-1)
        logits = torch.cat([match[:, None], logits], dim=1)
    target = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return match_loss(logits, target, layout.total(captions))


def _ranked(host: HostLayout, kinds: tuple[str, ...]) -> tuple[Ints, ...]:
    """The negatives of these kinds, their images, and the place of each one's kind in `kinds`."""
    negative = host.of(Role.NEGATIVE, *kinds)
    place = np.array([kinds.index(name) if name in kinds else -1 for name in host.kinds], int)
    return negative, host.owner[negative], place[host.rewrite[negative]]


class RankingLoss:
    r"""Cross-modal ranking with one adaptive margin for each kind of negative (L_CMR).

    .. math::
        L = \frac{1}{|V|} \sum_{(i,n) \in V} \mathrm{relu}(\theta_{k(n)} + s\, u_i \cdot n
            - s\, u_i \cdot t_i), \quad
        \theta_k \leftarrow \mathrm{clamp}\Big(\frac1B \sum_i s\, u_i \cdot t_i
            - \frac{1}{|V_k|} \sum_{(i,n) \in V_k} s\, u_i \cdot n,\ 0,\ \theta_{\max}\Big)

    with V the pairs of an image and one of its NEGATIVE texts of these kinds, V_k those of kind k.
    A call uses the margins set by the previous call, without gradient, and sets new ones: this
    batch's gap between captions and negatives of kind k, in units of logits. A margin does not
    change if the batch lacks its kind, or if the gap is not finite.

    The margins start at 0. `single_negative_loss` is the smooth form with margin 0.

    Args:
        kinds: The kinds of negative it ranks; others are not read.
        largest: Upper limit of the margins, in units of logits.

    Reference: Zhang et al. (CVPR 2024), cross-modal rank loss with adaptive threshold.
    """

    def __init__(self, kinds: Sequence[str], largest: float = 10.0) -> None:
        self.kinds = tuple(kinds)
        self.largest = largest
        self._margins = torch.zeros(len(self.kinds))

    def __call__(self, features: Features, layout: Layout) -> Tensor:
        """Return the loss of this batch with the margins of the previous one; see the class."""
        check(features, layout)
        (caption,) = layout.indices(captions)
        negative, owner, kind = layout.indices(_ranked, self.kinds)
        pairs = layout.total(_ranked, self.kinds)
        with full_precision(features) as f:
            right = f.logit_scale * (f.image * f.text.index_select(0, caption)).sum(-1)
            image, text = f.image.index_select(0, owner), f.text.index_select(0, negative)
            wrong_scores = f.logit_scale * (image * text).sum(-1)
            margins = self._margins.to(right)
            gap = margins.index_select(0, kind) + wrong_scores - right.index_select(0, owner)
            loss = gap.relu().sum() / max(1, pairs)
            self._margins = self._next(margins, right.detach(), wrong_scores.detach(), kind, layout)
            return loss

    def _next(
        self, margins: Tensor, right: Tensor, wrong_scores: Tensor, kind: Tensor, layout: Layout
    ) -> Tensor:
        """(kinds,) margins that the batch of all processes asks for."""
        of_kind = kind == torch.arange(len(self.kinds), device=kind.device)[:, None]
        sums = wrong_scores.expand(of_kind.shape).masked_fill(~of_kind, 0.0).sum(1)
        parts = torch.cat([right.sum()[None], sums, of_kind.sum(1).to(sums.dtype)])
        best, sums, count = torch.split(layout.peers.summed(parts), [1, *[len(self.kinds)] * 2])
        gap = best / layout.total(captions) - sums / count.clamp_min(1)
        target = gap.clamp(0.0, self.largest)
        return torch.where((count > 0) & gap.isfinite(), target, margins)

    def state_dict(self) -> dict[str, float]:
        """Return the margin of every kind, by its index in `kinds`."""
        return {str(kind): margin for kind, margin in enumerate(self._margins.tolist())}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore saved margins; kinds without one start at 0.

        Raises: ValueError for an unknown kind or a margin that is not finite.
        """
        margins = [0.0 for _ in self.kinds]
        for name, margin in state.items():
            if name not in map(str, range(len(margins))) or not math.isfinite(margin):
                raise ValueError(f"no margin {name} = {margin} in a loss of {len(margins)} kinds")
            margins[int(name)] = float(margin)
        self._margins = torch.tensor(margins, dtype=torch.float64)
