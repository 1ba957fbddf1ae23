"""The bundled base model: what ships loads, in compoclip and in plain open_clip, and is small."""

from __future__ import annotations

import open_clip
import torch
from PIL import Image
from torch.nn import functional as F

from compoclip.models import LoadedModel
from compoclip_world.dataset import BASE, read_world_config
from compoclip_world.render import render
from compoclip_world.sampling import scene_for


def test_it_is_small_enough_to_ship(bundled: LoadedModel) -> None:
    assert sum(file.stat().st_size for file in BASE.iterdir()) <= 20_000_000
    parameters = sum(p.numel() for p in bundled.encoder.parameters())
    assert 5_000_000 <= parameters <= 8_000_000


def test_plain_open_clip_loads_it_with_equal_features(bundled: LoadedModel) -> None:
    plain = open_clip.create_model(f"local-dir:{BASE}").eval()
    ids = bundled.tokenizer(["a red star", "a large blue house to the left of a mug"])
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(
            plain.encode_image(pixels), bundled.encoder.encode_images(pixels).pooled, atol=1e-5
        )
        assert torch.allclose(
            plain.encode_text(ids), bundled.encoder.encode_texts(ids).pooled, atol=1e-5
        )


def test_it_names_the_colours_of_single_things(bundled: LoadedModel) -> None:
    world = read_world_config(BASE / "world.json")
    scenes = [scene_for(world, 5, "test", i) for i in range(200)]
    single = [scene for scene in scenes if len(scene.things) == 1]
    assert len(single) >= 30
    pixels = torch.stack(
        [bundled.preprocess.evaluation(Image.fromarray(render(scene, 64))) for scene in single]
    )
    ids = bundled.tokenizer([f"a {colour} thing" for colour in world.known_colours])
    with torch.no_grad():
        image = F.normalize(bundled.encoder.encode_images(pixels).pooled, dim=-1)
        text = F.normalize(bundled.encoder.encode_texts(ids).pooled, dim=-1)
    named = (image @ text.T).argmax(1).tolist()
    right = sum(world.known_colours[i] == s.things[0].colour for i, s in zip(named, single))
    assert right / len(single) >= 0.8
