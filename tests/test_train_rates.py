"""Learning rates by tower and by layer, averaged weights, and the loss scale of fp16."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from build.models import trainable
from build.runs import newest_state, state_tensors
from compoclip.cli.main import main
from compoclip.methods.base import Optim
from compoclip.models.checkpoint import load_model
from compoclip.training import loop, run
from compoclip.training.log import read_log
from compoclip.training.optim import AveragedWeights, build_optimizer, set_learning_rate
from compoclip.training.parts import places, rate_factors
from compoclip.training.settings import RunSettings
from method_data import arguments
from train_helpers import assert_equal, weights

RATES = RunSettings(out=Path())


def last(run: Path) -> dict[str, Tensor]:
    """The weights of the last step."""
    tensors = state_tensors(run).items()
    return {k.removeprefix("model/"): v for k, v in tensors if k.startswith("model/")}


def progress(run: Path) -> dict[str, Any]:
    """What the newest state of a run says of its place."""
    return json.loads((newest_state(run) / "progress.json").read_text())


def groups(network: nn.Module, settings: RunSettings, lr: float) -> dict[str, dict[str, Any]]:
    """The group of every parameter by name, its learning rate that of a step at `lr`."""
    optim = Optim(lr=lr)
    factors = rate_factors(network, lr, settings)
    optimizer = build_optimizer(network.named_parameters(), optim, factors)
    set_learning_rate(optimizer, lr)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    found = {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}
    assert found.keys() == dict(network.named_parameters()).keys()
    return found


def test_each_tower_has_its_learning_rate_and_the_rest_that_of_the_method() -> None:
    network = trainable().encoder.model
    settings = replace(RATES, lr_image=1e-3, lr_text=0.0)
    found = groups(network, settings, 4e-3)
    rates = {"image": 1e-3, "text": 0.0, "temperature": 4e-3}
    for name, group in found.items():
        assert group["lr"] == pytest.approx(rates[places(network)[name].part]), name
    plain = groups(network, RATES, 4e-3)
    assert {id(group) for group in plain.values()} == {
        id(plain["logit_scale"]),
        id(plain["visual.proj"]),
    }
    for name, group in plain.items():
        assert group["weight_decay"] == found[name]["weight_decay"], name
        assert group["lr"] == 4e-3


def test_a_first_step_moves_weights_by_their_learning_rate(world: Path, tmp_path: Path) -> None:
    """The first step of AdamW is lr times the sign of the gradient, where weights do not decay."""
    more = ("--lr=1e-3", "--warmup=0", "--weight-decay=0", "--set=eps=1e-12", "--epochs=0.2")
    rates = ("--set=lr_image=1e-4", "--set=layer_decay=0.5")
    assert main(arguments(world, "negclip", tmp_path / "run", *more, *rates)) == 0
    before, after = weights(world / "base"), weights(tmp_path / "run" / "model")
    for name, lr in {
        "visual.conv1.weight": 1e-4 * 0.5**3,
        "visual.transformer.resblocks.0.ln_1.weight": 1e-4 * 0.5**2,
        "visual.transformer.resblocks.1.mlp.c_fc.weight": 1e-4 * 0.5,
        "visual.proj": 1e-4,
        "token_embedding.weight": 1e-3 * 0.5**3,
        "transformer.resblocks.0.ln_1.weight": 1e-3 * 0.5**2,
        "transformer.resblocks.1.ln_2.weight": 1e-3 * 0.5,
        "ln_final.weight": 1e-3,
        "text_projection": 1e-3,
        "logit_scale": 1e-3,
    }.items():
        moved = (after[name] - before[name]).abs()
        assert moved.max().item() == pytest.approx(lr, rel=0.02), name
    provenance = load_model(tmp_path / "run" / "model").provenance
    assert (provenance["lr_image"], provenance["layer_decay"]) == (1e-4, 0.5)
    assert "lr_text" not in provenance


def test_what_is_handed_out_is_the_average_of_the_weights(
    world: Path, tmp_path: Path, states_stay: None
) -> None:
    seen: list[dict[str, Tensor]] = []
    update = AveragedWeights.update

    def noted(self: AveragedWeights) -> None:
        seen.append({name: value.detach().clone() for name, value in self._now.items()})
        update(self)

    more = ("--epochs=1", "--set=ema=0.75", "--freeze", "text:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AveragedWeights, "update", noted)
        assert main(arguments(world, "negclip", tmp_path / "run", *more)) == 0
    assert len(seen) == 5
    before, after = weights(world / "base"), weights(tmp_path / "run" / "model")
    for name, start in before.items():
        expected = start.double()
        for each in seen:
            expected = 0.75 * expected + 0.25 * each[name].double() if name in each else start
        torch.testing.assert_close(after[name], expected.float(), atol=1e-6, rtol=1e-6)
        if name not in seen[0]:
            assert torch.equal(after[name], start), name
    assert_equal({n: v for n, v in last(tmp_path / "run").items() if n in seen[-1]}, seen[-1])
    # The run itself is what it would have been.
    plain = ("--epochs=1", "--freeze", "text:1")
    assert main(arguments(world, "negclip", tmp_path / "plain", *plain)) == 0
    assert_equal(last(tmp_path / "run"), last(tmp_path / "plain"))


def test_averages_leave_equal_weights_and_masks_alone() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    network.register_buffer("mask", torch.full((2,), -math.inf))
    network[2].requires_grad_(False)
    averages = AveragedWeights(network, 0.9)
    before = {name: value.clone() for name, value in averages.tensors.items()}
    assert not any(name.startswith("2.") or name == "mask" for name in before)
    averages.update()
    for name, value in averages.tensors.items():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        network[0].weight += 1
    network(torch.rand(4, 3))
    averages.update()
    torch.testing.assert_close(averages.tensors["0.weight"], before["0.weight"] + 0.1)
    assert not torch.equal(averages.tensors["1.running_mean"], before["1.running_mean"])


def test_a_state_without_its_averages_is_damaged(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = arguments(world, "clip-ft", tmp_path / "cut", "--set=ema=0.9", "--set=stop_after=2")
    assert main(cut) == 0
    tensors = state_tensors(tmp_path / "cut").items()
    file = newest_state(tmp_path / "cut") / "tensors.safetensors"
    save_file({k: v for k, v in tensors if "average/" not in k}, file)
    assert main([*cut[:-1], "--resume"]) == 1
    assert "is damaged (average/" in capsys.readouterr().err


# --- fp16: on a CPU, which is refused otherwise, where torch computes it as well. ---


@pytest.fixture
def fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "require_precision", lambda _: None)
    monkeypatch.setattr(loop, "_HALVINGS", 6)  # these gradients are large


def test_fp16_learns_with_a_scaled_loss_and_is_resumed_bit_for_bit(
    world: Path, tmp_path: Path, fp16: None, states_stay: None
) -> None:
    words = ("--epochs=1", "--precision=fp16")
    assert main(arguments(world, "fsc-clip", tmp_path / "whole", *words)) == 0
    assert main(arguments(world, "fsc-clip", tmp_path / "fp32", "--epochs=1")) == 0
    log, plain = (read_log(tmp_path / name / "train.jsonl") for name in ("whole", "fp32"))
    shown = [record for record in log if "loss" in record]
    assert len(shown) == len(log) == 5
    for record, expected in zip(shown[:2], plain):  # norms are of gradients that are scaled back
        assert record["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)
    scaler = progress(tmp_path / "whole")["scaler"]
    assert scaler["scale"] == 2.0**6
    assert scaler["_growth_tracker"] == 5
    cut = arguments(world, "fsc-clip", tmp_path / "cut", *words)
    assert main([*cut, "--set=stop_after=2"]) == 0
    assert main([*cut, "--resume"]) == 0
    assert_equal(weights(tmp_path / "cut" / "model"), weights(tmp_path / "whole" / "model"))


def test_an_overflow_of_fp16_halves_the_scale_and_is_counted(
    world: Path, tmp_path: Path, fp16: None, states_stay: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four overflows in a row, more than are borne without a scale to lower."""
    calls = 0
    step = loop.step

    def overflowing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        result = step(*arguments, **options)
        calls += 1
        if calls <= 4:
            encoder = arguments[0]
            encoder.logit_scale.grad.fill_(math.inf)
        return result

    monkeypatch.setattr(loop, "step", overflowing)
    run = arguments(world, "clip-ft", tmp_path / "run", "--epochs=2", "--precision=fp16")
    assert main(run) == 0
    reached = progress(tmp_path / "run")
    assert (reached["skipped_steps"], reached["scaler"]["scale"]) == (4, 2.0**2)
    log = read_log(tmp_path / "run" / "train.jsonl")
    assert [r["step"] for r in log if r.get("skipped") == "gradient is not finite"] == [1, 2, 3, 4]
    assert log[-1]["skipped_steps"] == 4
