"""`python -m bench text`: captions per second of the text encoder."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bench.captions import drawn_captions
from bench.rows import PROGRAM, Inputs, Row, surroundings
from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.errors import CompoclipError, UsageError
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.models.text_plan import PackedTokens
from compoclip.ranks import device_named


@dataclass(frozen=True)
class Pass:
    """One way to encode all batches. seconds: median over repeats. positions: token positions
    through the tower. operations: floating point operations of its matrix products (one
    multiply-add is two), attention counted as full squares."""

    seconds: float
    captions_per_second: float
    positions: int
    operations: float


@dataclass(frozen=True)
class TextSpeed:
    """ours: every text encoded, equal ones too. ours_distinct: equal texts of a batch once.

    ratio, ratio_distinct: median over repeats of open_clip's time divided by ours.
    tokens: real tokens, start and end included. max_difference: largest absolute difference of
    the normalised features.
    """

    captions: int
    distinct: int
    tokens: int
    context_length: int
    open_clip: Pass
    ours: Pass
    ours_distinct: Pass
    ratio: float
    ratio_distinct: float
    max_difference: float


def measure_text_speed(
    loaded: LoadedModel, batches: Sequence[Sequence[str]], repeats: int, precision: str = "float32"
) -> TextSpeed:
    """Encode the batches by open_clip and by the DualEncoder in turn, `repeats` times after a
    short warm-up; tokenising is not timed. precision: "float32" or
    "bfloat16" (autocast). Raises CompoclipError when the text tower is not one that is trimmed.
    """
    encoder = loaded.encoder
    if not encoder.text_planner().causal:
        raise CompoclipError(
            f"{loaded.name}: its text tower looks both ways or pools elsewhere than at the end of "
            "text, so it runs open_clip's own code: there is nothing to compare"
        )
    device = encoder.device
    ids = [loaded.tokenizer(batch) for batch in batches]
    own = [batch.to(device) for batch in ids]

    def reference() -> list[Tensor]:
        return [encoder.model.encode_text(batch) for batch in own]  # type: ignore[operator]

    def trimmed() -> list[Tensor]:
        return [encoder.encode_texts(batch, deduplicate=False).pooled for batch in ids]

    def distinct() -> list[Tensor]:
        return [encoder.encode_texts(batch).pooled for batch in ids]

    ways: list[Callable[[], list[Tensor]]] = [reference, trimmed, distinct]
    times: list[list[float]] = [[] for _ in ways]
    amp = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with torch.inference_mode(), amp:
        encoder.model.encode_text(own[0][:16])  # type: ignore[operator]
        encoder.encode_texts(ids[0][:16])
        outputs: list[Tensor] = [torch.empty(0)] * len(ways)
        for repeat in range(repeats):
            order = [0, 1, 2] if repeat % 2 == 0 else [2, 1, 0]
            for i in order:
                seconds, encoded = _timed(ways[i], device)
                times[i].append(seconds)
                outputs[i] = torch.nn.functional.normalize(torch.cat(encoded).float(), dim=-1)
    difference = max((outputs[0] - ours).abs().max().item() for ours in outputs[1:])
    plans = [
        [encoder.text_planner().inputs(batch, flag) for batch in ids] for flag in (False, True)
    ]
    shapes: list[list[tuple[int, int]]] = [
        [(len(batch), batch.shape[1]) for batch in ids],
        *(
            [
                (s.rows, s.length)
                for plan in each
                for group in plan.groups
                if isinstance(group, PackedTokens)
                for s in group.segments
            ]
            for each in plans
        ),
    ]
    count = sum(len(batch) for batch in ids)
    positions = [sum(map(torch.numel, ids)), *(sum(p.positions for p in each) for each in plans)]
    passes = [_summary(loaded, *of, count) for of in zip(times, shapes, positions)]
    return TextSpeed(
        captions=count,
        distinct=sum(len(torch.unique(batch, dim=0)) for batch in ids),
        tokens=sum(int((plan.last + 1).sum()) for plan in plans[0]),
        context_length=loaded.tokenizer.context_length,
        open_clip=passes[0],
        ours=passes[1],
        ours_distinct=passes[2],
        ratio=statistics.median(a / b for a, b in zip(times[0], times[1])),
        ratio_distinct=statistics.median(a / b for a, b in zip(times[0], times[2])),
        max_difference=difference,
    )


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


def _summary(
    loaded: LoadedModel,
    times: list[float],
    shapes: Sequence[tuple[int, int]],
    positions: int,
    count: int,
) -> Pass:
    text = loaded.config.model_cfg["text_cfg"]
    width, layers = text.get("width", 512), text.get("layers", 12)
    mlp = int(width * text.get("mlp_ratio", 4.0))
    seconds = statistics.median(times)
    return Pass(
        seconds=seconds,
        captions_per_second=count / seconds,
        positions=positions,
        operations=tower_operations(
            shapes, positions, width, layers, mlp, loaded.config.model_cfg["embed_dim"]
        ),
    )


def _timed(run: Callable[[], list[Tensor]], device: torch.device) -> tuple[float, list[Tensor]]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    encoded = run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, encoded


@dataclass(frozen=True)
class Options:
    """Captions per second of the text encoder, against open_clip's own encode_text on the same
    weights, batches and device, interleaved in one run.

    Args:
        captions: Captions to encode: a .txt, .json, .jsonl file or a folder of them (e.g.
            SugarCrepe's).
        model: Whose text encoder: anything `compoclip evaluate` takes.
        batch_size: Captions a batch.
        batches: Batches a repeat, drawn at random without replacement.
        repeats: Timed repeats of each way after a warm-up; medians are shown.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        precision: Arithmetic (bfloat16: autocast).
        seed: Seed of the draw.
        json: Print JSON.
    """

    captions: Path
    model: str = "random:ViT-B-32"
    batch_size: int = 256
    batches: int = 2
    repeats: int = 3
    device: str = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "text", arguments, PROGRAM)
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
