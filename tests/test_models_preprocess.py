"""Evaluation pixels equal open_clip; training crops follow torchvision, from one generator."""

from __future__ import annotations

import random

import pytest
import torch
from open_clip.transform import image_transform
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from compoclip.errors import CompoclipError
from compoclip.models.preprocess import Preprocess, random_crop


def picture(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    return Image.effect_noise(size, 80).convert(mode)


@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(224, 224), (32, 48)])
def test_evaluation_equals_open_clip(
    resize_mode: str, interpolation: str, size: tuple[int, int]
) -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    ours = Preprocess(size, mean, std, interpolation, resize_mode)
    theirs = image_transform(
        size, False, mean=mean, std=std, resize_mode=resize_mode, interpolation=interpolation
    )
    for image in (picture((301, 200)), picture((40, 90), "L"), picture((224, 224), "RGBA")):
        pixels = ours.evaluation(image)
        assert pixels.shape == (3, *size)
        assert torch.equal(pixels, theirs(image))


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
