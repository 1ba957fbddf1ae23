"""From a JPEG to training pixels: decoding at a fraction of the size, bytes until the device."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from compoclip.data.decode import OpenedImage, decode
from compoclip.data.transform import ImageTransform, RandomCrop, normalised, pixels_of
from compoclip.models.preprocess import Preprocess, random_crop
from data_samples import encode


def photo(width: int, height: int) -> Image.Image:
    """Something smooth with an edge, as photos are."""
    y, x = np.mgrid[:height, :width]
    waves = 128 + 80 * np.sin(x / 23) * np.cos(y / 31)
    values = np.stack([waves, 255 * x / width, 255 * (y > height / 2)], -1)
    return Image.fromarray(values.astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG") -> bytes:
    return encode(image, kind, **({"quality": 95} if kind == "JPEG" else {}))


@pytest.mark.parametrize(
    ("stored", "least", "expected"),
    [
        ((640, 480), (224, 224), (320, 240)),
        ((640, 480), (321, 1), (640, 480)),
        ((643, 481), (80, 60), (81, 61)),
        ((640, 480), (1, 1), (80, 60)),
        ((100, 90), (224, 224), (100, 90)),
    ],
)
def test_a_jpeg_is_decoded_no_smaller_than_asked(
    stored: tuple[int, int], least: tuple[int, int], expected: tuple[int, int]
) -> None:
    data = encoded(photo(*stored))
    assert decode(data, min_size=least).size == expected
    assert decode(data).size == stored
    assert decode(encoded(photo(*stored), "PNG"), min_size=least).size == stored


def test_kinds_of_jpeg_and_grey_ones(tmp_path: Path) -> None:
    grey, cmyk = photo(64, 64).convert("L"), photo(64, 64).convert("CMYK")
    for image in (grey, cmyk):
        small = decode(encoded(image), min_size=(8, 8))
        assert (small.mode, small.size) == ("RGB", (8, 8))
    np.save(tmp_path / "a.npy", np.zeros((64, 64, 3), np.uint8))
    assert decode(tmp_path / "a.npy", min_size=(8, 8)).size == (64, 64)


@pytest.mark.parametrize("size", [(640, 480), (333, 1000), (224, 224), (150, 90), (2000, 300)])
@pytest.mark.parametrize("crop", [RandomCrop(), RandomCrop((0.2, 1.0)), None])
def test_what_is_shown_is_never_enlarged_by_the_draft(
    size: tuple[int, int], crop: RandomCrop | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Image.Image] = []
    whole = OpenedImage.rgb
    monkeypatch.setattr(
        OpenedImage, "rgb", lambda file, least: seen.append(whole(file, least)) or seen[-1]
    )
    data = encoded(photo(*size))
    transform = ImageTransform(Preprocess(size=(64, 48)), crop)
    for seed in range(20):
        transform.read(data, random.Random(seed))
        decoded = seen[-1]
        shown = size
        if crop is not None:
            _, _, h, w = random_crop(size[1], size[0], random.Random(seed), crop.scale, crop.ratio)
            shown = w, h
        for side, target in ((0, 48), (1, 64)):
            kept = shown[side] * decoded.size[side] / size[side]
            assert kept >= min(target, shown[side])
    assert size[0] < 600 or any(image.size != size for image in seen)


@pytest.mark.parametrize("crop", [RandomCrop(), None])
def test_a_draft_shows_the_same_part_of_the_image(crop: RandomCrop | None) -> None:
    data = encoded(photo(640, 480))
    fast, exact = (
        ImageTransform(Preprocess(size=(96, 96)), crop, draft) for draft in (True, False)
    )
    for seed in range(5):
        one, two = (each.read(data, random.Random(seed)) for each in (fast, exact))
        assert torch.equal(one, fast.read(data, random.Random(seed)))
        assert not torch.equal(one, two)
        assert (one.float() - two.float()).abs().mean() < 2  # of 255; a shift of a pixel gives more
        assert torch.equal(two, exact(decode(data), random.Random(seed)))


def test_pixels_stay_bytes_and_are_normalised_as_evaluation_does() -> None:
    preprocess = Preprocess(size=(32, 32))
    image = photo(32, 32)
    pixels = ImageTransform(preprocess)(image, random.Random(0))
    assert pixels.dtype == torch.uint8
    whole = normalised(pixels_of(image), preprocess.mean, preprocess.std)
    assert torch.equal(whole, preprocess.evaluation(image))
    several = normalised(torch.stack([pixels] * 2), preprocess.mean, preprocess.std)
    assert torch.equal(several[1], normalised(pixels, preprocess.mean, preprocess.std))


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("size", [(50, 40), (20, 90), (32, 24)])
def test_the_frame_is_what_evaluation_sees(mode: str, size: tuple[int, int]) -> None:
    preprocess = Preprocess(size=(24, 32), resize_mode=mode, fill_color=7)
    framed = preprocess.framed(photo(*size))
    assert framed.size == (32, 24)
    pixels = normalised(pixels_of(framed), preprocess.mean, preprocess.std)
    assert torch.equal(pixels, preprocess.evaluation(photo(*size)))
