"""Several processes train as one does: every recipe, resuming, damaged images, errors, shards."""

from __future__ import annotations

import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from compoclip.archives import add_member
from compoclip.cli import train as cli
from compoclip.cli.main import main
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan
from compoclip.data.sources.open import open_source
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.programs.request import TrainRequest
from compoclip.ranks import SINGLE, Ranks
from compoclip.training import state as state_file
from compoclip.training.distributed import sync_batch_norm
from compoclip.training.log import read_log
from compoclip.training.state import latest_state
from distributed_runs import STEPS, close, difference, run, small, training, write_base
from method_data import arguments, differing, write_world
from ranks_helpers import in_ranks, torchrun
from train_helpers import FEW


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_base(tmp_path)


def methods_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Path, Method]]:
    """Recipes of every part with the options that small data need, and their data."""
    found = {}

    def keep(request: TrainRequest) -> int:
        method = request.composed()
        optim = replace(method.optim, batch_size=16, lr=0.0, warmup_lr=0.0, min_lr=0.0)
        found[name] = (Path(request.options.data), replace(method, optim=optim))
        return 0

    monkeypatch.setattr(cli, "start", keep)
    for name in differing():
        assert cli.train_main(arguments(folder, name, folder / name)[1:]) == 0
    return found


def compared(
    ranks: Ranks, folder: Path, methods: dict[str, tuple[Path, Method]], expected: Path
) -> dict[str, Any]:
    """How far this run's gradients are from those of one process, by recipe."""
    worst = {}
    for name, (data, method) in methods.items():
        out = folder / f"{name}-{ranks.world}"
        found = run(ranks, folder, out, data, method, stop_after=STEPS)
        other = torch.load(expected / f"{name}.pt", weights_only=True)
        worst[name] = difference(found["gradients"], other["gradients"])
        same = all(close(a, b) for a, b in zip(found["log"], other["log"], strict=True))
        if not same:
            worst[name] = f"{found['log']} != {other['log']}"
        if found["summary"] != replace(found["summary"], **other["summary"]):
            worst[name] = f"{found['summary']} != {other['summary']}"
    return worst


@pytest.mark.slow
def test_recipes_of_every_part_have_the_gradients_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_world(tmp_path, merges=FEW)
    methods = methods_of(folder, monkeypatch)
    expected = tmp_path / "expected"
    expected.mkdir()
    for name, (data, method) in methods.items():
        alone = run(SINGLE, folder, folder / f"{name}-1", data, method, stop_after=STEPS)
        summary = alone["summary"]
        alone["summary"] = {"images": summary.images, "rewrites": summary.rewrites}
        torch.save(alone, expected / f"{name}.pt")
    for found in in_ranks(4, compared, folder, methods, expected):
        assert isinstance(found, dict), found
        assert found.keys() == methods.keys()
        assert {name: d for name, d in found.items() if isinstance(d, str) or d > 1e-5} == {}


def failing(ranks: Ranks, folder: Path, name: str, settings: dict[str, Any], full: bool) -> str:
    """The error of a run. full: whether the disk is full in the first process."""

    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if full and ranks.first:
        state_file.save_file = no_space
    try:
        training(ranks, folder, name, **settings)
    except CompoclipError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def test_a_run_goes_on_with_another_number_of_processes(folder: Path) -> None:
    whole = training(SINGLE, folder, "whole")
    two = in_ranks(2, small, folder, "down", {"stop_after": 4})
    assert isinstance(two[0], dict), two[0]
    assert two[0]["summary"] == two[1]["summary"]
    training(SINGLE, folder, "down", resume=True)
    training(SINGLE, folder, "up", stop_after=7)
    in_ranks(2, small, folder, "up", {"resume": True})
    for name in ("down", "up"):
        log = read_log(folder / name / "train.jsonl")
        assert [each["step"] for each in log] == list(range(1, 16))
        for found, expected in zip(log, whole["log"], strict=True):
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
            for total in ("epoch", "images", "texts", "lr", "skipped"):
                assert found[total] == expected[total]
        assert (folder / name / "model").is_dir()


@pytest.mark.parametrize("method", ["fsc-clip", "macco"])  # macco: a further pass, too
def test_a_part_without_images_does_not_stop_the_others(folder: Path, method: str) -> None:
    for image in range(0, 40, 3):
        (folder / "data" / f"{image}.png").write_bytes(b"damaged")
    settings: dict[str, Any] = {"method": method, "max_bad": 14, "stop_after": 6}
    alone = training(SINGLE, folder, "one", **settings)
    four = in_ranks(4, small, folder, "four", settings)  # two samples a process
    assert isinstance(four[0], dict), four[0]
    assert four[0]["summary"] == alone["summary"]
    assert alone["summary"].skipped > 0
    for found, expected in zip(four[0]["log"], alone["log"], strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert found["skipped"] == expected["skipped"]


def test_an_error_in_one_process_is_one_error_in_all(folder: Path) -> None:
    full = in_ranks(2, failing, folder, "full", {"stop_after": 2}, True)
    assert full[0] == full[1]
    assert "No space left on device" in full[0]
    (folder / "data" / "7.png").write_bytes(b"damaged")
    found = in_ranks(2, failing, folder, "bad", {}, False)
    assert found[0] == found[1]
    assert "1 unreadable image, 0 allowed" in found[0]
    assert "7.png" in found[0]
    state = latest_state(folder / "bad" / "state")
    steps = len(read_log(folder / "bad" / "train.jsonl")) if state else 0
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


def test_shards_are_split_without_loss_or_repetition(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    for shard in range(5):
        with tarfile.open(folder / f"s-{shard}.tar", "w") as tar:
            for i in range(8 * shard, 8 * shard + 8):
                image = (folder / "data" / f"{i}.png").read_bytes()
                add_member(tar, f"{i:02d}.png", image)
                add_member(tar, f"{i:02d}.txt", b"a square")
    source = open_source(str(folder / "s-{0..4}.tar"))
    assert len(source) == 40
    model = load_model(folder / "base")
    plan = TextPlan(load_recipe("clip-ft")().plan)

    def batches(rank: int, world: int, workers: int = 0) -> list[list[tuple[str, ...]]]:
        loader = BatchLoader(
            source,
            plan,
            ImageTransform(model.preprocess, None),
            batch_size=8,
            rank=rank,
            world=world,
            workers=workers,
        )
        found = [[batch.ids for batch in loader.epoch(epoch)] for epoch in range(2)]
        loader.close()
        return found

    one = batches(0, 1)
    parts = [batches(rank, world, workers=int(rank == 1)) for rank in range(world)]
    for epoch in range(2):
        used = Counter(id for part in parts for ids in part[epoch] for id in ids)
        assert len(used) == 40
        assert set(used.values()) == {1}
        for number, ids in enumerate(one[epoch]):
            assert tuple(id for part in parts for id in part[epoch][number]) == ids


@pytest.mark.slow
def test_the_command_under_torchrun(folder: Path) -> None:
    command = [
        "train",
        "negclip",
        f"--model={folder / 'base'}",
        f"--data={folder / 'data' / 'data.tsv'}",
        "--batch-size=8",
        "--epochs=1",
        "--set=log_every=1",
        f"--out={folder / 'run'}",
    ]
    done = torchrun(2, command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("negclip: 5 steps, 40 images") == 1
    assert load_model(folder / "run" / "model").provenance["method"] == "negclip"


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_a_command_is_printed_by_the_first_process(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "negclip", "--data=x", "--out=y", "--set=ema=x"]) == 2
    assert capsys.readouterr().err.count("compoclip train: ") == 1 - rank
