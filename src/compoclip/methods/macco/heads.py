"""Heads that reconstruct masked words and patches from the other modality (MACCO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compoclip.losses import Features, HeadPlan, Layout, TowerSizes
from compoclip.losses.contract import computed, full_precision, normalise
from compoclip.losses.rows import captions

_HEADS = 8
_WIDER = 4  # the hidden layer of a block, times its width


@dataclass(frozen=True)
class _Predictor(HeadPlan):
    """Fields of both plans.

    Args:
        layers: Blocks of cross-attention.
        lr: The head's peak learning rate, whatever that of the model.
        weight_decay: Of the head.
    """

    layers: int = 2
    lr: float = 1e-3
    weight_decay: float | None = 0.01


@dataclass(frozen=True)
class TokenPrediction(_Predictor):
    r"""Reconstruct masked words from the image.

    .. math::
        L = \mathrm{mean}_i\, \mathrm{mean}_k - \log p(w_{ik} \mid q_{ik},\ \{(v_{ip} + u_i)/2\}_p)

    over the hidden tokens k of caption i and the captions that have any; q_ik is half the sum of
    the token's vector and its text's, both of the masked pass, and attends to patches v and image
    u, of the plain pass and without gradient. All are of unit length. MACCO (ACL 2026, arXiv
    2606.13288), masked text reconstruction.
    """

    def build(self, sizes: TowerSizes, seed: int) -> TokenPredictor:
        """Return the head."""
        return TokenPredictor(sizes.joint, sizes.vocabulary, self.layers, seed)


@dataclass(frozen=True)
class PatchPrediction(_Predictor):
    r"""Reconstruct masked patches from the caption.

    .. math::
        L = \mathrm{mean}_i\, \mathrm{mean}_k\, \mathrm{mean}\, (x_{ik} - \hat x_{ik})^2

    over the hidden patches k of image i and the images that have any; x are pixels with mean 0 and
    variance 1 within a patch. The query is half the sum of the patch's vector and its image's, of
    the masked pass and without gradient; it attends to half the sums of tokens and text, of the
    plain pass. All are of unit length. MACCO (ACL 2026, arXiv 2606.13288), masked image
    reconstruction.
    """

    layers: int = 3

    def build(self, sizes: TowerSizes, seed: int) -> PatchPredictor:
        """Return the head."""
        return PatchPredictor(sizes.joint, max(1, sizes.patch), self.layers, seed)


class _CrossBlock(nn.Module):
    """Queries attend to a context, then a layer of their own; both added to them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = next(n for n in range(_HEADS, 0, -1) if width % n == 0)
        self.ln_x, self.ln_y, self.ln_post = (nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, _WIDER * width), nn.GELU(), nn.Linear(_WIDER * width, width)
        )

    def forward(self, x: Tensor, y: Tensor, padding: Tensor | None) -> Tensor:
        context = self.ln_y(y)
        attended, _ = self.attention(
            self.ln_x(x), context, context, key_padding_mask=padding, need_weights=False
        )
        x = x + attended
        added: Tensor = self.mlp(self.ln_post(x))
        return x + added


class _Predicting(nn.Module):
    """Blocks and a last layer, drawn from a seed of their own."""

    def __init__(self, width: int, out: int, layers: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.blocks = nn.ModuleList(_CrossBlock(width) for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            self.last = nn.Linear(width, out)

    def predict(
        self, x: Tensor, y: Tensor, places: Tensor, padding: Tensor | None = None
    ) -> Tensor:
        """(n, out) of the queries (B, L, D) at places in (B, L), laid out flat."""
        for block in self.blocks:
            x = block(x, y, padding)
        predicted: Tensor = self.last(self.norm(x.flatten(0, 1).index_select(0, places)))
        return predicted

    def nothing(self, features: Features) -> Tensor:
        """Zero, for a part of a batch without images: gradients are of all parameters even so."""
        return sum((p.sum() * 0 for p in self.parameters()), features.text.sum() * 0)


class TokenPredictor(_Predicting):
    """See `TokenPrediction`."""

    def loss(self, features: Features, layout: Layout, targets: Sequence[str]) -> Tensor:
        """This process's share of the loss; see `compoclip.losses.Head`."""
        layout.sizes(captions)
        with full_precision(features) as f:
            tokens, text, patches = computed(f, "masked_tokens", "masked_text", "patches")
            places, ids = computed(f, "hidden_tokens", "hidden_ids")
            weight = _share(places, tokens, layout)
            if not len(tokens):
                return self.nothing(f)
            context = _with_whole(patches, f.image).detach()
            logits = self.predict(_with_whole(tokens, text), context, places)
            return (weight * F.cross_entropy(logits, ids, reduction="none")).sum()


class PatchPredictor(_Predicting):
    """See `PatchPrediction`."""

    def loss(self, features: Features, layout: Layout, targets: Sequence[str]) -> Tensor:
        """This process's share of the loss; see `compoclip.losses.Head`."""
        (caption,) = layout.indices(captions)
        layout.sizes(captions)
        with full_precision(features) as f:
            _, tokens, mask = computed(f, "masked_text", "tokens", "token_mask")
            if f.masked_image is None:
                return self.nothing(f)  # words alone are hidden
            patches, places, pixels = computed(
                f, "masked_patches", "hidden_patches", "hidden_pixels"
            )
            weight = _share(places, patches, layout)
            if not len(patches):
                return self.nothing(f)
            queries = _with_whole(patches, f.masked_image).detach()
            tokens, text, mask = (x.index_select(0, caption) for x in (tokens, f.text, mask))
            predicted = self.predict(queries, _with_whole(tokens, text), places, ~mask)
            return (weight * (predicted - pixels).square().mean(1)).sum()


def _with_whole(parts: Tensor, whole: Tensor) -> Tensor:
    """Half the sum of the parts (B, L, D), made of unit length, and what they are of (B, D)."""
    return (normalise(parts) + whole[:, None]) / 2


def _share(places: Tensor, grid: Tensor, layout: Layout) -> Tensor:
    """(n,) of each hidden place its weight in a mean over the places of a row, then over the rows
    of all processes that have any."""
    rows, length = grid.shape[:2]
    row = places // max(1, length)
    counts = grid.new_zeros(rows).index_add(0, row, grid.new_ones(len(places)))
    having = layout.peers.summed((counts > 0).sum().to(grid.dtype))
    return 1 / (counts.index_select(0, row) * having.clamp_min(1))
