"""Adapters on a network: where they sit, what they compute, what learns, what merging leaves."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import open_clip
import pytest
import torch
from torch import Tensor, nn

from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Features
from compoclip.models.architecture import build_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import (
    Lora,
    attach_lora,
    lora_parameters,
    lora_state,
    lora_targets,
    merge_lora,
    merged,
)
from models_thin import config, fill_adapters, pixels, timm_config, token_ids

IDS = token_ids([5, 9, 20, 7, 3, 9])
RESNET = {"layers": [1, 1, 1, 1], "width": 8, "head_width": 16, "image_size": 32}


def features(encoder: DualEncoder, local: bool = False) -> Features:
    with torch.no_grad():
        return encoder.features(pixels(count=3), IDS, local)


def difference(one: Features, other: Features) -> float:
    pairs = ((one.image, other.image), (one.text, other.text))
    return max(float((a - b).abs().max()) for a, b in pairs)


def only_adapters_learn(network: nn.Module) -> None:
    network.requires_grad_(False)
    for parameter in lora_parameters(network):
        parameter.requires_grad_()


def test_sizes_on_vit_b_32_are_those_of_the_released_code() -> None:
    with torch.device("meta"):
        network = open_clip.model.CLIP(**open_clip.get_model_config("ViT-B-32"))

    def size(lora: Lora) -> int:
        return sum(target.size for target in lora_targets(network, lora))

    block = 4 * 12  # A and B of rank 4 on d -> 3d, d -> d, d -> 4d and 4d -> d take 4 (4+2+5+5) d
    assert size(Lora()) == block * 16 * (768 + 512) == 983_040
    assert size(Lora(towers="text")) == block * 16 * 512
    assert size(Lora(towers="image", rank=8)) == 2 * block * 16 * 768
    conv = 128 * 3 * 32 + 768 * 32 * 128  # rank 4 * 32: 3.16 M of 4.14 M
    assert size(Lora(targets="+conv")) == 983_040 + conv == 4_141_056


@pytest.mark.parametrize("lora", [Lora(), Lora(towers="text"), Lora(towers="image", rank=2)])
def test_training_starts_from_the_base_and_merging_changes_nothing(lora: Lora) -> None:
    network = build_model(config())
    encoder = DualEncoder(network).eval()
    plain = {name: value.clone() for name, value in network.state_dict().items()}
    base = features(encoder, local=True)
    targets = attach_lora(network, lora)
    assert difference(features(encoder, local=True), base) <= 1e-6
    fill_adapters(network)
    unmerged = features(encoder, local=True)
    own = network.encode_image(pixels(count=3))  # open_clip's own path
    assert difference(unmerged, base) > 1e-2
    adapters = lora_state(network)
    merge_lora(network)
    assert lora_state(network) == {}
    assert difference(features(encoder, local=True), unmerged) <= 1e-5
    assert torch.allclose(network.encode_image(pixels(count=3)), own, atol=1e-5)
    state = network.state_dict()
    assert state.keys() == plain.keys()
    for name, value in state.items():
        if name in {target.name for target in targets}:
            delta = adapters[f"{name}.b"].double() @ adapters[f"{name}.a"].double()
            wanted = plain[name].double() + delta * lora.alpha / lora.rank
            assert (value.double() - wanted).abs().max() <= 1e-5
        else:
            assert torch.equal(value, plain[name]), name


def test_a_resnet_has_nothing_to_adapt_but_its_text_tower() -> None:
    network = build_model({**config(), "vision_cfg": RESNET})
    encoder = DualEncoder(network)
    base = features(encoder.eval())
    assert all(not t.name.startswith("visual.") for t in lora_targets(network, Lora()))
    with pytest.raises(CompoclipError, match="image tower has no attention or MLP layers"):
        lora_targets(network, Lora(towers="image"))
    with pytest.raises(CompoclipError, match="no patch embedding"):
        lora_targets(network, Lora(targets="+conv"))
    attach_lora(network, Lora())
    only_adapters_learn(network)
    encoder.train()
    # Batch norms of a frozen tower keep their statistics, so this too is the base exactly.
    assert difference(features(encoder), base) <= 1e-6
    assert all(not m.training for m in network.visual.modules())


def test_timm_trunks_are_adapted_by_the_names_of_their_layers() -> None:
    network = build_model(timm_config("swin_tiny_patch4_window7_224"))
    names = [t.name for t in lora_targets(network, Lora(towers="image"))]
    blocks = 2 + 2 + 6 + 2
    assert len(names) == 4 * blocks
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert {name.split(".", 6)[-1] for name in names} == {f"{layer}.weight" for layer in layers}
    assert lora_targets(network, Lora(targets="+conv"))[-1].name.endswith("patch_embed.proj.weight")
    mobile = build_model(timm_config("mobilenetv2_050", 64))
    assert all(not t.name.startswith("visual.") for t in lora_targets(mobile, Lora()))


def test_convolution_and_custom_blocks_merge_too() -> None:
    for cfg in (config(), config(vision={"qk_norm": True}, text={"qk_norm": True})):
        network = build_model(cfg)
        encoder = DualEncoder(network).eval()
        targets = attach_lora(network, Lora(targets="+conv"))
        assert targets[-1].a_shape == (4 * 8, 3 * 8)
        assert targets[-1].b_shape == (32 * 8, 4 * 8)
        fill_adapters(network)
        unmerged = features(encoder)
        merge_lora(network)
        assert difference(features(encoder), unmerged) <= 1e-5


def test_initial_values() -> None:
    network = build_model(config())
    attach_lora(network, Lora(), seed=5)
    state = lora_state(network)
    for name, value in state.items():
        if name.endswith(".b"):
            assert not value.any()
        else:  # Kaiming-uniform: bound 1 / sqrt(d_in)
            bound = 1 / math.sqrt(value.shape[1])
            assert 0.5 * bound < value.abs().max() <= bound
    again, other = build_model(config()), build_model(config())
    attach_lora(again, Lora(), seed=5)
    assert all(torch.equal(value, state[name]) for name, value in lora_state(again).items())
    attach_lora(other, Lora(init="xavier_ab"), seed=5)
    for name, value in lora_state(other).items():
        assert value.any() == (name.endswith(".a") or "in_proj" in name), name


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_adapters_are_those_of_the_formula(recompute: bool) -> None:
    """dA = s B' dW and dB = s dW A' for the gradient dW of the merged weight."""
    network = build_model(config())
    encoder = DualEncoder(network).train()
    lora = Lora(rank=3, alpha=2.0)
    attach_lora(network, lora)
    fill_adapters(network)
    only_adapters_learn(network)
    encoder.set_grad_checkpointing(recompute)

    def gradients() -> dict[str, Tensor]:
        f = encoder.features(pixels(count=3), IDS, local=True)
        loss = (f.image @ f.text.T).square().sum() + f.patches.sum() * f.tokens.mean()
        loss.backward()
        return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}

    adapters, ours = lora_state(network), gradients()
    assert len(ours) == len(adapters)
    merge_lora(network)
    network.requires_grad_(True)
    whole = gradients()
    for target in lora_targets(network, lora):
        gradient = whole[target.name]
        a, b = adapters[f"{target.name}.a"], adapters[f"{target.name}.b"]
        path, _, parameter = target.name.rpartition(".")
        for name, expected in (("a", b.T @ gradient), ("b", gradient @ a.T)):
            value = ours[f"{path}.parametrizations.{parameter}.0.{name}"]
            torch.testing.assert_close(value, lora.scaling * expected, atol=2e-4, rtol=1e-3)


def test_a_weight_is_merged_once_per_call() -> None:
    network = build_model(config())
    encoder = DualEncoder(network).eval()
    count = len(attach_lora(network, Lora(towers="text")))
    with mock.patch("compoclip.models.lora.merged", wraps=merged) as calls:
        encoder.encode_texts(token_ids([3] * 300 + [20] * 300))  # two buckets
    assert calls.call_count == count


def test_adapters_are_added_in_full_precision_under_autocast() -> None:
    """bfloat16 would lose changes below 2^-9 of a weight."""
    network = build_model(config())
    attach_lora(network, Lora(towers="text"))
    fill_adapters(network)
    layer = network.transformer.resblocks[0].mlp.c_fc
    full = layer.weight.clone()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight, full)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rank": 0}, "LoRA rank must be at least 1, found 0"),
        ({"alpha": 0.0}, "LoRA alpha: must be above 0"),
        ({"alpha": math.inf}, "LoRA alpha must be a number, found inf"),
        ({"towers": "left"}, "LoRA towers must be one of both, image, text, found 'left'"),
        ({"init": "ones"}, "LoRA init must be one of zero, xavier_ab"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Lora(**wrong)


@pytest.mark.parametrize("frozen", ["image", "text"])
def test_a_frozen_tower_is_left_out_of_the_graph(frozen: str) -> None:
    network = build_model(config())
    encoder = DualEncoder(network)
    for name, parameter in network.named_parameters():
        image = name.startswith("visual.")
        parameter.requires_grad_(image != (frozen == "image"))
    network.logit_scale.requires_grad_(True)
    encoder.train()
    found = encoder.features(pixels(count=3), IDS, local=True)
    assert found.image.requires_grad == found.patches.requires_grad == (frozen == "text")
    assert found.text.requires_grad == found.tokens.requires_grad == (frozen == "image")
    assert network.visual.training == (frozen == "text")
    assert network.transformer.training == (frozen == "image")
    seen = pixels(count=3).requires_grad_(True)  # who asks for the gradient of pixels gets it
    encoder.encode_images(seen).pooled.sum().backward()
    assert seen.grad is not None
    assert seen.grad.any()
