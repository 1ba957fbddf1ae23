"""Tiny encoders that learn, batches for a step of them, and changes of a model's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from compoclip.data.batch import Batch
from compoclip.losses.contract import Role
from compoclip.methods.base import Method, Trains
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip.training.loop import freeze
from compoclip.training.settings import RunSettings
from compoclip.training.step import StepResult, step
from models_thin import config

TEXTS = ["a red cat", "a cat on a small red mat", "a dog", "a red cat", "two dogs beside a cat"]
Change = Callable[[dict[str, Any]], object]
KINDS = {Role.CAPTION: "", Role.POSITIVE: "synonym", Role.NEGATIVE: "negclip"}


def trainable(cfg: dict[str, Any] | None = None) -> LoadedModel:
    """Return a model with the words of CLIP, ready to train whole. cfg: if not `config()`."""
    cfg = cfg or config()
    cfg["text_cfg"]["vocab_size"] = 49408
    model = create_model(ModelConfig(cfg), seed=1)
    freeze(model.encoder.model, Trains())
    model.encoder.train()
    return model


def batch_for(model: LoadedModel, images: int = 5) -> Batch:
    """Return images with a caption, every other one with a positive, all but one with negatives."""
    height, width = model.preprocess.size
    texts: list[tuple[str, int, Role]] = []
    for i in range(images):
        texts.append((TEXTS[i % len(TEXTS)], i, Role.CAPTION))
        if i % 2:
            texts.append((f"there is {TEXTS[i]}", i, Role.POSITIVE))
        texts += [(TEXTS[(i + k) % len(TEXTS)], i, Role.NEGATIVE) for k in range(1, 1 + i % 3)]
    words, owner, role = zip(*texts)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, height, width), dtype=torch.uint8, generator=generator)
    kinds = tuple(KINDS[text_role] for text_role in role)
    return Batch(pixels, words, owner, role, kinds, tuple(map(str, range(images))))


def put(*path: str, **values: Any) -> Change:
    """Return a change of JSON data that sets entries of the object at a path."""

    def change(data: dict[str, Any]) -> None:
        for key in path:
            data = data[key]
        data.update(values)

    return change


def take_step(
    model: LoadedModel, method: Method, batch: Batch | None = None, **settings: Any
) -> StepResult:
    """Compute losses and gradients of a batch, if not of `batch_for`."""
    batch = batch or batch_for(model)
    settings_of_run = RunSettings(out=Path(), **settings)
    return step(model.encoder, model.tokenizer, method, batch, settings_of_run)


def edit_json(path: Path, change: Change) -> None:
    """Change a JSON file; of a link to one, the link becomes a file."""
    data = json.loads(path.read_text())
    change(data)
    path.unlink()
    path.write_text(json.dumps(data))
