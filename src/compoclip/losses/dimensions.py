"""Losses on the leading dimensions of the features (Matryoshka representations)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Loss, full_precision, normalise

_POOLED = ("image", "text", "masked_image", "masked_text", "bank")
_LOCAL = ("patches", "tokens", "masked_patches", "masked_tokens")
OF_TEACHER = ("teacher_image", "teacher_text")
"""The features of a copy of the model, whose leading dimensions are those of the model."""


@dataclass(frozen=True)
class LeadingDimensions:
    r"""Average a loss over the features and their leading dimensions.

    .. math:: L = \frac{1}{1 + K} \sum_{k=0}^{K} \ell(f_{1 .. m_k}), \quad m_0 = D

    Args:
        loss: The loss l, without a state.
        widths: m_1 .. m_K, each below D.
        pooled: Further features that are cut and scaled to unit length.

    Reference: Kusupati et al., Matryoshka Representation Learning (NeurIPS 2022), equation 1 with
    equal weights.
    """

    loss: Loss
    widths: tuple[int, ...]
    pooled: tuple[str, ...] = ()

    def __call__(self, features: Features, layout: Layout) -> Tensor:
        """Compute the mean; every width has the logit scale and the layout of the whole."""
        with full_precision(features) as f:
            views = [f, *(leading(f, width, self.pooled) for width in self.widths)]
            return torch.stack([self.loss(view, layout) for view in views]).mean()


def leading(features: Features, width: int, pooled: Collection[str] = ()) -> Features:
    """Return the features cut to their leading dimensions, pooled ones of unit length again.

    pooled: names of further features to cut, such as `OF_TEACHER`. Those of other spaces
    (`text_state`, hidden pixels) are unchanged.
    """
    tensors = vars(features)
    cut: dict[str, Any] = {
        name: tensors[name][..., :width]
        for name in (*_POOLED, *_LOCAL, *pooled)
        if tensors[name] is not None
    }
    return replace(features, **{k: v if k in _LOCAL else normalise(v) for k, v in cut.items()})
