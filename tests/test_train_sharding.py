"""Gradient caching and split parameters (FSDP2) in several processes, against one that has all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from build.runs import (
    STEPS,
    difference,
    run,
    state_tensors,
    trained_in_ranks,
    training,
)
from compoclip.errors import UsageError
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.ranks import SINGLE, Ranks
from compoclip.training import loop
from compoclip.training.log import read_log
from compoclip.training.sharding import repeated_units, require_torch
from ranks_helpers import in_ranks
from train_helpers import OPTIM


def needs_torch() -> str:
    """Why this torch cannot split parameters; "" when it can."""
    try:
        require_torch()
    except UsageError as error:
        return str(error)
    return ""


SPLITS = pytest.mark.skipif(bool(needs_torch()), reason=needs_torch())


def model_tensors(out: Path) -> dict[str, torch.Tensor]:
    """The weights in the newest state of a run."""
    return {k: v for k, v in state_tensors(out).items() if k.startswith("model/")}


WAYS = [(3, False), *([] if needs_torch() else [(0, True), (3, True)])]
"""Micro-batch, and whether parameters are split."""


def in_pieces(ranks: Ranks, folder: Path, method: Method) -> list[dict[str, Any]]:
    """For each way, how far gradients are from those of one process, and how many numbers a
    process has."""
    expected = torch.load(folder / "expected.pt", weights_only=True)
    splitting, results = loop.shard_training, []
    for micro_batch, fsdp in WAYS:
        sizes: list[int] = []

        def counted(*args: Any, sizes: list[int] = sizes) -> Any:
            optimizer = splitting(*args)
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            sizes.append(sum(p.to_local().numel() for p in parameters if p.ndim))
            return optimizer

        loop.shard_training = counted
        out = f"{micro_batch}-{fsdp}"
        settings = {"stop_after": STEPS, "micro_batch": micro_batch, "fsdp": fsdp}
        gradients = run(ranks, folder, out, method, **settings)["gradients"]
        results.append({"worst": difference(gradients, expected), "size": sum(sizes)})
    return results


def test_cached_and_split_gradients_are_those_of_one_process(squares: Path) -> None:
    method = load_recipe("fsc-clip")(optim=replace(OPTIM, lr=0.0))
    alone = run(SINGLE, squares, "one", method, stop_after=STEPS)
    torch.save(alone["gradients"], squares / "expected.pt")
    network = load_model(squares / "base").encoder.model
    total = sum(p.numel() for p in network.parameters() if p.ndim)
    for (_, fsdp), *parts in zip(WAYS, *in_ranks(2, in_pieces, squares, method), strict=True):
        assert all(part["worst"] < 1e-5 for part in parts), parts
        if fsdp:
            assert sum(part["size"] for part in parts) == total
            assert max(part["size"] for part in parts) < 0.51 * total


@SPLITS
def test_split_parameters_train_as_whole_ones(squares: Path) -> None:
    """Losses, moments and weights; states go on without splitting, and the other way round."""
    whole = training(SINGLE, squares, "whole")
    split = in_ranks(2, trained_in_ranks, squares, "split", {"fsdp": True, "stop_after": 4})
    assert isinstance(split[0], dict), split[0]
    training(SINGLE, squares, "other", stop_after=4)
    ours, others = (model_tensors(squares / name) for name in ("split", "other"))
    shapes = {name: value.shape for name, value in others.items()}
    assert {name: value.shape for name, value in ours.items()} == shapes
    training(SINGLE, squares, "split", resume=True, stop_after=7)
    last = in_ranks(2, trained_in_ranks, squares, "split", {"fsdp": True, "resume": True})
    assert isinstance(last[0], dict), last[0]
    log = read_log(squares / "split" / "train.jsonl")
    for row, expected in zip(log, whole["log"], strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)
    one, two = (load_model(squares / name / "model").encoder.model for name in ("whole", "split"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert (a - b).abs().max() < 2e-3  # AdamW's first steps turn rounding into steps of lr


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("fsc-clip-lora", "leave --fsdp or LoRA out"),
        ("lab-clip", "which --lora and --fsdp do not support"),
        ("read-clip", "read-clip also has heads: leave --fsdp out"),
        ("degla", "degla also has a teacher: leave --fsdp out"),
    ],
)
def test_what_cannot_be_split_is_refused(squares: Path, recipe: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(Ranks(0, 2), squares, "run", load_recipe(recipe)(), fsdp=True)


@pytest.mark.parametrize("version", ["2.8.0+cu126", "2.10.1"])
def test_an_older_torch_is_told(
    squares: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UsageError, match=r"--fsdp needs torch 2\.11, and this is 2"):
        training(Ranks(0, 2), squares, "old", fsdp=True)


def test_units_are_the_blocks_of_both_towers(written_squares: Path) -> None:
    network = load_model(written_squares / "base").encoder.model
    names = {module: name for name, module in network.named_modules()}
    assert [names[unit] for unit in repeated_units(network)] == [
        f"{tower}transformer.resblocks.{i}" for tower in ("visual.", "") for i in range(2)
    ]
