"""`compoclip bench text`: captions per second of the text encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from compoclip.cli.bench_rows import Inputs, Row, surroundings
from compoclip.cli.caption_input import drawn_captions
from compoclip.cli.device import device_named
from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.errors import UsageError
from compoclip.models.checkpoint import load_model
from compoclip.models.text_speed import Pass, TextSpeed, measure_text_speed


@dataclass(frozen=True)
class Options:
    """Captions per second of the text encoder, against open_clip's own encode_text on the same
    weights, batches and device, interleaved in one run."""

    captions: Path
    """captions to encode: a .txt, .json, .jsonl file or a folder of them (e.g. SugarCrepe's)"""
    model: str = "random:ViT-B-32"
    """whose text encoder: anything `compoclip evaluate` takes"""
    batch_size: int = 256
    """captions a batch"""
    batches: int = 2
    """batches a repeat, drawn at random without replacement"""
    repeats: int = 3
    """timed repeats of each way after a warm-up; medians are shown"""
    device: str = "auto"
    """cpu, cuda, cuda:N or mps; auto takes a GPU when there is one"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """arithmetic (bfloat16: autocast)"""
    seed: int = 0
    """seed of the draw"""
    json: bool = False
    """print JSON"""


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "bench text", arguments)
    if min(options.batch_size, options.batches, options.repeats) < 1:
        raise UsageError("--batch-size, --batches and --repeats must be at least 1")
    speed, setting = _measured(options)
    if options.json:
        emit_json({"setting": setting, "result": asdict(speed)})
    else:
        print(_text(setting, speed))
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """The text encoder of ViT-B/32 against open_clip's."""
    options = Options(inputs.captions, device="cpu")
    if inputs.quick:
        options = replace(options, batch_size=64, batches=1, repeats=1)
    speed, _ = _measured(options)
    what = "ViT-B/32 text features, captions/s"
    ours = ((what, speed.ours, speed.ratio),)
    once = ((f"{what}, equal texts once", speed.ours_distinct, speed.ratio_distinct),)
    return [
        Row(
            bench="text",
            what=name,
            ours=way.captions_per_second,
            baseline=speed.open_clip.captions_per_second,
            against="open_clip encode_text",
            ratio=ratio,
        )
        for name, way, ratio in ours + once
    ]


def _measured(options: Options) -> tuple[TextSpeed, dict[str, Any]]:
    device = device_named(options.device)
    wanted = options.batch_size * options.batches
    drawn = drawn_captions(options.captions, wanted, options.seed, "--batch-size or --batches")
    size = options.batch_size
    loaded = load_model(options.model, device=device)
    speed = measure_text_speed(
        loaded,
        [drawn[i : i + size] for i in range(0, wanted, size)],
        options.repeats,
        options.precision,
    )
    return speed, _setting(options, loaded.encoder.device)


def _setting(options: Options, device: torch.device) -> dict[str, Any]:
    return {
        "model": options.model,
        "captions": str(options.captions),
        "batch_size": options.batch_size,
        "batches": options.batches,
        "repeats": options.repeats,
        "precision": options.precision,
        **surroundings(device),
    }


def _text(setting: dict[str, Any], speed: TextSpeed) -> str:
    ways = {
        "open_clip encode_text": (speed.open_clip, 1.0),
        "compoclip": (speed.ours, speed.ratio),
        "compoclip, equal texts once": (speed.ours_distinct, speed.ratio_distinct),
    }
    versions = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
    rows = [_row(name, way, ratio) for name, (way, ratio) in ways.items()]
    return "\n".join(
        [
            f"{setting['model']} on {setting['device']}, {setting['threads']} threads, "
            f"{setting['precision']}",
            versions,
            f"{speed.captions} captions in {setting['batches']} batches ({speed.distinct} distinct "
            f"within their batch), {speed.tokens / speed.captions:.1f} tokens each of "
            f"{speed.context_length}; {setting['repeats']} repeats",
            "",
            table(rows, ["", "captions/s", "positions", "TFLOP", "times faster"]),
            "",
            f"headline: {speed.ratio:.2f} times open_clip (every caption encoded); "
            f"largest feature difference {speed.max_difference:.1e}",
        ]
    )


def _row(name: str, way: Pass, ratio: float) -> list[str]:
    return [
        name,
        f"{way.captions_per_second:.1f}",
        str(way.positions),
        f"{way.operations / 1e12:.3f}",
        f"{ratio:.2f}",
    ]
