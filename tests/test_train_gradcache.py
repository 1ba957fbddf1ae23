"""Gradient caching: any recipe, any micro-batch, the gradients of the whole batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compoclip.cli.main import main
from compoclip.data.batch import Batch
from compoclip.errors import UsageError
from compoclip.losses.contract import Role, StatefulLoss
from compoclip.methods.base import Method, Trains
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip.models.lora import Lora, attach_lora
from compoclip.training import loop
from compoclip.training.caches import refuse_batch_norm
from compoclip.training.loop import freeze
from compoclip.training.settings import RunSettings
from compoclip.training.step import StepResult, step
from method_data import arguments, differing
from models_thin import config, timm_config

CPU = torch.device("cpu")
TEXTS = ["a red cat", "a cat on a small red mat", "a dog", "a red cat", "two dogs beside a cat"]


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


@pytest.mark.parametrize("name", differing())
def test_recipes_of_every_part_have_the_gradients_of_the_whole_batch(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def checked(
        model: Any,
        tokenize: Any,
        method: Method,
        batch: Batch,
        settings: RunSettings,
        *_: Any,
        **__: Any,
    ) -> StepResult:
        seen.append(batch.kind)
        assert_same(model, tokenize, method, batch, 1, 3, len(batch.pixels))
        model.model.zero_grad(set_to_none=True)
        return step(model, tokenize, method, batch, settings)

    monkeypatch.setattr(loop, "step", checked)
    asked = arguments(world, name, tmp_path / "run", "--set=stop_after=2")
    assert main(asked) == 0
    assert len(seen) == 2


def loaded(cfg: dict[str, Any] | None = None) -> LoadedModel:
    cfg = cfg or config()
    cfg["text_cfg"]["vocab_size"] = 49408
    model = create_model(ModelConfig(cfg), seed=1)
    freeze(model.encoder.model, Trains())
    model.encoder.train()
    return model


def batch_for(model: LoadedModel, images: int = 5) -> Batch:
    """Every image with a caption, every other one with a positive, all but one with negatives."""
    height, width = model.preprocess.size
    texts: list[tuple[str, int, Role]] = []
    for i in range(images):
        texts.append((TEXTS[i % len(TEXTS)], i, Role.CAPTION))
        if i % 2:
            texts.append((f"there is {TEXTS[i]}", i, Role.POSITIVE))
        texts += [(TEXTS[(i + k) % len(TEXTS)], i, Role.NEGATIVE) for k in range(1, 1 + i % 3)]
    words, owner, role = zip(*texts)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, height, width), dtype=torch.uint8, generator=generator)
    kinds = tuple(_kind(each) for each in role)
    return Batch(pixels, words, owner, role, kinds, tuple(map(str, range(images))))


def _kind(role: Role) -> str:
    return {Role.CAPTION: "", Role.POSITIVE: "synonym", Role.NEGATIVE: "negclip"}[role]


@pytest.mark.parametrize(
    "cfg",
    [
        pytest.param(config(), id="vit"),
        pytest.param(config(text={"no_causal_mask": True}), id="both ways"),
        pytest.param(timm_config("test_vit"), id="timm"),
    ],
)
def test_local_losses_have_the_gradients_of_the_whole_batch(cfg: dict[str, Any]) -> None:
    model = loaded(cfg)
    method = load_recipe("fsc-clip")()
    assert_same(model.encoder, model.tokenizer, method, batch_for(model), 1, 2, 4)


@pytest.mark.parametrize("frozen", ["image", "text"])
def test_a_frozen_tower_is_encoded_once(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded()
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

    count(model.encoder._image, "_encode", "image")
    count(model.encoder._text, "_encode", "text")
    batch = batch_for(model)
    work = model.encoder.work(batch.normalised(CPU), model.tokenizer(list(batch.texts)), True, 2)
    pieces = {"image": 3, "text": len(work.micro_batches) - 3}
    assert pieces["text"] > 1
    step(model.encoder, model.tokenizer, method, batch, RunSettings(out=Path(), micro_batch=2))
    assert calls == {name: n if name == frozen else 2 * n for name, n in pieces.items()}


def test_adapters_have_the_gradients_of_the_whole_batch() -> None:
    model = loaded()
    attach_lora(model.encoder.model, Lora(init="xavier_ab"))
    freeze(model.encoder.model, Trains())
    assert_same(model.encoder, model.tokenizer, load_recipe("fsc-clip")(), batch_for(model), 2)


def test_half_precision_is_that_of_the_plain_step() -> None:
    model, method = loaded(), load_recipe("fsc-clip")()
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
    model = loaded(config(vision={"patch_dropout": 0.4}))
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
    model = loaded(resnet())
    with pytest.raises(UsageError, match="in the image tower is a batch norm that learns"):
        refuse_batch_norm(model.encoder.model)
    freeze(model.encoder.model, Trains(image_tower=False))
    model.encoder.train()
    refuse_batch_norm(model.encoder.model)
    assert_same(model.encoder, model.tokenizer, load_recipe("clip-ft")(), batch_for(model), 2)
    frozen = create_model(ModelConfig(resnet(), freeze_batch_norm=True))
    frozen.encoder.train()
    refuse_batch_norm(frozen.encoder.model)
