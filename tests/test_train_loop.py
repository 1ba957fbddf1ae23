"""The schedule, the optimiser's groups, freezing, and what the loop does with bad losses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from build.runs import TABLE, newest_state, state_tensors
from compoclip.data.sources import Source
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Features, Layout
from compoclip.methods.base import LossTerm, Method, Optim
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.training import state
from compoclip.training.log import read_log
from compoclip.training.optim import build_optimizer, decays, learning_rate
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings
from compoclip.training.state import latest_state
from train_helpers import OPTIM, assert_equal, new_model


@pytest.fixture(scope="module")
def source(written_squares: Path) -> Source:
    return open_source(str(written_squares / TABLE))


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


def test_a_run_learns_and_leaves_a_loadable_checkpoint(tmp_path: Path, source: Source) -> None:
    model = new_model(tmp_path)
    before = {k: v.clone() for k, v in model.encoder.model.state_dict().items()}
    recipe = load_recipe("fsc-clip")(optim=replace(OPTIM, epochs=6, lr=3e-3))
    summary = run_training(model, recipe, source, RunSettings(out=tmp_path / "run", log_every=1))
    assert summary.steps == summary.total_steps == 30
    records = read_log(tmp_path / "run" / "train.jsonl")
    assert [r["step"] for r in records] == list(range(1, 31))
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


class Spoilt(torch.autograd.Function):
    """The identity, with an infinite gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, torch.inf)


class NotFinite(nn.Module):
    """A loss that is not a number at some calls, or has an infinite gradient."""

    def __init__(self, bad: set[int], infinite_gradient: bool = False) -> None:
        super().__init__()
        self.bad, self.infinite_gradient, self.calls = bad, infinite_gradient, 0

    def forward(self, features: Features, layout: Layout) -> Tensor:
        self.calls += 1
        image, bad = features.image, self.calls in self.bad
        if bad and self.infinite_gradient:
            spoilt: Tensor = Spoilt.apply(image)  # type: ignore[no-untyped-call]
            image = spoilt
        loss = (image.sum() + features.text.sum()) ** 2 * 1e-3
        return loss * math.nan if bad and not self.infinite_gradient else loss


def method_with(loss: nn.Module, clip_grad: float = 1.0) -> Method:
    recipe = load_recipe("clip-ft")(optim=replace(OPTIM, clip_grad=clip_grad))
    return replace(recipe, losses=(LossTerm("odd", loss),))


def bad_in(*calls: int) -> Method:
    """A method whose loss is not a number in these steps."""
    return method_with(NotFinite({*calls}))


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of all states that are saved; each must be finite throughout."""
    steps, write = [], state._write

    def checked(folder: Path, *arguments: Any) -> None:
        write(folder, *arguments)
        (saved,) = folder.glob("step-*")
        for name, tensor in load_file(saved / "tensors.safetensors").items():
            assert tensor.isfinite().all(), (saved.name, name)
        steps.append(int(saved.name.removeprefix("step-")))

    monkeypatch.setattr(state, "_write", checked)
    return steps


@pytest.mark.parametrize("clip_grad", [0.0, 1.0])
def test_an_infinite_gradient_reaches_neither_weights_nor_states(
    clip_grad: float, tmp_path: Path, source: Source, saved: list[int]
) -> None:
    settings = RunSettings(out=tmp_path / "run", log_every=1, save_every=1)
    method = method_with(NotFinite({3}, infinite_gradient=True), clip_grad)
    summary = run_training(new_model(tmp_path), method, source, settings)
    assert summary.skipped_steps == 1
    assert saved == [1, 2, 4, 5, 6, 7, 8, 9, 10]  # none among bad steps
    records = read_log(tmp_path / "run" / "train.jsonl")
    assert [r["step"] for r in records] == list(range(1, 11))
    assert records[2] == {"step": 3, "skipped": "gradient is not finite"}
    model = load_model(tmp_path / "run" / "model")
    assert all(p.isfinite().all() for p in model.encoder.parameters())


def test_a_step_that_is_not_taken_leaves_weights_and_moments(
    tmp_path: Path, source: Source
) -> None:
    states = []
    for stop, bad in ((2, set()), (4, {3, 4})):
        settings = RunSettings(out=tmp_path / str(stop), stop_after=stop)
        method = method_with(NotFinite(bad, infinite_gradient=True), clip_grad=0.0)
        run_training(new_model(tmp_path), method, source, settings)
        states.append(state_tensors(settings.out))
    assert_equal(*states)


def test_a_step_without_finite_loss_is_skipped_and_reported(tmp_path: Path, source: Source) -> None:
    model = new_model(tmp_path)
    settings = RunSettings(out=tmp_path / "run", log_every=1)
    summary = run_training(model, bad_in(2, 3), source, settings)
    records = read_log(tmp_path / "run" / "train.jsonl")
    assert [r["step"] for r in records if "skipped" in r and "loss" not in r] == [2, 3]
    assert all(torch.isfinite(p).all() for p in model.encoder.parameters())
    assert summary.skipped_steps == records[-1]["skipped_steps"] == 2
    assert load_model(tmp_path / "run" / "model").provenance["run"]["skipped_steps"] == 2


@pytest.mark.parametrize("bad", [{1, 2, 4, 5, 7}, {1, 2, 4, 5, 7, 8, 10}])
def test_a_run_most_of_whose_steps_were_skipped_leaves_no_model(
    tmp_path: Path, source: Source, bad: set[int]
) -> None:
    out = tmp_path / "run"
    lost = rf"not finite in {len(bad)} of 10 steps, .* has not been trained and is not written"
    with pytest.raises(CompoclipError, match=lost):
        run_training(new_model(tmp_path), bad_in(*bad), source, RunSettings(out=out))
    assert not (out / "model").exists()


def test_weights_that_are_not_finite_are_neither_saved_nor_written(
    tmp_path: Path, source: Source
) -> None:
    settings = RunSettings(out=tmp_path / "run", stop_after=2)
    run_training(new_model(tmp_path), bad_in(), source, settings)
    kept = newest_state(tmp_path / "run")
    model = new_model(tmp_path)

    class Spoils(NotFinite):
        """Spoils a weight in the last step of the run."""

        def forward(self, features: Features, layout: Layout) -> Tensor:
            if self.calls == 7:
                model.encoder.model.get_parameter("text_projection").data[0] = math.nan
            return super().forward(features, layout)

    again = replace(settings, stop_after=0, resume=True)
    with pytest.raises(CompoclipError, match=r"not finite after step 10, .*; lower --lr") as caught:
        run_training(model, method_with(Spoils(set())), source, again)
    assert str(kept) in str(caught.value)
    assert latest_state(tmp_path / "run" / "state") == kept
    assert not (tmp_path / "run" / "model").exists()


def test_three_bad_steps_end_the_run_and_only_a_state_that_is_there_is_named(
    tmp_path: Path, source: Source
) -> None:
    for name, save_every, named in (("none", 0, False), ("some", 2, True)):
        settings = RunSettings(out=tmp_path / name, save_every=save_every)
        ends = "not finite 3 steps in a row up to step 5; lower --lr"
        with pytest.raises(CompoclipError, match=ends) as caught:
            run_training(new_model(tmp_path), bad_in(3, 4, 5), source, settings)
        assert not (tmp_path / name / "model").exists()
        state = tmp_path / name / "state" / "step-00000002"  # the one before the bad steps
        assert (f"--resume from {state}" in str(caught.value)) is named is state.is_dir()


def test_a_resume_without_a_state_says_that_it_starts(
    tmp_path: Path, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = RunSettings(out=tmp_path / "run", resume=True, stop_after=1)
    run_training(new_model(tmp_path), bad_in(), source, settings)
    said = f"{tmp_path / 'run'} holds nothing to resume: the run starts at step 1\n"
    assert said in capsys.readouterr().err
    run_training(new_model(tmp_path), bad_in(), source, replace(settings, stop_after=2))
    assert "nothing to resume" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eps": 0.0}, "--eps 0: must be more than 0"),
        ({"warmup_share": 1.5}, "--warmup-share 1.5: must be at most 1"),
        ({"min_lr": 1.0}, "--min-lr 1: must be at most --lr 5e-06, the peak"),
        ({"warmup_lr": 1e-5}, "--warmup-lr 1e-05: must be at most --lr 5e-06, the peak"),
    ],
)
def test_an_optimiser_that_cannot_work_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Optim(**values)
