"""Runs with adapters: what they write, what they leave alone, and that they resume exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from build.runs import TABLE, command, run
from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.base import Lora, Method, Trains
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.models.lora import Towers
from compoclip.programs.run import named_models
from compoclip.ranks import SINGLE
from compoclip.training.log import read_log
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings
from train_helpers import OPTIM, weights

TEXT = Trains(image_tower=False)


def method(name: str = "clip-ft", trains: Trains | None = None, **lora: Any) -> Method:
    recipe = replace(load_recipe(name)(optim=OPTIM), lora=Lora(**lora))
    return recipe if trains is None else replace(recipe, trains=trains)


@pytest.mark.parametrize(
    ("towers", "trains", "frozen", "adapted_towers"),
    [
        ("both", Trains(), (), "both"),
        ("image", Trains(), (), "image"),
        ("text", Trains(), (), "text"),
        ("both", TEXT, (), "text"),
        ("both", Trains(), ("image-trunk",), "text"),
    ],
)
def test_only_adapted_weights_change(
    squares: Path, towers: Towers, trains: Trains, frozen: tuple[str, ...], adapted_towers: str
) -> None:
    recipe = method("negclip", trains, towers=towers)
    run(SINGLE, squares, "run", recipe, max_steps=3, freeze=frozen)
    before, after = weights(squares / "base"), weights(squares / "run" / "model")
    parts = ("in_proj_weight", "out_proj.weight", "c_fc.weight", "c_proj.weight")
    adapted = {
        name
        for name in before
        if name.endswith(parts)
        and adapted_towers in ("both", "image" if name.startswith("visual.") else "text")
    }
    assert len(adapted) == (16 if adapted_towers == "both" else 8)
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == adapted  # the temperature too is that of the base
    record = json.loads((squares / "run" / "adapter" / "adapter.json").read_text())
    assert record["lora"]["towers"] == adapted_towers


def test_adapters_of_a_tower_that_does_not_train_are_refused(squares: Path) -> None:
    with pytest.raises(UsageError, match="trains nothing in the tower of its adapters"):
        run(SINGLE, squares, "run", method(trains=TEXT, towers="image"))


def test_a_run_leaves_the_model_merged_and_the_adapters_alone(squares: Path) -> None:
    trained = run(SINGLE, squares, "run", method())["model"]
    whole, alone = (load_model(squares / "run" / name) for name in ("model", "adapter"))
    assert whole.identity == alone.identity
    assert whole.identity.base == load_model(squares / "base").identity.weights
    assert whole.identity.adapter == "lora rank 4, alpha 1, both towers"
    assert whole.provenance["lora"]["rank"] == alone.provenance["lora"]["rank"] == 4
    merged = trained.encoder.model.state_dict()  # what was trained is a plain network again
    for name, value in alone.encoder.model.state_dict().items():
        assert torch.equal(value, merged[name]), name
    paths = [str(squares / "run" / "model"), "x=y"]
    assert list(named_models(paths)) == ["run", "x"]
    assert list(named_models([str(squares / "run" / "adapter")])) == ["run"]


def test_a_base_that_changed_in_memory_is_refused(squares: Path) -> None:
    model = load_model(squares / "base")
    with torch.no_grad():
        model.encoder.model.get_parameter("visual.proj").add_(1.0)
    source = open_source(str(squares / TABLE))
    with pytest.raises(CompoclipError, match="save the model and train on the checkpoint"):
        run_training(model, method(), source, RunSettings(out=squares / "run"))


def first_lr(out: Path) -> float:
    return float(read_log(out / "train.jsonl")[0]["lr"])


def test_a_command_adapts_one_tower_at_ten_times_the_rate(
    squares: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, short = squares / "run", ("--warmup=0", "--max-steps=2")
    options = ("--lora", "--lora-rank=2", "--set=lora_towers=text", "--json")
    assert main(command(squares, "run", *short, *options)) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["adapter"] == str(out / "adapter")
    assert summary["model"] == str(out / "model")
    learn = 2 * (4 + 2 + 5 + 5) * 16 * 2  # rank x (d -> 3d, d -> d, d -> 4d, 4d -> d) x layers
    assert f"lora rank 2, alpha 1, text tower: {learn:,} trained" in printed.err
    assert first_lr(out) == pytest.approx(10 * load_recipe("clip-ft")().optim.lr)


@pytest.mark.parametrize(
    ("recipe", "options", "lr"),
    [
        ("clip-ft", ["--lora", "--lr=2e-4"], 2e-4),
        # The rate of full fine-tuning, but asked for.
        ("fsc-clip-lora", ["--lr", "5e-6", "--set=lora_alpha=2"], 5e-6),
    ],
)
def test_a_given_learning_rate_is_taken_as_it_is(
    squares: Path, recipe: str, options: list[str], lr: float
) -> None:
    short = ("--warmup=0", "--max-steps=1")
    assert main(command(squares, "run", *short, *options, method=recipe)) == 0
    assert first_lr(squares / "run") == lr
    alpha = load_model(squares / "run" / "model").provenance["lora"]["alpha"]
    assert alpha == (2 if "--set=lora_alpha=2" in options else 1)
