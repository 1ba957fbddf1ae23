"""Image encoding: pooled as open_clip does; patches through the same projection; frozen norms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compoclip.errors import CompoclipError
from compoclip.models import image_tower
from compoclip.models.architecture import build_model
from compoclip.models.dual_encoder import DualEncoder
from models_thin import config, timm_config, token_ids

RESNET = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "head_width": 32}


def encoder_of(cfg: dict[str, Any]) -> DualEncoder:
    return DualEncoder(build_model(cfg))


def pixels(size: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


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
    encoder, x = encoder_of(cfg), pixels(size)
    with torch.no_grad():
        expected = encoder.model.encode_image(x)
        alone, both = encoder.encode_images(x), encoder.encode_images(x, patches=True)
    assert alone.patches is None
    assert torch.equal(alone.pooled, expected)
    assert torch.allclose(both.pooled, expected, atol=1e-6)
    assert both.patches is not None
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
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append(func._schema.name.removeprefix("aten::"))
            return func(*args, **(kwargs or {}))

    loss = encoder.encode_images(pixels(32)).pooled.sum()
    with Names():
        loss.backward()
    assert names.count("stack") == len(encoder.model.get_submodule("visual.transformer.resblocks"))
    assert "select_backward" not in names[names.index("stack") :]  # each fills and copies all three


def test_vit_patches_are_normed_last_states_times_projection() -> None:
    encoder, x = encoder_of(config()), pixels(32)
    visual = encoder.model.visual
    last = []
    visual.transformer.register_forward_hook(lambda *args: last.append(args[-1]))
    with torch.no_grad():
        visual(x)
        got = encoder.encode_images(x, patches=True).patches
        for b in range(2):
            for p in range(16):
                expected = visual.ln_post(last[0][b, 1 + p]) @ visual.proj
                assert torch.allclose(got[b, p], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "size"), [("mobilenetv2_035", 64), ("swin_tiny_patch4_window7_224", 224)]
)
def test_average_pooled_trunks_are_the_mean_of_their_patches(name: str, size: int) -> None:
    encoder, x = encoder_of(timm_config(name, size)), pixels(size, 1)
    with torch.no_grad():
        got = encoder.encode_images(x, patches=True)
    assert got.patches.shape[1] == (size // 32) ** 2
    assert torch.allclose(got.patches.mean(1), got.pooled, atol=1e-5)


def test_resnet_patches_are_what_the_pool_mixes() -> None:
    encoder, x = encoder_of(config(vision=RESNET)), pixels(64)
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
    encoder = encoder_of(cfg)
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
    cfg = config(nonscalar_logit_scale=True)
    encoder = encoder_of(cfg)
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
