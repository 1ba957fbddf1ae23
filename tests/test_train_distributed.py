"""Several processes train as one does: every recipe, resuming, damaged images, errors, shards."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from build.runs import (
    CACHED,
    COLOURS,
    STEPS,
    Gradients,
    close,
    command,
    difference,
    run,
    trained_in_ranks,
    training,
)
from compoclip.cli import train as cli
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.base import Method
from compoclip.methods.compose import compose
from compoclip.models.checkpoint import load_model
from compoclip.programs.request import TrainRequest
from compoclip.ranks import SINGLE, Ranks
from compoclip.training import state as state_file
from compoclip.training.distributed import sync_batch_norm
from compoclip.training.log import read_log
from compoclip.training.state import latest_state
from method_data import arguments, differing, write_world
from ranks_helpers import commanded, in_ranks
from train_helpers import FEW

Run = tuple[Path, Method, dict[str, Any]]
"""Data, method and settings."""


def runs_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Run]:
    """Recipes of every part with the options that small data need, and settings that change losses.

    Weights stay as they are. Micro-batches are those of several processes alone.
    """
    runs: dict[str, Run] = {}

    def note(request: TrainRequest) -> int:
        method = request.composed()
        optim = replace(method.optim, lr=0.0, warmup_lr=0.0, min_lr=0.0)
        runs[name] = Path(request.options.data), replace(method, optim=optim), {}
        return 0

    monkeypatch.setattr(cli, "start", note)
    for name in differing():
        assert cli.train_main(arguments(folder, name, folder / name)[1:]) == 0
    data, method, _ = runs["ce-clip"]
    (folder / "colours.py").write_text(COLOURS)
    taught = {"teacher": folder / "colours.py", "micro_batch": 2}
    runs["teacher"] = data, compose(method, terms=["+similarity"]), taught
    runs["dimensions"] = data, method, {"matryoshka": (4, 8)}
    cached = {**CACHED, "features": folder / "features"}
    runs["all images"] = data, compose(method, terms=["+all-images"]), cached
    return runs


def joined(gradients: Gradients) -> tuple[Gradients, list[list[bool]]]:
    """The gradients of each step as one vector, which is read faster, and which of them exist."""
    vectors: Gradients = [
        [torch.cat([g.flatten() for g in step if g is not None])] for step in gradients
    ]
    return vectors, [[g is not None for g in step] for step in gradients]


def compared(ranks: Ranks, folder: Path, runs: dict[str, Run]) -> dict[str, float | str]:
    """How far the gradients of these processes are from those of one, by the name of the run."""
    worst: dict[str, float | str] = {}
    for name, (data, method, settings) in runs.items():
        out = f"{name}-{ranks.world}"
        ours = run(ranks, folder, out, method, data, stop_after=STEPS, **settings)
        alone = torch.load(folder / f"{name}.pt", weights_only=True)
        vectors, exist = joined(ours["gradients"])
        if exist != alone["exist"]:
            worst[name] = "other parameters have a gradient"
            continue
        worst[name] = difference(vectors, alone["gradients"])
        if not all(close(a, b) for a, b in zip(ours["log"], alone["log"], strict=True)):
            worst[name] = f"{ours['log']} != {alone['log']}"
        if ours["summary"] != replace(ours["summary"], **alone["summary"]):
            worst[name] = f"{ours['summary']} != {alone['summary']}"
    return worst


@pytest.mark.slow
def test_recipes_of_every_part_have_the_gradients_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_world(tmp_path, merges=FEW)
    runs = runs_of(folder, monkeypatch)
    logs = {}
    for name, (data, method, settings) in runs.items():
        settings = {**settings, "stop_after": STEPS, "micro_batch": 0}
        alone = run(SINGLE, folder, f"{name}-1", method, data, **settings)
        counts = {"images": alone["summary"].images, "rewrites": alone["summary"].rewrites}
        logs[name] = alone["log"]
        vectors, exist = joined(alone["gradients"])
        expected = {"gradients": vectors, "exist": exist, "log": alone["log"], "summary": counts}
        torch.save(expected, folder / f"{name}.pt")
    assert logs["dimensions"][0]["loss"] != pytest.approx(logs["ce-clip"][0]["loss"], rel=1e-3)
    assert logs["teacher"][0]["loss/similarity"] > 0.1
    # A model that tells nothing apart yet: the photo of each caption and 39 others.
    assert 1 < logs["all images"][0]["loss/all-images"] < 2 * math.log(40)
    for worst in in_ranks(2, compared, folder, runs):
        assert isinstance(worst, dict), worst
        assert worst.keys() == runs.keys()
        assert {name: d for name, d in worst.items() if isinstance(d, str) or d > 1e-5} == {}


def test_a_run_goes_on_with_another_number_of_processes(squares: Path) -> None:
    whole = training(SINGLE, squares, "whole")
    two = in_ranks(2, trained_in_ranks, squares, "down", {"stop_after": 4})
    assert isinstance(two[0], dict), two[0]
    assert two[0]["summary"] == two[1]["summary"]
    training(SINGLE, squares, "down", resume=True)
    training(SINGLE, squares, "up", stop_after=7)
    in_ranks(2, trained_in_ranks, squares, "up", {"resume": True})
    for name in ("down", "up"):
        log = read_log(squares / name / "train.jsonl")
        assert [row["step"] for row in log] == list(range(1, 11))
        for row, expected in zip(log, whole["log"], strict=True):
            assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)
            for total in ("epoch", "images", "texts", "lr", "skipped"):
                assert row[total] == expected[total]
        assert (squares / name / "model").is_dir()


LACKING = ("fsc-clip", "macco")  # macco: a further pass, too


def trained_with_damage(ranks: Ranks, folder: Path) -> list[dict[str, Any]]:
    settings = {"max_bad": 14, "stop_after": 6}
    return [training(ranks, folder, f"{m}-{ranks.world}", m, **settings) for m in LACKING]


def test_a_part_without_images_does_not_stop_the_others(squares: Path) -> None:
    for image in range(0, 40, 3):
        (squares / "data" / f"{image}.png").write_bytes(b"damaged")
    alone = trained_with_damage(SINGLE, squares)
    four = in_ranks(4, trained_with_damage, squares)[0]  # two samples a process
    assert isinstance(four, list), four
    for one, parts in zip(alone, four, strict=True):
        assert parts["summary"] == one["summary"]
        assert one["summary"].skipped > 0
        for row, expected in zip(parts["log"], one["log"], strict=True):
            assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)
            assert row["skipped"] == expected["skipped"]


def error_of(ranks: Ranks, folder: Path, out: str, **settings: Any) -> str:
    with pytest.raises(CompoclipError) as caught:
        training(ranks, folder, out, **settings)
    return f"{type(caught.value).__name__}: {caught.value}"


def failing(ranks: Ranks, folder: Path) -> tuple[str, str]:
    """Errors of a run for which the first process has no space, and of one with a damaged image."""

    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if ranks.first:
            patch.setattr(state_file, "save_file", no_space)
        full = error_of(ranks, folder, "full", stop_after=2)
    (folder / "data" / "7.png").write_bytes(b"damaged")
    return full, error_of(ranks, folder, "bad")


def test_an_error_in_one_process_is_one_error_in_all(squares: Path) -> None:
    first, second = in_ranks(2, failing, squares)
    assert isinstance(first, tuple), first
    assert first == second
    full, bad = first
    assert "No space left on device" in full
    assert "1 unreadable image, 0 allowed" in bad
    assert "7.png" in bad
    state = latest_state(squares / "bad" / "state")
    steps = len(read_log(squares / "bad" / "train.jsonl")) if state else 0
    assert state is None or state.name == f"step-{steps:08d}"


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))


def test_batch_norms_that_learn_are_refused_on_a_cpu() -> None:
    network = Norms()
    cpu, two = torch.device("cpu"), Ranks(0, 2)
    sync_batch_norm(network, cpu, SINGLE)
    with pytest.raises(UsageError, match="is a batch norm that learns"):
        sync_batch_norm(network, cpu, two)
    network.visual[1].eval()
    sync_batch_norm(network, cpu, two)
    assert type(network.visual[1]) is nn.BatchNorm2d
    network.visual[1].train()
    sync_batch_norm(network, torch.device("cuda"), two)
    assert type(network.visual[1]) is nn.SyncBatchNorm


def test_batch_norms_over_ranks_keep_their_activation() -> None:
    """Trunks of timm have batch norms that end in an activation."""
    network = Norms()
    network.visual[1] = BatchNormAct2d(2)
    with torch.no_grad():
        network.visual[1].bias.copy_(torch.tensor([1.0, -1.0]))
    pixels = torch.randn(4, 3, 5, 5)
    sync_batch_norm(network, torch.device("cuda"), Ranks(0, 2))
    assert isinstance(network.visual[1], nn.SyncBatchNorm)
    network.eval()  # learning needs GPUs
    norm = network.visual[1]
    plain = nn.functional.batch_norm(
        network.visual[0](pixels), norm.running_mean, norm.running_var, norm.weight, norm.bias
    )
    assert (plain < 0).any()
    assert torch.allclose(network.visual(pixels), plain.relu())


def test_the_command_in_processes_that_torchrun_starts(squares: Path) -> None:
    first, second = commanded(2, command(squares, "run", method="negclip"))
    assert (first[0], second[0]) == (0, 0), first[2]
    assert "negclip: 5 steps, 40 images" in first[1]
    assert second[1] == ""
    assert load_model(squares / "run" / "model").provenance["method"] == "negclip"


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_a_command_is_printed_by_the_first_process(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "negclip", "--data=x", "--out=y", "--set=ema=x"]) == 2
    assert capsys.readouterr().err.count("compoclip train: ") == 1 - rank
