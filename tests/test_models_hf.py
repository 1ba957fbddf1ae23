"""CLIPModel folders of Hugging Face, whole and tower by tower: names, files, tokenizer, and
equality with transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from build_bpe import count_words, train_bpe, write_merges
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import hub_server
from build.models import Change, edit_json, put
from build.tables import write_json
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import LoadedModel, create_model, load_model, save_model
from compoclip.models.config import ModelConfig, ModelIdentity, part_of
from compoclip.models.conversion import inspect_model
from compoclip.models.formats import hugging_face
from foreign_folders import read_tokenizer_once
from models_thin import config, shake

CLIP = hugging_face.HFClip()
CAPTIONS = ["a red cat on a mat", "two dogs", "A cat,  and nothing's else in sight!"]
VOCABULARY = {"vocab_size": 49408}
# The shapes of published models, thinned: patches, image sizes, heads and activations as theirs.
SHAPES: dict[str, dict[str, Any]] = {
    "ViT-B-32": config(
        vision={"image_size": 224, "patch_size": 32, "width": 64, "head_width": 64, "layers": 2},
        text={**VOCABULARY, "context_length": 77, "width": 32, "heads": 4, "layers": 2},
        quick_gelu=True,
    ),
    "ViT-L-14-336": config(
        vision={"image_size": 336, "patch_size": 14, "width": 64, "head_width": 64, "layers": 1},
        text={**VOCABULARY, "context_length": 77, "width": 48, "heads": 12, "layers": 1},
        quick_gelu=True,
    ),
    "gelu": config(
        vision={"mlp_ratio": 4.3637, "width": 88, "head_width": 88, "pos_embed_type": "sin_cos_2d"},
        text={**VOCABULARY, "mlp_ratio": 2.5, "width": 16, "heads": 2},
    ),
    "epsilon": config(
        vision={"norm_kwargs": {"eps": 1e-3}},
        text={**VOCABULARY, "norm_kwargs": {"eps": 1e-2}},
        custom_text=True,
    ),
}


def model(shape: str) -> LoadedModel:
    loaded = create_model(ModelConfig(SHAPES[shape]), seed=1)
    shake(loaded.encoder.model, torch.Generator().manual_seed(3))
    return loaded


def pixels(loaded: LoadedModel) -> Tensor:
    size = loaded.preprocess.size
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(4))


def features(loaded: LoadedModel) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return (
            loaded.encoder.encode_images(pixels(loaded)).pooled,
            loaded.encoder.encode_texts(loaded.tokenizer(CAPTIONS)).pooled,
        )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the shape "gelu"."""
    folder = tmp_path_factory.mktemp("written") / "hf"
    save_model(model("gelu"), folder, form="hf")
    return folder


@pytest.fixture
def hf(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(written, tmp_path / "hf")


@pytest.fixture(autouse=True)
def tokenizers_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing 49,408 tokens takes longer than all else here: once for equal files."""
    monkeypatch.setattr(hugging_face, "tokenizer_of", read_tokenizer_once)


# --- without transformers ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_folder_comes_back_as_the_model_it_was(tmp_path: Path, shape: str) -> None:
    before = model(shape)
    identity = save_model(before, tmp_path / "hf", form="hf")
    after = load_model(tmp_path / "hf")
    assert after.identity == identity
    assert identity.activation == before.identity.activation
    for one, other in zip(features(before), features(after)):
        assert torch.equal(one, other)
    image = Image.effect_noise((50, 41), 90).convert("RGB")
    assert torch.equal(before.preprocess.evaluation(image), after.preprocess.evaluation(image))
    # and back to open_clip's layout
    save_model(after, tmp_path / "oc")
    assert load_model(tmp_path / "oc").identity.weights == identity.weights


def test_names_and_shapes_are_those_of_the_published_files() -> None:
    state = CLIP.names.write(model("ViT-B-32").encoder.model.state_dict())
    layer = "vision_model.encoder.layers.1"
    assert state["vision_model.embeddings.position_embedding.weight"].shape == (50, 64)
    assert state["vision_model.pre_layrnorm.weight"].shape == (64,)  # sic
    assert state[f"{layer}.self_attn.v_proj.weight"].shape == (64, 64)
    assert state[f"{layer}.mlp.fc1.weight"].shape == (256, 64)
    assert state["visual_projection.weight"].shape == (24, 64)
    assert state["text_projection.weight"].shape == (24, 32)
    assert len(state) == 12 + 2 + 2 * 2 * 16


def test_own_vocabularies_travel_along(tmp_path: Path) -> None:
    write_merges(train_bpe(count_words(CAPTIONS), 20), tmp_path / "m.gz")
    cfg = config(text={"vocab_size": 544, "tokenizer_kwargs": {"bpe_path": "m.gz"}})
    before = create_model(ModelConfig(cfg, folder=tmp_path))
    save_model(before, tmp_path / "hf", dtype="float16", form="hf")
    after = load_model(tmp_path / "hf")
    assert after.identity.tokenizer == before.identity.tokenizer
    assert torch.equal(after.tokenizer(CAPTIONS), before.tokenizer(CAPTIONS))
    stored = load_file(tmp_path / "hf" / "model.safetensors")
    assert stored["visual_projection.weight"].dtype == torch.float16
    (tmp_path / "hf" / "bpe.txt.gz").unlink()
    with pytest.raises(CompoclipError, match="its tokenizer is not CLIP's BPE"):
        load_model(tmp_path / "hf")


def test_folders_of_others_say_what_was_assumed(hf: Path, tmp_path: Path) -> None:
    """What `CLIPModel.save_pretrained` leaves, and the forms of older releases."""
    before, folder = model("gelu"), hf
    for name in ("compoclip.json", "merges.txt", "vocab.json", "preprocessor_config.json"):
        (folder / name).unlink()
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    state["text_model.embeddings.position_ids"] = torch.arange(20)[None]
    names = sorted(state)
    index: dict[str, dict[str, str]] = {"weight_map": {}}
    for number, part in enumerate((names[:9], names[9:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, folder / file)
        index["weight_map"] |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", index)
    after = load_model(folder)
    assert after.identity.weights == load_model(folder).identity.weights
    assert after.provenance["activation"] == "gelu, by config.json"
    assert [line.split()[0] for line in after.identity.assumed] == ["tokenizer:", "images"]
    assert ModelIdentity.from_json(after.identity.to_json(), "record") == after.identity
    saved = save_model(after, tmp_path / "trained")
    assert saved.assumed == load_model(tmp_path / "trained").identity.assumed
    assert saved.assumed == after.identity.assumed
    for one, other in zip(features(before), features(after)):
        assert torch.equal(one, other)
    index["weight_map"]["logit_scale"] = "../../outside.safetensors"
    write_json(folder / "model.safetensors.index.json", index)
    with pytest.raises(CompoclipError, match="one that is outside the folder"):
        load_model(folder)


def test_defaults_of_transformers_fill_a_sparse_configuration() -> None:
    sparse = {"model_type": "clip", "text_config": {}, "vision_config": {}}
    assert CLIP.read_config(sparse, "f") == {
        "embed_dim": 512,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 224, "layers": 12, "width": 768, "patch_size": 32},
        "text_cfg": {**VOCABULARY, "context_length": 77, "width": 512, "heads": 8, "layers": 12},
    }
    old = {"model_type": "clip", "vision_config_dict": {"patch_size": 16}}
    assert CLIP.read_config(old, "f")["vision_cfg"]["patch_size"] == 16


def both_activations(data: dict[str, Any]) -> None:
    for tower in ("text_config", "vision_config"):
        data[tower]["hidden_act"] = "gelu_new"


NARROW = {"hidden_size": 44, "num_attention_heads": 1, "intermediate_size": 192}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            put(model_type="siglip2"),
            "model_type 'siglip2' is not 'clip', .*hf:FOLDER measures.*from open_clip",
        ),
        (
            put("text_config", hidden_act="quick_gelu"),
            "hidden_act gelu and quick_gelu: open_clip has",
        ),
        (both_activations, "hidden_act gelu_new"),
        (
            put("text_config", hidden_size="wide"),
            "text_config.hidden_size must be a whole number, found 'wide'",
        ),
        (put(projection_dim=9), "embed_dim 9; .* in the file"),
        (put("vision_config", intermediate_size=99), r"mlp.c_fc.weight' is .* in the file"),
        (put("vision_config", **NARROW), r"is \(88,\) in the file and \(44,\) in the architecture"),
    ],
)
def test_malformed_configurations_are_one_line(hf: Path, change: Change, message: str) -> None:
    edit_json(hf / "config.json", change)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_model(hf)
    assert "\n" not in str(caught.value)
    assert str(hf) in str(caught.value)


def test_damaged_folders_are_one_line(hf: Path) -> None:
    weights = hf / "model.safetensors"
    state = load_file(weights)
    key = "text_model.encoder.layers.0.self_attn.k_proj.bias"
    for damaged, words in (
        ({k: v for k, v in state.items() if k != key}, f"the file lacks '{key}'"),
        (
            {**state, "vision_model.surprise": torch.ones(1)},
            r"'vision_model\.surprise' is no parameter",
        ),
        ({**state, "logit_scale": state["logit_scale"] + 1}, r"disagree.*weights: "),
    ):
        save_file(damaged, weights)
        with pytest.raises(CompoclipError, match=words):
            load_model(hf)
    weights.unlink()
    with pytest.raises(CompoclipError, match=r"has no weights; expected model\.safetensors"):
        load_model(hf)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision": {"layers": [1, 1, 1, 1]}}, "a ResNet image tower"),
        ({"vision": {"ls_init_value": 0.1}}, "'ls_init_value': 0.1"),
        ({"text": {"no_causal_mask": True}}, "'no_causal_mask': True"),
        ({"init_logit_bias": -10}, "'init_logit_bias': -10"),
        ({"text": {"norm_kwargs": {"elementwise_affine": False}}}, "norm_kwargs"),
    ],
)
def test_what_a_clip_model_cannot_be_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CompoclipError, match=f"cannot express {message}"):
        CLIP.write_config(config(**changes), 600)


def test_an_image_tower_goes_alone_whatever_the_text_tower_is(tmp_path: Path) -> None:
    odd = ModelConfig(config(text={**VOCABULARY, "no_causal_mask": True}, init_logit_bias=-10))
    loaded = create_model(odd, seed=1)
    with pytest.raises(CompoclipError, match="cannot express"):
        save_model(loaded, tmp_path / "whole", form="hf")
    for dtype, number in (("float32", torch.float32), ("float16", torch.float16)):
        save_model(loaded, tmp_path / dtype, form="hf-vision", dtype=dtype)
        state = load_file(tmp_path / dtype / "model.safetensors")
        assert all(name.startswith("vision_model.") for name in state)
        own = loaded.encoder.model.state_dict()["visual.conv1.weight"]
        stored = state["vision_model.embeddings.patch_embedding.weight"]
        assert stored.dtype == number
        assert torch.equal(stored, own.to(number))


def test_a_text_tower_goes_alone_whatever_the_image_tower_is(tmp_path: Path) -> None:
    odd = ModelConfig(config(vision={"layers": [1, 1, 1, 1]}, text=VOCABULARY, quick_gelu=True))
    loaded = create_model(odd, seed=1)
    save_model(loaded, tmp_path / "text", form="hf-text")
    state = load_file(tmp_path / "text" / "model.safetensors")
    assert all(name.startswith(("text_model.", "text_projection.")) for name in state)
    own = {k: v for k, v in loaded.encoder.model.state_dict().items() if part_of(k) == "text"}
    back = CLIP.names.read(state, "f")
    assert back.keys() == own.keys()
    assert all(torch.equal(back[key], own[key]) for key in own)
    written = json.loads((tmp_path / "text" / "config.json").read_text())
    assert written["architectures"] == ["CLIPTextModelWithProjection"]
    assert (written["hidden_act"], written["model_type"]) == ("quick_gelu", "clip_text_model")
    assert (tmp_path / "text" / "merges.txt").is_file()
    assert not (tmp_path / "text" / "preprocessor_config.json").exists()
    other = create_model(ModelConfig(config(text={**VOCABULARY, "no_causal_mask": True})), seed=1)
    with pytest.raises(CompoclipError, match="Projection cannot express 'no_causal_mask'"):
        save_model(other, tmp_path / "odd", form="hf-text")


def test_foreign_parameters_are_named() -> None:
    with pytest.raises(CompoclipError, match=r"cannot express 'visual\.trunk\.weight'"):
        CLIP.names.write({"visual.trunk.weight": torch.ones(1)})


# --- with transformers ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="needs the extra hf")


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_computes_the_same(transformers: Any, tmp_path: Path, shape: str) -> None:
    before = model(shape)
    for folder, form in (("hf", "hf"), ("vision", "hf-vision"), ("text", "hf-text")):
        save_model(before, tmp_path / folder, form=form)
    theirs, info = transformers.CLIPModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs.eval()
    image, text = features(before)
    inputs = transformers.CLIPTokenizer.from_pretrained(tmp_path / "hf")(
        CAPTIONS, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        both = theirs(**inputs, pixel_values=pixels(before))
        vision, info = transformers.CLIPVisionModel.from_pretrained(
            tmp_path / "vision", output_loading_info=True
        )
        pooled = vision.eval()(pixels(before)).pooler_output
        alone, text_info = transformers.CLIPTextModelWithProjection.from_pretrained(
            tmp_path / "text", output_loading_info=True
        )
        assert torch.allclose(alone.eval()(**inputs).text_embeds, text, atol=1e-5)
    assert not any(text_info[key] for key in ("missing_keys", "unexpected_keys"))
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    unit = torch.nn.functional.normalize
    assert torch.allclose(both.image_embeds, unit(image, dim=-1), atol=1e-5)
    assert torch.allclose(both.text_embeds, unit(text, dim=-1), atol=1e-5)
    assert torch.allclose(pooled @ theirs.visual_projection.weight.T, image, atol=1e-5)
    scale = before.encoder.logit_scale.exp()
    expected = scale * unit(image, dim=-1) @ unit(text, dim=-1).T
    assert torch.allclose(both.logits_per_image, expected, atol=1e-4)
    # what transformers writes is read again
    theirs.save_pretrained(tmp_path / "again")
    again = load_model(tmp_path / "again")
    for one, other in zip(features(before), features(again)):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_transformers_reads_the_tokenizer_and_the_image_processor(
    transformers: Any, tmp_path: Path
) -> None:
    before = model("gelu")
    save_model(before, tmp_path / "hf", form="hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = tokenizer(CAPTIONS)["input_ids"]
    for row, own in zip(ids, before.tokenizer(CAPTIONS).tolist()):
        assert row == own[: len(row)]
        assert not any(own[len(row) :])
    processor = transformers.CLIPImageProcessor.from_pretrained(tmp_path / "hf")
    image = Image.effect_noise((32, 40), 90).convert("RGB")
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    assert torch.allclose(theirs, before.preprocess.evaluation(image), atol=0.02)


# --- A CLIP with its towers in folders of their own (TripletCLIP). ---


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`whole`, and its towers in `split` as wrappers save them: no temperature, other names."""
    folder = tmp_path_factory.mktemp("towers")
    save_model(model("ViT-B-32"), folder / "whole", form="hf")
    whole = load_file(folder / "whole" / "model.safetensors")
    config = json.loads((folder / "whole" / "config.json").read_text())
    for tower, starts, part in (
        ("vision-encoder", ("vision_model.", "visual_projection."), "vision_config"),
        ("text-encoder", ("text_model.", "text_projection."), "text_config"),
    ):
        (folder / "split" / tower).mkdir(parents=True)
        state = {f"model.{k}": v for k, v in whole.items() if k.startswith(starts)}
        save_file(state, folder / "split" / tower / "model.safetensors")
        code = {"AutoModel": "utils.Wrapper"}
        stated = {**config[part], "model_type": "custom", "auto_map": code}
        write_json(folder / "split" / tower / "config.json", stated)
    (folder / "split" / "utils.py").write_text("raise SystemExit('code of a checkpoint was run')\n")
    return folder


@pytest.fixture
def split(towers: Path, tmp_path: Path) -> Path:
    """A copy of the folder of towers."""
    return shutil.copytree(towers / "split", tmp_path / "split")


def test_the_towers_are_read_without_their_code(towers: Path, split: Path) -> None:
    for tower in ("vision-encoder", "text-encoder"):
        file = split / tower / "model.safetensors"
        save_file({k.removeprefix("model."): v for k, v in load_file(file).items()}, file)
    whole = load_model(towers / "whole")
    for folder in (towers / "split", split):
        loaded = load_model(folder)
        for one, other in zip(features(loaded), features(whole)):
            assert torch.equal(one, other)
        assert loaded.identity.activation == "quick_gelu"
        assert loaded.identity.architecture == whole.identity.architecture
        assert any("temperature" in line for line in loaded.identity.assumed)
        assert inspect_model(str(folder))["kind"] == "Hugging Face two-tower CLIP folder"


def test_towers_in_folders_compute_what_those_of_transformers_do(
    transformers: Any, towers: Path
) -> None:
    loaded = load_model(towers / "split")
    whole = transformers.CLIPConfig.from_pretrained(towers / "whole")
    vision = transformers.CLIPVisionModelWithProjection(whole.vision_config).eval()
    text = transformers.CLIPTextModelWithProjection(whole.text_config).eval()
    for tower, folder in ((vision, "vision-encoder"), (text, "text-encoder")):
        state = load_file(towers / "split" / folder / "model.safetensors")
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
def test_wrong_folders_of_towers_are_refused_with_the_reason(
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
