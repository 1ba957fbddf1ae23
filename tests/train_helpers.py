"""A tiny model configuration and data set for training tests."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.tokenizer import default_bpe
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from compoclip.methods.base import Optim
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import read_config

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220), "green": (30, 200, 30), "white": (250,) * 3}
SIDE = {"left": (2, 4), "right": (20, 4), "middle": (11, 11)}
OPTIM = Optim(epochs=2, batch_size=8, lr=1e-3, warmup=2)

FEW = 4000
"""Merges of CLIP's tokenizer under which common words are one token still."""


def few_merges(folder: Path, merges: int) -> dict[str, Any]:
    """What a text configuration says of the first merges of CLIP's tokenizer, written to `folder`.

    With all of them the embedding of a tiny model has 790,000 parameters, which is most of what it
    spends its time on.
    """
    lines = gzip.decompress(Path(default_bpe()).read_bytes()).split(b"\n")[: 1 + merges]
    (folder / "merges.txt.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    return {"vocab_size": 512 + merges + 2, "tokenizer_kwargs": {"bpe_path": "merges.txt.gz"}}


def write_config(path: Path, activation: str = "gelu", merges: int | None = None) -> Path:
    """An open_clip configuration of some 30,000 parameters beside the embedding of tokens.

    merges: as many of CLIP's tokenizer alone, written beside it (`few_merges`).
    """
    text = {"vocab_size": 49408} if merges is None else few_merges(path.parent, merges)
    config = {
        "model_cfg": {
            "embed_dim": 16,
            "quick_gelu": activation == "quick_gelu",
            "vision_cfg": {
                "image_size": 32,
                "layers": 2,
                "width": 32,
                "head_width": 16,
                "patch_size": 16,
            },
            "text_cfg": {
                "context_length": 77,
                "width": 16,
                "heads": 2,
                "layers": 2,
                **text,
            },
        },
        "preprocess_cfg": {"size": 32},
    }
    path.write_text(json.dumps(config))
    return path


def new_model(folder: Path) -> LoadedModel:
    """A model of `write_config` with few words."""
    return create_model(read_config(write_config(folder / "config.json", merges=FEW)), seed=1)


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint."""
    return load_file(checkpoint / "open_clip_model.safetensors")


def weight_hashes(run: Path) -> dict[str, str]:
    """A hash of each tensor of a run's model: short where a test shows a difference."""
    hashes = {}
    for name, value in weights(run / "model").items():
        hashes[name] = hashlib.sha256(value.numpy().tobytes()).hexdigest()
    return hashes


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare tensors by name, to the last bit."""
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


def write_data(folder: Path, count: int = 40) -> Path:
    """A TSV of squares with captions, and the images beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = ["image\tcaption"]
    names = [(a, b, s) for a in COLOURS for b in COLOURS if a != b for s in SIDE]
    for i in range(count):
        back, front, side = names[int(rng.integers(len(names)))]
        pixels = np.empty((32, 32, 3), np.uint8)
        pixels[:] = COLOURS[back]
        x, y = SIDE[side]
        pixels[y : y + 9, x : x + 9] = COLOURS[front]
        Image.fromarray(pixels).save(folder / f"{i}.png")
        rows.append(f"{i}.png\ta {front} square on the {side} of a {back} wall")
    table = folder / "data.tsv"
    table.write_text("\n".join(rows) + "\n")
    return table
