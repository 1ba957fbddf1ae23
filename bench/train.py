"""`python -m bench train`: images per second of a training step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.captions import drawn_captions
from bench.rows import PROGRAM, Inputs, Row, surroundings
from compoclip.captions.parser import parse_many
from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.data.batch import Batch, TextBlock
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.errors import UsageError
from compoclip.losses.contract import Features
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.preprocess import Tokenizer
from compoclip.ranks import device_named
from compoclip.training.loop import freeze
from compoclip.training.optim import build_optimizer
from compoclip.training.settings import RunSettings
from compoclip.training.step import (
    StepResult,
    step,
    weighted_loss,
)


def plain_step(
    encoder: DualEncoder,
    tokenize: Tokenizer,
    method: Method,
    batch: Batch,
    settings: RunSettings,
) -> StepResult:
    """Compute what `step` does the long way: the same loss and gradients.

    For a network with open_clip's own causal text tower and local features, and batches with one
    text of each kind at most.
    """
    device = torch.device(settings.device)
    forwards, row = separate_forwards(batch, method.kinds)
    layout = batch.block.layout(device, tokenize(list(batch.block.texts)))
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
        image = encoder.encode_images(batch.normalised(device), patches=True)
        texts = [_full_length(encoder.model, tokenize(each).to(device)) for each in forwards]
    pooled, states, mask = (torch.cat(parts)[row.to(device)] for parts in zip(*texts))
    features = Features(
        image=F.normalize(image.pooled.float(), dim=-1),
        text=F.normalize(pooled.float(), dim=-1),
        logit_scale=encoder.logit_scale.exp(),
        patches=None if image.patches is None else image.patches.float(),
        tokens=states.float(),
        token_mask=mask,
    )
    terms, loss = weighted_loss(method.terms_on(batch.kind), features, layout)
    loss.backward()  # type: ignore[no-untyped-call]
    return StepResult(terms, loss)


def separate_forwards(batch: Batch, kinds: Sequence[str]) -> tuple[list[list[str]], Tensor]:
    """The texts of each forward pass, captions first, then one of each kind for every image; and
    for every text of the block its place in them, one pass after the other."""
    block = batch.block
    place = {(block.rewrite[t], block.owner[t]): t for t in range(len(block.texts))}
    names = ("", *kinds)
    forwards = [
        [block.texts[place.get((name, i), place["", i])] for i in range(block.images)]
        for name in names
    ]
    row = [names.index(kind) * block.images + i for kind, i in zip(block.rewrite, block.owner)]
    return forwards, torch.tensor(row)


def _full_length(network: Any, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pooled (n, D) and projected states (n, context, D), and which states are real."""
    x = network.token_embedding(ids) + network.positional_embedding
    x = network.transformer(x, attn_mask=network.attn_mask)
    states = network.ln_final(x) @ network.text_projection
    end = ids.argmax(dim=-1)
    position = torch.arange(ids.shape[1], device=ids.device)
    mask = (position >= 1) & (position <= end[:, None])
    return states[torch.arange(len(ids), device=ids.device), end], states, mask


def released_step(
    encoder: DualEncoder,
    tokenize: Tokenizer,
    method: Method,
    batch: Batch,
    settings: RunSettings,
) -> StepResult:
    """A step of the form of FSC-CLIP's released code, written from the formulas.

    open_clip's own towers, every text at full length, no stand-ins for negatives that do not exist:
    their scores are 0 in (B, 1+K) rows. The loss is that of `fsc-clip --missing-hn zero`, for
    batches with one text of each kind at most.
    """
    device = torch.device(settings.device)
    network: Any = encoder.model
    block, visual = batch.block, network.visual
    ids = tokenize(list(block.texts)).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
        image, states = visual._pool(visual.transformer(visual._embeds(batch.normalised(device))))
        image, patches = image @ visual.proj, (states @ visual.proj).float()
        text, tokens, _ = _full_length(network, ids)
    image, text = (F.normalize(each.float(), dim=-1) for each in (image, text))
    scale = encoder.logit_scale.exp()

    # Rows: an image's caption, then a negative of each kind.
    column = {name: k for k, name in enumerate(("", *method.kinds))}
    owner = torch.tensor(block.owner, device=device)
    at = owner, torch.tensor([column[name] for name in block.rewrite], device=device)
    valid = torch.zeros(block.images, len(column), dtype=torch.bool, device=device)
    valid[at] = True

    def rows(scores: Tensor) -> Tensor:
        return scores.new_zeros(valid.shape).index_put(at, scores)

    # Every token gathers the patches of its image that it is like.
    tokens, near = tokens.float(), patches[owner]
    with torch.no_grad():
        like = tokens @ near.transpose(1, 2)
        low, high = like.amin(-1, keepdim=True), like.amax(-1, keepdim=True)
        like = (like - low) / (high - low)
        like = like / like.sum(-1, keepdim=True)
    cosine = (F.normalize(like @ near, dim=-1) * F.normalize(tokens, dim=-1)).sum(-1)
    real = ids > 0
    real[:, 0] = False
    local = (scale * cosine).masked_fill(~real, -torch.inf).logsumexp(-1)

    captions = text[at[1] == 0]  # of every image, in order
    logits, target = scale * image @ captions.T, torch.arange(block.images, device=device)
    both = F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)
    terms = {
        "clip": both / 2,
        "global_hn": _calibrated(rows(scale * (image[owner] * text).sum(-1)), valid, method),
        "local_hn": _calibrated(rows(local), valid, method),
    }
    loss = torch.stack([term.weight * terms[term.name] for term in method.losses]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return StepResult({name: term.detach() for name, term in terms.items()}, loss.detach())


def _calibrated(logits: Tensor, valid: Tensor, method: Method) -> Tensor:
    """Focal loss with smoothed labels over rows of a caption and its negatives."""
    gamma, beta = (float(method.settings[name]) for name in ("gamma", "beta"))
    having = valid[:, 1:].any(1)
    logs = logits.log_softmax(1)
    target = beta * valid / valid.sum(1, keepdim=True)
    target[:, 0] += 1 - beta
    each = -(target * (1 - logs.exp()) ** gamma * logs).sum(1)
    return each[having].mean()


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
    released_ratio: the same of a step in the form of FSC-CLIP's released code.

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
    released: Way
    ours: Way
    ratio: float
    released_ratio: float
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
    loaded: LoadedModel, method: Method, batch: Batch, repeats: int, settings: RunSettings
) -> StepSpeed:
    """Train on the batch in all ways in turn, `repeats` times after a first step of each, whose
    gradients are compared, but for the released form, and whose operations are counted.

    Raises CompoclipError when the model has no local features.
    """
    encoder, tokenize = loaded.encoder, loaded.tokenizer
    encoder.require_local()
    freeze(encoder.model, method.trains)
    encoder.train()
    device = encoder.device
    optimizer = build_optimizer(encoder.model.named_parameters(), method.optim)
    groups = [dict(group) for group in optimizer.param_groups]
    parameters = [p for group in groups for p in group["params"]]
    as_released = torch.optim.AdamW([{**group, "fused": None} for group in groups])
    as_released.state = optimizer.state  # moments are held once

    def plain() -> float:
        return plain_step(encoder, tokenize, method, batch, settings).loss

    def ours() -> float:
        return step(encoder, tokenize, method, batch, settings).loss

    def released() -> float:
        return released_step(encoder, tokenize, method, batch, settings).loss

    losses, operations, differences = [], [], [0.0]
    before: list[Tensor | None] = []
    for way in (plain, ours, released):
        optimizer.zero_grad(set_to_none=True)
        # Older counters pass over fused attention on the CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            losses.append(way())
        operations.append(float(counter.get_total_flops()))
        gradients = [p.grad for p in parameters]
        if way is ours:
            differences += [
                float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
                for a, b in zip(before, gradients)
                if a is not None and b is not None
            ]
        before = gradients if way is plain else []
    del before, gradients

    def images() -> None:
        encoder.encode_images(batch.normalised(device), patches=True).pooled.sum().backward()  # type: ignore[no-untyped-call]

    ways: dict[str, tuple[Callable[[], object], torch.optim.Optimizer]] = {
        "plain": (plain, optimizer),
        "released": (released, as_released),
        "ours": (ours, optimizer),
        "shared": (images, optimizer),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _, steps in ways.values():  # moments are made
        steps.step()
    for repeat in range(repeats):
        for name in list(ways) if repeat % 2 == 0 else list(ways)[::-1]:
            optimizer.zero_grad(set_to_none=True)
            times[name].append(_timed(*ways[name], device))
    clock = 1 if device.type == "cpu" else 0
    inputs = encoder.text_planner().inputs(tokenize(list(batch.block.texts)))
    forwards, _ = separate_forwards(batch, method.kinds)
    everything = sum(map(len, forwards))
    context = loaded.tokenizer.context_length
    seconds = {name: statistics.median(t[clock] for t in each) for name, each in times.items()}

    def ratio(of: str, to: str) -> float:
        return statistics.median(a[clock] / b[clock] for a, b in zip(times[of], times[to]))

    own = inputs.positions if encoder.text_planner().causal else everything * context
    texts = len(batch.block.texts)
    positions = {"plain": everything * context, "ours": own, "released": texts * context}
    ways_seen = {
        name: Way(
            seconds=(wall := statistics.median(t[0] for t in times[name])),
            processor_seconds=statistics.median(t[1] for t in times[name]),
            images_per_second=batch.block.images / wall,
            positions=positions[name],
            operations=count,
        )
        for name, count in zip(("plain", "ours", "released"), operations)
    }
    return StepSpeed(
        images=batch.block.images,
        texts=texts,
        lacking=everything - texts,
        tokens=int((inputs.last[inputs.place] + 1).sum()),
        plain=ways_seen["plain"],
        released=ways_seen["released"],
        ours=ways_seen["ours"],
        ratio=ratio("plain", "ours"),
        released_ratio=ratio("released", "ours"),
        shared=seconds["shared"] / seconds["ours"],
        bound=ratio("plain", "shared"),
        loss_difference=abs(losses[0] - losses[1]),
        gradient_difference=max(differences),
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


_TARGET = 2.5
_RELEASED_TARGET = 3.2
_QUICK = 8  # images a batch


@dataclass(frozen=True)
class Options:
    """Images per second of a whole training step of FSC-CLIP (an image, its caption and three hard
    negatives), against the straightforward one on the same weights and batch, in turn in one run:
    77 tokens a text, a text forward for each of the four, captions encoded again in the place of
    negatives that could not be made, an additive attention mask; and against a step in the form of
    the released code: open_clip's own towers and AdamW as torch makes it unless told otherwise.

    Images cost the same in both and are random numbers. On a CPU the ratio is one of processor
    time, so that other work on the machine matters less.

    Args:
        captions: Captions: a .txt, .json, .jsonl file or a folder of them; else those of the world.
        model: Anything `compoclip evaluate` takes, with open_clip's own causal text tower.
        batch_size: Images a step.
        repeats: Timed steps of each way after a first one; medians are shown.
        quick: A batch of 8 images, one repeat.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        precision: Arithmetic of the towers (bf16: autocast).
        seed: Seed of the draw.
        json: Print JSON.
    """

    captions: Path | None = None
    model: str = "random:ViT-B-32"
    batch_size: int = 32
    repeats: int = 3
    quick: bool = False
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "train", arguments, PROGRAM)
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
        ),
        Row(
            bench="train",
            what="the same",
            ours=speed.ours.images_per_second,
            baseline=speed.released.images_per_second,
            against="the released form",
            ratio=speed.released_ratio,
            target=_RELEASED_TARGET,
            limit=_limit(speed),
        ),
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
        RunSettings(
            out=Path(),
            device=str(device),
            precision=options.precision,
            mask_duplicates=False,
        ),
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
    ways = {
        "straightforward": (speed.plain, 1.0),
        "in the released form": (speed.released, speed.ratio / speed.released_ratio),
        "compoclip": (speed.ours, speed.ratio),
    }
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
            f"headline: {speed.ratio:.2f} times the straightforward step (target {_TARGET}), "
            f"{speed.released_ratio:.2f} times that in the released form (target "
            f"{_RELEASED_TARGET}); losses differ by {speed.loss_difference:.1e}, gradients by "
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
