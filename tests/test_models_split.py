"""A CLIP with its towers in folders of their own (TripletCLIP)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import hub_server
from build.models import edit_json, put
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import load_model, save_model
from compoclip.models.conversion import inspect_model
from test_models_hf import CAPTIONS, features, model, pixels


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `write_towers` writes."""
    folder = tmp_path_factory.mktemp("towers")
    write_towers(folder)
    return folder


@pytest.fixture
def split(written: Path, tmp_path: Path) -> Path:
    """A copy of the folder of towers."""
    return shutil.copytree(written / "split", tmp_path / "split")


def write_towers(folder: Path, wrapper: str = "model.") -> None:
    """The towers of a random CLIP as wrappers save them: no temperature, names below `wrapper`."""
    save_model(model("ViT-B-32"), folder / "whole", form="hf")
    whole = load_file(folder / "whole" / "model.safetensors")
    config = json.loads((folder / "whole" / "config.json").read_text())
    for tower, starts, part in (
        ("vision-encoder", ("vision_model.", "visual_projection."), "vision_config"),
        ("text-encoder", ("text_model.", "text_projection."), "text_config"),
    ):
        (folder / "split" / tower).mkdir(parents=True)
        state = {f"{wrapper}{k}": v for k, v in whole.items() if k.startswith(starts)}
        save_file(state, folder / "split" / tower / "model.safetensors")
        stated = {
            **config[part],
            "model_type": "custom",
            "auto_map": {"AutoModel": "utils.Wrapper"},
        }
        (folder / "split" / tower / "config.json").write_text(json.dumps(stated))
    (folder / "split" / "utils.py").write_text("raise SystemExit('code of a checkpoint was run')\n")


@pytest.mark.parametrize("wrapper", ["model.", ""])
def test_the_towers_are_read_without_their_code(wrapper: str, tmp_path: Path) -> None:
    write_towers(tmp_path, wrapper)
    loaded = load_model(tmp_path / "split")
    whole = load_model(tmp_path / "whole")
    for one, other in zip(features(loaded), features(whole)):
        assert torch.equal(one, other)
    assert loaded.identity.activation == "quick_gelu"
    assert loaded.identity.architecture == whole.identity.architecture
    assert any("temperature" in line for line in loaded.identity.assumed)
    assert inspect_model(str(tmp_path / "split"))["kind"] == "Hugging Face two-tower CLIP folder"


def test_outputs_equal_those_of_transformers(written: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    loaded = load_model(written / "split")
    whole = transformers.CLIPConfig.from_pretrained(written / "whole")
    vision = transformers.CLIPVisionModelWithProjection(whole.vision_config).eval()
    text = transformers.CLIPTextModelWithProjection(whole.text_config).eval()
    for tower, folder in ((vision, "vision-encoder"), (text, "text-encoder")):
        state = load_file(written / "split" / folder / "model.safetensors")
        tower.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
    with torch.no_grad():
        image = vision(pixel_values=pixels(loaded)).image_embeds
        caption = text(input_ids=loaded.tokenizer(CAPTIONS)).text_embeds
    ours = features(loaded)
    assert torch.allclose(ours[0], image, atol=1e-5)
    assert torch.allclose(ours[1], caption, atol=1e-5)


def without(key: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "text-encoder" / "model.safetensors"
        state = load_file(file)
        del state[key]
        save_file(state, file)

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: edit_json(f / "text-encoder" / "config.json", put(hidden_act="gelu")),
            "agree on hidden_act",
        ),
        (without("model.text_projection.weight"), "lack 'text_projection.weight'"),
        (without("model.text_model.final_layer_norm.bias"), "the file lacks 'ln_final.bias'"),
        (lambda f: (f / "vision-encoder" / "model.safetensors").unlink(), "has no weights"),
    ],
)
def test_wrong_folders_are_refused_with_the_reason(
    damage: Callable[[Path], object], message: str, split: Path
) -> None:
    damage(split)
    with pytest.raises(CompoclipError, match=message):
        load_model(split)


def test_both_towers_are_fetched_from_the_hub(
    split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server.offer(split, tmp_path / "cache", monkeypatch)
    there = load_model("hf-hub:somebody/triplet")
    assert there.name == "hf-hub:somebody/triplet"
    assert there.identity == load_model(split).identity
