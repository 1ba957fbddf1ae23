"""`python -m bench text`: captions per second of the text encoder."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bench.harness import Row, timed
from bench.made import drawn_captions
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.models.text_plan import PackedTokens
from compoclip.ranks import device_named

QUICK = ("--batch-size=64", "--batches=1", "--repeats=1")


@dataclass(frozen=True)
class Pass:
    """One way to encode all batches.

    Attributes:
        seconds: Of each repeat.
        positions: Token positions through the tower.
        operations: Floating point operations of its matrix products (a multiply-add is two), with
            attention counted as full squares.
        difference: Largest absolute difference of a normalised feature from open_clip's.
    """

    seconds: list[float]
    positions: int
    operations: float
    difference: float


def text_passes(
    loaded: LoadedModel, batches: Sequence[Sequence[str]], repeats: int, precision: str = "float32"
) -> tuple[Pass, Pass, Pass]:
    """Encode the batches by open_clip, by the DualEncoder, and by it with equal texts once.

    In turn, `repeats` times after a short warm-up; tokenising is not timed. precision: "float32"
    or "bfloat16" (autocast). Raises CompoclipError when the text tower is not one that is trimmed.
    """
    encoder, text = loaded.encoder, loaded.config.model_cfg["text_cfg"]
    if not encoder.text_planner().causal:
        raise CompoclipError(
            f"{loaded.name}: its text tower looks both ways or pools elsewhere than at the end of "
            "text, so it runs open_clip's own code: there is nothing to compare"
        )
    device = encoder.device
    ids = [loaded.tokenizer(batch) for batch in batches]
    own = [batch.to(device) for batch in ids]
    ways: list[Callable[[], list[Tensor]]] = [
        lambda: [encoder.model.encode_text(batch) for batch in own],  # type: ignore[operator]
        lambda: [encoder.encode_texts(batch, deduplicate=False).pooled for batch in ids],
        lambda: [encoder.encode_texts(batch).pooled for batch in ids],
    ]
    times: list[list[float]] = [[] for _ in ways]
    outputs = [torch.empty(0)] * len(ways)
    amp = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with torch.inference_mode(), amp:
        encoder.model.encode_text(own[0][:16])  # type: ignore[operator]
        encoder.encode_texts(ids[0][:16])
        for repeat in range(repeats):
            for i in [0, 1, 2] if repeat % 2 == 0 else [2, 1, 0]:
                seconds, _, encoded = timed(ways[i], device)
                times[i].append(seconds)
                outputs[i] = torch.nn.functional.normalize(torch.cat(encoded).float(), dim=-1)
    shapes, positions = (
        [[(len(batch), batch.shape[1]) for batch in ids]],
        [sum(map(torch.numel, ids))],
    )
    for flag in (False, True):
        plans = [encoder.text_planner().inputs(batch, flag) for batch in ids]
        groups = (group for plan in plans for group in plan.groups)
        packed = (group for group in groups if isinstance(group, PackedTokens))
        shapes.append([(s.rows, s.length) for group in packed for s in group.segments])
        positions.append(sum(plan.positions for plan in plans))
    width = text.get("width", 512)
    sizes = (width, text.get("layers", 12), int(width * text.get("mlp_ratio", 4.0)))
    out = loaded.config.model_cfg["embed_dim"]
    one, two, three = (
        Pass(
            seconds,
            count,
            tower_operations(shape, count, *sizes, out),
            (outputs[0] - output).abs().max().item(),
        )
        for seconds, shape, count, output in zip(times, shapes, positions, outputs)
    )
    return one, two, three


def tower_operations(
    shapes: Sequence[tuple[int, int]],
    positions: int,
    width: int,
    layers: int,
    mlp_width: int,
    out: int,
) -> float:
    """Operations of a text transformer: per position and layer 2 * (4 W^2 + 2 W M) for the
    projections; attention on groups of (texts, L), 4 L^2 W per text and layer; per text 2 W D at
    the end."""
    projections = positions * layers * 2 * (4 * width**2 + 2 * width * mlp_width)
    texts = sum(n * (layers * 4 * length**2 * width + 2 * width * out) for n, length in shapes)
    return float(projections + texts)


@dataclass(frozen=True)
class Options:
    """Captions per second of the text encoder, against open_clip's own encode_text on the same
    weights, batches and device, interleaved in one run.

    Args:
        captions: Captions: a .txt, .json, .jsonl file or a folder of them; else those of the world.
        model: Whose text encoder: anything `compoclip evaluate` takes.
        batch_size: Captions a batch.
        batches: Batches a repeat, drawn at random without replacement.
        repeats: Timed repeats of each way after a warm-up; medians are shown.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        precision: Arithmetic (bfloat16: autocast).
        seed: Seed of the draw.
    """

    captions: Path | None = None
    model: str = "random:ViT-B-32"
    batch_size: int = 256
    batches: int = 2
    repeats: int = 3
    device: str = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0


def measure(options: Options, folder: Path) -> list[Row]:
    """Measure the text encoder against open_clip's."""
    device, size = device_named(options.device), options.batch_size
    wanted = size * options.batches
    drawn = drawn_captions(options.captions, wanted, options.seed, "--batch-size or --batches")
    loaded = load_model(options.model, device=device)
    batches = [drawn[i : i + size] for i in range(0, wanted, size)]
    theirs, *ours = text_passes(loaded, batches, options.repeats, options.precision)
    rows = []
    for name, way in zip(("", ", equal texts once"), ours):
        of, against = f"{options.model} on {device}{name}", "open_clip encode_text"
        own, other = (wanted / statistics.median(each.seconds) for each in (way, theirs))
        times = statistics.median(a / b for a, b in zip(theirs.seconds, way.seconds))
        rows += [
            Row(f"{of}, captions/s", own, other, against, times),
            Row(f"{of}, positions", way.positions, theirs.positions, against, less=True),
            Row(
                f"{of}, TFLOP", way.operations / 1e12, theirs.operations / 1e12, against, less=True
            ),
            Row(f"{of}, largest difference of features", way.difference),
        ]
    return rows
