"""From a file to training pixels: decoding at a fraction of the size, mirrored photos, framing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from build.photos import encode, noise, smooth, snapshot
from build.tables import write_jsonl
from compoclip.data.columns import read_extras
from compoclip.data.decode import Mirrored, OpenedImage, decode, mirrored, unmirrored
from compoclip.data.images import photo_key
from compoclip.data.pack import PackSpec, pack
from compoclip.data.sources import Source
from compoclip.data.sources.open import Request, open_source
from compoclip.data.transform import ImageTransform, RandomCrop, normalised, pixels_of
from compoclip.errors import CompoclipError
from compoclip.models.preprocess import Preprocess, random_crop
from data_samples import samples_of


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
    data = snapshot(*stored)
    assert decode(data, min_size=least).size == expected
    assert decode(data).size == stored
    assert decode(snapshot(*stored, "PNG"), min_size=least).size == stored


def test_kinds_of_jpeg_and_grey_ones(tmp_path: Path) -> None:
    grey, cmyk = smooth(64, 64).convert("L"), smooth(64, 64).convert("CMYK")
    for image in (grey, cmyk):
        small = decode(encode(image, "JPEG"), min_size=(8, 8))
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
    data = snapshot(*size)
    transform = ImageTransform(Preprocess(size=(64, 48)), crop)
    for seed in range(8):
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
    data = snapshot(640, 480)
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
    image = smooth(32, 32)
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
    framed = preprocess.framed(smooth(*size))
    assert framed.size == (32, 24)
    pixels = normalised(pixels_of(framed), preprocess.mean, preprocess.std)
    assert torch.equal(pixels, preprocess.evaluation(smooth(*size)))


# --- Mirrored photos: as references, in rows and packs. ---


# --- A picture that is shown mirrored. ---


def test_mirrored_twice_is_the_picture_itself() -> None:
    for image in (encode(noise(0)), Path("a.png")):
        once = mirrored(image)
        assert once == Mirrored(image)
        assert mirrored(once) is image
        assert unmirrored(once) is image
        assert photo_key(once) != photo_key(image)
    shown = decode(mirrored(encode(noise(0))))
    assert np.array_equal(shown, ImageOps.mirror(noise(0)))
    with pytest.raises(CompoclipError, match=r"none\.png \(mirrored\): image not found"):
        decode(mirrored(Path("none.png")))


def test_it_is_mirrored_before_the_transform() -> None:
    """With any crop: the crop of the mirrored picture, not the mirrored crop."""
    data, turned = encode(noise(0)), encode(ImageOps.mirror(noise(0)))
    for crop in (None, RandomCrop((0.3, 0.6))):
        transform = ImageTransform(Preprocess(size=(8, 8)), crop)
        found = transform.read(mirrored(data), random.Random(3))
        assert torch.equal(found, transform.read(turned, random.Random(3)))
        assert crop is None or not torch.equal(found, transform.read(data, random.Random(3)))


# --- Rows, packs and caches. ---


def write_rows(folder: Path) -> Path:
    """A mirrored own image, a mirrored other one, an ordinary negative, and none."""
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.png").write_bytes(encode(noise(ord(name))))
    rows: list[dict[str, Any]] = [
        {"image": "a.png", "caption": "a", "neg_caption": "x", "mirror": True},
        {"image": "b.png", "caption": "b", "neg_caption": "y", "neg_image": "c.png", "mirror": 1},
        {"image": "b.png", "caption": "b", "neg_caption": "y", "neg_image": "c.png"},
        {"image": "c.png", "caption": "c", "mirror": False, "pos_caption": ["one c", "see"]},
    ]
    return write_jsonl(folder / "rows.jsonl", rows)


def negatives_of(source: Source) -> list[bytes | None]:
    """Return the pixels of the negative images."""
    images = [sample.negative_image for sample in samples_of(source)]
    return [None if image is None else decode(image).tobytes() for image in images]


def test_rows_and_packs_show_the_same(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    source = open_source(str(table))
    a, c = noise(ord("a")), noise(ord("c"))
    shown = [ImageOps.mirror(a).tobytes(), ImageOps.mirror(c).tobytes(), c.tobytes(), None]
    assert negatives_of(source) == shown
    assert source.brings() == {"negatives", "negative_image", "positives"}
    assert source[3].positives == ("one c", "see")
    assert source[0].negative_image == Mirrored(tmp_path / "in" / "a.png")
    request = Request(str(table))
    made = pack(request, tmp_path / "pack", PackSpec(keep=True))
    assert made.as_they_were == 6  # four images and c.png twice: the own one is not stored again
    packed = open_source(str(tmp_path / "pack"))
    assert negatives_of(packed) == shown
    assert packed.brings() == source.brings()
    assert packed[3].positives == ("one c", "see")


def test_a_bad_flag_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(
        CompoclipError, match=r"x, row 1: mirror 'perhaps' .* is neither true nor false"
    ):
        read_extras({"mirror": "perhaps"}, tmp_path, "x, row 1")
    for cell, flag in (("yes", True), ("0", False), (True, True), ("", False), (None, False)):
        assert read_extras({"mirror": cell}, tmp_path, "x").get("mirror", False) is flag
