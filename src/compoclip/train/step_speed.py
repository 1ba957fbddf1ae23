"""How much faster a training step is than the straightforward one: same weights, same batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from compoclip.captions.parse import parse_many
from compoclip.data.plan import TextPlan
from compoclip.data.sample import Batch, Sample
from compoclip.data.textblock import TextBlock
from compoclip.methods.base import Method
from compoclip.models.loaded import LoadedModel
from compoclip.train.loop import freeze
from compoclip.train.optim import build_optimizer
from compoclip.train.plain_step import plain_step, separate_forwards
from compoclip.train.step import StepSettings, step


@dataclass(frozen=True)
class Way:
    """One way to take a step, gradients and optimiser included.

    seconds: median over repeats. processor_seconds: the same of processor time, of all threads.
    positions: token positions through the text tower. operations: floating point operations of
    matrix products and convolutions, forward and backward (one multiply-add is two).
    """

    seconds: float
    processor_seconds: float
    images_per_second: float
    positions: int
    operations: float


@dataclass(frozen=True)
class StepSpeed:
    """ratio: median over repeats of the plain step's time divided by ours: of processor time on a
    CPU, where other work on the machine then matters less, and of wall time elsewhere.

    images, texts: of the batch. lacking: rewrites that could not be made, for which the plain step
    encodes a stand-in. tokens: real ones, start and end included. shared: the share of our step
    that goes into what both ways do alike: the image tower and the optimiser. bound: the ratio if
    texts cost us nothing. loss_difference: of the first step. gradient_difference: the largest
    difference of an entry of its gradients, relative to the largest entry of that parameter's.
    """

    images: int
    texts: int
    lacking: int
    tokens: int
    plain: Way
    ours: Way
    ratio: float
    shared: float
    bound: float
    loss_difference: float
    gradient_difference: float


def caption_batch(loaded: LoadedModel, method: Method, captions: Sequence[str], seed: int) -> Batch:
    """Noise for images, one a caption, and the texts that the method makes of the captions."""
    parsed = {each.text: each for each in parse_many(list(dict.fromkeys(captions)))}
    plan = TextPlan(method.plan, seed=seed, parsed=parsed)
    drawn = [
        (owner, text)
        for owner, caption in enumerate(captions)
        for text in plan.draw(Sample(str(owner), Path(), (caption,)), epoch=0)[0]
    ]
    block = TextBlock(
        texts=tuple(text.text for _, text in drawn),
        owner=tuple(owner for owner, _ in drawn),
        role=tuple(text.role for _, text in drawn),
        rewrite=tuple(text.rewrite for _, text in drawn),
        images=len(captions),
    )
    generator = torch.Generator().manual_seed(seed)
    shape = (len(captions), 3, *loaded.preprocess.size)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    names = tuple(map(str, range(len(captions))))
    mean, std = loaded.preprocess.mean, loaded.preprocess.std
    return Batch(pixels, block, names, mean=mean, std=std)


def measure_step_speed(
    loaded: LoadedModel, method: Method, batch: Batch, repeats: int, settings: StepSettings
) -> StepSpeed:
    """Train on the batch in both ways in turn, `repeats` times after a first step of each, whose
    gradients are compared and whose operations are counted.

    Raises CompoclipError when the model has no local features.
    """
    encoder, tokenize = loaded.encoder, loaded.tokenizer
    encoder.require_local()
    freeze(encoder.model, method.trains)
    encoder.train()
    device = encoder.device
    optimizer = build_optimizer(encoder.model.named_parameters(), method.optim)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def plain() -> float:
        return plain_step(encoder, tokenize, method, batch, settings).loss

    def ours() -> float:
        return step(encoder, tokenize, method, batch, settings).loss

    losses, operations, gradients = [], [], []
    for way in (plain, ours):
        optimizer.zero_grad(set_to_none=True)
        # Older counters pass over fused attention on the CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            losses.append(way())
        operations.append(float(counter.get_total_flops()))
        gradients.append([torch.zeros(1) if p.grad is None else p.grad for p in parameters])
    difference = max(
        float((a - b).abs().max() / a.abs().max().clamp_min(1e-12)) for a, b in zip(*gradients)
    )
    del gradients

    def images() -> None:
        encoder.encode_images(batch.normalised(device), patches=True).pooled.sum().backward()  # type: ignore[no-untyped-call]

    times: dict[str, list[tuple[float, float]]] = {"plain": [], "ours": [], "shared": []}
    ways: dict[str, Callable[[], object]] = {"plain": plain, "ours": ours, "shared": images}
    for repeat in range(repeats):
        for name in list(ways) if repeat % 2 == 0 else list(ways)[::-1]:
            optimizer.zero_grad(set_to_none=True)
            times[name].append(_timed(ways[name], optimizer, device))
    clock = 1 if device.type == "cpu" else 0
    plan = encoder.plan_texts(tokenize(list(batch.block.texts)))
    forwards, _ = separate_forwards(batch, method.kinds)
    everything = sum(map(len, forwards))
    context = loaded.tokenizer.context_length
    seconds = {name: statistics.median(t[clock] for t in each) for name, each in times.items()}

    def ratio(of: str, to: str) -> float:
        return statistics.median(a[clock] / b[clock] for a, b in zip(times[of], times[to]))

    own = everything * context if plan is None else plan.positions
    positions = {"plain": everything * context, "ours": own}
    ways_seen = [
        Way(
            seconds=(wall := statistics.median(t[0] for t in times[name])),
            processor_seconds=statistics.median(t[1] for t in times[name]),
            images_per_second=batch.block.images / wall,
            positions=positions[name],
            operations=count,
        )
        for name, count in zip(("plain", "ours"), operations)
    ]
    return StepSpeed(
        images=batch.block.images,
        texts=len(batch.block.texts),
        lacking=everything - len(batch.block.texts),
        tokens=own if plan is None else int((plan.last[plan.place] + 1).sum()),
        plain=ways_seen[0],
        ours=ways_seen[1],
        ratio=ratio("plain", "ours"),
        shared=seconds["shared"] / seconds["ours"],
        bound=ratio("plain", "shared"),
        loss_difference=abs(losses[0] - losses[1]),
        gradient_difference=difference,
    )


def _timed(
    way: Callable[[], object], optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[float, float]:
    """Wall and processor seconds of a step: gradients, then the optimiser."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter(), time.process_time()
    way()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start[0], time.process_time() - start[1]
