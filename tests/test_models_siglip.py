"""SiglipModel folders of Hugging Face (SigLIP, SigLIP 2): equal to transformers; wrong ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models import is_model, register_model
from torch import nn

from compoclip.errors import CompoclipError
from compoclip.models.architecture import register_tanh
from compoclip.models.checkpoint import LoadedModel, load_model, save_model
from compoclip.models.conversion import inspect_model
from compoclip.models.formats import hf_siglip

WORDS = ["[PAD]", "[EOS]", "[UNK]", "a", "red", "star", "blue", "mug", "left", "of", "two"]
TEXTS = ["a red star", "two blue mug left of a red star", "A blue star!"]


def vit_thin_patch8_siglip_32(pretrained: bool = False, **options: Any) -> nn.Module:
    """SigLIP's image tower in miniature."""
    shape = {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 32, "patch_size": 8}
    model: nn.Module = timm.create_model("vit_base_patch16_siglip_224", **{**shape, **options})
    return model


if not is_model("vit_thin_patch8_siglip_32"):
    register_model(vit_thin_patch8_siglip_32)
    register_tanh("vit_thin_patch8_siglip_32")


@pytest.fixture(autouse=True)
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hf_siglip.SIZES, (32, 2, 4, 128), "thin")


def write_siglip(folder: Path, **text: Any) -> Any:
    """A SiglipModel with random weights and a tokenizer of a few words; the model."""
    transformers = pytest.importorskip("transformers", reason="needs pip install 'compoclip[hf]'")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    inner = tokenizers.Tokenizer(words)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        "$A [EOS]", None, [("[EOS]", 1)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]"
    ).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {"intermediate_size": 128, "image_size": 32, "patch_size": 8}
    text = {"intermediate_size": 100, "vocab_size": 16, "max_position_embeddings": 12, **text}
    config = transformers.SiglipConfig(
        text_config={**sizes, **text}, vision_config={**sizes, **vision}
    )
    torch.manual_seed(0)
    model = transformers.SiglipModel(config).eval()
    with torch.no_grad():  # norms and biases start as ones and zeros, which hides mistakes
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    processor = {
        "do_resize": True,
        "size": {"height": 32, "width": 32},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "image_processor_type": "SiglipImageProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def pixels() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def features(loaded: LoadedModel) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        image = loaded.encoder.encode_images(pixels()).pooled
        return image, loaded.encoder.encode_texts(loaded.tokenizer(TEXTS)).pooled


def test_outputs_equal_those_of_transformers(tmp_path: Path) -> None:
    theirs = write_siglip(tmp_path / "siglip")
    loaded = load_model(tmp_path / "siglip")
    assert not loaded.encoder.trims_text  # sees both ways: full length
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


def test_the_exact_activation_and_two_towers_of_different_width(tmp_path: Path) -> None:
    theirs = write_siglip(
        tmp_path / "siglip", hidden_size=24, projection_size=32, hidden_act="gelu"
    )
    loaded = load_model(tmp_path / "siglip")
    with torch.no_grad():
        text = theirs.text_model(input_ids=loaded.tokenizer(TEXTS)).pooler_output
    assert torch.allclose(features(loaded)[1], text, atol=1e-5)


def test_images_are_squashed_and_scaled_as_the_folder_says(tmp_path: Path) -> None:
    write_siglip(tmp_path / "siglip")
    transformers = pytest.importorskip("transformers")
    process = transformers.SiglipImageProcessor.from_pretrained(tmp_path / "siglip")
    image = Image.linear_gradient("L").resize((70, 40)).convert("RGB")
    ours = load_model(tmp_path / "siglip").preprocess
    assert (ours.resize_mode, ours.interpolation) == ("squash", "bilinear")
    theirs = process(images=image, return_tensors="pt")["pixel_values"][0]
    assert (ours.evaluation(image) - theirs).abs().max() < 0.02  # rounding of a grey level
    (tmp_path / "siglip" / "preprocessor_config.json").unlink()
    assumed = load_model(tmp_path / "siglip")
    assert (assumed.preprocess.resize_mode, assumed.preprocess.mean) == ("squash", (0.5,) * 3)
    assert "SigLIP's own" in assumed.provenance["assumed"][0]


def test_a_checkpoint_of_it_carries_its_tokenizer(tmp_path: Path) -> None:
    write_siglip(tmp_path / "siglip")
    loaded = load_model(tmp_path / "siglip")
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
    assert inspect_model(str(tmp_path / "siglip")).kind == "Hugging Face SiglipModel folder"


def test_published_sizes_have_timm_names() -> None:
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    vision = {**large, "intermediate_size": 4096, "image_size": 384}
    data = {"model_type": "siglip", "vision_config": vision, "text_config": {"hidden_size": 1024}}
    found = hf_siglip.from_siglip_config(data, "f")
    assert found["vision_cfg"]["timm_model_name"] == "vit_large_patch16_siglip_384_tanh"
    assert is_model("vit_large_patch16_siglip_384_tanh")
    plain = hf_siglip.from_siglip_config({"vision_config": {"hidden_act": "gelu"}}, "f")
    assert plain["vision_cfg"]["timm_model_name"] == "vit_base_patch16_siglip_224"
    assert plain["text_cfg"]["context_length"] == 64


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        data = json.loads((folder / "config.json").read_text())
        change(data)
        (folder / "config.json").write_text(json.dumps(data))

    return edit


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
        (edited(lambda d: d["vision_config"].update(patch_size=16)), "only published sizes"),
        (edited(lambda d: d["vision_config"].update(hidden_act="relu")), "hidden_act relu"),
        (edited(lambda d: d["vision_config"].update(vision_use_head=False)), "without its pooling"),
        (edited(lambda d: d["text_config"].update(vocab_size="x")), "malformed"),
        (edited(lambda d: d["text_config"].update(projection_size=24)), "different lengths"),
        (without(KEY), "lacks 'text_model.encoder.layers.0.self_attn.v_proj.weight'"),
        (without("text_model.head.weight", "text_model.other"), "'text_model.other' is no param"),
        (without("vision_model.head.probe"), "the file lacks 'visual.trunk.attn_pool.latent'"),
    ],
)
def test_wrong_folders_are_refused_with_the_reason(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    write_siglip(tmp_path / "siglip")
    damage(tmp_path / "siglip")
    with pytest.raises(CompoclipError, match=message):
        load_model(tmp_path / "siglip")
