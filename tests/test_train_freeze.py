"""--freeze: which parameters it names, that they and their statistics stay, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.methods.base import Trains
from compoclip.models.checkpoint import create_model, load_model
from compoclip.models.config import ModelConfig
from compoclip.models.dual_encoder import DualEncoder
from compoclip.training.loop import freeze
from compoclip.training.parts import frozen_by, places
from method_data import arguments
from models_thin import config, timm_config
from train_helpers import weights

RESNET = {"layers": [2, 2, 1, 2], "width": 8, "image_size": 64, "patch_size": None}
NETWORKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "vit": (config(), "visual.proj", "text_projection"),
    "custom text": (config(custom_text=True), "visual.proj", "text.text_projection"),
    "resnet": (config(vision=RESNET), "visual.attnpool.c_proj.", "text_projection"),
    "mobilenet": (timm_config("mobilenetv2_050", 64), "visual.head.proj.", "text_projection"),
    "own head": (
        timm_config("mobilenetv2_050", 64, timm_pool="", timm_proj=""),
        "visual.trunk.classifier.",
        "text_projection",
    ),
}
BATCH_NORMS = timm_config("mobilenetv2_050", 32)


def network(cfg: dict[str, Any]) -> nn.Module:
    cfg["text_cfg"]["vocab_size"] = 49408
    return create_model(ModelConfig(cfg), seed=1).encoder.model


@pytest.mark.parametrize("kind", list(NETWORKS))
def test_a_trunk_is_all_of_a_tower_but_its_projection(kind: str) -> None:
    cfg, image, text = NETWORKS[kind]
    model = network(cfg)
    found = frozen_by(model, ("image-trunk", "image", "text-trunk", "text", "temperature"))
    parts = {
        "image": {n for n in model.state_dict() if n.startswith("visual.")},
        "temperature": {"logit_scale"},
    }
    parts["text"] = set(model.state_dict()) - parts["image"] - parts["temperature"]
    for part, names in parts.items():
        assert set(found[part]) == names
    for part, projection in (("image", image), ("text", text)):
        projected = {n for n in parts[part] if n.startswith(projection)}
        assert projected
        assert set(found[f"{part}-trunk"]) == parts[part] - projected


def test_blocks_are_counted_from_the_pixels_and_from_the_tokens() -> None:
    known = places(network(config()))
    blocks = {name: place.block for name, place in known.items()}
    assert {place.blocks for place in known.values() if place.part == "image"} == {2}
    assert {place.blocks for place in known.values() if place.part == "text"} == {3}
    for first in ("visual.conv1.weight", "visual.class_embedding", "visual.positional_embedding"):
        assert blocks[first] == 0
    for first in ("token_embedding.weight", "positional_embedding"):
        assert blocks[first] == 0
    assert blocks["visual.transformer.resblocks.1.ln_1.weight"] == 2
    assert blocks["visual.ln_post.weight"] == blocks["visual.proj"] == 3
    assert blocks["transformer.resblocks.0.ln_1.weight"] == 1
    assert blocks["ln_final.weight"] == blocks["text_projection"] == 4
    stages = places(network(timm_config("mobilenetv2_050", 64)))
    assert stages["visual.trunk.conv_stem.weight"].block == 0
    assert stages["visual.trunk.blocks.6.0.conv_pw.weight"].block == 7
    assert stages["visual.trunk.conv_head.weight"].block == 8
    resnet = places(network(config(vision=RESNET)))
    assert resnet["visual.layer4.1.conv1.weight"].block == 6
    assert resnet["visual.attnpool.positional_embedding"].block == 7
    first = frozen_by(network(config()), ("text:2",))["text:2"]
    assert {blocks[name] for name in first} == {0, 1, 2}
    assert len(first) == sum(known[n].part == "text" and blocks[n] <= 2 for n in known)
    last = frozen_by(network(config()), ("text:3-",))["text:3-"]  # what the front leaves
    assert {*first, *last} == {name for name, place in known.items() if place.part == "text"}
    assert not {*first} & {*last}


def test_a_frozen_trunk_is_in_eval_mode_and_without_gradient() -> None:
    model = network(BATCH_NORMS)
    freeze(model, Trains(), ("image-trunk", "text:1"))
    encoder = DualEncoder(model).train()
    visual: Any = model.visual
    assert not any(module.training for module in visual.trunk.modules())
    assert visual.head.training
    assert not model.get_submodule("transformer.resblocks.0").training
    assert model.get_submodule("transformer.resblocks.1").training
    before = {name: value.clone() for name, value in model.state_dict().items()}
    encoder.encode_images(torch.rand(4, 3, 32, 32)).pooled.sum().backward()
    assert visual.head.proj.weight.grad is not None
    assert all(parameter.grad is None for parameter in visual.trunk.parameters())
    for name, value in model.state_dict().items():  # running statistics, too
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fsc-clip", ("image-trunk",)),
        ("fsc-clip", ("text:1",)),
        ("negclip", ("image", "text:2-")),
        ("dac", ("image", "temperature")),
    ],
)
def test_a_run_leaves_the_frozen_bit_for_bit(
    method: str, words: tuple[str, ...], world: Path, tmp_path: Path
) -> None:
    assert (
        main([*arguments(world, method, tmp_path / "run", "--epochs=1"), "--freeze", *words]) == 0
    )
    before, after = weights(world / "base"), weights(tmp_path / "run" / "model")
    named = frozen_by(load_model(world / "base").encoder.model, words)
    still = {name for names in named.values() for name in names}
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved
    assert not moved & still
    if method != "dac":  # which trains the text tower
        assert any(n.startswith("visual.") for n in moved) == (words[0] != "image")
    provenance = load_model(tmp_path / "run" / "model").provenance
    assert tuple(provenance["freeze"]) == words
    counts = provenance["run"]["frozen"]
    assert list(counts) == list(words)
    sizes = {n: p.numel() for n, p in load_model(world / "base").encoder.model.named_parameters()}
    assert counts[words[0]] == sum(sizes.get(name, 0) for name in named[words[0]])


def test_a_tower_without_a_projection_has_no_trunk() -> None:
    pooled = timm_config("vit_tiny_patch16_224", 32, timm_pool="map", timm_proj="none")
    model = network({**pooled, "embed_dim": 192})
    with pytest.raises(UsageError, match="no projection apart from its trunk"):
        frozen_by(model, ("image-trunk",))
    assert frozen_by(model, ("image",))["image"]
