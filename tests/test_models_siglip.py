"""SiglipModel folders of Hugging Face (SigLIP, SigLIP 2): equal to transformers; wrong ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from build.models import Change, put
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.models.architecture import build_model
from compoclip.models.checkpoint import LoadedModel, load_model, save_model
from compoclip.models.conversion import inspect_model
from compoclip.models.formats import hugging_face
from models_thin import pixels
from siglip_thin import thin_config, write_siglip

PHOTO = Image.linear_gradient("L").resize((70, 40)).convert("RGB")
TEXTS = ["a red star", "two blue mug left of a red star", "A blue star!"]


SIGLIP = hugging_face.HFSiglip()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder, and the model of transformers that is in it."""
    folder = tmp_path_factory.mktemp("siglip") / "siglip"
    return folder, write_siglip(folder)


@pytest.fixture
def siglip(written: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of the folder."""
    return shutil.copytree(written[0], tmp_path / "siglip")


@pytest.fixture(autouse=True)
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hugging_face.SIZES, "thin", [32, 2, 4, 128])


def features(loaded: LoadedModel) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        image = loaded.encoder.encode_images(pixels()).pooled
        return image, loaded.encoder.encode_texts(loaded.tokenizer(TEXTS)).pooled


def test_outputs_equal_those_of_transformers(written: tuple[Path, Any]) -> None:
    folder, theirs = written
    loaded = load_model(folder)
    assert inspect_model(str(folder))["kind"] == "Hugging Face SiglipModel folder"
    assert not loaded.encoder.text_planner().causal  # sees both ways: full length
    ids = loaded.tokenizer(TEXTS)
    assert ids[0].tolist() == [3, 4, 5, 1] + [0] * 8
    assert ids[2].tolist()[:4] == [3, 6, 5, 1]  # lower case, no punctuation
    with torch.no_grad():
        image = theirs.vision_model(pixel_values=pixels()).pooler_output
        text = theirs.text_model(input_ids=ids).pooler_output
        scores = theirs(input_ids=ids, pixel_values=pixels()).logits_per_image
    ours = features(loaded)
    assert torch.allclose(ours[0], image, atol=1e-5)
    assert torch.allclose(ours[1], text, atol=1e-5)
    bias = loaded.encoder.model.logit_bias
    seen = loaded.encoder.features(pixels(), ids)
    logits = seen.logit_scale * seen.image @ seen.text.T + bias
    assert torch.allclose(logits, scores, atol=1e-4)


def test_images_are_squashed_and_scaled_as_the_folder_says(siglip: Path) -> None:
    transformers = pytest.importorskip("transformers")
    process = transformers.SiglipImageProcessor.from_pretrained(siglip)
    ours = load_model(siglip).preprocess
    assert (ours.resize_mode, ours.interpolation) == ("squash", "bilinear")
    theirs = process(images=PHOTO, return_tensors="pt")["pixel_values"][0]
    assert (ours.evaluation(PHOTO) - theirs).abs().max() < 0.02  # rounding of a grey level
    (siglip / "preprocessor_config.json").unlink()
    assumed = load_model(siglip)
    assert (assumed.preprocess.resize_mode, assumed.preprocess.mean) == ("squash", (0.5,) * 3)
    assert "as for SigLIP" in assumed.identity.assumed[0]


def test_a_checkpoint_of_it_carries_its_tokenizer(siglip: Path, tmp_path: Path) -> None:
    loaded = load_model(siglip)
    save_model(loaded, tmp_path / "saved")
    again = load_model(tmp_path / "saved")
    assert again.identity == loaded.identity
    for one, other in zip(features(again), features(loaded)):
        assert torch.equal(one, other)
    plain, _, _ = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'saved'}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'saved'}")
    with torch.no_grad():
        text = plain.eval().encode_text(tokenizer(TEXTS))
    assert torch.allclose(text, features(loaded)[1], atol=1e-5)


def without(key: str, instead: str = "") -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        value = state.pop(key)
        save_file({**state, instead: value} if instead else state, folder / "model.safetensors")

    return edit


KEY = "text_model.encoder.layers.0.self_attn.v_proj.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "tokenizer_config.json").unlink(), "several tokenizers: copy"),
        (without(KEY), "lacks 'text_model.encoder.layers.0.self_attn.v_proj.weight'"),
        (without("text_model.head.weight", "text_model.other"), "'text_model.other' is no param"),
        (without("vision_model.head.probe"), "the file lacks 'visual.trunk.attn_pool.latent'"),
    ],
)
def test_wrong_folders_are_refused_with_the_reason(
    damage: Callable[[Path], object], message: str, siglip: Path
) -> None:
    damage(siglip)
    with pytest.raises(CompoclipError, match=message):
        load_model(siglip)


CONFIGS: list[tuple[Change, str]] = [
    (lambda data: data.pop("vision_config"), "vision_config.hidden_size 768"),
    (put("vision_config", hidden_size=33), "vision_config of hidden_size 33,"),
    (put("vision_config", patch_size=16), "only published sizes"),
    (put("vision_config", patch_size="7"), "vision_config.patch_size must"),
    (put("vision_config", hidden_act="relu"), "hidden_act relu"),
    (put("vision_config", vision_use_head=False), "vision_use_head is"),
    (put("text_config", projection_size=24), "text_config.projection_size is 24"),
    (put("text_config", layer_norm_eps="1"), "text_config.layer_norm_eps must"),
    (put("text_config", vocab_size="x"), "text_config.vocab_size must"),
    (put("text_config", surprise=1), "'text_config.surprise' .*unknown entry"),
]


@pytest.mark.parametrize(("change", "message"), CONFIGS, ids=[row[1] for row in CONFIGS])
def test_an_entry_of_the_configuration_is_refused_by_its_name(change: Change, message: str) -> None:
    data = SIGLIP.write_config(thin_config())
    change(data)
    with pytest.raises(CompoclipError, match=f"config.json: .*{message}"):
        SIGLIP.read_config(data, "config.json")


# --- written -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tanh", [True, False])
def test_configuration_and_tensors_there_and_back_are_the_same_network(tanh: bool) -> None:
    cfg = thin_config(tanh)
    network: Any = build_model(cfg, seed=3)
    state = network.state_dict()
    theirs = SIGLIP.names.write(state)
    assert theirs["vision_model.head.attention.in_proj_weight"].shape == (96, 32)
    assert theirs["vision_model.head.probe"].shape == (1, 1, 32)
    assert theirs["text_model.encoder.layers.1.self_attn.k_proj.bias"].shape == (24,)
    assert theirs["logit_bias"].shape == (1,)
    data = SIGLIP.write_config(cfg)
    assert data["text_config"]["intermediate_size"] == 100
    assert {part["hidden_act"] for part in (data["text_config"], data["vision_config"])} == {
        "gelu_pytorch_tanh" if tanh else "gelu"
    }
    back: Any = build_model(SIGLIP.read_config(data, "f"), seed=4)
    again = SIGLIP.names.read(theirs, "f")
    again = {key: value.reshape(state[key].shape) for key, value in again.items()}
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], state[key]) for key in state)
    back.load_state_dict(again)
    ids = torch.randint(0, 16, (3, 12), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        assert torch.equal(back.encode_image(pixels()), network.encode_image(pixels()))
        assert torch.equal(back.encode_text(ids), network.encode_text(ids))


@pytest.mark.parametrize(
    "name",
    [n for n in open_clip.list_models() if "-SigLIP" in n and "SO400M-16-SigLIP-i18n" not in n],
)
def test_every_published_architecture_can_be_written(name: str) -> None:
    cfg = open_clip.get_model_config(name)
    back = SIGLIP.read_config(SIGLIP.write_config(cfg), "f")
    assert back["vision_cfg"]["timm_model_name"] == cfg["vision_cfg"]["timm_model_name"]
    ours, theirs = (
        int(c["width"] * c.pop("mlp_ratio", 4.0)) for c in (back["text_cfg"], cfg["text_cfg"])
    )
    assert ours == theirs
    for key in ("hf_tokenizer_name", "tokenizer_kwargs"):
        cfg["text_cfg"].pop(key)
    assert back["text_cfg"] == cfg["text_cfg"]


@pytest.mark.parametrize(("form", "act"), [("hf", "gelu"), ("open-clip", "gelu_pytorch_tanh")])
def test_a_written_folder_is_the_model_for_everybody(form: str, act: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    write_siglip(tmp_path / "theirs", hidden_act=act, hidden_size=24, projection_size=32)
    before = load_model(tmp_path / "theirs")
    save_model(before, tmp_path / "oc")
    source = tmp_path / ("theirs" if form == "hf" else "oc")
    assert main(["convert", str(source), str(tmp_path / "hf"), "--to", "hf"]) == 0
    # for this program: the same identity, which is verified on load
    after = load_model(tmp_path / "hf")
    assert after.identity == before.identity
    assert inspect_model(str(tmp_path / "hf"))["kind"] == "Hugging Face SiglipModel folder"
    for one, other in zip(features(after), features(before)):
        assert torch.equal(one, other)
    # for transformers: every tensor, and what it computes
    written = load_file(tmp_path / "hf" / "model.safetensors")
    original = load_file(tmp_path / "theirs" / "model.safetensors")
    assert written.keys() == original.keys()
    assert all(torch.equal(written[key], original[key]) for key in original)
    theirs, info = transformers.AutoModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert type(theirs).__name__ == "SiglipModel"
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs.eval()
    ids = before.tokenizer(TEXTS)
    with torch.no_grad():
        image = theirs.vision_model(pixel_values=pixels()).pooler_output
        text = theirs.text_model(input_ids=ids).pooler_output
    assert torch.allclose(features(before)[0], image, atol=1e-5)
    assert torch.allclose(features(before)[1], text, atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer("a red star").input_ids == [3, 4, 5, 1]
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    seen = processor(images=PHOTO, return_tensors="pt")["pixel_values"][0]
    assert (before.preprocess.evaluation(PHOTO) - seen).abs().max() < 0.02


image, text = partial(put, "vision_cfg"), partial(put, "text_cfg")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(quick_gelu=True), "'quick_gelu': True"),
        (put(init_logit_bias=None), "a model without a bias of its logits"),
        (put(embed_dim=24), "features of length 24 from an image tower of width 32"),
        (image(timm_proj="linear"), "'timm_proj': linear"),
        (image(image_size=64), "the image tower 'vit_thin_patch8_siglip_32_tanh'"),
        (text(no_causal_mask=False), "'no_causal_mask': False"),
        (text(embed_cls=True), "'embed_cls': True"),
        (text(act_kwargs={"approximate": "none"}), "act_kwargs"),
        (text(tokenizer_kwargs={"clean": "lower"}), "a tokenizer that is not"),
    ],
)
def test_what_a_siglip_model_cannot_be_is_said(change: Change, message: str) -> None:
    cfg = thin_config()
    change(cfg)
    with pytest.raises(CompoclipError, match=f"SiglipModel cannot express {message}"):
        SIGLIP.write_config(cfg)
    with pytest.raises(CompoclipError, match=r"cannot express 'visual\.trunk\.other'"):
        SIGLIP.names.write({"visual.trunk.other": torch.ones(1)})
