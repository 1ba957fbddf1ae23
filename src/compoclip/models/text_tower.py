"""Text encoding without padding: distinct rows once, cut to their own length.

Why it is exact: in a causal tower the state at a position depends on earlier positions only, and
the pooled feature is the state at the end-of-text token, so nothing behind that token matters.
The real positions of all texts go through the layers as one list, attention in a few buckets of
similar length; layers of an unusual kind run bucket by bucket. A tower that looks both ways, or
pools elsewhere, keeps open_clip's own full-length path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from open_clip.transformer import TextTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from compoclip.errors import CompoclipError
from compoclip.models.blocks import (
    AS_WRITTEN,
    Attend,
    Halves,
    attends_to_lists,
    computed_in,
    is_plain,
    run_blocks,
    within_rows,
    within_texts,
)
from compoclip.models.text_plan import (
    PackedTokens,
    PaddedTokens,
    Segment,
    TextInputs,
    TextPlanner,
)
from compoclip.models.work import MicroBatch, Outputs, Work, joined


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
    def embedding(self) -> nn.Module:
        """The embedding of tokens."""
        found: nn.Module = self._tower.token_embedding
        return found

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
        return not self.sees_ahead and all(map(is_plain, self._tower.transformer.resblocks))

    def embed_packed(self, ids: Tensor, position: Tensor) -> Tensor:
        """(M,) ids and the place of each in its text -> (M, W) states before the first layer."""
        tower = self._tower
        dtype = tower.transformer.get_cast_dtype()
        at = F.embedding(position, tower.positional_embedding.to(dtype))
        embedded: Tensor = tower.token_embedding(ids).to(dtype) + at
        return embedded

    def run_packed(self, x: Tensor, packed: PackedTokens, halves: Halves = AS_WRITTEN) -> Tensor:
        """`run` of all layers of a tower that packs, on (M, W) real positions of many texts.

        Attention alone has to know which position belongs to which text; all other layers see one
        long list of positions, with no padding in it. halves: what is computed before and after
        attention.
        """
        transformer = self._tower.transformer
        recompute = transformer.grad_checkpointing and torch.is_grad_enabled()
        head = transformer.resblocks[0].attn.head_dim
        attend: Attend = partial(_in_buckets, segments=packed.segments)
        if attends_to_lists(x.device, computed_in(x), head):
            attend = partial(within_texts, starts=packed.starts.int(), longest=packed.length)
        return run_blocks(transformer.resblocks, x, attend, halves, recompute)


def _only(keys: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """An additive mask (n * heads, L, L) that leaves nothing but `keys` to look at."""
    n, length = keys.shape
    mask = torch.zeros(n, length, dtype=dtype, device=keys.device)
    mask = mask.masked_fill(~keys, -torch.inf)
    return mask[:, None, None, :].expand(n, heads, length, length).reshape(-1, length, length)


def _causal_block(block: Any, x: Tensor, mask: Tensor) -> Tensor:
    """One transformer block on (n, L, W), through fused causal attention where it is the plain
    one; every other kind runs its own forward with the cut mask."""
    if is_plain(block):
        attention, normed = block.attn, block.ln_1(x)
        qkv = F.linear(normed, attention.in_proj_weight, attention.in_proj_bias)
        mixed = within_rows(qkv, attention.num_heads, causal=True)
        x = x + block.ls_1(attention.out_proj(mixed))
        out: Tensor = x + block.ls_2(block.mlp(block.ln_2(x)))
        return out
    other: Tensor = block(x, attn_mask=mask)
    return other


def _in_buckets(qkv: Tensor, heads: int, segments: Sequence[Segment]) -> Tensor:
    """Causal attention within each of many texts, (M, 3 W) -> (M, W), on buckets of texts."""
    mixed = [_in_bucket(qkv[s.start : s.stop], heads, s) for s in segments]
    return joined(mixed)


def _in_bucket(qkv: Tensor, heads: int, segment: Segment) -> Tensor:
    """The same of the texts of one bucket."""
    n, length, place = segment.rows, segment.length, segment.place
    if place is not None:
        qkv = qkv.new_zeros(n * length, qkv.shape[1]).index_copy(0, place, qkv)
    mixed = within_rows(qkv.view(n, length, -1), heads, causal=True).flatten(0, 1)
    return mixed if place is None else mixed.index_select(0, place)


# Padding that one more bucket must save, in token positions, to be worth its cost.
_BUCKET_COST = {"cpu": 64, "cuda": 2048}


@dataclass(frozen=True)
class TextFeatures:
    """Features of texts, not normalised.

    Attributes:
        pooled: (T, D).
        tokens: (T, L, D) projected states, zero where `token_mask` is False; None unless asked.
        token_mask: (T, L) bool, True at positions 1..EOT; None unless asked.
        state: (T, W) what `pooled` is the projection of; None unless asked.
    """

    pooled: Tensor
    tokens: Tensor | None = None
    token_mask: Tensor | None = None
    state: Tensor | None = None


class TextTower:
    """A view of the text half of an open_clip model; owns no parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        inner = model if isinstance(model, CLIP) else getattr(model, "text", None)
        native = isinstance(inner, CLIP) or (
            isinstance(inner, TextTransformer) and inner.cls_emb is None
        )
        self._tower: Any = inner if native else None
        self._halves = AS_WRITTEN

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

    def planner(self, device: torch.device, limit: int = 0) -> TextPlanner:
        """How this tower, as it is now, wants texts on `device`. limit: see `TextPlanner`."""
        end = None
        if self._pools_at_eot and self._pool_type != "argmax":
            name = "text_eos_id" if isinstance(self._tower, CLIP) else "eos_id"
            end = int(getattr(self._tower, name))
        return TextPlanner(
            causal=self.causal,
            packs=self.causal and TextLayers(self._tower).packs,
            pools_at_end=self._pools_at_eot,
            end=end,
            cost=_BUCKET_COST.get(device.type, _BUCKET_COST["cuda"]),
            limit=limit,
        )

    def states(self, inputs: TextInputs) -> Tensor:
        """(T, W) what the projection is given: each text's state at EOT, after the last LayerNorm.

        Raises CompoclipError for a tower without such a state.
        """
        self.require_local("states before the projection")
        encode: Any = self._encode_packed if inputs.packed else self._encode
        parts = [encode(group, False, state=True)[-1] for group in inputs.groups]
        return joined(parts).index_select(0, inputs.place)

    @property
    def width(self) -> int:
        """W, the size of a state before the projection.

        Raises CompoclipError for a tower without such a state.
        """
        self.require_local("heads")
        return int(self._tower.ln_final.normalized_shape[0])

    @property
    def vocabulary(self) -> int:
        """Number of tokens that have an embedding."""
        return len(self._tower.token_embedding.weight)

    def project(self, states: Tensor) -> Tensor:
        """(T, D) pooled features of what `states` gives."""
        return self._project(states)

    def work(
        self,
        inputs: TextInputs,
        tokens: bool = False,
        state: bool = False,
    ) -> Work[TextFeatures]:
        """Return how texts are encoded whose `inputs` lie on the tower's device.

        Raises CompoclipError when `tokens` or `state` is asked of a tower without them.
        """
        if tokens or state:
            self.require_local("local losses" if tokens else "heads")
        last, place = inputs.last, inputs.place

        encode: Any = self._encode_packed if inputs.packed else self._encode

        def micro_batch(group: PackedTokens | PaddedTokens) -> MicroBatch:
            def run() -> Outputs:
                found: Outputs = encode(group, tokens, state) if state else encode(group, tokens)
                return found

            return run

        def join(outputs: Sequence[Outputs]) -> TextFeatures:
            pooled = joined([each[0] for each in outputs]).index_select(0, place)
            found = TextFeatures(pooled)
            if state:
                before = joined([each[-1] for each in outputs]).index_select(0, place)
                found = replace(found, state=before)
            if not tokens:
                return found
            mask = _eot_mask(last, inputs.longest)
            states = joined([_of_length(each[1], inputs.longest) for each in outputs])
            states = states.masked_fill(~mask.unsqueeze(-1), 0.0).index_select(0, place)
            return replace(found, tokens=states, token_mask=mask.index_select(0, place))

        return Work(tuple(map(micro_batch, inputs.groups)), join)

    def _encode(self, padded: PaddedTokens, tokens: bool, state: bool = False) -> Outputs:
        """Pooled (n, D) and, if asked, projected states (n, L, D) of the rows of some buckets, L
        being the longest of these; and (n, W) pooled before the projection, if asked."""
        parts = []
        first = padded.buckets[0].start
        for b in padded.buckets:
            run = slice(b.start - first, b.stop - first)
            rows, last = padded.ids[run, : b.length], padded.last[run]
            encode = self._encode_rows if self.causal else self._encode_full
            parts.append(encode(rows, last, tokens, state))
        outputs = [joined([part[0] for part in parts])]
        if tokens:
            longest = max(b.length for b in padded.buckets)
            outputs.append(joined([_of_length(part[1], longest) for part in parts]))
        if state:
            outputs.append(joined([part[-1] for part in parts]))
        return tuple(outputs)

    def compile(self) -> bool:
        """Compile the layers, for texts of any number and length; whether the tower can be."""
        can = self.causal and TextLayers(self._tower).packs
        if can:
            self._halves = AS_WRITTEN.compiled(dynamic=True)
        return can

    def layers(self) -> TextLayers:
        """The tower layer by layer. Raises CompoclipError for one that cannot be run so."""
        if self._tower is None:
            raise CompoclipError(
                "the layers of this model's text tower cannot be run one by one: that takes a "
                "native open_clip transformer, not a Hugging Face tower or one with a class token; "
                "choose another model"
            )
        return TextLayers(self._tower)

    def _encode_packed(self, packed: PackedTokens, tokens: bool, state: bool = False) -> Outputs:
        """`_encode` with the real positions of all rows as one list, and no padding."""
        tower, layers = self._tower, TextLayers(self._tower)
        x = layers.embed_packed(packed.ids, packed.position)
        x = layers.run_packed(x, packed, self._halves)
        if not tokens:
            last = tower.ln_final(x.index_select(0, packed.ends))
            return (self._project(last), last) if state else (self._project(last),)
        normed = tower.ln_final(x)
        states = self._project(normed)
        grid = states.new_zeros(packed.rows * packed.length, states.shape[-1])
        grid = grid.index_copy(0, packed.place, states).view(packed.rows, packed.length, -1)
        outputs = states.index_select(0, packed.ends), grid
        return (*outputs, normed.index_select(0, packed.ends)) if state else outputs

    def _encode_rows(self, ids: Tensor, last: Tensor, tokens: bool, state: bool = False) -> Outputs:
        """Pooled (n, D) and, if asked, all projected states (n, L, D) of equally cut rows."""
        tower = self._tower
        layers = TextLayers(tower)
        x = layers.run(layers.embed(ids), 0, layers.depth)
        if not tokens:
            normed = tower.ln_final(_at(x, last))
            return (self._project(normed), normed) if state else (self._project(normed),)
        return self._outputs(tower.ln_final(x), last, tokens, state)

    def _encode_full(self, ids: Tensor, last: Tensor, tokens: bool, state: bool = False) -> Outputs:
        """The same of whole rows, through open_clip's own code."""
        if not (tokens or state):
            pooled = self._model.encode_text(ids, normalize=False)
            return (pooled[0] if isinstance(pooled, tuple) else pooled,)
        tower = self._tower
        states = tower.transformer(TextLayers(tower).embed(ids), attn_mask=tower.attn_mask)
        return self._outputs(tower.ln_final(states), last, tokens, state)

    def _outputs(self, normed: Tensor, last: Tensor, tokens: bool, state: bool) -> Outputs:
        """What is asked of (n, L, W) states after the last LayerNorm."""
        states = self._project(normed)
        outputs = (_at(states, last), states) if tokens else (_at(states, last),)
        return (*outputs, _at(normed, last)) if state else outputs

    def _project(self, x: Tensor) -> Tensor:
        projection = getattr(self._tower, "text_projection", None)
        if projection is None:
            return x
        projected: Tensor = projection(x) if isinstance(projection, nn.Module) else x @ projection
        return projected


def _at(states: Tensor, last: Tensor) -> Tensor:
    """(n, D) of (n, L, D) states those at `last` (n,)."""
    rows = torch.arange(len(states), device=states.device) * states.shape[1]
    return states.flatten(0, 1).index_select(0, rows + last)


def _of_length(states: Tensor, length: int) -> Tensor:
    """(n, L, D) states as (n, length, D): zeros added at the end, or positions left out there."""
    if states.shape[1] == length:
        return states
    return F.pad(states, (0, 0, 0, length - states.shape[1]))


def _eot_mask(last: Tensor, length: int) -> Tensor:
    """(T, length) bool: True at positions 1..last."""
    position = torch.arange(length, device=last.device)
    return (position >= 1) & (position <= last.unsqueeze(1))
