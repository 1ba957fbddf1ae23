"""`python -m bench cost`: floating point operations of a training step, recipe by recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.captions import drawn_captions
from bench.rows import PROGRAM, Inputs, Row
from bench.train import caption_batch
from compoclip.cli.options import parse
from compoclip.config import Shown
from compoclip.console import emit_json, table
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
_LIMIT = 1.5  # times FSC-CLIP's step, for the recipe of our own


@dataclass(frozen=True)
class Cost:
    """A step of a recipe. operations: floating point operations an image (one multiply-add is two),
    the teacher's and all backward passes included. texts: an image has so many, its caption
    included. ratio: operations over those of FSC-CLIP on the same captions."""

    recipe: str
    operations: float
    texts: float
    ratio: float


def count_operations(loaded: LoadedModel, method: Method, captions: Sequence[str]) -> Cost:
    """Count what a step on these captions computes; its `ratio` is left at 1.

    Raises UsageError for a recipe that shows other images than the captions' own, or trains a head.
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
    images = len(captions)
    texts = len(batch.block.texts) / images
    return Cost(method.name, counter.get_total_flops() / images, texts, 1.0)


@dataclass(frozen=True)
class Options:
    """Floating point operations of a training step of a recipe, as a multiple of FSC-CLIP's.

    Counted, not timed, so the same on every machine. A tower that stays frozen is passed through
    once an image; with `--cache-frozen` a run does that once an image and not once an epoch, which
    is not counted here.

    Args:
        recipes: Recipes that show each caption with its own image.
        captions: Captions: a .txt, .json, .jsonl file or a folder of them; else those of the world.
        model: Anything `compoclip evaluate` takes.
        batch_size: Images a step.
        seed: Seed of the draw.
        json: Print JSON.
    """

    recipes: Annotated[tuple[str, ...], Shown("RECIPE", positional=True)] = (
        *("clip-ft", "negclip", "degla", "compo"),
    )
    captions: Path | None = None
    model: str = "random:ViT-B-32"
    batch_size: int = 8
    seed: int = 0
    json: bool = False


def costs(options: Options, captions: Sequence[str]) -> list[Cost]:
    """FSC-CLIP's step, and that of each recipe asked for, on the same model and captions."""
    names = dict.fromkeys((AGAINST, *options.recipes))
    found = []
    for name in names:
        loaded = load_model(options.model, device=torch.device("cpu"))
        found.append(count_operations(loaded, load_recipe(name)(), captions))
    first = found[0].operations
    return [Cost(c.recipe, c.operations, c.texts, c.operations / first) for c in found]


def main(arguments: Sequence[str]) -> int:
    """Count and print; returns the exit code."""
    options = parse(Options, "cost", arguments, PROGRAM)
    if options.batch_size < 2:
        raise UsageError("--batch-size must be at least 2")
    captions = drawn_captions(options.captions, options.batch_size, options.seed, "--batch-size")
    found = costs(options, captions)
    if options.json:
        emit_json({"model": options.model, "costs": [asdict(each) for each in found]})
        return 0
    rows: list[list[Any]] = [
        [c.recipe, f"{c.texts:.1f}", f"{c.operations / 1e9:.1f}", f"{c.ratio:.2f}"] for c in found
    ]
    print(table(rows, ["recipe", "texts an image", "G operations an image", f"of {AGAINST}"]))
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """A step of our own recipe against FSC-CLIP's."""
    captions = drawn_captions(inputs.captions, 4 if inputs.quick else 8, 0, "nothing")
    base, own = costs(Options(recipes=("compo",)), captions)
    return [
        Row(
            bench="cost",
            what="compo step, ViT-B/32, operations an image, G",
            ours=own.operations / 1e9,
            baseline=base.operations / 1e9,
            against="FSC-CLIP's step",
            ratio=base.operations / own.operations,
            target=1 / _LIMIT,
        )
    ]
