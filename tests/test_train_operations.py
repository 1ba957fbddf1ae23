"""How many operations a GPU is given in a step, counted without one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import torch

from compoclip.data.batch import Batch
from compoclip.data.prepared import Preparation
from compoclip.losses.contract import Role
from compoclip.methods.registry import load_recipe
from compoclip.models.architecture import build_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.tokenizer import build_tokenizer
from compoclip.ranks import Ranks
from compoclip.training.optim import build_optimizer, step_if_finite
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import clip_gradients
from compoclip.training.step import step
from fake_cuda import DEVICE, Launches, fake_cuda
from models_thin import config, token_ids

WORDS = (
    "a",
    "big",
    "red",
    "cat",
    "sits",
    "on",
    "the",
    "mat",
    "while",
    "three",
    "dogs",
    "look",
    "at",
)
IMAGES = 8
CEILING = 1200


def thin(layers: int) -> DualEncoder:
    tower = {"layers": layers, "width": 32}
    text = {**tower, "heads": 2, "context_length": 77, "vocab_size": 49408}
    model = build_model(config({**tower, "head_width": 16}, text, quick_gelu=True))
    return DualEncoder(model).train()


def texts() -> Batch:
    """Images with a caption and up to three negatives each, of many lengths."""
    rng = random.Random(0)
    drawn = [
        (" ".join(rng.choices(WORDS, k=rng.randrange(4, 18))), image, kind)
        for image in range(IMAGES)
        for kind in ("", "negclip", "replace", "bigram_shuffle")[: 4 - (image == 3)]
    ]
    return Batch(
        torch.zeros(IMAGES, 3, 32, 32, dtype=torch.uint8),
        texts=tuple(text for text, _, _ in drawn),
        owner=tuple(image for _, image, _ in drawn),
        role=tuple(Role.NEGATIVE if kind else Role.CAPTION for _, _, kind in drawn),
        rewrite=tuple(kind for _, _, kind in drawn),
        ids=tuple(map(str, range(IMAGES))),
        photos=tuple(map(str, range(IMAGES))),
    )


def fsc_clip_step() -> Launches:
    """A step with 12 + 12 layers, from the batch to the optimiser."""
    method, batch, tokenize = load_recipe("fsc-clip")(), texts(), build_tokenizer({})

    # What the losses ask for is known after a step, which may be one on a CPU.
    small = thin(1)
    first = Preparation(tokenize, small.text_planner())(batch)
    batch = replace(batch, numbers=first)
    step(small, tokenize, method, batch, RunSettings(out=Path()))
    settings = RunSettings(out=Path(), device="cuda", precision="bf16")
    with fake_cuda(), Launches() as setting_up:
        with DEVICE:
            encoder = thin(12)
        optimizer = build_optimizer(encoder.model.named_parameters(), method.optim)
        for parameter in encoder.model.parameters():  # moments are made in the first step of a run
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        numbers = Preparation(tokenize, encoder.text_planner())(batch, batch.unforeseen)
        batch.normalised(DEVICE)  # mean and deviation are copied once
        batch = replace(batch, numbers=numbers)
        with Launches() as launches:
            result = step(encoder, tokenize, method, batch, settings)
            norm = clip_gradients(encoder.parameters(), method.optim.clip_grad, Ranks())
            step_if_finite(optimizer, result.total, norm)
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in encoder.parameters())
    assert setting_up.found
    return launches


def test_a_gpu_is_given_few_operations_in_a_step() -> None:
    launches = fsc_clip_step()
    assert launches.found.total() <= CEILING, launches.found.most_common()
    # Nothing is cast weight by weight, and QuickGELU is one operation.
    assert launches.found["_to_copy"] < 50
    assert launches.found["silu"] == launches.found["silu_backward"] == 24
    assert launches.found["_foreach_copy_"] == 48
    assert launches.found["sigmoid"] == 0
    names = [name for name, _ in launches.attention]
    assert names.count("_varlen_attn") == 12  # of texts, whatever their lengths
    assert names.count("_scaled_dot_product_flash_attention") == 12  # of images
    assert len(set(launches.attention)) == 2


def test_texts_of_whatever_lengths_are_attended_to_as_one_list() -> None:
    rng = random.Random(0)
    batches = [[rng.randrange(2, 78) for _ in range(rng.randrange(2, 40))] for _ in range(8)]
    with fake_cuda(), Launches() as launches, torch.no_grad():
        with DEVICE:
            encoder = thin(2)
        for lengths in batches:
            with torch.autocast("cuda", torch.bfloat16):
                found = encoder.encode_texts(token_ids(lengths, 77), True, deduplicate=False)
            assert found.pooled.shape == (len(lengths), 24)
            assert found.tokens is not None
            assert found.tokens.shape == (len(lengths), max(lengths), 24)
    expected = [sum(lengths) for lengths in batches for _ in range(2)]
    assert launches.attention == [("_varlen_attn", (m, 2, 16)) for m in expected]


def test_texts_in_full_precision_are_attended_to_in_buckets() -> None:
    with fake_cuda(), Launches() as launches, torch.no_grad():
        with DEVICE:
            encoder = thin(2)
        encoder.encode_texts(token_ids([5, 9, 9], 77))
    assert launches.attention == []
    assert launches.found["index_copy"] == 2  # into rows, once a layer
