"""How much faster texts are encoded than by open_clip's own `encode_text`, on the same weights."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.models.loaded import LoadedModel


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
    if not encoder.trims_text:
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
        [plan for batch in ids if (plan := encoder.plan_texts(batch, flag)) is not None]
        for flag in (False, True)
    ]
    shapes: list[list[tuple[int, int]]] = [
        [(len(batch), batch.shape[1]) for batch in ids],
        *([(b.stop - b.start, b.length) for plan in each for b in plan.buckets] for each in plans),
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
