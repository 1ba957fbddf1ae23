"""Mirrored photos: as references, in batches, packs and caches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from compoclip.data.columns import read_extras
from compoclip.data.decode import Mirrored, decode, mirrored, unmirrored
from compoclip.data.images import photo_key
from compoclip.data.pack import PackSpec, pack
from compoclip.data.sources.open import Request, open_source
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.errors import CompoclipError
from compoclip.models.preprocess import Preprocess
from data_samples import encode, write_jsonl


def noise(side: int = 24, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side + 8, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    return encode(Image.fromarray(pixels))


# --- A picture that is shown mirrored. ---


def test_mirrored_twice_is_the_picture_itself() -> None:
    pixels = noise()
    for image in (png(pixels), Path("a.png")):
        once = mirrored(image)
        assert once == Mirrored(image)
        assert mirrored(once) is image
        assert unmirrored(once) is image
        assert photo_key(once) != photo_key(image)
    assert np.array_equal(decode(mirrored(png(pixels))), pixels[:, ::-1])
    with pytest.raises(CompoclipError, match=r"none\.png \(mirrored\): image not found"):
        decode(mirrored(Path("none.png")))


def test_it_is_mirrored_before_the_transform() -> None:
    """With any crop: the crop of the mirrored picture, not the mirrored crop."""
    pixels = noise()
    data, turned = png(pixels), png(np.ascontiguousarray(pixels[:, ::-1]))
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
        (folder / f"{name}.png").write_bytes(png(noise(seed=ord(name))))
    rows: list[dict[str, Any]] = [
        {"image": "a.png", "caption": "a", "neg_caption": "x", "mirror": True},
        {"image": "b.png", "caption": "b", "neg_caption": "y", "neg_image": "c.png", "mirror": 1},
        {"image": "b.png", "caption": "b", "neg_caption": "y", "neg_image": "c.png"},
        {"image": "c.png", "caption": "c", "mirror": False, "pos_caption": ["one c", "see"]},
    ]
    return write_jsonl(folder / "rows.jsonl", rows)


def pictures(source: Any) -> list[list[int] | None]:
    negatives = [source[i].negative_image for i in range(len(source))]
    return [None if n is None else np.asarray(decode(n)).ravel().tolist() for n in negatives]


def test_rows_and_packs_show_the_same(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    source = open_source(str(table))
    a, c = noise(seed=ord("a")), noise(seed=ord("c"))
    expected = [a[:, ::-1], c[:, ::-1], c, None]
    flat = [None if each is None else each.ravel().tolist() for each in expected]
    assert pictures(source) == flat
    assert source.brings() == {"negatives", "negative_image", "positives"}
    assert source[3].positives == ("one c", "see")
    assert source[0].negative_image == Mirrored(tmp_path / "in" / "a.png")
    request = Request(str(table))
    made = pack(request, tmp_path / "pack", PackSpec(keep=True))
    assert made.as_they_were == 6  # four images and c.png twice: the own one is not stored again
    packed = open_source(str(tmp_path / "pack"))
    assert pictures(packed) == flat
    assert packed.brings() == source.brings()
    assert packed[3].positives == ("one c", "see")


def test_a_bad_flag_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(
        CompoclipError, match=r"x, row 1: mirror 'perhaps' .* is neither true nor false"
    ):
        read_extras({"mirror": "perhaps"}, tmp_path, "x, row 1")
    for cell, flag in (("yes", True), ("0", False), (True, True), ("", False), (None, False)):
        assert read_extras({"mirror": cell}, tmp_path, "x").get("mirror", False) is flag
