"""Features of all processes put together with their gradients.

The algebra. W processes have equal parameters theta. Process r encodes its part of a batch, f_r;
all processes gather f = (f_0 .. f_{W-1}), in the order of the whole batch, and compute the same
loss L(f, s) with s the temperature. What one process with the whole batch would have is

    dL/dtheta = sum_r (dL/df_r) (df_r/dtheta).

Each process knows dL/df completely. Gathering hands W * dL/df_r back to the part of process r, so
its backward pass gives g_r = W (dL/df_r) (df_r/dtheta), and the *mean* of g_r over the processes
is dL/dtheta. The temperature enters L directly: its gradient dL/ds is the same in all processes,
and so is the mean. So one rule serves every parameter: take the mean of the gradients
(`average_gradients`), which is also what FSDP does. Nothing is communicated in the backward pass
of the gathering.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compoclip.data.merge import Merged
from compoclip.losses.contract import Features
from compoclip.ranks import Ranks

_BUCKET_BYTES = 32 << 20


def gather_features(features: Features, ranks: Ranks, merged: Merged) -> Features:
    """The features of the whole batch, from those of this process's part.

    merged: how the parts make the whole. Parts may be of any size, zero too, and their texts of any
    length: tokens are padded to the longest, as they would be in one process. Gradients go back to
    the parts; see the module for the factor. Local features are gathered too where there are any:
    exact, and heavy (patches of all images).
    """
    if ranks.world == 1:
        return features
    of_images = [images for images, _ in merged.sizes]
    of_texts = [texts for _, texts in merged.sizes]
    image_order = torch.tensor(merged.images, device=features.image.device)
    text_order = torch.tensor(merged.texts, device=features.image.device)
    gathered = replace(
        features,
        image=gather_rows(features.image, of_images, ranks)[image_order],
        text=gather_rows(features.text, of_texts, ranks)[text_order],
    )
    if features.patches is not None:
        patches = gather_rows(features.patches, of_images, ranks)[image_order]
        gathered = replace(gathered, patches=patches)
    if features.tokens is not None and features.token_mask is not None:
        length = features.tokens.shape[1]
        more = max(ranks.exchange(length)) - length
        mask = F.pad(features.token_mask, (0, more)).to(torch.uint8)
        tokens = F.pad(features.tokens, (0, 0, 0, more))
        gathered = replace(
            gathered,
            tokens=gather_rows(tokens, of_texts, ranks)[text_order],
            token_mask=ranks.gather(mask, of_texts)[text_order].bool(),
        )
    return gathered


def gather_rows(rows: Tensor, counts: Sequence[int], ranks: Ranks) -> Tensor:
    """`Ranks.gather` through which W times the gradient of its own rows flows back."""
    gathered: Tensor = _Gather.apply(rows, counts, ranks)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], ranks: Ranks) -> Tensor:
        ctx.world = ranks.world
        ctx.start = sum(counts[: ranks.rank])
        ctx.stop = ctx.start + counts[ranks.rank]
        return ranks.gather(rows, counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.world * gradient[ctx.start : ctx.stop], None, None


def average_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Replace every gradient by its mean over the processes, in buckets of 32 MB.

    A parameter without a gradient in some processes counts as zero there; without one anywhere it
    keeps none. Parameters that FSDP has split (DTensors) are left alone: their means are taken
    already. Raises PeerLostError when a process is gone.
    """
    if ranks.world == 1:
        return
    from torch.distributed.tensor import DTensor  # slow to import, and not needed alone

    whole = [p for p in parameters if p.requires_grad and not isinstance(p, DTensor)]
    having = torch.tensor([p.grad is not None for p in whole], dtype=torch.int32)
    ranks.add(having)
    bucket: list[Tensor] = []
    for parameter, count in zip(whole, having.tolist()):
        if not count:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and (
            _bytes([*bucket, parameter.grad]) > _BUCKET_BYTES
            or (bucket[0].dtype, bucket[0].device) != (parameter.dtype, parameter.device)
        ):
            _average(bucket, ranks)
            bucket = []
        bucket.append(parameter.grad)
    _average(bucket, ranks)


def _average(gradients: Sequence[Tensor], ranks: Ranks) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    ranks.add(flat)
    flat /= ranks.world
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients])):
        gradient.copy_(part.view_as(gradient))


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
