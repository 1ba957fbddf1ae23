"""The transformer of a native open_clip text tower, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Segment:
    """Positions start..stop of a packed batch: the real ones of `rows` texts, one after the other.

    length: of the longest of these. place: (stop - start,) where each stands in (rows, length) laid
    out flat; None when all texts are that long.
    """

    start: int
    stop: int
    rows: int
    length: int
    place: Tensor | None


class TextLayers:
    """A view of the embedding and the layers of a `CLIP` or `TextTransformer`; no parameters."""

    def __init__(self, tower: nn.Module) -> None:
        self._tower: Any = tower

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self._tower.transformer.resblocks)

    @property
    def context_length(self) -> int:
        """Number of positions."""
        return len(self._tower.positional_embedding)

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        device: torch.device = self._tower.positional_embedding.device
        return device

    @property
    def sees_ahead(self) -> bool:
        """Whether a position depends on later ones too."""
        return self._tower.attn_mask is None

    def embed(self, ids: Tensor) -> Tensor:
        """(n, L) ids -> (n, L, W) states before the first layer, with their positions."""
        tower = self._tower
        dtype = tower.transformer.get_cast_dtype()
        positions = tower.positional_embedding[: ids.shape[1]]
        embedded: Tensor = tower.token_embedding(ids).to(dtype) + positions.to(dtype)
        return embedded

    def run(self, x: Tensor, first: int, stop: int, keys: Tensor | None = None) -> Tensor:
        """States (n, L, W) before layer `first` -> before layer `stop` (`depth`: after the last).

        A causal tower masks by place in the row. keys: (n, L) bool, the places that may be looked
        at, for a tower that sees ahead; a causal one needs none when what is left out comes last.
        """
        tower, length = self._tower, x.shape[1]
        blocks = tower.transformer.resblocks[first:stop]
        if self.sees_ahead:
            heads = tower.transformer.resblocks[0].attn.num_heads
            mask = None if keys is None else _only(keys, heads, x.dtype)
            for block in blocks:
                x = block(x, attn_mask=mask)
            return x
        mask = tower.attn_mask[:length, :length]
        recompute = tower.transformer.grad_checkpointing and torch.is_grad_enabled()
        for block in blocks:
            if recompute:
                x = checkpoint(_causal_block, block, x, mask, use_reentrant=False)
            else:
                x = _causal_block(block, x, mask)
        return x

    @property
    def packs(self) -> bool:
        """Whether texts can be run without padding: causal, and every block of the plain kind."""
        return not self.sees_ahead and all(map(_is_plain, self._tower.transformer.resblocks))

    def embed_packed(self, ids: Tensor, position: Tensor) -> Tensor:
        """(M,) ids and the place of each in its text -> (M, W) states before the first layer."""
        tower = self._tower
        dtype = tower.transformer.get_cast_dtype()
        at = tower.positional_embedding.to(dtype)[position]
        embedded: Tensor = tower.token_embedding(ids).to(dtype) + at
        return embedded

    def run_packed(
        self, x: Tensor, segments: Sequence[Segment], halves: Halves | None = None
    ) -> Tensor:
        """`run` of all layers of a tower that packs, on (M, W) real positions of many texts.

        Attention alone has to know which position belongs to which text; all other layers see one
        long list of positions, with no padding in it. halves: what is computed before and after
        attention, compiled; None computes it as it is written.
        """
        halves = halves or _HALVES
        transformer = self._tower.transformer
        recompute = transformer.grad_checkpointing and torch.is_grad_enabled()
        for block in transformer.resblocks:
            if recompute:
                x = checkpoint(_packed_block, block, x, segments, halves, use_reentrant=False)
            else:
                x = _packed_block(block, x, segments, halves)
        return x


def _only(keys: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """An additive mask (n * heads, L, L) that leaves nothing but `keys` to look at."""
    n, length = keys.shape
    mask = torch.zeros(n, length, dtype=dtype, device=keys.device)
    mask = mask.masked_fill(~keys, -torch.inf)
    return mask[:, None, None, :].expand(n, heads, length, length).reshape(-1, length, length)


def _causal_block(block: Any, x: Tensor, mask: Tensor) -> Tensor:
    """One transformer block on (n, L, W), through fused causal attention where it is the plain
    one; every other kind runs its own forward with the cut mask."""
    if _is_plain(block):
        x = x + block.ls_1(_causal_attention(block.attn, block.ln_1(x)))
        out: Tensor = x + block.ls_2(block.mlp(block.ln_2(x)))
        return out
    other: Tensor = block(x, attn_mask=mask)
    return other


def _packed_block(block: Any, x: Tensor, segments: Sequence[Segment], halves: Halves) -> Tensor:
    """A plain transformer block on (M, W) packed positions."""
    qkv = halves.before(block, x)
    mixed = [_mix(qkv[s.start : s.stop], s, block.attn.num_heads) for s in segments]
    return halves.after(block, x, mixed[0] if len(mixed) == 1 else torch.cat(mixed))


def _before_attention(block: Any, x: Tensor) -> Tensor:
    """(M, 3 W) queries, keys and values."""
    return F.linear(block.ln_1(x), block.attn.in_proj_weight, block.attn.in_proj_bias)


def _after_attention(block: Any, x: Tensor, mixed: Tensor) -> Tensor:
    """(M, W) states after the block."""
    x = x + block.ls_1(block.attn.out_proj(mixed))
    out: Tensor = x + block.ls_2(block.mlp(block.ln_2(x)))
    return out


@dataclass(frozen=True)
class Halves:
    """A plain block without its attention, which alone depends on where texts begin and end: what
    is left knows the number of positions only."""

    before: Callable[[Any, Tensor], Tensor]
    after: Callable[[Any, Tensor, Tensor], Tensor]


_HALVES = Halves(_before_attention, _after_attention)


def compiled_halves() -> Halves:
    """Both halves compiled once, for every block and any number of positions."""
    return Halves(*(torch.compile(half, dynamic=True) for half in (_HALVES.before, _HALVES.after)))


def _mix(qkv: Tensor, segment: Segment, heads: int) -> Tensor:
    """Causal attention of (m, 3 W) packed queries, keys and values within each text: (m, W)."""
    n, length, place = segment.rows, segment.length, segment.place
    if place is not None:
        qkv = qkv.new_zeros(n * length, qkv.shape[1]).index_copy(0, place, qkv)
    q, k, v = qkv.view(n, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mixed = mixed.transpose(1, 2).reshape(n * length, -1)
    return mixed if place is None else mixed[place]


def _is_plain(block: nn.Module) -> bool:
    """Whether a block is open_clip's usual one with the usual attention."""
    attention = getattr(block, "attn", None)
    return (
        type(block) is ResidualAttentionBlock
        and isinstance(attention, nn.MultiheadAttention)
        and attention._qkv_same_embed_dim  # one weight for all three; asking that may cost a merge
        and attention.bias_k is None
        and not attention.add_zero_attn
        and attention.dropout == 0.0
        and not attention._forward_hooks
        and not attention._forward_pre_hooks
    )


def _causal_attention(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """What `attention(x, x, x, attn_mask=causal)` computes, with no mask in memory."""
    n, length, width = x.shape
    qkv = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = qkv.view(n, length, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out: Tensor = attention.out_proj(mixed.transpose(1, 2).reshape(n, length, width))
    return out
