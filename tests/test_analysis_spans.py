"""Span vectors against a forward pass written out with a full mask, in causal and other towers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compoclip.analysis.trees import TokenSentence, span_charts
from compoclip.errors import CompoclipError
from compoclip.models.architecture import build_model
from compoclip.models.dual_encoder import DualEncoder
from models_thin import END, START, config

TOWERS: dict[str, dict[str, Any]] = {
    "causal": config(text={"layers": 4}),
    "quick_gelu_custom": config(quick_gelu=True, custom_text=True, text={"layers": 3}),
    "qk_norm": config(text={"layers": 3, "qk_norm": True}),
    "sees_ahead": config(text={"layers": 4, "no_causal_mask": True}),
    "sees_ahead_qk_norm": config(text={"layers": 3, "no_causal_mask": True, "qk_norm": True}),
}


def encoder_of(cfg: dict[str, Any]) -> DualEncoder:
    encoder = DualEncoder(build_model(cfg, 0)).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in encoder.parameters():  # as drawn, words hardly look at one another
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator)
    return encoder


def sentence(words: list[list[int]]) -> TokenSentence:
    return TokenSentence.of(words, [START, *(token for word in words for token in word), END])


SENTENCES = (
    sentence([[5], [17, 30, 2], [44], [5], [9, 11]]),
    sentence([[5], [8]]),
    sentence([[100, 101], [7], [44, 3], [60], [61], [62], [63, 64]]),
)


def naive(model: Any, ids: Tensor, allowed: list[Tensor]) -> Tensor:
    """Last states (L, W) of one row, each layer's attention masked by its own (L, L) matrix."""
    x = (model.token_embedding(ids) + model.positional_embedding[: len(ids)])[None]
    for block, may in zip(model.transformer.resblocks, allowed):
        mask = torch.zeros(may.shape).masked_fill(~may, -torch.inf)
        x = block(x, attn_mask=mask.expand(block.attn.num_heads, -1, -1))
    return x[0]


@pytest.mark.parametrize("tower", TOWERS)
def test_every_span_equals_a_forward_pass_with_a_full_mask(tower: str) -> None:
    encoder = encoder_of(TOWERS[tower])
    layers = encoder.text_tower.layers()
    model = getattr(encoder.model, "text", encoder.model)
    thresholds = range(layers.depth)
    with torch.no_grad():
        found = span_charts(layers, SENTENCES, list(thresholds))
        for each, charts in zip(SENTENCES, found):
            length = layers.context_length
            ids = torch.zeros(length, dtype=torch.int64)
            ids[: len(each.ids)] = torch.tensor(each.ids)
            full = torch.ones(length, length, dtype=torch.bool)
            causal = full if layers.sees_ahead else full.tril()
            context = naive(model, ids, [causal] * layers.depth)
            for h in thresholds:
                assert charts[h].shape == (each.words + 1, each.words + 1)
                for a in range(each.words):
                    for b in range(a + 1, each.words + 1):
                        if (a, b) == (0, each.words):
                            assert np.isnan(charts[h][a, b])
                            continue
                        span = list(range(each.starts[a], each.starts[b]))
                        seen = torch.zeros(length, dtype=torch.bool)
                        seen[[0, *span, len(each.ids) - 1]] = True
                        masks = [causal if n < h else causal & seen for n in range(layers.depth)]
                        # what may see nothing at all is not looked at: let it see itself
                        masks = [mask | torch.eye(length, dtype=torch.bool) for mask in masks]
                        free = naive(model, ids, masks)
                        wanted = F.cosine_similarity(context[span].sum(0), free[span].sum(0), dim=0)
                        assert charts[h][a, b] == pytest.approx(wanted.item(), abs=1e-5)
            spans = charts[0][np.triu_indices(each.words + 1, 1)]
            assert np.nanmin(spans) < 0.998  # far enough from 1 for the test to fail


def test_towers_that_cannot_be_measured_are_refused() -> None:
    class_token = encoder_of(config(text={"embed_cls": True}, custom_text=True))
    with pytest.raises(CompoclipError, match="cannot be run one by one"):
        class_token.text_tower.layers()
    diverged = encoder_of(TOWERS["causal"])
    diverged.model.positional_embedding.data[3] = torch.nan
    with pytest.raises(CompoclipError, match="not finite"), torch.no_grad():
        span_charts(diverged.text_tower.layers(), SENTENCES, [1])
