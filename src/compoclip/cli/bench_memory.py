"""`compoclip bench memory`: what a training step holds in memory, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from compoclip.cli.bench_rows import Inputs, Row
from compoclip.cli.caption_input import drawn_captions
from compoclip.cli.device import device_named
from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.errors import UsageError
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.train.step import StepSettings
from compoclip.train.step_memory import StepMemory, count_step_memory
from compoclip.train.step_speed import caption_batch

_GB = 1e9
_MOST = 8.0  # GB


@dataclass(frozen=True)
class Options:
    """Bytes that a training step of FSC-CLIP holds at its peak, counted: weights, gradients and
    moments of AdamW, features of the whole batch, and what operations keep for the backward pass
    of one micro-batch, each storage once. Nothing is trained; micro-batches are encoded one at a
    time."""

    captions: Path | None = None
    """captions: a .txt, .json, .jsonl file or a folder of them; else those of the world"""
    model: str = "random:ViT-B-32"
    """anything `compoclip evaluate` takes"""
    batch_size: int = 256
    """images a step"""
    micro_batch: int = 32
    """images encoded at once, as for `compoclip train`; 0 is all"""
    grad_checkpointing: bool = False
    """activations computed again in backward, as for `compoclip train`"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """arithmetic of the towers (bf16: autocast)"""
    seed: int = 0
    """seed of the draw"""
    json: bool = False
    """print JSON"""


def main(arguments: Sequence[str]) -> int:
    """Count and print; returns the exit code."""
    options = parse(Options, "bench memory", arguments)
    if options.batch_size < 2 or options.micro_batch < 0:
        raise UsageError("--batch-size must be at least 2 and --micro-batch at least 0")
    memory = _counted(options)
    if options.json:
        result = {**asdict(memory), "peak": memory.peak, "whole": memory.whole}
        setting = {**asdict(options), "captions": str(options.captions or "of the world")}
        emit_json({"setting": setting, "result": result})
    else:
        print(_text(options, memory))
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """The peak of a step of FSC-CLIP, ViT-B/32, batch 256 in micro-batches of 32."""
    memory = _counted(Options(inputs.captions))
    return [
        Row(
            bench="memory",
            what=f"FSC-CLIP step, ViT-B/32, batch 256 by 32, GB at the peak ({_MOST:.0f} asked)",
            ours=memory.peak / _GB,
            baseline=memory.whole / _GB,
            against="the whole batch at once",
            ratio=memory.whole / memory.peak,
            target=memory.whole / _GB / _MOST,
        )
    ]


def _counted(options: Options) -> StepMemory:
    captions = drawn_captions(options.captions, options.batch_size, options.seed, "--batch-size")
    loaded = load_model(options.model, device=device_named("cpu"))
    method = load_recipe("fsc-clip")()
    if options.grad_checkpointing:
        loaded.encoder.set_grad_checkpointing()
    batch = caption_batch(loaded, method, captions, options.seed)
    settings = StepSettings("cpu", options.precision, options.micro_batch)
    return count_step_memory(loaded, method, batch, settings)


def _text(options: Options, memory: StepMemory) -> str:
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "moments of AdamW": memory.moments,
        "images of the batch": memory.batch,
        "features of the batch and their gradients": memory.features,
        "kept for the losses": memory.losses,
        "kept for a micro-batch of images": memory.image,
        "kept for a micro-batch of texts": memory.text,
        "peak (the largest of what is kept)": memory.peak,
        "peak of the whole batch at once": memory.whole,
    }
    again = ", activations computed again" if options.grad_checkpointing else ""
    return "\n".join(
        [
            f"fsc-clip, {options.model}, batch {options.batch_size}, micro-batch "
            f"{options.micro_batch or 'off'}, {options.precision}{again}",
            "",
            table([[name, f"{size / _GB:.2f}"] for name, size in parts.items()], ["", "GB"]),
            "",
            f"headline: {memory.peak / _GB:.2f} GB at the peak, {memory.whole / memory.peak:.1f} "
            "times less than at once",
        ]
    )
