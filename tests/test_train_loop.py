"""The schedule, the optimiser's groups, freezing, and what the loop does with bad losses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from compoclip.data.open_source import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Features, Layout
from compoclip.methods.base import LossTerm, Method, Optim, Trains
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model, load_model, read_config
from compoclip.train.log import read_log
from compoclip.train.optim import build_optimizer, decays, learning_rate
from compoclip.train.run import RunSettings, run_training
from train_helpers import write_config, write_data

OPTIM = Optim(epochs=2, batch_size=8, lr=1e-3, warmup=2)


def new_model(folder: Path) -> LoadedModel:
    return create_model(read_config(write_config(folder / "config.json")), seed=1)


def test_learning_rate_warms_up_then_falls_as_a_cosine() -> None:
    optim = Optim(lr=2.0, warmup=4)
    assert [learning_rate(k, 12, optim) for k in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert learning_rate(4, 12, optim) == 2.0
    assert learning_rate(8, 12, optim) == pytest.approx(1.0)
    assert learning_rate(11, 12, optim) == pytest.approx(1 + math.cos(math.pi * 7 / 8))


def test_weight_decay_spares_gains_biases_and_the_temperature(tmp_path: Path) -> None:
    model = new_model(tmp_path).encoder.model
    optimizer = build_optimizer(model.named_parameters(), OPTIM)
    decayed = {id(p) for p in optimizer.param_groups[0]["params"]}
    assert optimizer.param_groups[0]["weight_decay"] == OPTIM.weight_decay
    assert optimizer.param_groups[1]["weight_decay"] == 0.0
    for name, parameter in model.named_parameters():
        plain = parameter.ndim >= 2 and not any(s in name for s in ("ln", "bias", "bn"))
        assert (id(parameter) in decayed) == plain, name
    assert not decays("logit_scale", model.logit_scale)
    total = sum(len(group["params"]) for group in optimizer.param_groups)
    assert total == len(list(model.parameters()))


@pytest.mark.parametrize("method", ["clip-ft", "negclip", "fsc-clip"])
def test_a_run_learns_and_leaves_a_loadable_checkpoint(tmp_path: Path, method: str) -> None:
    source = open_source(str(write_data(tmp_path / "data")))
    model = new_model(tmp_path)
    before = {k: v.clone() for k, v in model.encoder.model.state_dict().items()}
    recipe = load_recipe(method)(optim=replace(OPTIM, epochs=8, lr=3e-3))
    summary = run_training(model, recipe, source, RunSettings(out=tmp_path / "run", log_every=1))
    assert summary.steps == summary.total_steps == 40
    records = read_log(tmp_path / "run" / "train.jsonl")
    assert [r["step"] for r in records] == list(range(1, 41))
    first = sum(r["loss"] for r in records[:5])
    assert sum(r["loss"] for r in records[-5:]) < first
    loaded = load_model(tmp_path / "run" / "model")
    assert loaded.identity.base == model.identity.weights
    assert loaded.provenance["method"] == recipe.name
    changed = [
        k for k, v in loaded.encoder.model.state_dict().items() if not torch.equal(v, before[k])
    ]
    assert any(k.startswith("visual.") for k in changed)
    assert any(k.startswith("transformer.") for k in changed)


def test_frozen_towers_do_not_move(tmp_path: Path) -> None:
    source = open_source(str(write_data(tmp_path / "data")))
    model = new_model(tmp_path)
    before = {k: v.clone() for k, v in model.encoder.model.state_dict().items()}
    recipe = load_recipe("clip-ft")(optim=OPTIM)
    recipe = replace(recipe, trains=Trains(image_tower=False, logit_scale=False))
    run_training(model, recipe, source, RunSettings(out=tmp_path / "run"))
    for name, value in model.encoder.model.state_dict().items():
        frozen = name.startswith("visual.") or name == "logit_scale"
        moved = not torch.equal(value, before[name])
        assert moved != frozen or name == "attn_mask", name


def test_temperature_is_clamped_on_the_parameter(tmp_path: Path) -> None:
    source = open_source(str(write_data(tmp_path / "data")))
    model = new_model(tmp_path)
    recipe = load_recipe("clip-ft")(optim=replace(OPTIM, max_logit_scale=5.0))
    run_training(model, recipe, source, RunSettings(out=tmp_path / "run"))
    assert model.encoder.logit_scale.item() <= math.log(5.0) + 1e-6


class _NotFinite(nn.Module):
    """A loss that is not a number on the steps it is told."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, features: Features, layout: Layout) -> Tensor:
        self.calls += 1
        loss = (features.image.sum() + features.text.sum()) ** 2 * 1e-3
        return loss * math.nan if self.calls in self.bad else loss


def _method(bad: set[int]) -> Method:
    recipe = load_recipe("clip-ft")(optim=OPTIM)
    return replace(recipe, losses=(LossTerm("odd", _NotFinite(bad)),))


def test_a_step_without_finite_loss_is_skipped_and_reported(tmp_path: Path) -> None:
    source = open_source(str(write_data(tmp_path / "data")))
    model = new_model(tmp_path)
    settings = RunSettings(out=tmp_path / "run", log_every=1)
    run_training(model, _method({2, 3}), source, settings)
    records = read_log(tmp_path / "run" / "train.jsonl")
    assert [r["step"] for r in records if "skipped" in r and "loss" not in r] == [2, 3]
    assert all(torch.isfinite(p).all() for p in model.encoder.parameters())


def test_three_steps_without_finite_loss_stop_the_run(tmp_path: Path) -> None:
    source = open_source(str(write_data(tmp_path / "data")))
    with pytest.raises(CompoclipError, match="not finite 3 steps in a row up to step 5"):
        run_training(
            new_model(tmp_path), _method({3, 4, 5}), source, RunSettings(out=tmp_path / "run")
        )
    assert not (tmp_path / "run" / "model").exists()


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    source = open_source(str(write_data(tmp_path / "data")))
    recipe = load_recipe("clip-ft")(optim=OPTIM)
    run_training(new_model(tmp_path), recipe, source, RunSettings(out=tmp_path / "run"))
    with pytest.raises(UsageError, match="finished run"):
        run_training(new_model(tmp_path), recipe, source, RunSettings(out=tmp_path / "run"))


def test_less_data_than_a_batch_is_an_error(tmp_path: Path) -> None:
    source = open_source(str(write_data(tmp_path / "data", count=4)))
    recipe = load_recipe("clip-ft")(optim=OPTIM)
    with pytest.raises(CompoclipError, match="fewer samples than one batch"):
        run_training(new_model(tmp_path), recipe, source, RunSettings(out=tmp_path / "run"))
