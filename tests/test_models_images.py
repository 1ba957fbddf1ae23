"""Pixels and image encoding as open_clip has them; patches through the same projection."""

from __future__ import annotations

import random
from typing import Any

import open_clip
import pytest
import torch
import torch.nn.functional as F
from open_clip.transform import image_transform
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import RandomResizedCrop

from compoclip.errors import CompoclipError
from compoclip.models import image_tower, text_tower
from compoclip.models.architecture import build_model, named_config
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.preprocess import Preprocess, random_crop
from compoclip.models.text_plan import PackedTokens
from models_thin import config, pixels, timm_config, token_ids

RESNET = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "head_width": 32}


@pytest.mark.parametrize(
    ("cfg", "size", "patches"),
    [
        (config(), 32, 16),
        (config(vision={"pool_type": "avg"}), 32, 16),
        (config(vision={"final_ln_after_pool": True}), 32, 16),
        (config(vision=RESNET), 64, 4),
        (timm_config("mobilenetv2_035", 64), 64, 4),
        (timm_config("convnext_atto", 64), 64, 4),
        (timm_config("vit_tiny_patch16_224", 224, timm_pool=""), 224, 196),
        (timm_config("vit_tiny_patch16_224", 224, timm_proj="mlp"), 224, 196),
    ],
)
def test_pooled_is_open_clips_and_patches_cover_the_map(
    cfg: dict[str, Any], size: int, patches: int
) -> None:
    encoder, x = DualEncoder(build_model(cfg)), pixels(size)
    with torch.no_grad():
        expected = encoder.model.encode_image(x)
        alone, both = encoder.encode_images(x), encoder.encode_images(x, patches=True)
    assert alone.patches is None
    assert torch.equal(alone.pooled, expected)
    assert torch.allclose(both.pooled, expected, atol=1e-6)
    assert both.patches.shape == (2, patches, 24)
    assert not torch.allclose(both.patches[:, 0], both.patches[:, 1])


@pytest.mark.parametrize(
    "vision",
    [{}, {"pool_type": "avg"}, {"ls_init_value": 0.1}, {"final_ln_after_pool": True}],
    ids=str,
)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_vit_that_trains_is_open_clips_to_rounding(
    vision: dict[str, Any], recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = DualEncoder(build_model(config(vision=vision), 0)).train()
    encoder.set_grad_checkpointing(recompute)

    def outcome(patches: bool) -> list[torch.Tensor]:
        encoder.zero_grad(set_to_none=True)
        found = encoder.encode_images(pixels(32), patches)
        both = [found.pooled] if found.patches is None else [found.pooled, found.patches]
        torch.stack([each.pow(3).sum() for each in both]).sum().backward()
        visual = encoder.model.get_submodule("visual")
        return [*both, *(p.grad for p in visual.parameters() if p.grad is not None)]

    ours = [outcome(patches) for patches in (False, True)]
    monkeypatch.setattr(image_tower, "_runs_packed", lambda visual: False)
    for patches, found in zip((False, True), ours):
        for got, wanted in zip(found, outcome(patches), strict=True):
            assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_a_vit_that_trains_computes_the_gradient_of_its_attention_in_few_operations() -> None:
    encoder = DualEncoder(build_model(config(), 0)).train()
    names: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function._schema.name.removeprefix("aten::"))
            return function(*args, **(kwargs or {}))

    loss = encoder.encode_images(pixels(32)).pooled.sum()
    with Names():
        loss.backward()
    assert names.count("stack") == len(encoder.model.get_submodule("visual.transformer.resblocks"))
    assert "select_backward" not in names[names.index("stack") :]  # each fills and copies all three


def test_vit_patches_are_normed_last_states_times_projection() -> None:
    encoder, x = DualEncoder(build_model(config())), pixels(32)
    visual = encoder.model.visual
    last = []
    visual.transformer.register_forward_hook(lambda *args: last.append(args[-1]))
    with torch.no_grad():
        visual(x)
        got = encoder.encode_images(x, patches=True).patches
        assert torch.allclose(got, visual.ln_post(last[0][:, 1:]) @ visual.proj, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "size"), [("mobilenetv2_035", 64), ("swin_tiny_patch4_window7_224", 224)]
)
def test_average_pooled_trunks_are_the_mean_of_their_patches(name: str, size: int) -> None:
    encoder, x = DualEncoder(build_model(timm_config(name, size))), pixels(size, 1)
    with torch.no_grad():
        got = encoder.encode_images(x, patches=True)
    assert got.patches.shape[1] == (size // 32) ** 2
    assert torch.allclose(got.patches.mean(1), got.pooled, atol=1e-5)


def test_resnet_patches_are_what_the_pool_mixes() -> None:
    encoder, x = DualEncoder(build_model(config(vision=RESNET))), pixels(64)
    visual = encoder.model.visual
    pool = visual.attnpool
    maps = []
    visual.layer4.register_forward_hook(lambda *args: maps.append(args[-1]))
    with torch.no_grad():
        pool.q_proj.weight.zero_()
        pool.q_proj.bias.zero_()  # equal attention to the mean token and to every position
        got = encoder.encode_images(x, patches=True)
        positions = maps[-1].flatten(2).transpose(1, 2)
        centre = positions.mean(1) + pool.positional_embedding[0]
        value = pool.c_proj(pool.v_proj(centre))
        mixed = (value + got.patches.sum(1)) / (1 + got.patches.shape[1])
    assert torch.allclose(mixed, got.pooled, atol=1e-5)


@pytest.mark.parametrize(
    ("cfg", "reason"),
    [
        (config(vision={"attentional_pool": True, "attn_pooler_heads": 4}), "learned queries"),
        (timm_config("mobilenetv2_035", 224, timm_pool="rot_attn", timm_proj=""), "whole feature"),
    ],
)
def test_towers_without_patches_say_so_when_asked(cfg: dict[str, Any], reason: str) -> None:
    encoder = DualEncoder(build_model(cfg))
    with pytest.raises(CompoclipError, match=reason):
        encoder.require_local()
    with pytest.raises(CompoclipError, match=reason):
        encoder.features(pixels(32), token_ids([3, 4]), local=True)


def test_frozen_batch_norm_survives_train() -> None:
    model = build_model(timm_config("mobilenetv2_035", 64))
    free, frozen = DualEncoder(model), DualEncoder(build_model(timm_config("mobilenetv2_035", 64)))
    frozen.freeze_bn = True
    x = pixels(64, 4)
    before = {k: v.clone() for k, v in frozen.model.state_dict().items()}
    expected = frozen.eval().encode_images(x).pooled
    assert torch.equal(frozen.train().encode_images(x).pooled, expected)
    assert all(torch.equal(v, before[k]) for k, v in frozen.model.state_dict().items())
    assert frozen.training
    assert not torch.allclose(free.train().encode_images(x).pooled, expected, atol=1e-3)


def test_features_are_unit_length_and_scale_is_exponentiated() -> None:
    encoder = DualEncoder(build_model(config(nonscalar_logit_scale=True)))
    features = encoder.features(pixels(32), token_ids([4, 7, 5]))
    assert torch.allclose(features.image.norm(dim=-1), torch.ones(2))
    assert torch.allclose(features.text.norm(dim=-1), torch.ones(3))
    assert features.logit_scale.shape == ()
    assert features.logit_scale.item() == pytest.approx(1 / 0.07, rel=1e-5)
    assert features.patches is features.tokens is features.token_mask is None
    local = encoder.features(pixels(32), token_ids([4, 7, 5]), local=True)
    assert local.patches.shape == (2, 16, 24)
    assert local.tokens.shape == (3, 7, 24)
    assert local.token_mask.sum(1).tolist() == [3, 6, 4]


# --- Pixels. ---


@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(224, 224), (32, 48)])
def test_evaluation_equals_open_clip(
    resize_mode: str, interpolation: str, size: tuple[int, int]
) -> None:
    values: dict[str, Any] = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    values |= {"interpolation": interpolation, "resize_mode": resize_mode}
    ours, theirs = Preprocess(size, **values), image_transform(size, False, **values)
    for mode, shape in (("RGB", (301, 200)), ("L", (40, 90)), ("RGBA", (224, 224))):
        image = Image.effect_noise(shape, 80).convert(mode)
        assert ours.evaluation(image).shape == (3, *size)
        assert torch.equal(ours.evaluation(image), theirs(image))


def test_configuration_round_trip_and_defaults() -> None:
    plain = Preprocess.from_config({})
    assert plain == Preprocess()
    assert plain.mean == (0.48145466, 0.4578275, 0.40821073)
    changed = Preprocess.from_config(
        {"size": 64, "mean": 0.5, "std": [0.1, 0.2, 0.3], "interpolation": None, "url": "x"}
    )
    assert changed == Preprocess((64, 64), (0.5, 0.5, 0.5), (0.1, 0.2, 0.3))
    assert Preprocess.from_config(changed.to_config()) == changed
    with pytest.raises(CompoclipError, match="preprocess_cfg: damaged"):
        Preprocess.from_config({"size": [1]})


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (224, 224)])
def test_crops_follow_torchvisions_law(size: tuple[int, int]) -> None:
    height, width = size
    rng = random.Random(0)
    ours = [random_crop(height, width, rng) for _ in range(3000)]
    torch.manual_seed(0)
    image = torch.zeros(3, height, width)
    theirs = [RandomResizedCrop.get_params(image, [0.9, 1.0], [3 / 4, 4 / 3]) for _ in range(3000)]
    for top, left, h, w in ours:
        assert 0 <= top <= height - h
        assert 0 <= left <= width - w
        assert 0.88 <= h * w / (height * width) <= 1.0 or (width / height > 4 / 3)
    for column in range(4):
        a = torch.tensor([float(box[column]) for box in ours])
        b = torch.tensor([float(box[column]) for box in theirs])
        spread = ((a.var() + b.var()) / 3000).sqrt().clamp(min=0.02)
        assert (a.mean() - b.mean()).abs() < 5 * spread


def test_a_strip_gets_the_largest_centred_box() -> None:
    assert random_crop(10, 400, random.Random(0)) == (0, 193, 10, 13)
    assert random_crop(400, 10, random.Random(0)) == (193, 0, 13, 10)


# --- Published architectures at random weights. ---

TEXTS = [
    "a dog",
    "a red cat sleeping on a mat next to a small brown dog",
    "two men",
    "a dog",
    "a photo of " + "very " * 40 + "long caption",
    "word " * 100,
]
SMALL_TEXT = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "patches"),
    [
        ("ViT-B-32", 49),
        ("ViT-B-16-quickgelu", 196),
        ("RN50", 49),
        ("swin_tiny_patch4_window7_224", 49),
        ("mobilenetv2_100", 49),
    ],
)
def test_published_architectures_equal_open_clip(
    name: str, patches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Six texts are not worth splitting; without this they would all run at full length.
    monkeypatch.setitem(text_tower._BUCKET_COST, "cpu", 0)
    model_cfg = named_config(name) if name in open_clip.list_models() else timm_config(name)
    if name != "ViT-B-32":  # one text tower of that size is enough, and one image tower so deep
        model_cfg |= {"text_cfg": SMALL_TEXT}
    if name == "ViT-B-16-quickgelu":
        model_cfg["vision_cfg"]["layers"] = 3
    model = build_model(model_cfg)
    encoder = DualEncoder(model)
    ids = open_clip.tokenize(TEXTS)
    (packed,) = encoder.text_planner().inputs(ids).groups
    assert isinstance(packed, PackedTokens)
    assert [segment.length for segment in packed.segments] == [4, 15, 47, 77]
    x = pixels(224)
    with torch.no_grad():
        expected_text, expected_image = model.encode_text(ids), model.encode_image(x)
        text = encoder.encode_texts(ids, tokens=True)
        image = encoder.encode_images(x, patches=True)
        plain = encoder.encode_texts(ids).pooled
    for what, got, expected in (
        ("text", plain, expected_text),
        ("text with tokens", text.pooled, expected_text),
        ("image with patches", image.pooled, expected_image),
    ):
        unit = F.normalize(got, dim=-1) - F.normalize(expected, dim=-1)
        assert (got - expected).abs().max() <= 1e-5, what
        assert unit.abs().max() <= 1e-5, what
    assert image.patches.shape == (2, patches, expected_image.shape[1])
    assert text.tokens.shape[:2] == (6, 77)
