"""Gradient caching and split parameters (FSDP2) in several processes, against one that has all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from compoclip.errors import UsageError
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.ranks import SINGLE, Ranks
from compoclip.training import loop
from compoclip.training.log import read_log
from compoclip.training.sharding import repeated_units, require_torch
from compoclip.training.state import latest_state
from compoclip.training.step import step
from distributed_runs import OPTIM, STEPS, difference, run, small, training, write_base
from ranks_helpers import in_ranks


def needs_torch() -> str:
    """Why this torch cannot split parameters; "" when it can."""
    try:
        require_torch()
    except UsageError as error:
        return str(error)
    return ""


SPLITS = pytest.mark.skipif(bool(needs_torch()), reason=needs_torch())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_base(tmp_path)


def weights(state: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(state / "tensors.safetensors")
    return {k: v for k, v in tensors.items() if k.startswith("model/")}


def in_pieces(
    ranks: Ranks, folder: Path, method: Method, expected: Path, micro_batch: int, fsdp: bool
) -> dict[str, Any]:
    """How far gradients are from those of one process, and how many numbers a process keeps."""

    def cut(*args: Any, **options: Any) -> Any:
        *others, settings, whole, mean, scaler, known = args
        settings = replace(settings, micro_batch=micro_batch)
        return step(*others, settings, whole, mean, scaler, known, **options)

    loop.step = cut
    kept: list[int] = []
    splitting = loop.shard_training

    def counted(*args: Any) -> Any:
        optimizer = splitting(*args)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        kept.append(sum(p.to_local().numel() for p in parameters if p.ndim))
        return optimizer

    loop.shard_training = counted
    data = folder / "data" / "data.tsv"
    out = folder / f"{micro_batch}-{fsdp}"
    found = run(ranks, folder, out, data, method, stop_after=STEPS, fsdp=fsdp)
    other = torch.load(expected, weights_only=True)
    return {"worst": difference(found["gradients"], other["gradients"]), "kept": sum(kept)}


@pytest.mark.parametrize(
    ("micro_batch", "fsdp"),
    [(3, False), pytest.param(0, True, marks=SPLITS), pytest.param(3, True, marks=SPLITS)],
)
def test_cached_and_split_gradients_are_those_of_one_process(
    folder: Path, micro_batch: int, fsdp: bool
) -> None:
    method = load_recipe("fsc-clip")(optim=replace(OPTIM, lr=0.0))
    alone = run(SINGLE, folder, folder / "one", folder / "data" / "data.tsv", method)
    alone = {"gradients": alone["gradients"][:STEPS]}
    torch.save(alone, folder / "expected.pt")
    found = in_ranks(2, in_pieces, folder, method, folder / "expected.pt", micro_batch, fsdp)
    for each in found:
        assert isinstance(each, dict), each
        assert each["worst"] < 1e-5
    if fsdp:
        network = load_model(folder / "base").encoder.model
        total = sum(p.numel() for p in network.parameters() if p.ndim)
        assert sum(each["kept"] for each in found) == total
        assert max(each["kept"] for each in found) < 0.51 * total


@SPLITS
def test_split_parameters_train_as_whole_ones(folder: Path) -> None:
    """Losses, moments and weights; states go on without splitting, and the other way round."""
    whole = training(SINGLE, folder, "whole")
    split = in_ranks(2, small, folder, "split", {"fsdp": True, "stop_after": 4})
    assert isinstance(split[0], dict), split[0]
    state = latest_state(folder / "split" / "state")
    assert state is not None
    training(SINGLE, folder, "other", stop_after=4)
    other = latest_state(folder / "other" / "state")
    assert other is not None
    assert weights(state).keys() == weights(other).keys()
    for name, value in weights(other).items():
        assert weights(state)[name].shape == value.shape
    in_ranks(2, small, folder, "split", {"fsdp": True, "resume": True, "stop_after": 8})
    training(SINGLE, folder, "split", resume=True, stop_after=11)
    last = in_ranks(2, small, folder, "split", {"fsdp": True, "resume": True})
    assert isinstance(last[0], dict), last[0]
    for found, expected in zip(read_log(folder / "split" / "train.jsonl"), whole["log"]):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)
    one, two = (load_model(folder / name / "model").encoder.model for name in ("whole", "split"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert (a - b).abs().max() < 2e-3  # AdamW's first steps turn rounding into steps of lr


def test_splitting_needs_processes_and_weights_that_learn(folder: Path) -> None:
    with pytest.raises(UsageError, match="start with torchrun"):
        training(SINGLE, folder, "one", fsdp=True)
    data = folder / "data" / "data.tsv"
    method = load_recipe("fsc-clip-lora")()
    with pytest.raises(UsageError, match="leave --fsdp or LoRA out"):
        run(Ranks(0, 2), folder, folder / "lora", data, method, fsdp=True)


@pytest.mark.parametrize("version", ["2.8.0+cu126", "2.10.1"])
def test_an_older_torch_is_told(
    folder: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UsageError, match=r"--fsdp needs torch 2\.11, and this is 2"):
        run(Ranks(0, 2), folder, folder / "old", folder / "data" / "data.tsv",
            load_recipe("fsc-clip")(), fsdp=True)  # fmt: skip


def test_units_are_the_blocks_of_both_towers(folder: Path) -> None:
    network = load_model(folder / "base").encoder.model
    names = {module: name for name, module in network.named_modules()}
    assert [names[unit] for unit in repeated_units(network)] == [
        f"{tower}transformer.resblocks.{i}" for tower in ("visual.", "") for i in range(2)
    ]
