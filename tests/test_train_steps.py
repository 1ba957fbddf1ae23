"""A step of any recipe: the gradients of the whole batch in micro-batches of any size, on a device
that is asked for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from build.models import batch_for, trainable
from compoclip.cli.main import main
from compoclip.data.batch import Batch
from compoclip.errors import UsageError
from compoclip.losses.contract import StatefulLoss
from compoclip.losses.dimensions import LeadingDimensions
from compoclip.methods.base import Method, Trains
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig
from compoclip.models.lora import Lora, attach_lora
from compoclip.training import loop
from compoclip.training.gradients import refuse_batch_norm
from compoclip.training.loop import freeze
from compoclip.training.settings import RunSettings
from compoclip.training.step import StepResult, on_dimensions, step
from method_data import arguments, differing
from models_thin import config, timm_config

CPU = torch.device("cpu")


def gradients(network: nn.Module) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in network.named_parameters()
        if p.requires_grad
    }


def after(
    model: Any, tokenize: Any, method: Method, batch: Batch, settings: RunSettings
) -> tuple[StepResult, dict[str, Tensor], dict[str, dict[str, float]]]:
    """What one step from the same start gives: losses, gradients, what losses remember then."""
    remembering = {t.name: t.loss for t in method.losses if isinstance(t.loss, StatefulLoss)}
    before = {name: loss.state_dict() for name, loss in remembering.items()}
    model.model.zero_grad(set_to_none=True)
    with torch.random.fork_rng():
        result = step(model, tokenize, method, batch, settings)
    after = {name: loss.state_dict() for name, loss in remembering.items()}
    for name, loss in remembering.items():
        loss.load_state_dict(before[name])
    return result, gradients(model.model), after


def assert_same(model: Any, tokenize: Any, method: Method, batch: Batch, *sizes: int) -> None:
    whole, expected, remembered = after(model, tokenize, method, batch, RunSettings(out=Path()))
    assert any(gradient.any() for gradient in expected.values())
    for size in sizes:
        settings = RunSettings(out=Path(), micro_batch=size)
        pieces, got, also = after(model, tokenize, method, batch, settings)
        # MACCO's sum is 20 x 11.1 + 250 x 1.34 + ... = 562, where float32 has steps of 6e-5.
        assert pieces.total.item() == pytest.approx(whole.total.item(), abs=1e-5, rel=1e-6)
        assert pieces.numbers() == pytest.approx(whole.numbers(), rel=1e-6, abs=1e-5)
        for name, state in remembered.items():
            assert also[name] == pytest.approx(state, abs=1e-4)
        for name, gradient in expected.items():
            largest = max(1.0, gradient.abs().max().item())  # sums of many: some lose more digits
            assert (got[name] - gradient).abs().max() <= 1e-5 * largest, name


# --- A step of every recipe. ---

READS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_scatter",
    "bincount",
    "is_nonzero",
    "equal",
    "lift_fresh",  # a tensor made of Python numbers, which a device gets by a copy of its own
}


class Counted(TorchDispatchMode):
    """Counts the operations that read contents, masks as indices, and copies between devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if name in READS:
            self.found[name] += 1
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [t for t in args[1] if t is not None and t.dtype in (torch.bool, torch.uint8)]
            self.found["a mask for an index"] += bool(masks)
        out = function(*args, **kwargs)
        before = {t.device.type for t in args if isinstance(t, Tensor)}
        if name in ("_to_copy", "copy_") and isinstance(out, Tensor):
            self.found["copy"] += before != {out.device.type}
        return out


def on_meta(
    encoder: Any, tokenize: Any, method: Method, batch: Batch, settings: RunSettings, *rest: Any
) -> Counter[str]:
    """What the same step asks of a device whose tensors have a shape and no content.

    Whatever has to read one (a number of rows that depends on values, a condition, `.item()`)
    fails there.
    """
    assert batch.numbers is not None
    there = deepcopy(encoder).to("meta")
    losses = [replace(term, loss=deepcopy(term.loss)) for term in method.losses]
    for term in losses:  # margins live where the features of the step before did
        if isinstance(term.loss, StatefulLoss) and hasattr(term.loss, "_margins"):
            term.loss._margins = term.loss._margins.to("meta")
    batch.normalised(torch.device("meta"))  # mean and deviation are copied once
    changed, settings = replace(method, losses=tuple(losses)), replace(settings, device="meta")
    autocast = patch.object(torch, "autocast", lambda *_, **__: nullcontext())
    with autocast, Counted() as counted:
        step(there, tokenize, changed, batch, settings, *rest)
    return +counted.found


@pytest.mark.parametrize("name", differing())
def test_steps_of_every_part_come_in_pieces_and_ask_their_device_for_nothing(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = count()
    asked: dict[int, Counter[str]] = {}

    def checked(
        encoder: Any, tokenize: Any, method: Method, batch: Batch, *rest: Any, **options: Any
    ) -> StepResult:
        this = next(number)
        if this != 1:  # the first step and one that remembers another; a second says no more
            asked[this] = on_meta(encoder, tokenize, method, batch, *rest)
        if this < 2:
            sizes = (1, len(batch.pixels)) if this == 0 else (3,)
            assert_same(encoder, tokenize, method, batch, *sizes)
            encoder.model.zero_grad(set_to_none=True)
        return step(encoder, tokenize, method, batch, *rest, **options)

    monkeypatch.setattr(loop, "step", checked)
    assert main(arguments(world, name, tmp_path / "run", "--set=stop_after=3")) == 0
    assert asked.keys() == {0, 2}
    # The pixels and one buffer, and what a second pass hides of images, and where that is. In the
    # first step losses say which indices they want: some more arrays of the host that are copied,
    # and still nothing that is read.
    assert asked[2]["copy"] == (4 if name == "macco" else 2)
    assert set(asked[2]) <= {"copy", *(("lift_fresh",) if name == "macco" else ())}
    assert set(asked[0]) <= {"copy", "lift_fresh"}


def test_what_waits_is_seen() -> None:
    x = torch.arange(4.0)
    with Counted() as counted:
        x[x > 1], x[x > 1], (x > 1).nonzero(), x.sum().item(), x.to("meta"), x[torch.arange(2)]
    assert counted.found["a mask for an index"] == 2
    assert counted.found["nonzero"] == 1
    assert counted.found["_local_scalar_dense"] == 1
    assert counted.found["copy"] == 1
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ones(3, device="meta").nonzero()
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ones(3, device="meta").sum().item()


# --- Gradient caching alone. ---


@pytest.mark.parametrize(
    "cfg",
    [
        pytest.param(config(text={"no_causal_mask": True}), id="both ways"),
        pytest.param(timm_config("test_vit"), id="timm"),
    ],
)
def test_local_losses_have_the_gradients_of_the_whole_batch(cfg: dict[str, Any]) -> None:
    model = trainable(cfg)
    method = load_recipe("fsc-clip")()
    assert_same(model.encoder, model.tokenizer, method, batch_for(model), 1, 2, 4)


@pytest.mark.parametrize("frozen", ["image", "text"])
def test_a_frozen_tower_is_encoded_once(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trainable()
    trains = Trains(image_tower=frozen != "image", text_tower=frozen != "text")
    freeze(model.encoder.model, trains)
    model.encoder.train()
    method = load_recipe("fsc-clip")()
    assert_same(model.encoder, model.tokenizer, method, batch_for(model), 2)
    calls = {"image": 0, "text": 0}

    def count(tower: Any, method: str, name: str) -> None:
        encode = getattr(tower, method)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return encode(*arguments)

        monkeypatch.setattr(tower, method, call)

    count(model.encoder.image_tower, "_encode", "image")
    count(model.encoder.text_tower, "_encode", "text")
    batch = batch_for(model)
    work = model.encoder.work(batch.normalised(CPU), model.tokenizer(list(batch.texts)), True, 2)
    pieces = {"image": 3, "text": len(work.micro_batches) - 3}
    assert pieces["text"] > 1
    step(model.encoder, model.tokenizer, method, batch, RunSettings(out=Path(), micro_batch=2))
    assert calls == {name: n if name == frozen else 2 * n for name, n in pieces.items()}


def test_adapters_have_the_gradients_of_the_whole_batch() -> None:
    model = trainable()
    attach_lora(model.encoder.model, Lora(init="xavier_ab"))
    freeze(model.encoder.model, Trains())
    assert_same(model.encoder, model.tokenizer, load_recipe("fsc-clip")(), batch_for(model), 2)


def test_half_precision_is_that_of_the_plain_step() -> None:
    model, method = trainable(), load_recipe("fsc-clip")()
    batch = batch_for(model)
    plain, half = RunSettings(out=Path()), RunSettings(out=Path(), precision="bf16")
    pieces = replace(half, micro_batch=2)
    exact, whole, cached = (
        after(model.encoder, model.tokenizer, method, batch, each)[1]
        for each in (plain, half, pieces)
    )
    errors = [], []
    for name, gradient in exact.items():  # of one parameter it is a matter of chance
        one, other = ((made[name] - gradient).norm() for made in (whole, cached))
        assert other <= 3 * (one + 1e-6), name
        errors[0].append(one)
        errors[1].append(other)
    of_whole, of_cached = (torch.stack(each).norm() for each in errors)
    assert of_cached <= 1.5 * of_whole


class _Noisy(nn.Module):
    """A layer with dropout behind it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.dropout = inner, nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.dropout(self.inner(x))
        return found


def test_dropout_repeats_what_it_drew() -> None:
    model = trainable(config(vision={"patch_dropout": 0.4}))
    network: Any = model.encoder.model
    for block in (network.visual.transformer.resblocks[0], network.transformer.resblocks[1]):
        block.mlp = _Noisy(block.mlp)
    batch, method = batch_for(model), load_recipe("negclip")()
    ids = model.tokenizer(list(batch.texts))
    layout = batch.layout(ids=ids)
    torch.manual_seed(7)
    features = model.encoder.work(
        batch.normalised(CPU), ids, micro_batch=2
    ).all()  # pieces, with a graph
    method.losses[0].loss(features, layout).backward()
    drawn, expected = torch.rand(3), gradients(network)
    network.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    settings = RunSettings(out=Path(), micro_batch=2, mask_duplicates=False)
    step(model.encoder, model.tokenizer, method, batch, settings)
    assert torch.equal(torch.rand(3), drawn)  # what comes after the step
    for name, gradient in gradients(network).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-5, msg=name)


def resnet() -> dict[str, Any]:
    vision = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 32, "patch_size": None}
    return config(vision=vision, text={"vocab_size": 49408})


def test_batch_norms_are_refused_unless_frozen() -> None:
    model = trainable(resnet())
    with pytest.raises(UsageError, match="in the image tower is a batch norm that learns"):
        refuse_batch_norm(model.encoder.model)
    freeze(model.encoder.model, Trains(image_tower=False))
    model.encoder.train()
    refuse_batch_norm(model.encoder.model)
    assert_same(model.encoder, model.tokenizer, load_recipe("clip-ft")(), batch_for(model), 2)
    frozen = create_model(ModelConfig(resnet(), freeze_batch_norm=True))
    frozen.encoder.train()
    refuse_batch_norm(frozen.encoder.model)


def test_losses_with_a_state_or_a_head_see_whole_features() -> None:
    whole = {
        f"{name}.{term.name}"
        for name in ("fsc-clip", "ce-clip", "macco", "dac", "degla")
        for term in on_dimensions(load_recipe(name)(), (4,)).losses
        if not isinstance(term.loss, LeadingDimensions)
    }
    assert whole == {"ce-clip.ranking", "macco.words", "macco.patches"}
    method = load_recipe("fsc-clip")()
    assert on_dimensions(method, ()) is method
