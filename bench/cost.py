"""`python -m bench cost`: floating point operations of a training step, recipe by recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.harness import Row, Sampled
from bench.made import caption_batch, drawn_captions
from compoclip.config import Shown
from compoclip.data.images import Single
from compoclip.errors import UsageError
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.training.loop import freeze
from compoclip.training.settings import RunSettings
from compoclip.training.step import step
from compoclip.training.teacher import TeacherEncoder

AGAINST = "fsc-clip"
_LIMITS = {"compo": 1.5}  # times FSC-CLIP's step, for the recipe of our own
QUICK = ("--batch-size=4",)


def count_operations(
    loaded: LoadedModel, method: Method, captions: Sequence[str]
) -> tuple[float, float]:
    """Return the floating point operations and the texts per image of a step on these captions.

    A multiply-add is two operations; a teacher's and all backward passes are included. Raises
    UsageError for a recipe that shows other images than the captions' own, or trains a head.
    """
    if not isinstance(method.images, Single) or method.heads:
        raise UsageError(
            f"{method.name} composes images or trains a head: its step is not one of captions and "
            "their images alone"
        )
    encoder = loaded.encoder
    encoder.train()
    freeze(encoder.model, method.trains)
    if method.needs_teacher and method.teacher is not None:
        encoder.teacher = TeacherEncoder(encoder, method.teacher.decay)
    batch = caption_batch(loaded, method, captions, seed=0)
    # Counters pass over fused attention.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step(encoder, loaded.tokenizer, method, batch, RunSettings(out=Path(), device="cpu"))
    encoder.model.zero_grad(set_to_none=True)
    return counter.get_total_flops() / len(captions), len(batch.texts) / len(captions)


@dataclass(frozen=True)
class Options(Sampled):
    """Floating point operations of a training step of a recipe, as a multiple of FSC-CLIP's.

    Counted, not timed, so the same on every machine. A tower that stays frozen is passed through
    once an image; with `--cache-frozen` a run does that once an image and not once an epoch, which
    is not counted here.

    Args:
        recipes: Recipes that show each caption with its own image.
        model: Anything `compoclip evaluate` takes.
        batch_size: Images a step.
    """

    recipes: Annotated[tuple[str, ...], Shown("RECIPE", positional=True)] = (
        *("clip-ft", "negclip", "degla", "compo"),
    )
    model: str = "random:ViT-B-32"
    batch_size: int = 8


def measure(options: Options, folder: Path) -> list[Row]:
    """Count FSC-CLIP's step, and that of each recipe, on the same model and captions."""
    captions = drawn_captions(options.captions, options.batch_size, options.seed, "--batch-size")
    found = {
        name: count_operations(
            load_model(options.model, device=torch.device("cpu")), load_recipe(name)(), captions
        )
        for name in dict.fromkeys((AGAINST, *options.recipes))
    }
    return [
        Row(
            what=f"{name}, {texts:.1f} texts an image, G operations an image",
            ours=operations / 1e9,
            baseline=found[AGAINST][0] / 1e9,
            against="FSC-CLIP's step",
            target=1 / _LIMITS[name] if name in _LIMITS else None,
            less=True,
        )
        for name, (operations, texts) in found.items()
    ]
