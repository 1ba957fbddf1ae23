"""Thin open_clip configurations and random token ids for tests of the models."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import open_clip
import pytest
import torch

from compoclip.models.lora import lora_parameters

VOCABULARY = 600
START, END = VOCABULARY - 2, VOCABULARY - 1
VIT = {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2}
TEXT = {"context_length": 20, "vocab_size": VOCABULARY, "width": 32, "heads": 4, "layers": 3}


def config(
    vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **top: Any
) -> dict[str, Any]:
    """A CLIP of about 30,000 parameters, with changes."""
    return {
        "embed_dim": 24,
        "vision_cfg": {**VIT, **(vision or {})},
        "text_cfg": {**TEXT, **(text or {})},
        **top,
    }


def timm_config(name: str, image_size: int = 224, **vision: Any) -> dict[str, Any]:
    """A CLIP with a timm image trunk."""
    cfg = config()
    cfg["vision_cfg"] = {
        "timm_model_name": name,
        "image_size": image_size,
        "timm_pool": "avg",
        "timm_proj": "linear",
        **vision,
    }
    return cfg


def only_known(monkeypatch: pytest.MonkeyPatch, known: Mapping[str, dict[str, Any]]) -> None:
    """Let open_clip know these architectures alone."""
    monkeypatch.setattr(open_clip, "list_models", lambda: list(known))
    monkeypatch.setattr(open_clip, "get_model_config", lambda name: deepcopy(known[name]))


def pixels(size: int = 32, count: int = 2) -> torch.Tensor:
    """Return random images."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def token_ids(lengths: list[int], context: int = 20, seed: int = 0) -> torch.Tensor:
    """(T, context) rows: start, random words, end at position length - 1, zeros."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.zeros(len(lengths), context, dtype=torch.int64)
    for row, length in zip(rows, lengths):
        row[:length] = torch.randint(1, START, (length,), generator=generator)
        row[0], row[length - 1] = START, END
    return rows


def shake(network: torch.nn.Module, generator: torch.Generator | None = None) -> None:
    """Move norms and biases off ones and zeros, which hide mistakes."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def fill_adapters(network: torch.nn.Module) -> None:
    """Give every A and B of adapters values as if trained."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in lora_parameters(network):
            parameter.normal_(0, 0.2, generator=generator)
