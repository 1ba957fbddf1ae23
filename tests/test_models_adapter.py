"""Adapter folders: alone, merged, on their own base, and on what is not their base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import hub_server
from build.models import edit_json, put
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import (
    LoadedModel,
    create_model,
    current_identity,
    load_model,
    save_model,
)
from compoclip.models.config import read_config
from compoclip.models.formats.adapters import (
    CONFIG,
    RECORD,
    WEIGHTS,
    AdapterFolder,
    read_adapter_record,
    save_adapter,
)
from compoclip.models.lora import Lora, attach_lora, merge_lora
from models_thin import fill_adapters, pixels
from train_helpers import FEW, write_config


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "base"
    saved_base(folder, seed=1)
    return folder


@pytest.fixture
def base(written: Path, tmp_path: Path) -> LoadedModel:
    """A base, loaded from a folder of the test's own."""
    return load_model(shutil.copytree(written, tmp_path / "base"))


def saved_base(folder: Path, seed: int) -> LoadedModel:
    config = read_config(write_config(folder.with_suffix(".json"), merges=FEW))
    save_model(create_model(config, seed=seed), folder)
    return load_model(folder)


def write_adapter(base: LoadedModel, folder: Path, lora: Lora | None = None) -> Path:
    """Adapters with values as if trained; `base` stays adapted."""
    lora = lora or Lora()
    network = base.encoder.model
    attach_lora(network, lora)
    fill_adapters(network)
    save_adapter(base, lora, folder, provenance={"method": "test"})
    return folder


def outputs(model: LoadedModel) -> tuple[Tensor, Tensor]:
    ids = model.tokenizer(["a red square", "a wall"])
    with torch.no_grad():
        features = model.encoder.eval().features(pixels(), ids)
    return features.image, features.text


def close(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return all(float((a - b).abs().max()) <= 1e-5 for a, b in zip(one, other))


@pytest.mark.parametrize("lora", [Lora(), Lora(rank=2, alpha=8.0, towers="text", targets="+conv")])
def test_an_adapter_loads_on_the_base_that_it_names(
    base: LoadedModel, tmp_path: Path, lora: Lora, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = base.identity
    folder = write_adapter(base, tmp_path / "adapter", lora)
    adapted = outputs(base)
    merge_lora(base.encoder.model)
    monkeypatch.chdir("/")  # wherever it is loaded from
    loaded = load_model(folder)
    assert close(outputs(loaded), adapted)
    assert loaded.identity == current_identity(loaded)
    assert loaded.identity.base == before.weights
    assert loaded.identity.weights == current_identity(base).weights
    assert loaded.identity.adapter == lora.describe()
    assert loaded.provenance == {"method": "test"}
    assert read_adapter_record(folder)[2] == lora
    size = (folder / WEIGHTS).stat().st_size
    assert size < (tmp_path / "base" / "open_clip_model.safetensors").stat().st_size / 3


def test_another_base_is_refused_and_both_are_named(base: LoadedModel, tmp_path: Path) -> None:
    folder = write_adapter(base, tmp_path / "adapter")
    other = saved_base(tmp_path / "other", seed=9)
    with pytest.raises(CompoclipError) as caught:
        AdapterFolder().load_on(str(folder), other.name, None)
    for model in (base, other):
        assert model.name in str(caught.value)
        assert model.identity.weights in str(caught.value)
    # the base's folder holds other weights now
    shutil.rmtree(tmp_path / "base")
    shutil.move(tmp_path / "other", tmp_path / "base")
    with pytest.raises(CompoclipError, match="load it on its own base"):
        load_model(folder)


def test_the_same_weights_with_another_activation_are_another_base(
    base: LoadedModel, tmp_path: Path
) -> None:
    folder = write_adapter(base, tmp_path / "adapter")
    other = load_model(tmp_path / "base", activation="quick_gelu")
    with pytest.raises(CompoclipError, match="activation: gelu vs quick_gelu"):
        read_adapter_record(folder)[1].require(other.identity, "bases", "")
    overridden = load_model(folder, activation="quick_gelu")
    assert overridden.identity.activation == "quick_gelu"
    assert not close(outputs(overridden), outputs(load_model(folder)))


def test_the_activation_of_the_base_comes_back(written: Path, tmp_path: Path) -> None:
    base = load_model(written, activation="quick_gelu")
    folder = write_adapter(base, tmp_path / "adapter")
    loaded = load_model(folder)
    assert loaded.identity.activation == "quick_gelu"
    assert close(outputs(loaded), outputs(base))


def test_an_adapter_on_an_adapter(base: LoadedModel, tmp_path: Path) -> None:
    first = load_model(write_adapter(base, tmp_path / "first"))
    second = write_adapter(first, tmp_path / "second")
    assert close(outputs(load_model(second)), outputs(first))
    edit_json(tmp_path / "first" / RECORD, put("base", model=str(second)))
    with pytest.raises(CompoclipError, match="it is the base of itself"):
        load_model(second)
    (second / RECORD).unlink()  # as PEFT writes it
    edit_json(second / CONFIG, put(base_model_name_or_path=str(second)))
    with pytest.raises(CompoclipError, match="it is the base of itself"):
        load_model(second)


def test_a_base_that_is_gone(base: LoadedModel, tmp_path: Path) -> None:
    folder = write_adapter(base, tmp_path / "adapter")
    moved = shutil.move(tmp_path / "base", tmp_path / "moved")
    with pytest.raises(CompoclipError, match=r"say where it is in .*adapter\.json") as caught:
        load_model(folder)
    assert str(tmp_path / "base") in str(caught.value)
    edit_json(folder / RECORD, put("base", model=str(moved)))
    assert close(outputs(load_model(folder)), outputs(base))


def test_damage(base: LoadedModel, tmp_path: Path) -> None:
    folder = write_adapter(base, tmp_path / "adapter")
    good = json.loads((folder / RECORD).read_text())
    lora = good["lora"]
    records: list[tuple[object, str]] = [
        ({**good, "lora": {**lora, "rank": 2}}, r"'.*\.a' is \(4, \d+\) in the file"),
        ({**good, "lora": {**lora, "rank": 0}}, "LoRA rank must be at least 1, found 0"),
        ({**good, "lora": {**lora, "rank": True}}, "LoRA rank must be a whole number"),
        ({**good, "lora": {**lora, "rank": 2.5}}, "LoRA rank must be a whole number"),
        ({**good, "lora": {**lora, "rank": 10**12}}, r"not the adapters of adapter\.json"),
        ({**good, "lora": {**lora, "towers": "image"}}, "the architecture has no"),
        ({**good, "lora": {"rank": 4}}, "damaged .*alpha"),
        ({"lora": lora}, "damaged .*base"),
        ({**good, "merged": True}, r"adapter\.json: unknown setting 'merged'; restore"),
        ({**good, "base": {**good["base"], "revision": "x"}}, "'revision' under \"base\""),
        ({**good, "adapted": good["adapted"][1:]}, r"adapter\.json: 'adapted' lists other"),
        ([], "expected a JSON object"),
    ]
    for record, message in records:
        (folder / RECORD).write_text(json.dumps(record))
        with pytest.raises(CompoclipError, match=message) as caught:
            load_model(folder)
        assert "adapter" in str(caught.value)
    (folder / RECORD).write_text(json.dumps(good))
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:2000])
    with pytest.raises(CompoclipError, match="damaged or cut short"):
        load_model(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(CompoclipError, match="no such weights file"):
        load_model(folder)


def test_a_record_that_peft_would_not_follow_is_refused(base: LoadedModel, tmp_path: Path) -> None:
    folder = write_adapter(base, tmp_path / "adapter")
    good = (folder / CONFIG).read_text()
    changes: list[tuple[dict[str, object], str]] = [
        ({"lora_alpha": 99}, r"lora_alpha is 99 \(int\), and [\d.]+ in adapter.json"),
        ({"r": 3}, r"r is 3 \(int\), and 4 in adapter.json"),
        ({"use_dora": True}, "'use_dora' .*unknown entry"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"target_modules": ["q_proj"]}, "target_modules leaves '.*' out, and the weights adapt"),
        ({"exclude_modules": ["fc1", "fc2"]}, "exclude_modules leaves '.*' out"),
        ({"use_rslora": True}, "scales '.*' by 0.5, and adapter.json by 0.25"),
        ({"alpha_pattern": {".*": 8.0}}, "scales '.*' by 2, and adapter.json by 0.25"),
    ]
    for change, message in changes:
        edit_json(folder / CONFIG, put(**change))
        with pytest.raises(CompoclipError, match=rf"adapter_config.json: {message}.*restore"):
            load_model(folder)
        (folder / CONFIG).write_text(good)
    # as PEFT writes it after it has read the folder
    shorter = {"target_modules": "all-linear", "alpha_pattern": None, "rank_pattern": None}
    edit_json(folder / CONFIG, put(**shorter))
    load_model(folder)
    (folder / CONFIG).write_text(good)
    edit_json(folder / RECORD, put("lora", alpha=99.0))
    with pytest.raises(CompoclipError, match=r"lora_alpha is .*, and 99.0 in adapter.json"):
        load_model(folder)
    edit_json(folder / RECORD, put("lora", dropout=0.1))
    with pytest.raises(CompoclipError, match=r"adapter.json: unknown setting 'dropout'"):
        load_model(folder)


def test_weights_that_torch_saved_are_fetched_from_the_hub(
    base: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_adapter(base, tmp_path / "adapter")
    (folder / RECORD).unlink()
    torch.save(load_file(folder / WEIGHTS), folder / "adapter_model.bin")
    (folder / WEIGHTS).unlink()
    edit_json(folder / CONFIG, put(base_model_name_or_path=str(tmp_path / "base")))
    hub_server.offer(folder, tmp_path / "cache", monkeypatch)
    assert load_model("hf-hub:me/adapter").identity == load_model(folder).identity


def test_one_of_two_files_of_weights_is_fetched_from_the_hub(
    base: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = tmp_path / "base", tmp_path / "cache"
    file = folder / "open_clip_model.safetensors"
    file.rename(folder / "open_clip_pytorch_model.safetensors")
    (folder / "open_clip_pytorch_model.bin").write_bytes(b"the same for torch")
    hub_server.offer(folder, cache, monkeypatch)
    assert load_model("hf-hub:me/model").identity == base.identity
    assert not (cache / "open_clip_pytorch_model.bin").exists()
