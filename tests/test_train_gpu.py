"""What keeps a GPU busy: counted on a CPU."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from build.runs import TABLE
from compoclip.data.images import BatchBuilder
from compoclip.data.sources.open import open_source
from compoclip.methods.registry import load_recipe
from compoclip.models.dual_encoder import DualEncoder
from compoclip.ranks import SINGLE, mark, process_group
from compoclip.training import loop, optim
from compoclip.training.run import reading_processes, run_training
from compoclip.training.settings import RunSettings
from train_helpers import OPTIM, new_model


def test_the_next_batch_is_taken_before_the_optimiser_steps_and_none_after_the_last(
    written_squares: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    add_to_batch, take = BatchBuilder.batch, loop.step_if_finite
    monkeypatch.setattr(BatchBuilder, "batch", lambda *a: done.append("batch") or add_to_batch(*a))
    monkeypatch.setattr(loop, "step_if_finite", lambda *a: done.append("step") or take(*a))
    recipe, source = load_recipe("clip-ft")(optim=OPTIM), open_source(str(written_squares / TABLE))
    run_training(new_model(tmp_path), recipe, source, RunSettings(out=tmp_path / "run"))
    assert done == ["batch", *["batch", "step"] * 9, "step"]
    done.clear()
    settings = RunSettings(out=tmp_path / "stopped", stop_after=2)
    run_training(new_model(tmp_path), recipe, source, settings)
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
