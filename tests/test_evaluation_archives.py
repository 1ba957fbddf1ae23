"""A real model on photos inside archives and tables, and on squashed ones."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from build.photos import encode, noise
from build.tables import write_parquet, write_tar, write_text, write_zip
from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.registry import load_benchmark
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import ImageReader, ModelEncoder
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig
from evaluation_helpers import TINY


@pytest.fixture(scope="module")
def encoder() -> ModelEncoder:
    return ModelEncoder(create_model(ModelConfig(TINY), seed=1))


def photo(k: int) -> bytes:
    return encode(noise(k, (44, 20)))


def test_a_photo_is_the_same_wherever_it_lies(tmp_path: Path, encoder: ModelEncoder) -> None:
    (tmp_path / "a.png").write_bytes(photo(0))
    write_zip(tmp_path / "a.zip", {"in/a.png": photo(0)})
    write_tar(tmp_path / "a.tar", [("a.png", photo(0))])
    write_parquet(tmp_path / "a.parquet", {"image": [photo(1), photo(0)]})
    box = (1.0, 2.0, 19.0, 12.0)
    plain = encoder.read_image(ImageRef(tmp_path / "a.png", box))
    for name, member in (("a.zip", "in/a.png"), ("a.tar", "a.png"), ("a.parquet", "image:1")):
        assert np.array_equal(encoder.read_image(ImageRef(tmp_path / name, box, member)), plain)
    with pytest.raises(CompoclipError, match=r"a\.zip@in/a\.png: box .* lies outside"):
        encoder.read_image(ImageRef(tmp_path / "a.zip", (90, 90, 99, 99), "in/a.png"))


def test_a_model_from_outside_opens_an_archive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_zip(tmp_path / "a.zip", {"wide.png": photo(0), "other.png": photo(1)})
    opened = []
    zip_file = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda path: opened.append(path) or zip_file(path))
    read = ImageReader()
    assert read(ImageRef(archive, member="wide.png")).size == (44, 20)
    assert read(ImageRef(archive, member="other.png", squash=True)).size == (20, 20)
    assert opened == [archive]


def test_squashing_keeps_the_whole_picture(tmp_path: Path, encoder: ModelEncoder) -> None:
    pixels = np.zeros((8, 32, 3), dtype=np.uint8)
    pixels[:, :8] = 255  # lost to a centre crop
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    cropped = encoder.read_image(ImageRef(tmp_path / "wide.png"))
    squashed = encoder.read_image(ImageRef(tmp_path / "wide.png", squash=True))
    assert cropped.shape == squashed.shape == (32, 32, 3)
    assert cropped.std(axis=(0, 1)).max() < 1e-6
    assert squashed[:, :6].min() > squashed[:, 10:].max()


def test_an_elevater_set_with_its_cache(tmp_path: Path, encoder: ModelEncoder) -> None:
    folder = tmp_path / "elevater" / "kitti-distance"
    write_zip(folder / "test.zip", {f"{k}.png": photo(k) for k in range(8)})
    write_text(folder / "test.txt", "".join(f"test.zip@{k}.png {k % 4}\n" for k in range(8)))
    benchmark = load_benchmark("zero_shot:kitti-distance", tmp_path)
    cache = tmp_path / "cache"
    first, second = (
        evaluate(
            "m", encoder, [benchmark], tmp_path / out,
            Options(allow_partial=True, cache=cache, resamples=20, fresh=out == "again"),
        )[0]
        for out in ("out", "again")
    )  # fmt: skip
    score = first.aggregates["accuracy"]
    assert (score.n, score.expected, first.partial) == (8, 711, True)
    assert second.aggregates == first.aggregates
    assert list(cache.rglob("*.safetensors"))
