"""Runs with adapters: what they write, what they leave alone, and that they resume exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.base import Lora, Method, Trains
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.programs.run import named_models
from compoclip.training.log import read_log
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings
from distributed_runs import write_base
from train_helpers import OPTIM, weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_base(tmp_path)


def method(name: str = "clip-ft", trains: Trains | None = None, **lora: Any) -> Method:
    made = replace(load_recipe(name)(optim=OPTIM), lora=Lora(**lora))
    return made if trains is None else replace(made, trains=trains)


def train(folder: Path, recipe: Method, out: str, **settings: Any) -> LoadedModel:
    model = load_model(folder / "base")
    source = open_source(str(folder / "data" / "data.tsv"))
    run_training(model, recipe, source, RunSettings(out=folder / out, log_every=1, **settings))
    return model


def adapted_names(state: dict[str, Tensor], base: dict[str, Tensor]) -> set[str]:
    return {name for name, value in state.items() if not torch.equal(value, base[name])}


@pytest.mark.parametrize("towers", ["both", "image", "text"])
def test_only_adapted_weights_change(folder: Path, towers: str) -> None:
    train(folder, method("fsc-clip", towers=towers), "run")
    changed = adapted_names(weights(folder / "run" / "model"), weights(folder / "base"))
    parts = ("in_proj_weight", "out_proj.weight", "c_fc.weight", "c_proj.weight")
    wanted = {
        name
        for name in weights(folder / "base")
        if name.endswith(parts)
        and (towers == "both" or name.startswith("visual.") == (towers == "image"))
    }
    assert len(wanted) == (16 if towers == "both" else 8)
    assert changed == wanted  # the temperature too is that of the base


def test_a_run_leaves_the_model_merged_and_the_adapters_alone(folder: Path) -> None:
    model = train(folder, method(), "run")
    whole, alone = load_model(folder / "run" / "model"), load_model(folder / "run" / "adapter")
    assert whole.identity == alone.identity
    assert whole.identity.base == load_model(folder / "base").identity.weights
    assert whole.identity.adapter == "lora rank 4, alpha 1, both towers"
    assert whole.provenance["lora"]["rank"] == alone.provenance["lora"]["rank"] == 4
    merged = model.encoder.model.state_dict()  # what was trained is a plain network again
    for name, value in alone.encoder.model.state_dict().items():
        assert torch.equal(value, merged[name]), name
    paths = [str(folder / "run" / "model"), "x=y"]
    assert list(named_models(paths)) == ["run", "x"]
    assert list(named_models([str(folder / "run" / "adapter")])) == ["run"]


def test_without_merging_the_run_holds_adapters_only(folder: Path) -> None:
    train(folder, method(), "run", merge=False)
    assert not (folder / "run" / "model").exists()
    train(folder, method(), "run", merge=False, resume=True)  # already finished
    assert not (folder / "run" / "model").exists()
    train(folder, method(), "run", resume=True)  # merging can be made up for
    whole, alone = load_model(folder / "run" / "model"), load_model(folder / "run" / "adapter")
    assert whole.identity == alone.identity


def test_a_method_for_one_tower_adapts_that_one(folder: Path) -> None:
    train(folder, method(trains=Trains(image_tower=False)), "run")
    record = json.loads((folder / "run" / "adapter" / "adapter.json").read_text())
    assert record["lora"]["towers"] == "text"
    assert not any(name.startswith("visual.") for name in record["adapted"])
    with pytest.raises(UsageError, match="trains nothing in the tower of its adapters"):
        train(folder, method(trains=Trains(image_tower=False), towers="image"), "other")


def test_a_base_that_changed_in_memory_is_refused(folder: Path) -> None:
    model = load_model(folder / "base")
    with torch.no_grad():
        model.encoder.model.get_parameter("visual.proj").add_(1.0)
    source = open_source(str(folder / "data" / "data.tsv"))
    with pytest.raises(CompoclipError, match="save the model and train on the checkpoint"):
        run_training(model, method(), source, RunSettings(out=folder / "run"))


def command(folder: Path, *more: str, recipe: str = "clip-ft", out: str = "run") -> list[str]:
    return [
        "train",
        recipe,
        f"--model={folder / 'base'}",
        f"--data={folder / 'data' / 'data.tsv'}",
        f"--out={folder / out}",
        "--batch-size=8",
        "--epochs=1",
        "--warmup=0",
        "--set=log_every=1",
        *more,
    ]


def first_lr(folder: Path, out: str = "run") -> float:
    return float(read_log(folder / out / "train.jsonl")[0]["lr"])


def test_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, "--lora", "--lora-rank=2", "--set=lora_towers=text", "--json")) == 0
    shown = capsys.readouterr()
    summary = json.loads(shown.out)
    assert summary["adapter"] == str(folder / "run" / "adapter")
    assert summary["model"] == str(folder / "run" / "model")
    learn = 2 * (4 + 2 + 5 + 5) * 16 * 2  # rank x (d -> 3d, d -> d, d -> 4d, 4d -> d) x layers
    assert f"lora rank 2, alpha 1, text tower: {learn:,} trained" in shown.err
    assert first_lr(folder) == pytest.approx(10 * load_recipe("clip-ft")().optim.lr)


def test_a_given_learning_rate_is_taken_as_it_is(folder: Path) -> None:
    assert main(command(folder, "--lora", "--lr=2e-4")) == 0
    assert first_lr(folder) == 2e-4
    lora = ["--lr", "5e-6", "--set=lora_alpha=2"]  # the lr of full fine-tuning, but asked for
    assert main(command(folder, *lora, recipe="fsc-clip-lora", out="other")) == 0
    assert first_lr(folder, "other") == 5e-6
    assert load_model(folder / "other" / "model").provenance["lora"]["alpha"] == 2
