"""Text encoding without padding: distinct rows once, cut to their own length.

This is exact: in a causal tower the state at a position depends on earlier positions only, and the
pooled feature is the state at the end-of-text token, so later positions do not matter. On a CPU a
beginning that several texts share is encoded once, too. The real positions of all texts go through
the layers as one list, attention in a few buckets of similar length; layers of an unusual kind run
bucket by bucket. The last layer computes only the states that are read. A bidirectional tower, or
one with another pooling, uses open_clip's full-length path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from open_clip.transformer import QuickGELU, TextTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from compoclip.errors import CompoclipError
from compoclip.models.blocks import (
    AS_WRITTEN,
    Attend,
    attends_to_lists,
    computed_in,
    is_plain,
    run_blocks,
    within_rows,
    within_texts,
)
from compoclip.models.config import EPSILON
from compoclip.models.text_plan import PackedTokens, Segment, TextInputs, TextPlanner, WholeTokens
from compoclip.models.work import Outputs, Work, joined


class TextLayers:
    """A view of the embedding and the layers of a `CLIP` or `TextTransformer`; no parameters.
    sees_ahead: whether a position depends on later ones too."""

    def __init__(self, tower: Any) -> None:
        self._tower = tower
        self.depth = len(tower.transformer.resblocks)
        self.context_length = len(tower.positional_embedding)
        self.embedding: nn.Module = tower.token_embedding
        self.device: torch.device = tower.positional_embedding.device
        self.sees_ahead = tower.attn_mask is None

    @property
    def plain(self) -> bool:
        """Return whether every block is of the plain kind."""
        return all(map(is_plain, self._tower.transformer.resblocks))

    def embed(self, ids: Tensor, position: Tensor | None = None) -> Tensor:
        """(..., L) ids -> (..., L, W) states before the first layer. position: the place of each in
        its text; 0 to L - 1 unless given."""
        dtype = self._tower.transformer.get_cast_dtype()
        table = self._tower.positional_embedding.to(dtype)
        at = table[: ids.shape[-1]] if position is None else F.embedding(position, table)
        embedded: Tensor = self.embedding(ids).to(dtype) + at
        return embedded

    def run(self, x: Tensor, first: int, stop: int, keys: Tensor | None = None) -> Tensor:
        """States (n, L, W) before layer `first` -> before layer `stop` (`depth`: after the last).

        A causal tower masks by place in the row. keys: (n, L) bool, the places that may be looked
        at, for a tower that sees ahead; a causal one needs none when what is left out comes last.
        """
        tower, (n, length, _) = self._tower, x.shape
        blocks = tower.transformer.resblocks[first:stop]
        mask = None if self.sees_ahead else tower.attn_mask[:length, :length]
        if self.sees_ahead and keys is not None:
            heads = tower.transformer.resblocks[0].attn.num_heads
            mask = torch.zeros_like(keys, dtype=x.dtype).masked_fill(~keys, -torch.inf)
            mask = mask[:, None, None, :].expand(n, heads, length, length).flatten(0, 1)
        causal: Attend = partial(within_rows, causal=True)

        def run(block: Any, x: Tensor) -> Tensor:
            if not self.sees_ahead and is_plain(block):
                return AS_WRITTEN.run(block, x, causal)
            other: Tensor = block(x, attn_mask=mask)
            return other

        recompute = tower.transformer.grad_checkpointing and torch.is_grad_enabled()
        for block in blocks:
            x = checkpoint(run, block, x, use_reentrant=False) if recompute else run(block, x)
        return x


def _by_segment(x: Tensor, segments: Sequence[Segment], run: Callable[[Tensor], Tensor]) -> Tensor:
    """Run something on the rows (n, length, W) of each segment of a list (M, W)."""
    outputs = []
    # Gradients of slices would each be as large as the list.
    parts = torch.split(x, [s.stop - s.start for s in segments])
    for s, part in zip(segments, parts):
        if s.place is not None:
            part = part.new_zeros(s.rows * s.length, x.shape[1]).index_copy(0, s.place, part)
        part = run(part.view(s.rows, s.length, -1)).flatten(0, 1)
        outputs.append(part if s.place is None else part.index_select(0, s.place))
    return joined(outputs)


def _taken(x: Tensor, places: Tensor) -> Tensor:
    """Return the rows of x (M, W) at places that may repeat.

    The gradients of a row are added faster than with `index_select`.
    """
    return F.embedding(places, x)


# Padding that one more bucket must save, in token positions, to be worth its cost.
_BUCKET_COST = {"cpu": 64, "cuda": 2048}


@dataclass(frozen=True)
class TextFeatures:
    """Features of texts, not normalised: pooled (T, D). On request: tokens (T, L, D), projected
    states, zero where `token_mask` is False; token_mask (T, L) bool, True at positions 1..EOT;
    state (T, W), the state before the projection to `pooled`."""

    pooled: Tensor
    tokens: Tensor | None = None
    token_mask: Tensor | None = None
    state: Tensor | None = None


class TextTower:
    """A view of the text half of an open_clip model; owns no parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        inner: Any = model if isinstance(model, CLIP) else getattr(model, "text", None)
        native = isinstance(inner, TextTransformer) and inner.cls_emb is None
        self._tower: Any = inner if native or isinstance(inner, CLIP) else None
        self._halves = AS_WRITTEN
        # The text tower of a CLIP is spread over the model.
        prefix = "text_" if isinstance(self._tower, CLIP) else ""
        self._pool_type = str(getattr(self._tower, f"{prefix}pool_type", ""))
        self._pools_at_end = self._pool_type in ("argmax", "eos")
        self._end: Any = getattr(self._tower, f"{prefix}eos_id", None)

    @property
    def causal(self) -> bool:
        """Return whether cutting behind the end-of-text token changes nothing."""
        return self._pools_at_end and self._tower.attn_mask is not None

    @property
    def plain(self) -> tuple[int, bool] | None:
        """Return the number of heads, and whether the activation is QuickGELU, of a tower that
        `PlainText` computes, too; None for any other."""
        if not self.causal or self._pool_type != "argmax" or not TextLayers(self._tower).plain:
            return None
        blocks = self._tower.transformer.resblocks
        norms = [self._tower.ln_final, *(norm for b in blocks for norm in (b.ln_1, b.ln_2))]
        activations = [block.mlp.gelu for block in blocks]
        quick = all(type(a) is QuickGELU for a in activations)
        exact = all(type(a) is nn.GELU and a.approximate == "none" for a in activations)
        usual = (
            (quick or exact)
            and isinstance(self._tower.text_projection, nn.Parameter)
            and all(isinstance(norm, nn.LayerNorm) and norm.eps == EPSILON for norm in norms)
            and self._tower.ln_final.bias is not None
            and all(type(s) is nn.Identity for b in blocks for s in (b.ls_1, b.ls_2))
        )
        return (int(blocks[0].attn.num_heads), quick) if usual else None

    def require_local(self, purpose: str = "local losses") -> None:
        """Raise CompoclipError, naming the `purpose`, when this tower has no projected token
        features up to EOT."""
        if not self._pools_at_end:
            raise CompoclipError(
                f"{purpose} need a native open_clip text tower that pools at the end-of-text "
                f"token; this model's does not: choose another model or do without {purpose}"
            )

    def planner(self, device: torch.device, limit: int = 0) -> TextPlanner:
        """Return how this tower wants texts on `device`. limit: see `TextPlanner`."""
        return TextPlanner(
            causal=self.causal,
            pools_at_end=self._pools_at_end,
            end=int(self._end) if self._pool_type == "eos" else None,
            cost=_BUCKET_COST.get(device.type, _BUCKET_COST["cuda"]),
            limit=limit,
            shares=device.type == "cpu",
        )

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
        """(..., W) states after the last LayerNorm -> (..., D) features."""
        projection = getattr(self._tower, "text_projection", None)
        if projection is None:
            return states
        module = isinstance(projection, nn.Module)
        projected: Tensor = projection(states) if module else states @ projection
        return projected

    def work(
        self, inputs: TextInputs, tokens: bool = False, state: bool = False
    ) -> Work[TextFeatures]:
        """Return how texts are encoded whose `inputs` lie on the tower's device.

        Raises CompoclipError when `tokens` or `state` is asked of a tower without them.
        """
        if tokens or state:
            self.require_local("local losses" if tokens else "heads")

        def join(outputs: Sequence[Outputs]) -> TextFeatures:
            def every(parts: Sequence[Tensor]) -> Tensor:
                return joined(parts).index_select(0, inputs.place)

            pooled = every([output[0] for output in outputs])
            before = every([output[-1] for output in outputs]) if state else None
            if not tokens:
                return TextFeatures(pooled, state=before)
            position = torch.arange(inputs.longest, device=pooled.device)
            mask = (position >= 1) & (position <= inputs.last.unsqueeze(1))
            lacking = [inputs.longest - output[1].shape[1] for output in outputs]
            grids = [
                F.pad(output[1], (0, 0, 0, rows)) if rows else output[1]
                for output, rows in zip(outputs, lacking)
            ]
            states = joined(grids).masked_fill(~mask.unsqueeze(-1), 0.0)
            return TextFeatures(pooled, states.index_select(0, inputs.place), every([mask]), before)

        encodes = tuple(partial(self._encode, group, tokens, state) for group in inputs.groups)
        return Work(encodes, join, tuple(True for _ in encodes))

    def compile(self) -> bool:
        """Compile the layers, for texts of any number and length; whether the tower can be."""
        can = self.causal and TextLayers(self._tower).plain
        if can:
            self._halves = AS_WRITTEN.compiled(dynamic=True)
        return can

    def layers(self) -> TextLayers:
        """Return the tower layer by layer. Raises CompoclipError for one that cannot be run so."""
        if self._tower is None:
            raise CompoclipError(
                "the layers of this model's text tower cannot be run one by one: that takes a "
                "native open_clip transformer, not a Hugging Face tower or one with a class "
                "token; choose another model"
            )
        return TextLayers(self._tower)

    def _encode(self, group: PackedTokens | WholeTokens, tokens: bool, state: bool) -> Outputs:
        """Pooled (n, D); projected states (n, L, D), L being the longest, if asked; and (n, W)
        what `pooled` is the projection of, if asked."""
        tower, ends = self._tower, group.ends
        if isinstance(group, PackedTokens):
            n, length = group.rows, group.length
            x = self._run_packed(group, None if tokens else ends)
        elif tokens or state:
            n, length = group.ids.shape
            x = tower.transformer(TextLayers(tower).embed(group.ids), attn_mask=tower.attn_mask)
            x, ends = x.flatten(0, 1), torch.arange(n, device=ends.device) * length + ends
        else:
            pooled = self._model.encode_text(group.ids, normalize=False)
            return (pooled[0] if isinstance(pooled, tuple) else pooled,)
        if not tokens:
            if not isinstance(group, PackedTokens):
                x = x.index_select(0, ends)
            last = tower.ln_final(x)
            return (self.project(last), last) if state else (self.project(last),)
        normed = tower.ln_final(x)
        states = grid = self.project(normed)
        if isinstance(group, PackedTokens):
            of_texts = states if group.shared is None else _taken(states, group.shared.of_texts)
            grid = states.new_zeros(n * length, states.shape[-1])
            grid = grid.index_copy(0, group.place, of_texts)
        outputs = states.index_select(0, ends), grid.view(n, length, -1)
        return (*outputs, normed.index_select(0, ends)) if state else outputs

    def _run_packed(self, packed: PackedTokens, places: Tensor | None) -> Tensor:
        """States after all layers of a list of positions, (M, W), or of those at `places`."""
        layers, transformer = TextLayers(self._tower), self._tower.transformer
        x = layers.embed(packed.ids, packed.position)

        def over_texts(x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
            """Run something on the positions of all texts, text after text."""
            if packed.shared is None:
                return run(x)
            return _taken(run(_taken(x, packed.shared.of_texts)), packed.shared.in_texts)

        def by_segment(x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
            return over_texts(x, lambda listed: _by_segment(listed, packed.segments, run))

        if not layers.plain:
            x = by_segment(x, lambda rows: layers.run(rows, 0, layers.depth))
            return x if places is None else x.index_select(0, places)

        recompute = transformer.grad_checkpointing and torch.is_grad_enabled()
        if attends_to_lists(x.device, computed_in(x), transformer.resblocks[0].attn.head_dim):
            within = partial(within_texts, starts=packed.starts.int(), longest=packed.length)

            def attend(qkv: Tensor, heads: int) -> Tensor:
                return over_texts(qkv, partial(within, heads=heads))

        else:

            def attend(qkv: Tensor, heads: int) -> Tensor:
                return by_segment(qkv, partial(within_rows, heads=heads, causal=True))

        return run_blocks(transformer.resblocks, x, attend, self._halves, recompute, places)
