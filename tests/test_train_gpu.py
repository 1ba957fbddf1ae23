"""What keeps a GPU busy, and how many operations it is given in a step: counted on a CPU."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from build.runs import TABLE
from compoclip.data.batch import Batch
from compoclip.data.images import BatchBuilder
from compoclip.data.prepared import Preparation
from compoclip.data.sources.open import open_source
from compoclip.losses.contract import Role
from compoclip.methods.registry import load_recipe
from compoclip.models.architecture import build_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.tokenizer import build_tokenizer
from compoclip.ranks import SINGLE, Ranks, mark, process_group
from compoclip.training import loop, optim
from compoclip.training.optim import build_optimizer, step_if_finite
from compoclip.training.run import reading_processes, run_training
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import clip_gradients
from compoclip.training.step import step
from fake_cuda import DEVICE, Launches, fake_cuda
from models_thin import config, token_ids
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
def test_readers_follow_the_device_its_cores_and_the_samples(
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


# --- Operations of a step, counted without a GPU. ---

WORDS = ["a", "big", "red", "cat", "sits", "on", "the", "mat", "while", "three", "dogs", "look"]
IMAGES = 8
CEILING = 1200


def thin(layers: int) -> DualEncoder:
    tower = {"layers": layers, "width": 32}
    text = {**tower, "heads": 2, "context_length": 77, "vocab_size": 49408}
    model = build_model(config({**tower, "head_width": 16}, text, quick_gelu=True))
    return DualEncoder(model).train()


def texts() -> Batch:
    """Images with a caption and up to three negatives each, of many lengths."""
    rng = random.Random(0)
    drawn = [
        (" ".join(rng.choices(WORDS, k=rng.randrange(4, 18))), image, kind)
        for image in range(IMAGES)
        for kind in ("", "negclip", "replace", "bigram_shuffle")[: 4 - (image == 3)]
    ]
    return Batch(
        torch.zeros(IMAGES, 3, 32, 32, dtype=torch.uint8),
        texts=tuple(text for text, _, _ in drawn),
        owner=tuple(image for _, image, _ in drawn),
        role=tuple(Role.NEGATIVE if kind else Role.CAPTION for _, _, kind in drawn),
        rewrite=tuple(kind for _, _, kind in drawn),
        ids=tuple(map(str, range(IMAGES))),
        photos=tuple(map(str, range(IMAGES))),
    )


def fsc_clip_step() -> Launches:
    """A step with 12 + 12 layers, from the batch to the optimiser."""
    method, batch, tokenize = load_recipe("fsc-clip")(), texts(), build_tokenizer({})

    # What the losses ask for is known after a step, which may be one on a CPU.
    small = thin(1)
    first = Preparation(tokenize, small.text_planner())(batch)
    batch = replace(batch, numbers=first)
    step(small, tokenize, method, batch, RunSettings(out=Path()))
    settings = RunSettings(out=Path(), device="cuda", precision="bf16")
    with fake_cuda(), Launches() as setting_up:
        with DEVICE:
            encoder = thin(12)
        optimizer = build_optimizer(encoder.model.named_parameters(), method.optim)
        for parameter in encoder.model.parameters():  # moments are made in the first step of a run
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        numbers = Preparation(tokenize, encoder.text_planner())(batch, batch.unforeseen)
        batch.normalised(DEVICE)  # mean and deviation are copied once
        batch = replace(batch, numbers=numbers)
        with Launches() as launches:
            result = step(encoder, tokenize, method, batch, settings)
            norm = clip_gradients(encoder.parameters(), method.optim.clip_grad, Ranks())
            step_if_finite(optimizer, result.total, norm)
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in encoder.parameters())
    assert setting_up.found
    return launches


def test_a_gpu_is_given_few_operations_in_a_step() -> None:
    launches = fsc_clip_step()
    assert launches.found.total() <= CEILING, launches.found.most_common()
    # Nothing is cast weight by weight, and QuickGELU is one operation.
    assert launches.found["_to_copy"] < 50
    assert launches.found["silu"] == launches.found["silu_backward"] == 24
    assert launches.found["_foreach_copy_"] == 48
    assert launches.found["sigmoid"] == 0
    names = [name for name, _ in launches.attention]
    assert names.count("_varlen_attn") == 12  # of texts, whatever their lengths
    assert names.count("_scaled_dot_product_flash_attention") == 12  # of images
    assert len(set(launches.attention)) == 2


def test_texts_of_whatever_lengths_are_attended_to_as_one_list() -> None:
    rng = random.Random(0)
    batches = [[rng.randrange(2, 78) for _ in range(rng.randrange(2, 40))] for _ in range(8)]
    with fake_cuda(), Launches() as launches, torch.no_grad():
        with DEVICE:
            encoder = thin(2)
        for lengths in batches:
            with torch.autocast("cuda", torch.bfloat16):
                found = encoder.encode_texts(token_ids(lengths, 77), True, deduplicate=False)
            assert found.pooled.shape == (len(lengths), 24)
            assert found.tokens is not None
            assert found.tokens.shape == (len(lengths), max(lengths), 24)
    expected = [sum(lengths) for lengths in batches for _ in range(2)]
    assert launches.attention == [("_varlen_attn", (m, 2, 16)) for m in expected]


def test_texts_in_full_precision_are_attended_to_in_buckets() -> None:
    with fake_cuda(), Launches() as launches, torch.no_grad():
        with DEVICE:
            encoder = thin(2)
        encoder.encode_texts(token_ids([5, 9, 9], 77))
    assert launches.attention == []
    assert launches.found["index_copy"] == 2  # into rows, once a layer
