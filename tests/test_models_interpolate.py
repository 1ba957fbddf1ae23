"""Weight interpolation: exact ends, linear between, one tower at a time, and what it refuses."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from build.models import edit_json, put
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.models.architecture import build_model
from compoclip.models.checkpoint import (
    LoadedModel,
    create_model,
    current_identity,
    load_model,
    save_model,
)
from compoclip.models.config import read_config
from compoclip.models.conversion import average, interpolate, interpolate_states
from compoclip.models.lora import Lora, attach_lora, merge_lora
from models_thin import config, fill_adapters
from test_models_adapter import outputs
from train_helpers import FEW, write_config, write_data


def model(folder: Path, seed: int, activation: str = "gelu") -> LoadedModel:
    config = read_config(write_config(folder / "config.json", activation, merges=FEW))
    return create_model(config, seed=seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def base(folder: Path) -> LoadedModel:
    return model(folder, seed=1)


@pytest.fixture(scope="module")
def tuned(folder: Path, base: LoadedModel) -> LoadedModel:
    """All weights of the base changed; trained from it, says its identity."""
    other = model(folder, seed=2)
    with torch.no_grad():
        other.encoder.logit_scale.add_(0.5)
    identity = replace(current_identity(other), base=base.identity.weights)
    return replace(other, identity=identity, provenance={"method": "clip-ft"})


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other))


def test_the_ends_are_the_models_themselves(base: LoadedModel, tuned: LoadedModel) -> None:
    at_0 = interpolate(base, tuned, 0.0, mix_scale=True)
    at_1 = interpolate(base, tuned, 1.0)
    assert same(outputs(at_0), outputs(base))
    assert same(outputs(at_1), outputs(tuned))
    assert at_0.identity.weights == base.identity.weights
    assert at_1.identity.weights == tuned.identity.weights
    assert current_identity(at_1) == at_1.identity


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.75])
def test_weights_between_are_linear(alpha: float) -> None:
    base, tuned = (build_model(config(), seed).state_dict() for seed in (1, 2))
    for name, value in interpolate_states(base, tuned, alpha, mix_scale=True).items():
        wanted = (1 - alpha) * base[name].double() + alpha * tuned[name].double()
        assert (value.double() - wanted).abs().nan_to_num().max() <= 1e-7, name
        assert value.dtype == torch.float32


def test_a_tower_alone_takes_the_rest_from_the_tuned(base: LoadedModel, tuned: LoadedModel) -> None:
    ours, theirs = base.encoder.model.state_dict(), tuned.encoder.model.state_dict()
    for scope in ("image", "text"):
        mixed = interpolate(base, tuned, 0.25, scope)  # type: ignore[arg-type]
        image, text = outputs(mixed)
        assert torch.equal(image, outputs(tuned)[0]) == (scope == "text")
        assert torch.equal(text, outputs(tuned)[1]) == (scope == "image")
        for name, value in mixed.encoder.model.state_dict().items():
            inside = (scope == "image") == name.startswith("visual.") and name != "logit_scale"
            wanted = 0.75 * ours[name] + 0.25 * theirs[name] if inside else theirs[name]
            assert torch.allclose(value, wanted, atol=1e-7), name


def test_integers_come_from_the_tuned_and_equal_weights_stay() -> None:
    frozen = torch.tensor([0.1, 0.3, -torch.inf])
    base = {"visual.n": torch.tensor(3), "w": frozen, "h": torch.tensor([1.0]).half()}
    tuned = {"visual.n": torch.tensor(8), "w": frozen.clone(), "h": torch.tensor([2.0]).half()}
    mixed = interpolate_states(base, tuned, 0.3)
    assert mixed["visual.n"] == 8
    assert torch.equal(mixed["w"], frozen)
    assert mixed["h"].dtype == torch.float32
    assert mixed["h"].item() == pytest.approx(1.3, abs=1e-7)


def test_names_and_shapes_must_agree() -> None:
    a, b = torch.zeros(2), torch.zeros(3)
    for base, tuned, said in (
        (
            {"x": a, "y": a},
            {"y": a},
            r"'x' is \(2,\) in the base and nothing in the tuned model \(1 ",
        ),
        ({"y": a}, {"y": a, "z": a}, r"'z' is nothing in the base and \(2,\) in"),
        ({"y": a}, {"y": b}, r"'y' is \(2,\) in the base and \(3,\) in the tuned"),
    ):
        with pytest.raises(CompoclipError, match=said):
            interpolate_states(base, tuned, 0.5)


@pytest.mark.parametrize("alpha", [-0.1, 1.01, float("nan")])
def test_alpha_is_a_share(alpha: float) -> None:
    with pytest.raises(UsageError, match="must lie between 0"):
        interpolate_states({}, {}, alpha)


def test_another_context_is_refused_with_the_reason(base: LoadedModel) -> None:
    config = deepcopy(dict(base.config.model_cfg))
    config["text_cfg"]["context_length"] -= 4
    short = create_model(replace(base.config, model_cfg=config), seed=3)
    with pytest.raises(CompoclipError, match="positions that only one of them has") as caught:
        interpolate(base, short, 0.5)
    assert "\n" not in str(caught.value)


def test_the_result_says_what_it_is_made_of(
    base: LoadedModel, tuned: LoadedModel, tmp_path: Path
) -> None:
    mixed = interpolate(base, tuned, 0.25, "image")
    save_model(mixed, tmp_path / "mixed")
    again = load_model(tmp_path / "mixed")
    assert again.identity == mixed.identity
    assert again.identity.base == base.identity.weights
    assert again.provenance["method"] == "clip-ft"
    record = again.provenance["wise_ft"]
    assert (record["alpha"], record["scope"], record["mix_scale"]) == (0.25, "image", False)
    assert record["base"]["weights"] == base.identity.weights
    assert record["tuned"]["weights"] == tuned.identity.weights


def test_adapters_scaled_by_alpha_or_its_square(tmp_path: Path, base: LoadedModel) -> None:
    adapted = model(tmp_path, seed=1)
    attach_lora(adapted.encoder.model, Lora())
    fill_adapters(adapted.encoder.model)
    merge_lora(adapted.encoder.model)
    identity = replace(current_identity(adapted), adapter=Lora().describe())
    assert identity.base == base.identity.weights
    tuned = replace(adapted, identity=identity)
    ours, theirs = base.encoder.model.state_dict(), tuned.encoder.model.state_dict()
    for wise_lora, share in (("merged", 0.4), ("squared", 0.16)):
        mixed = interpolate(base, tuned, 0.4, wise_lora=wise_lora)  # type: ignore[arg-type]
        for name, value in mixed.encoder.model.state_dict().items():
            wanted = ours[name] + share * (theirs[name] - ours[name])
            same_inf = torch.equal(value, theirs[name])
            assert same_inf or torch.allclose(value, wanted, atol=1e-6), name
        assert mixed.identity.adapter == Lora().describe()
        assert mixed.provenance["wise_ft"]["wise_lora"] == wise_lora


def test_squares_are_for_adapters_on_their_base(base: LoadedModel, tuned: LoadedModel) -> None:
    with pytest.raises(UsageError, match="squared interpolation is for adapters"):
        interpolate(base, tuned, 0.5, wise_lora="squared")


def test_the_verb(
    tmp_path: Path, base: LoadedModel, tuned: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(base, tmp_path / "base")
    save_model(tuned, tmp_path / "tuned")
    command = ["wise-ft", str(tmp_path / "base"), str(tmp_path / "tuned")]
    out = str(tmp_path / "mixed")
    assert main([*command, "--alpha=0.3", "--scope=text", f"--out={out}", "--json"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert (record["alpha"], record["scope"], record["model"]) == (0.3, "text", out)
    assert load_model(out).identity.weights == record["weights"]
    assert "does not say" not in shown.err
    assert main([*command, f"--out={out}"]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main([*command, "--alpha=2", f"--out={tmp_path / 'new'}"]) == 2
    assert main([*reversed(command[1:]), f"--out={tmp_path / 'new'}"]) == 2  # no verb
    swapped = ["wise-ft", command[2], command[1], f"--out={tmp_path / 'new'}"]
    assert main(swapped) == 0
    assert "does not say that it was trained from" in capsys.readouterr().err


# --- The mean of several models. ---


def test_a_mean_is_that_of_all_weights(tmp_path: Path) -> None:
    models = [model(tmp_path, seed) for seed in (1, 2, 3)]
    with torch.no_grad():
        models[1].encoder.logit_scale.add_(0.6)
    mixed = average(iter(models))
    states = [each.encoder.model.state_dict() for each in models]
    for name, value in mixed.encoder.model.state_dict().items():
        if value.is_floating_point():
            expected = sum(state[name].double() for state in states) / 3
            torch.testing.assert_close(value, expected.float(), atol=1e-6, rtol=1e-6)
    assert [(part["weights"], part["name"]) for part in mixed.provenance["soup"]] == [
        (current_identity(model).weights, model.name) for model in models
    ]
    same_thing = average([models[0], models[0]])
    assert same_thing.identity.weights == models[0].identity.weights


def test_a_mean_takes_two_models_of_one_kind(tmp_path: Path, base: LoadedModel) -> None:
    with pytest.raises(UsageError, match="takes two or more"):
        average([base])
    quick = model(tmp_path, 2, "quick_gelu")
    with pytest.raises(CompoclipError, match=r"cannot be mixed .*activation.*; average"):
        average([base, quick])
    edit_json(tmp_path / "config.json", put("model_cfg", "vision_cfg", width=64))
    wide = create_model(read_config(tmp_path / "config.json"), seed=1)
    with pytest.raises(CompoclipError, match="cannot be mixed"):
        average([base, wide])


def test_training_starts_from_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_data(tmp_path / "data", 16)
    paths = [tmp_path / name for name in ("a", "b")]
    for seed, path in enumerate(paths):
        save_model(model(tmp_path, seed), path, provenance={})
    out = f"--out={tmp_path / 'run'}"
    run = ["train", "clip-ft", f"--data={data}", out, "--batch-size=8", "--epochs=1"]
    start = ["--init-from", *map(str, paths)]
    assert main([*run, "--lr=0", *start]) == 0
    found = load_model(tmp_path / "run" / "model")
    expected = average(map(load_model, paths))
    assert found.identity.weights == expected.identity.weights
    assert [each["name"] for each in found.provenance["init_from"]] == list(map(str, paths))
    for more, said in (
        ([f"--model={paths[0]}", *start], "--init-from replaces --model"),
        (["--lora", *start], "leave --lora out"),
        (["--init-from", str(paths[0])], "takes two or more"),
    ):
        assert main([*run[:-3], f"--out={tmp_path / 'no'}", *run[-2:], *more]) == 2
        assert said in capsys.readouterr().err
