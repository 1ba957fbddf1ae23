"""Losses are computed in at least float32, whatever the encoder's precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from compoclip.losses.contract import Features


def at_least_float32(x: Tensor) -> Tensor:
    """`x` as float32; float64 stays float64 (so that gradients can be checked in it)."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@contextmanager
def full_precision(features: Features) -> Iterator[Features]:
    """The features in at least float32, inside a block where autocast is off.

    Autocast would otherwise turn the matrix products of a loss back into half precision: at
    s = 100 a bfloat16 logit is off by up to 0.25.
    """
    with torch.autocast(device_type=features.image.device.type, enabled=False):
        yield replace(
            features,
            image=at_least_float32(features.image),
            text=at_least_float32(features.text),
            logit_scale=at_least_float32(features.logit_scale),
            patches=None if features.patches is None else at_least_float32(features.patches),
            tokens=None if features.tokens is None else at_least_float32(features.tokens),
        )


def normalise(x: Tensor, eps: float = 1e-12) -> Tensor:
    """`x` divided by its length along the last dimension; vectors shorter than `eps` become zero.

    Unlike `torch.nn.functional.normalize` the gradient of such a vector is zero too, instead of
    1 / eps.
    """
    square = x.square().sum(-1, keepdim=True)
    tiny = square <= eps * eps
    return x * square.masked_fill(tiny, 1.0).rsqrt().masked_fill(tiny, 0.0)
