"""Compiled towers: the same features and gradients, few graphs, plain words where it cannot be."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from compoclip.errors import CompoclipError, UsageError
from compoclip.models import architecture, text_tower
from compoclip.models.architecture import build_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import Lora, attach_lora
from models_thin import config, pixels, token_ids

LENGTHS = ([3, 9, 5, 5], [12, 4], [7, 7, 7, 18, 2])


def outcome(encoder: DualEncoder, lengths: list[int]) -> list[Tensor]:
    encoder.zero_grad(set_to_none=True)
    found = encoder.features(pixels(count=3), token_ids(lengths), local=True)
    loss = (found.image @ found.text.T).exp().sum() + (found.tokens.sum() * found.patches.sum())
    loss.backward()
    gradients = [torch.zeros(1) if p.grad is None else p.grad for p in encoder.parameters()]
    return [found.image, found.text, found.tokens, found.patches, *gradients]


def test_compiled_towers_compute_the_same_with_few_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(text_tower._BUCKET_COST, "cpu", 4)
    # Graphs forwards and backwards as they are; what torch makes of them in C++ is torch's matter.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    encoder = DualEncoder(build_model(config(), 0)).train()
    expected = [outcome(encoder, lengths) for lengths in LENGTHS]
    assert encoder.compile_towers() == ("image", "text")
    counters.clear()
    for lengths, wanted in zip(LENGTHS, expected):
        for got, value in zip(outcome(encoder, lengths), wanted):
            assert (got - value).abs().max() <= 1e-4 * max(1.0, value.abs().max().item())
    # Two halves of a text block and the image tower, whatever the lengths and numbers of texts.
    assert 0 < counters["stats"]["unique_graphs"] <= 4


def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    adapted = build_model(config(), 0)
    attach_lora(adapted, Lora())
    with pytest.raises(UsageError, match="--compile knows no adapters"):
        DualEncoder(adapted).compile_towers()

    def broken(function: Any) -> Any:
        raise RuntimeError("No working C++ compiler found\nin torch")

    monkeypatch.setattr(architecture.torch, "compile", broken)
    with pytest.raises(
        CompoclipError, match=r"No working C\+\+ compiler found in torch\); install"
    ):
        DualEncoder(build_model(config(), 0)).compile_towers()


def test_an_unusual_text_tower_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compoclip.models.dual_encoder.require_compiler", lambda device: None)
    encoder = DualEncoder(build_model(config(text={"qk_norm": True}), 0))
    assert encoder.compile_towers() == ("image",)
