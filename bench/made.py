"""Captions, photos, batches and models that stages measure with."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from compoclip.captions.parser import parse_many
from compoclip.cli.caption_input import read_captions
from compoclip.console import counted
from compoclip.data.batch import Batch
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.errors import UsageError
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip_world.captions import captions_for
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig


def world_captions(count: int = 2000) -> list[str]:
    """Return captions of made scenes, four per scene."""
    config = WorldConfig()
    return [
        caption.text
        for index in range(count // 4)
        for caption in captions_for(scene_for(config, 0, "train", index), config, 0, index, 4)
    ]


def captions_of(path: Path | None) -> list[str]:
    """Return the captions of a file or folder; without one, those of the world."""
    return read_captions(path) if path else world_captions()


def drawn_captions(path: Path | None, count: int, seed: int, remedy: str) -> list[str]:
    """Sample `count` captions of a file or folder, or of the world, without replacement.

    remedy: the options to lower. Raises UsageError when there are not as many.
    """
    captions = captions_of(path)
    if len(captions) < count:
        raise UsageError(
            f"{path or 'the world'}: {counted(len(captions), 'caption')}, fewer than the {count} "
            f"asked for; lower {remedy}"
        )
    return random.Random(seed).sample(captions, count)


def photo_like(index: int, width: int = 640, height: int = 480) -> Image.Image:
    """Return an image whose detail falls with frequency as in photos (1 / f), by its number."""
    rng = np.random.default_rng(index)
    total = np.zeros((height, width, 3), np.float32)
    side, strength = 3, 60.0
    while side < width:
        noise = rng.normal(0, strength, (side * 3 // 4, side, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(noise[:, :, channel], "F")
            wide = layer.resize((width, height), Image.Resampling.BICUBIC)
            total[:, :, channel] += np.asarray(wide)
        side, strength = side * 2, strength / 1.6
    return Image.fromarray(np.clip(total + 128, 0, 255).astype(np.uint8))


def photo_files(folder: Path, count: int, drawn: int = 64, size: int = 480) -> list[Path]:
    """Write photo-like JPEGs; those after the first `drawn` differ from these in their last two
    bytes alone, which makes them other images."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{k}.jpg" for k in range(count)]
    for k, path in enumerate(paths):
        if k < drawn:
            photo_like(k, size * 4 // 3, size).save(path, quality=90)
        else:
            path.write_bytes(paths[k % drawn].read_bytes() + (k // drawn).to_bytes(2, "little"))
    return paths


def write_samples(folder: Path, captions: Sequence[str], photos: int = 16, size: int = 480) -> str:
    """Write one sample per caption, with `photos` photo-like images; return the path."""
    paths = photo_files(folder, len(captions), photos, size)
    rows = [{"image": path.name, "caption": text} for path, text in zip(paths, captions)]
    samples = folder / "samples.jsonl"
    samples.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return str(samples)


def batch_of(
    pixels: torch.Tensor, plan: TextPlan, samples: Sequence[Sample], epoch: int = 0, **more: Any
) -> Batch:
    """Sample the texts of images, one per sample. more: further fields of the batch."""
    drawn = [(i, text) for i, each in enumerate(samples) for text in plan.draw(each, epoch)[0]]
    return Batch(
        pixels,
        texts=tuple(text.text for _, text in drawn),
        owner=tuple(owner for owner, _ in drawn),
        role=tuple(text.role for _, text in drawn),
        rewrite=tuple(text.rewrite for _, text in drawn),
        ids=tuple(sample.id for sample in samples),
        **more,
    )


def caption_batch(loaded: LoadedModel, method: Method, captions: Sequence[str], seed: int) -> Batch:
    """Return noise for images, one per caption, and the method's texts of the captions."""
    parsed = {each.text: each for each in parse_many(list(dict.fromkeys(captions)))}
    plan = TextPlan(method.plan, seed=seed, parsed=parsed)
    samples = [Sample(str(k), Path(), (caption,)) for k, caption in enumerate(captions)]
    generator = torch.Generator().manual_seed(seed)
    shape = (len(captions), 3, *loaded.preprocess.size)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    mean, std = loaded.preprocess.mean, loaded.preprocess.std
    return batch_of(pixels, plan, samples, mean=mean, std=std)


def narrow_model(size: int, width: int = 8, layers: int = 12) -> LoadedModel:
    """Return a CLIP with the layers of ViT-B/32 and next to no arithmetic in them, for images of
    `size` pixels a side."""
    vision = {"image_size": size, "patch_size": 32, "width": width, "head_width": width}
    text = {"context_length": 77, "vocab_size": 49408, "width": width, "heads": 1}
    config = {
        "embed_dim": width,
        "quick_gelu": True,
        "vision_cfg": {**vision, "layers": layers},
        "text_cfg": {**text, "layers": layers},
    }
    return create_model(ModelConfig(config, {"size": size}), seed=0)
