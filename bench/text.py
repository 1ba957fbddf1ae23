"""`python -m bench text`: captions per second of the text encoder."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bench.harness import Row, Sampled, in_turn
from bench.made import drawn_captions
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.models.text_plan import PackedTokens
from compoclip.ranks import device_named

QUICK = ("--batch-size=64", "--batches=1", "--repeats=1")


def text_rows(
    loaded: LoadedModel,
    batches: Sequence[Sequence[str]],
    repeats: int,
    precision: str = "float32",
    name: str = "",
) -> list[Row]:
    """Encode the batches by open_clip, by the DualEncoder, and by it with equal texts once.

    In turn, `repeats` times after a short warm-up; tokenising is not timed. Operations are those of
    matrix products (a multiply-add is two), with attention counted as full squares. precision:
    "float32" or "bfloat16" (autocast). name: of the rows. Raises CompoclipError when the text tower
    is not one that is trimmed.
    """
    encoder, text = loaded.encoder, loaded.config.model_cfg["text_cfg"]
    if not encoder.text_planner().causal:
        raise CompoclipError(
            f"{loaded.name}: its text tower looks both ways or pools elsewhere than at the end of "
            "text, so it runs open_clip's own code: there is nothing to compare"
        )
    device = encoder.device
    ids = [loaded.tokenizer(batch) for batch in batches]
    there = [batch.to(device) for batch in ids]
    encode: Any = encoder.model.encode_text
    ways: dict[str, Callable[[], list[Tensor]]] = {
        "theirs": lambda: [encode(batch) for batch in there],
        "": lambda: [encoder.encode_texts(batch, deduplicate=False).pooled for batch in ids],
        ", equal texts once": lambda: [encoder.encode_texts(batch).pooled for batch in ids],
    }
    amp = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with torch.inference_mode(), amp:
        encode(there[0][:16])
        encoder.encode_texts(ids[0][:16])
        times, last = in_turn(ways, repeats, device)
    features = {
        way: torch.nn.functional.normalize(torch.cat(each).float(), dim=-1)
        for way, each in last.items()
    }
    width = text.get("width", 512)
    sizes = (width, text.get("layers", 12), int(width * text.get("mlp_ratio", 4.0)))
    out = loaded.config.model_cfg["embed_dim"]

    def work(way: str) -> tuple[float, float]:
        """Positions through the tower, and TFLOP."""
        if way == "theirs":
            shapes = [(len(batch), batch.shape[1]) for batch in ids]
            positions = sum(map(torch.numel, ids))
        else:
            plans = [encoder.text_planner().inputs(batch, bool(way)) for batch in ids]
            groups = (group for plan in plans for group in plan.groups)
            packed = (group for group in groups if isinstance(group, PackedTokens))
            shapes = [(s.rows, s.length) for group in packed for s in group.segments]
            positions = sum(plan.positions for plan in plans)
        return positions, tower_operations(shapes, positions, *sizes, out) / 1e12

    wanted, against, rows = sum(map(len, batches)), "open_clip encode_text", []
    theirs, (full, most) = times.pop("theirs"), work("theirs")
    for way, each in times.items():
        ours, other = (wanted / statistics.median(s for s, _ in x) for x in (each, theirs))
        faster = statistics.median(a / b for (a, _), (b, _) in zip(theirs, each))
        positions, operations = work(way)
        difference = (features["theirs"] - features[way]).abs().max().item()
        rows += [
            Row(f"{name}{way}, captions/s", ours, other, against, faster),
            Row(f"{name}{way}, positions", positions, full, against, less=True),
            Row(f"{name}{way}, TFLOP", operations, most, against, less=True),
            Row(f"{name}{way}, largest difference of features", difference),
        ]
    return rows


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
class Options(Sampled):
    """Captions per second of the text encoder, against open_clip's own encode_text on the same
    weights, batches and device, interleaved in one run.

    Args:
        model: Whose text encoder: anything `compoclip evaluate` takes.
        batch_size: Captions a batch.
        batches: Batches a repeat, drawn at random without replacement.
        repeats: Timed repeats of each way after a warm-up; medians are shown.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        precision: Arithmetic (bfloat16: autocast).
    """

    model: str = "random:ViT-B-32"
    batch_size: int = 256
    batches: int = 2
    repeats: int = 3
    device: str = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"


def measure(options: Options, folder: Path) -> list[Row]:
    """Measure the text encoder against open_clip's."""
    device, size = device_named(options.device), options.batch_size
    wanted = size * options.batches
    drawn = drawn_captions(options.captions, wanted, options.seed, "--batch-size or --batches")
    loaded = load_model(options.model, device=device)
    batches = [drawn[i : i + size] for i in range(0, wanted, size)]
    name = f"{options.model} on {device}"
    return text_rows(loaded, batches, options.repeats, options.precision, name)
