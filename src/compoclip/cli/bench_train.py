"""`compoclip bench train`: images per second of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from compoclip.cli.bench_rows import Inputs, Row, surroundings
from compoclip.cli.caption_input import drawn_captions
from compoclip.cli.device import device_named
from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.errors import UsageError
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.train.step import StepSettings
from compoclip.train.step_speed import StepSpeed, Way, caption_batch, measure_step_speed

_TARGET = 2.5
_QUICK = 8  # images a batch


@dataclass(frozen=True)
class Options:
    """Images per second of a whole training step of FSC-CLIP (an image, its caption and three hard
    negatives), against the straightforward one on the same weights and batch, in turn in one run:
    77 tokens a text, a text forward for each of the four, captions encoded again in the place of
    negatives that could not be made, an additive attention mask.

    Images cost the same in both and are random numbers. On a CPU the ratio is one of processor
    time, so that other work on the machine matters less."""

    captions: Path | None = None
    """captions: a .txt, .json, .jsonl file or a folder of them; else those of the world"""
    model: str = "random:ViT-B-32"
    """anything `compoclip evaluate` takes, with open_clip's own causal text tower"""
    batch_size: int = 32
    """images a step"""
    repeats: int = 3
    """timed steps of each way after a first one; medians are shown"""
    quick: bool = False
    """a batch of 8 images, one repeat"""
    device: str = "auto"
    """cpu, cuda, cuda:N or mps; auto takes a GPU when there is one"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """arithmetic of the towers (bf16: autocast)"""
    seed: int = 0
    """seed of the draw"""
    json: bool = False
    """print JSON"""


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "bench train", arguments)
    if options.quick:
        options = replace(options, batch_size=_QUICK, repeats=1)
    if options.batch_size < 2 or options.repeats < 1:
        raise UsageError("--batch-size must be at least 2 and --repeats at least 1")
    speed, setting = _measured(options)
    if options.json:
        emit_json({"setting": setting, "result": asdict(speed)})
    else:
        print(_text(setting, speed))
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """A training step of FSC-CLIP, ViT-B/32."""
    options = Options(inputs.captions, device="cpu")
    if inputs.quick:
        options = replace(options, batch_size=_QUICK, repeats=1)
    speed, _ = _measured(options)
    return [
        Row(
            bench="train",
            what=f"FSC-CLIP step, ViT-B/32, batch {speed.images}, images/s",
            ours=speed.ours.images_per_second,
            baseline=speed.plain.images_per_second,
            against="full length, four text forwards",
            ratio=speed.ratio,
            target=_TARGET,
            limit=_limit(speed),
        )
    ]


def _measured(options: Options) -> tuple[StepSpeed, dict[str, Any]]:
    device = device_named(options.device)
    drawn = drawn_captions(options.captions, options.batch_size, options.seed, "--batch-size")
    loaded = load_model(options.model, device=device)
    method = load_recipe("fsc-clip")()
    speed = measure_step_speed(
        loaded,
        method,
        caption_batch(loaded, method, drawn, options.seed),
        options.repeats,
        StepSettings(str(device), options.precision),
    )
    setting = {
        "model": options.model,
        "method": method.name,
        "captions": str(options.captions or "of the world"),
        "batch_size": options.batch_size,
        "repeats": options.repeats,
        "precision": options.precision,
        **surroundings(device),
    }
    return speed, setting


def _limit(speed: StepSpeed) -> str:
    return (
        f"{speed.shared:.0%} of the step is image tower and optimiser, which cost the same in both "
        f"ways: no saving on texts could reach more than {speed.bound:.2f} times"
    )


def _text(setting: dict[str, Any], speed: StepSpeed) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
    ways = {"straightforward": (speed.plain, 1.0), "compoclip": (speed.ours, speed.ratio)}
    return "\n".join(
        [
            f"{setting['method']}, {setting['model']} on {setting['device']}, "
            f"{setting['threads']} threads, {setting['precision']}",
            versions,
            f"captions: {setting['captions']}; {speed.images} images with {speed.texts} texts of "
            f"{speed.tokens / speed.texts:.1f} tokens, {speed.lacking} negatives could not be "
            f"made; {setting['repeats']} repeats",
            "",
            table(
                [_row(name, way, ratio) for name, (way, ratio) in ways.items()],
                ["", "images/s", "s a step", "processor s", "positions", "TFLOP", "times faster"],
            ),
            "",
            f"headline: {speed.ratio:.2f} times the straightforward step (target {_TARGET}); "
            f"losses differ by {speed.loss_difference:.1e}, gradients by "
            f"{speed.gradient_difference:.1e} of their largest entry",
            _limit(speed),
        ]
    )


def _row(name: str, way: Way, ratio: float) -> list[str]:
    return [
        name,
        f"{way.images_per_second:.2f}",
        f"{way.seconds:.2f}",
        f"{way.processor_seconds:.2f}",
        str(way.positions),
        f"{way.operations / 1e12:.3f}",
        f"{ratio:.2f}",
    ]
