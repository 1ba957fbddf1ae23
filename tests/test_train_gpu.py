"""What is not finite is not learnt, and what keeps a GPU busy: counted on a CPU."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from compoclip.data.images import BatchBuilder
from compoclip.data.sources import Source
from compoclip.data.sources.open import open_source
from compoclip.losses.contract import Features, Layout
from compoclip.methods.base import LossTerm, Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.ranks import SINGLE, mark, process_group
from compoclip.training import loop, optim, state
from compoclip.training.log import read_log
from compoclip.training.run import reading_processes, run_training
from compoclip.training.settings import RunSettings
from train_helpers import OPTIM, new_model, write_data


class Spoilt(torch.autograd.Function):
    """The identity, with an infinite gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, torch.inf)


class InfiniteGradient(nn.Module):
    """A loss that is finite and, at the calls it is told, has an infinite gradient."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, features: Features, layout: Layout) -> Tensor:
        self.calls += 1
        image = features.image
        if self.calls in self.bad:
            spoilt: Tensor = Spoilt.apply(image)  # type: ignore[no-untyped-call]
            image = spoilt
        return (image.sum() + features.text.sum()) ** 2 * 1e-3


def method_with(bad: set[int], clip_grad: float = 0.0) -> Method:
    recipe = load_recipe("clip-ft")(optim=replace(OPTIM, clip_grad=clip_grad))
    return replace(recipe, losses=(LossTerm("odd", InfiniteGradient(bad)),))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return open_source(str(write_data(tmp_path_factory.mktemp("data"))))


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
    summary = run_training(new_model(tmp_path), method_with({3}, clip_grad), source, settings)
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
        out = tmp_path / str(stop)
        settings = RunSettings(out=out, stop_after=stop)
        run_training(new_model(tmp_path), method_with(bad), source, settings)
        states.append(load_file(out / "state" / f"step-{stop:08d}" / "tensors.safetensors"))
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def test_the_next_batch_is_taken_before_the_optimiser_steps_and_none_after_the_last(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    add_to_batch, take = BatchBuilder.batch, loop.step_if_finite
    monkeypatch.setattr(BatchBuilder, "batch", lambda *a: done.append("batch") or add_to_batch(*a))
    monkeypatch.setattr(loop, "step_if_finite", lambda *a: done.append("step") or take(*a))
    run_training(new_model(tmp_path), method_with(set()), source, RunSettings(out=tmp_path / "run"))
    assert done == ["batch", *["batch", "step"] * 9, "step"]
    done.clear()
    run_training(
        new_model(tmp_path),
        method_with(set()),
        source,
        RunSettings(out=tmp_path / "stopped", stop_after=2),
    )
    assert done == ["batch", "batch", "step", "step"]


def test_the_host_of_a_gpu_has_few_threads_and_collects_little() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(5)
    gc.unfreeze()  # what the suite has collected
    try:
        with loop._host_of(torch.device("cuda")) as settle:
            assert torch.get_num_threads() == 2
            assert gc.get_freeze_count() == 0
            settle()
            assert gc.get_freeze_count() > 10_000
        assert torch.get_num_threads() == 5
        assert gc.get_freeze_count() == 0
        with loop._host_of(torch.device("cpu")) as settle:
            settle()
            assert (torch.get_num_threads(), gc.get_freeze_count()) == (5, 0)
    finally:
        torch.set_num_threads(threads)
        gc.freeze()


def test_copies_are_waited_for_on_the_gpu_that_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --device cuda:1 the current GPU is another one, whose stream knows nothing of them."""
    asked: list[object] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def record_event(self) -> Stream:
            return self

        def synchronize(self) -> None:
            asked.append(self.device)

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    found: list[tuple[int, str]] = []
    steps = optim.BadSteps(torch.device("cuda", 1), lambda *bad: found.append(bad))
    steps.add(1, torch.tensor([False, True]))
    assert (asked, found) == ([], [])  # a GPU is read one step late
    steps.add(2, torch.tensor([False, False]))
    assert (asked, found) == ([torch.device("cuda", 1)], [(1, "gradient")])
    assert mark(torch.device("cpu")) is None


def test_the_gpu_of_a_run_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else memory is pinned, and a context made, on the first one."""
    entered: list[torch.device] = []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "device", current)
    for device in (torch.device("cuda", 1), torch.device("cpu")):
        with process_group(device) as ranks:
            assert ranks is SINGLE
    assert entered == [torch.device("cuda", 1)]


def test_attention_avoids_the_kernel_that_plans_for_every_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = new_model(tmp_path).encoder.eval()
    chosen: list[bool] = []

    def look(*_: object) -> None:
        chosen.append(torch.backends.cuda.cudnn_sdp_enabled())
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()

    before = torch.backends.cuda.cudnn_sdp_enabled()
    encoder.model.get_submodule("visual").register_forward_pre_hook(look)
    encoder.encode_images(torch.zeros(1, 3, 32, 32))
    monkeypatch.setattr(DualEncoder, "device", torch.device("cuda"))
    encoder.encode_images(torch.zeros(1, 3, 32, 32))
    assert chosen == [before, False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.parametrize(
    ("device", "cores", "ranks", "samples", "expected"),
    [
        ("cuda", 16, 1, 10_000, 15),
        ("cuda:1", 16, 4, 10_000, 3),
        ("cuda", 64, 1, 10_000, 16),
        ("cuda", 1, 1, 10_000, 1),
        ("cuda", 16, 1, 2_000, 0),
        ("cpu", 16, 1, 10_000, 2),
        ("cpu", 2, 1, 10_000, 0),
    ],
)
def test_who_reads(
    device: str,
    cores: int,
    ranks: int,
    samples: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    method = load_recipe("clip-ft")(optim=OPTIM)
    settings = RunSettings(out=Path(), device=device, workers="auto")
    assert reading_processes(settings, method, samples) == expected
    assert reading_processes(replace(settings, workers=3), method, samples) == 3
