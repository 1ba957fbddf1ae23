"""`python -m bench train`: images per second of a training step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.harness import Row, Sampled, in_turn
from bench.made import caption_batch, drawn_captions
from compoclip.data.batch import Batch
from compoclip.losses.contract import Features
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.tokenizer import Tokenizer
from compoclip.ranks import device_named
from compoclip.training.loop import freeze
from compoclip.training.optim import build_optimizer
from compoclip.training.settings import RunSettings
from compoclip.training.step import StepResult, step, weighted_loss

QUICK = ("--batch-size=8", "--repeats=1")
_OTHERS = {  # way -> what it is, how many times faster a step is to be
    "plain": ("full length, four text forwards", 2.5),
    "released": ("the released form", 3.2),
}


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
    layout = batch.layout(device, tokenize(list(batch.texts)))
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
    for every text of the batch its place in them, one pass after the other."""
    place = {(batch.rewrite[t], batch.owner[t]): t for t in range(len(batch.texts))}
    names = ("", *kinds)
    forwards = [
        [batch.texts[place.get((name, i), place["", i])] for i in range(batch.images)]
        for name in names
    ]
    row = [names.index(kind) * batch.images + i for kind, i in zip(batch.rewrite, batch.owner)]
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
    visual = network.visual
    ids = tokenize(list(batch.texts)).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
        image, states = visual._pool(visual.transformer(visual._embeds(batch.normalised(device))))
        image, patches = image @ visual.proj, (states @ visual.proj).float()
        text, tokens, _ = _full_length(network, ids)
    image, text = (F.normalize(each.float(), dim=-1) for each in (image, text))
    scale = encoder.logit_scale.exp()

    # Rows: an image's caption, then a negative of each kind.
    column = {name: k for k, name in enumerate(("", *method.kinds))}
    owner = torch.tensor(batch.owner, device=device)
    at = owner, torch.tensor([column[name] for name in batch.rewrite], device=device)
    valid = torch.zeros(batch.images, len(column), dtype=torch.bool, device=device)
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
    logits, target = scale * image @ captions.T, torch.arange(batch.images, device=device)
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


def step_rows(
    loaded: LoadedModel,
    method: Method,
    batch: Batch,
    repeats: int,
    settings: RunSettings,
    name: str = "FSC-CLIP step",
) -> list[Row]:
    """Train on the batch in all ways in turn, `repeats` times after a first step of each.

    Of the first step the operations are counted (a multiply-add is two; forward and backward), and
    the gradients compared, but for the released form: the largest difference of an entry, relative
    to the largest of that parameter's. Ratios are of processor time on a CPU, where other work on
    the machine then matters less. Raises CompoclipError when the model has no local features.
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

    def one(way: Callable[..., StepResult]) -> Callable[[], float]:
        return lambda: way(encoder, tokenize, method, batch, settings).total.item()

    def images() -> None:
        encoder.encode_images(batch.normalised(device), patches=True).pooled.sum().backward()  # type: ignore[no-untyped-call]

    steps = {"plain": one(plain_step), "released": one(released_step), "ours": one(step)}
    losses, operations = {}, {}
    gradients: dict[str, list[Tensor | None]] = {}
    for way, first in steps.items():
        optimizer.zero_grad(set_to_none=True)
        # Older counters pass over fused attention on the CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            losses[way] = first()
        operations[way] = counter.get_total_flops() / 1e12
        if way != "released":
            gradients[way] = [p.grad for p in parameters]
    differences = [
        float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
        for a, b in zip(gradients.pop("plain"), gradients.pop("ours"))
        if a is not None and b is not None
    ]
    ways: dict[str, Callable[[], object]] = {**steps, "shared": images}  # what all do alike

    def whole(way: str) -> None:
        ways[way]()
        (as_released if way == "released" else optimizer).step()

    for each in (optimizer, as_released):  # moments are made
        each.step()
    whole_steps = {way: partial(whole, way) for way in ways}
    times, _ = in_turn(whole_steps, repeats, device, partial(optimizer.zero_grad, set_to_none=True))
    clock = 1 if device.type == "cpu" else 0

    def ratio(of: str, to: str) -> float:
        pairs = zip(times[of], times[to])
        return statistics.median(a[clock] / b[clock] for a, b in pairs)

    wall, spent = (
        {way: statistics.median(t[k] for t in each) for way, each in times.items()} for k in (0, 1)
    )
    inputs = encoder.text_planner().inputs(tokenize(list(batch.texts)))
    everything = sum(map(len, separate_forwards(batch, method.kinds)[0]))
    texts, context = len(batch.texts), tokenize.context_length
    ours = inputs.positions if encoder.text_planner().causal else everything * context
    work: dict[str, Mapping[str, float]] = {
        "processor s": spent,
        "positions": {"plain": everything * context, "ours": ours, "released": texts * context},
        "TFLOP": operations,
    }
    limit = (
        f"{ratio('shared', 'ours'):.0%} of the step is image tower and optimiser, which cost "
        "the same in both ways: no saving on texts could reach more than "
        f"{ratio('plain', 'shared'):.2f} times"
    )
    count = batch.images
    return [
        *(
            Row(
                what=f"{name}, batch {count}, images/s",
                ours=count / wall["ours"],
                baseline=count / wall[way],
                against=against,
                times=ratio(way, "ours"),
                target=target,
                limit=limit,
            )
            for way, (against, target) in _OTHERS.items()
        ),
        *(
            Row(f"a step, {unit}", values["ours"], values[way], against, less=True)
            for way, (against, _) in _OTHERS.items()
            for unit, values in work.items()
        ),
        Row("tokens a text", int((inputs.last[inputs.place] + 1).sum()) / texts),
        Row("negatives that could not be made", everything - texts),
        Row("difference of losses", abs(losses["plain"] - losses["ours"])),
        Row("difference of gradients, of their largest entry", max(differences, default=0.0)),
    ]


@dataclass(frozen=True)
class Options(Sampled):
    """Images per second of a whole training step of FSC-CLIP (an image, its caption and three hard
    negatives), against the straightforward one on the same weights and batch, in turn in one run:
    77 tokens a text, a text forward for each of the four, captions encoded again in the place of
    negatives that could not be made, an additive attention mask; and against a step in the form of
    the released code: open_clip's own towers and AdamW as torch makes it unless told otherwise.

    Images cost the same in both and are random numbers. On a CPU the ratio is one of processor
    time, so that other work on the machine matters less.

    Args:
        model: Anything `compoclip evaluate` takes, with open_clip's own causal text tower.
        batch_size: Images a step.
        repeats: Timed steps of each way after a first one; medians are shown.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        precision: Arithmetic of the towers (bf16: autocast).
    """

    model: str = "random:ViT-B-32"
    batch_size: int = 32
    repeats: int = 3
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"


def measure(options: Options, folder: Path) -> list[Row]:
    """Measure a training step of FSC-CLIP."""
    device = device_named(options.device)
    drawn = drawn_captions(options.captions, options.batch_size, options.seed, "--batch-size")
    loaded, method = load_model(options.model, device=device), load_recipe("fsc-clip")()
    batch = caption_batch(loaded, method, drawn, options.seed)
    settings = RunSettings(
        out=Path(), device=str(device), precision=options.precision, mask_duplicates=False
    )
    name = f"FSC-CLIP step, {options.model} on {device}"
    return step_rows(loaded, method, batch, options.repeats, settings, name)
