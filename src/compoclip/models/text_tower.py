"""Text encoding without padding: distinct rows once, cut to their own length.

Why it is exact: in a causal tower the state at a position depends on earlier positions only, and
the pooled feature is the state at the end-of-text token, so nothing behind that token matters.
The real positions of all texts go through the layers as one list, attention in a few buckets of
similar length; layers of an unusual kind run bucket by bucket. A tower that looks both ways, or
pools elsewhere, keeps open_clip's own full-length path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from open_clip.transformer import ResidualAttentionBlock, TextTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from compoclip.errors import CompoclipError
from compoclip.models.work import MicroBatch, Outputs, Work, joined


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
    """`attention(x, x, x, attn_mask=causal)` without a mask in memory."""
    n, length, width = x.shape
    qkv = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = qkv.view(n, length, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out: Tensor = attention.out_proj(mixed.transpose(1, 2).reshape(n, length, width))
    return out


@dataclass(frozen=True)
class Bucket:
    """Rows start..stop of the length-sorted texts, encoded at `length` positions."""

    start: int
    stop: int
    length: int


def choose_buckets(lengths: Sequence[int], cost: int) -> list[Bucket]:
    """Split ascending `lengths` into runs that minimise padded positions + cost * runs.

    Exact dynamic programme over the distinct lengths (at most the context length of them).
    """
    ends = [
        i for i in range(1, len(lengths) + 1) if i == len(lengths) or lengths[i] != lengths[i - 1]
    ]
    best: list[tuple[int, int]] = [
        (0, 0)
    ]  # (total, number of distinct lengths before the last run)
    starts = [0, *ends]
    for j in range(1, len(starts)):
        longest = lengths[starts[j] - 1]
        best.append(
            min((best[i][0] + longest * (starts[j] - starts[i]) + cost, i) for i in range(j))
        )
    buckets: list[Bucket] = []
    j = len(ends)
    while j > 0:
        i = best[j][1]
        buckets.append(Bucket(starts[i], starts[j], lengths[starts[j] - 1]))
        j = i
    return buckets[::-1]


@dataclass(frozen=True)
class EncodingPlan:
    """Which rows are encoded and how they go back; made on the CPU, before any device is asked.

    ids: (R, L) rows by ascending length, cut to the longest bucket. last: (R,) position of the
    end-of-text token. place: (T,) row of each text. buckets: runs of rows. packed: whether all but
    attention runs on real positions only, and attention alone on the buckets.
    """

    ids: Tensor
    last: Tensor
    place: Tensor
    buckets: tuple[Bucket, ...]
    packed: bool = False

    @property
    def positions(self) -> int:
        """Token positions that pass through the layers: with padding inside buckets, or packed."""
        if self.packed:
            return int((self.last + 1).sum())
        return sum((b.stop - b.start) * b.length for b in self.buckets)

    def micro_batches(self, limit: int) -> tuple[tuple[Bucket, ...], ...]:
        """The buckets, cut and grouped so that a group has at most `limit` positions (but at least
        one row); all in one group for 0."""
        if not limit:
            return (self.buckets,)
        groups: list[list[Bucket]] = [[]]
        free = limit
        for bucket in self.buckets:
            start = bucket.start
            while start < bucket.stop:
                if groups[-1] and free < bucket.length:
                    groups.append([])
                    free = limit
                rows = min(bucket.stop - start, max(1, free // bucket.length))
                groups[-1].append(Bucket(start, start + rows, bucket.length))
                free -= rows * bucket.length
                start += rows
        return tuple(map(tuple, groups))


def plan_texts(
    ids: Tensor, last: Tensor, bucket_cost: int, deduplicate: bool = True
) -> EncodingPlan:
    """Distinct rows of (T, context) CPU ids, sorted by length, in buckets.

    last: (T,) position of each row's end-of-text token.
    """
    if deduplicate:
        rows, inverse = torch.unique(ids, dim=0, return_inverse=True)
        ends = torch.empty(len(rows), dtype=last.dtype).scatter_(0, inverse, last)
    else:
        rows, inverse, ends = ids, torch.arange(len(ids)), last
    order = torch.argsort(ends, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    ends = ends[order]
    lengths = (ends + 1).tolist()
    buckets = tuple(choose_buckets(lengths, bucket_cost))
    return EncodingPlan(rows[order, : lengths[-1]], ends, rank[inverse], buckets)


@dataclass(frozen=True)
class PackedTokens:
    """The real positions of some rows of a plan as one list of M, text after text.

    ids, row, position: (M,) token, row (from 0) and place in it of each. ends: (rows,) index of
    each row's last position in the list. length: of the longest row. segments: the buckets, which
    attention works on.
    """

    ids: Tensor
    row: Tensor
    position: Tensor
    ends: Tensor
    rows: int
    length: int
    segments: tuple[Segment, ...]

    def to(self, device: torch.device) -> PackedTokens:
        """The same on a device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        segments = (
            s if s.place is None else replace(s, place=moved(s.place)) for s in self.segments
        )
        return replace(
            self,
            ids=moved(self.ids),
            row=moved(self.row),
            position=moved(self.position),
            ends=moved(self.ends),
            segments=tuple(segments),
        )


def pack(plan: EncodingPlan, buckets: Sequence[Bucket]) -> PackedTokens:
    """The rows of adjacent buckets of a plan, packed, on the CPU."""
    first, stop, length = buckets[0].start, buckets[-1].stop, buckets[-1].length
    ids, last = plan.ids[first:stop, :length], plan.last[first:stop]
    row, position = (torch.arange(length) <= last[:, None]).nonzero(as_tuple=True)
    ends = (last + 1).cumsum(0)
    segments = []
    start = 0
    for bucket in buckets:
        rows, end = bucket.stop - bucket.start, int(ends[bucket.stop - first - 1])
        place = (row[start:end] - (bucket.start - first)) * bucket.length + position[start:end]
        whole = end - start == rows * bucket.length
        segments.append(Segment(start, end, rows, bucket.length, None if whole else place))
        start = end
    return PackedTokens(
        ids[row, position], row, position, ends - 1, stop - first, length, tuple(segments)
    )


# Padding that one more bucket must save, in token positions, to be worth its cost.
_BUCKET_COST = {"cpu": 64, "cuda": 2048}


@dataclass(frozen=True)
class TextFeatures:
    """Features of texts, not normalised.

    Attributes:
        pooled: (T, D).
        tokens: (T, L, D) projected states, zero where `token_mask` is False; None unless asked.
        token_mask: (T, L) bool, True at positions 1..EOT; None unless asked.
    """

    pooled: Tensor
    tokens: Tensor | None = None
    token_mask: Tensor | None = None


class TextTower:
    """A view of the text half of an open_clip model; owns no parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        inner = model if isinstance(model, CLIP) else getattr(model, "text", None)
        native = isinstance(inner, CLIP) or (
            isinstance(inner, TextTransformer) and inner.cls_emb is None
        )
        self._tower: Any = inner if native else None
        self._halves: Halves | None = None

    @property
    def causal(self) -> bool:
        """Whether cutting behind the end-of-text token changes nothing."""
        return self._pools_at_eot and self._tower.attn_mask is not None

    @property
    def _pools_at_eot(self) -> bool:
        return self._tower is not None and self._pool_type in ("argmax", "eos")

    @property
    def _pool_type(self) -> str:
        name = "text_pool_type" if isinstance(self._tower, CLIP) else "pool_type"
        return str(getattr(self._tower, name, ""))

    def require_local(self, purpose: str = "local losses") -> None:
        """Raise CompoclipError, naming the `purpose`, when this tower has no projected token
        features up to EOT."""
        if not self._pools_at_eot:
            raise CompoclipError(
                f"{purpose} need a native open_clip text tower that pools at the end-of-text "
                f"token; this model's does not: choose another model or do without {purpose}"
            )

    def plan(self, ids: Tensor, device: torch.device, deduplicate: bool = True) -> EncodingPlan:
        """How (T, context) ids are encoded on `device`: rows of a causal tower cut to their length,
        all others whole, as they come."""
        ids = ids.cpu()
        if self.causal:
            cost = _BUCKET_COST.get(device.type, _BUCKET_COST["cuda"])
            plan = plan_texts(ids, self._eot(ids), cost, deduplicate)
            return replace(plan, packed=TextLayers(self._tower).packs)
        last = self._eot(ids) if self._pools_at_eot else torch.full((len(ids),), ids.shape[1] - 1)
        whole = Bucket(0, len(ids), ids.shape[1])
        return EncodingPlan(ids, last, torch.arange(len(ids)), (whole,))

    def work(
        self,
        ids: Tensor,
        device: torch.device,
        tokens: bool = False,
        deduplicate: bool = True,
        limit: int = 0,
    ) -> Work[TextFeatures]:
        """How (T, context) int64 ids are encoded: as many texts a micro-batch as have no more
        positions than `limit` texts of full length, or all at once for 0. Fastest when `ids` are on
        the CPU: planned there.

        Raises CompoclipError when `tokens` is asked of a tower without them.
        """
        if tokens:
            self.require_local()
        plan = self.plan(ids, device, deduplicate)
        last, place = plan.last.to(device), plan.place.to(device)
        longest = int(plan.last.max()) + 1 if self.causal else plan.ids.shape[1]

        def micro_batch(buckets: tuple[Bucket, ...]) -> MicroBatch:
            if plan.packed:
                packed = pack(plan, buckets).to(device)
                return lambda: self._encode_packed(packed, tokens)
            run = slice(buckets[0].start, buckets[-1].stop)
            rows = plan.ids[run].to(device)
            return lambda: self._encode(rows, last[run], buckets, tokens)

        def join(outputs: Sequence[Outputs]) -> TextFeatures:
            pooled = joined([each[0] for each in outputs])[place]
            if not tokens:
                return TextFeatures(pooled)
            mask = _eot_mask(last, longest)
            states = joined([_of_length(each[1], longest) for each in outputs])
            return TextFeatures(
                pooled, states.masked_fill(~mask.unsqueeze(-1), 0.0)[place], mask[place]
            )

        return Work(tuple(map(micro_batch, plan.micro_batches(limit * ids.shape[1]))), join)

    def _encode(
        self, ids: Tensor, last: Tensor, buckets: tuple[Bucket, ...], tokens: bool
    ) -> Outputs:
        """Pooled (n, D) and, if asked, projected states (n, L, D) of the rows of some buckets, L
        being the longest of these."""
        parts = []
        for b in buckets:
            run = slice(b.start - buckets[0].start, b.stop - buckets[0].start)
            rows = ids[run, : b.length]
            if self.causal:
                parts.append(self._encode_rows(rows, last[run], tokens))
            else:
                parts.append(self._encode_full(rows, last[run], tokens))
        pooled = joined([part[0] for part in parts])
        if not tokens:
            return (pooled,)
        longest = max(b.length for b in buckets)
        return pooled, joined([_of_length(part[1], longest) for part in parts])

    def compile(self) -> bool:
        """Compile the layers, for texts of any number and length; whether the tower can be."""
        if self.causal and TextLayers(self._tower).packs:
            self._halves = compiled_halves()
        return self._halves is not None

    def layers(self) -> TextLayers:
        """The tower layer by layer. Raises CompoclipError for one that cannot be run so."""
        if self._tower is None:
            raise CompoclipError(
                "the layers of this model's text tower cannot be run one by one: that takes a "
                "native open_clip transformer, not a Hugging Face tower or one with a class token; "
                "choose another model"
            )
        return TextLayers(self._tower)

    def _eot(self, ids: Tensor) -> Tensor:
        """Where open_clip pools: the position of the (first) end-of-text token of each row."""
        if self._pool_type == "argmax":
            return ids.argmax(dim=-1)  # the highest id
        name = "text_eos_id" if isinstance(self._tower, CLIP) else "eos_id"
        found: Tensor = ids == getattr(self._tower, name)
        return found.int().argmax(dim=-1)

    def _encode_packed(self, packed: PackedTokens, tokens: bool) -> Outputs:
        """`_encode` with the real positions of all rows as one list, and no padding."""
        tower, layers = self._tower, TextLayers(self._tower)
        x = layers.embed_packed(packed.ids, packed.position)
        x = layers.run_packed(x, packed.segments, self._halves)
        if not tokens:
            return (self._project(tower.ln_final(x[packed.ends])),)
        states = self._project(tower.ln_final(x))
        grid = states.new_zeros(packed.rows, packed.length, states.shape[-1])
        return states[packed.ends], grid.index_put((packed.row, packed.position), states)

    def _encode_rows(self, ids: Tensor, last: Tensor, tokens: bool) -> Outputs:
        """Pooled (n, D) and, if asked, all projected states (n, L, D) of equally cut rows."""
        tower = self._tower
        layers = TextLayers(tower)
        x = layers.run(layers.embed(ids), 0, layers.depth)
        at_eot = torch.arange(len(ids), device=ids.device), last
        if not tokens:
            return (self._project(tower.ln_final(x[at_eot])),)
        states = self._project(tower.ln_final(x))
        return states[at_eot], states

    def _encode_full(self, ids: Tensor, last: Tensor, tokens: bool) -> Outputs:
        """The same of whole rows, through open_clip's own code."""
        if not tokens:
            pooled = self._model.encode_text(ids, normalize=False)
            return (pooled[0] if isinstance(pooled, tuple) else pooled,)
        tower = self._tower
        states = tower.transformer(TextLayers(tower).embed(ids), attn_mask=tower.attn_mask)
        states = self._project(tower.ln_final(states))
        return states[torch.arange(len(ids), device=ids.device), last], states

    def _project(self, x: Tensor) -> Tensor:
        projection = getattr(self._tower, "text_projection", None)
        if projection is None:
            return x
        projected: Tensor = projection(x) if isinstance(projection, nn.Module) else x @ projection
        return projected


def _of_length(states: Tensor, length: int) -> Tensor:
    """(n, L, D) states as (n, length, D): zeros added at the end, or positions left out there."""
    if states.shape[1] == length:
        return states
    return F.pad(states, (0, 0, 0, length - states.shape[1]))


def _eot_mask(last: Tensor, length: int) -> Tensor:
    """(T, length) bool: True at positions 1..last."""
    position = torch.arange(length, device=last.device)
    return (position >= 1) & (position <= last.unsqueeze(1))
