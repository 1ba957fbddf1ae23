"""open_clip's usual transformer block, run so that a device is given few operations.

A block has three parts: queries, keys and values of all positions; attention, which alone knows
which positions belong together; and all that comes after. Both towers run these parts, on rows of
one length or on one list of the positions of many texts.

Under autocast the weights of a block are cast to bfloat16 in one operation, where torch takes
one for each, and states stay in that type from the first block to the last. Sums of products, layer
norms' statistics and the softmax of attention are computed in float32 even so, inside the kernels.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from open_clip.transformer import QuickGELU, ResidualAttentionBlock
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from compoclip.models.config import BLOCK, QUICK

# Queries, keys and values (..., 3 W) side by side, and the number of heads -> (..., W).
Attend = Callable[[Tensor, int], Tensor]


def is_plain(block: Any) -> bool:
    """Return whether a block is open_clip's usual one, with usual layers and no hooks on them."""
    attention = getattr(block, "attn", None)
    if (
        type(block) is not ResidualAttentionBlock
        or not isinstance(attention, nn.MultiheadAttention)
        or not attention._qkv_same_embed_dim  # one weight for all; asking that may cost a merge
        or attention.bias_k is not None
        or attention.add_zero_attn
        or attention.dropout != 0.0
        or [name for name, _ in block.mlp.named_children()] != ["c_fc", "gelu", "c_proj"]
    ):
        return False
    norms, mlp = (block.ln_1, block.ln_2), block.mlp
    layers = (*norms, attention, attention.out_proj, mlp, *mlp.children())
    return (
        all(isinstance(layer, nn.Linear) for layer in (mlp.c_fc, mlp.c_proj))
        and all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in norms)
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    )


Weights = tuple[Tensor, ...]
_weights: Callable[[Any], Weights] = attrgetter(*BLOCK)

# QuickGELU is x * sigmoid(1.702 x): three operations, two of whose results are kept for backward.
# It is SiLU(1.702 x) / 1.702, too, and SiLU is one operation, which keeps its input. Its factors
# go into the layers before and after it: into the last three weights.
_QUICK = (QUICK, QUICK, 1 / QUICK)


class _Cast(torch.autograd.Function):
    """Cast tensors to a dtype, the last ones scaled by `factors`; gradients are cast back."""

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, factors: Sequence[float], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.factors, ctx.dtype = factors, tensors[0].dtype
        ctx.set_materialize_grads(False)
        unscaled = len(tensors) - len(factors)
        scaled = torch._foreach_mul(tensors[unscaled:], factors) if factors else ()
        copies = _copied([*tensors[:unscaled], *scaled], dtype)
        learn = ctx.needs_input_grad[2:]
        ctx.mark_non_differentiable(*(t for t, learns in zip(copies, learn) if not learns))
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        numbers = [i for i, gradient in enumerate(gradients) if gradient is not None]
        by_number = dict(zip(numbers, _copied([gradients[i] for i in numbers], ctx.dtype)))
        unscaled = len(gradients) - len(ctx.factors)
        scaled = [(by_number[i], f) for i, f in enumerate(ctx.factors, unscaled) if i in by_number]
        if scaled:
            torch._foreach_mul_(*map(list, zip(*scaled)))
        return None, None, *map(by_number.get, range(len(gradients)))


def _copied(tensors: Sequence[Any], dtype: torch.dtype) -> list[Tensor]:
    """Return copies of a dtype, made in one operation."""
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


def _before(block: Any, weights: Weights, x: Tensor) -> Tensor:
    """Return (..., 3 W) queries, keys and values."""
    norm, norm_bias, qkv, qkv_bias = weights[:4]
    return F.linear(F.layer_norm(x, x.shape[-1:], norm, norm_bias, block.ln_1.eps), qkv, qkv_bias)


def _after(block: Any, weights: Weights, quick: bool, x: Tensor, mixed: Tensor) -> Tensor:
    """Return (..., W) states after the block. quick: QuickGELU's factors are in the weights."""
    out, out_bias, norm, norm_bias, out_2_bias, in_2, in_2_bias, out_2 = weights[4:]
    x = x + block.ls_1(F.linear(mixed, out, out_bias)).to(x.dtype)
    h = F.layer_norm(x, x.shape[-1:], norm, norm_bias, block.ln_2.eps)
    h = F.linear(h, in_2, in_2_bias)
    h = F.silu(h) if quick else block.mlp.gelu(h)
    states: Tensor = x + block.ls_2(F.linear(h, out_2, out_2_bias)).to(x.dtype)
    return states


class Halves(NamedTuple):
    """A plain block without its attention: what is left knows nothing of rows or texts."""

    before: Callable[[Any, Weights, Tensor], Tensor] = _before
    after: Callable[[Any, Weights, bool, Tensor, Tensor], Tensor] = _after

    def compiled(self, dynamic: bool | None = None) -> Halves:
        """Return the same compiled once, for every block. dynamic: for any number of positions."""
        return Halves(*(torch.compile(half, dynamic=dynamic) for half in self))

    def run(
        self,
        block: Any,
        x: Tensor,
        attend: Attend,
        places: Tensor | None = None,
        cast: bool = False,
    ) -> Tensor:
        """Return the states after a block. places: those of a list (M, W) to return; all by
        default. cast: cast its weights to the dtype of the states."""
        quick, weights = cast and type(block.mlp.gelu) is QuickGELU, _weights(block)
        if cast:
            weights = _Cast.apply(x.dtype, _QUICK if quick else (), *weights)
        mixed = attend(self.before(block, weights, x), block.attn.num_heads)
        if places is not None:
            x, mixed = x.index_select(0, places), mixed.index_select(0, places)
        return self.after(block, weights, quick, x, mixed)


AS_WRITTEN = Halves()


def run_blocks(
    blocks: Sequence[nn.Module],
    x: Tensor,
    attend: Attend,
    halves: Halves,
    recompute: bool,
    places: Tensor | None = None,
) -> Tensor:
    """Run plain blocks on (..., W) states, one after the other.

    halves: what is computed around attention. recompute: compute a block again for backward.
    places: the states of a list (M, W) to return; the last block computes no others."""
    cast = under_autocast(x.device)
    within: AbstractContextManager[object] = nullcontext()
    if cast:
        within = torch.autocast(x.device.type, enabled=False)
        x = x.to(computed_in(x))
    with within:
        for block in blocks:
            returned = places if block is blocks[-1] else None
            if recompute:
                x = checkpoint(halves.run, block, x, attend, returned, cast, use_reentrant=False)
            else:
                x = halves.run(block, x, attend, returned, cast)
    return x


def computed_in(x: Tensor) -> torch.dtype:
    """Return the type in which blocks multiply that are given the states `x`: autocast's, or
    theirs."""
    return torch.get_autocast_dtype(x.device.type) if under_autocast(x.device) else x.dtype


def under_autocast(device: torch.device) -> bool:
    """Return whether operations on this device run in autocast's type."""
    kind = device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


# --- Attention. ---


def within_rows(qkv: Tensor, heads: int, causal: bool = False) -> Tensor:
    """Attention within rows (n, L, 3 W) -> (n, L, W), without a mask in memory if `causal`.

    Gradients of queries, keys and values are written once, side by side.
    """
    n, length, width = qkv.shape
    dtype = qkv.dtype
    if qkv.device.type == "cpu" and qkv.requires_grad:
        qkv = qkv.float()  # torch's gradients in half precision are eight times slower there
    parts = qkv.view(n, length, 3, heads, -1).unbind(2)
    q, k, v = (part.transpose(1, 2) for part in parts)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return mixed.transpose(1, 2).reshape(n, length, width // 3).to(dtype)


def within_texts(qkv: Tensor, heads: int, starts: Tensor, longest: int) -> Tensor:
    """Causal attention within each of many texts, (M, 3 W) -> (M, W), in one operation.

    starts: (texts + 1,) int32, where each begins in the list, and M. longest: positions of the
    longest text, or more. Only where `attends_to_lists`.
    """
    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    mixed: Tensor = _varlen()(q, k, v, starts, starts, longest, longest)
    return mixed.reshape(len(qkv), -1)


def attends_to_lists(device: torch.device, dtype: torch.dtype, head: int) -> bool:
    """Return whether `within_texts` is available: flash attention on lists, so half precision, a
    supported head size, and a GPU and a torch that offer it."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and head % 8 == 0
        and head <= 256
        and _varlen() is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


@cache
def _varlen() -> Any:
    """torch's causal attention on lists; None where torch has none. Its signature has changed."""
    try:
        varlen_attn: Any = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return None
    if "window_size" in inspect.signature(varlen_attn).parameters:
        return partial(varlen_attn, window_size=(-1, 0))
    return partial(varlen_attn, is_causal=True)
