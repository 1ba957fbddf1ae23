"""A real model on photos inside archives and tables, and on squashed ones."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from build.photos import encode
from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.registry import load_benchmark
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import ImageReader, ModelEncoder
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig

CONFIG = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def encoder() -> ModelEncoder:
    return ModelEncoder(create_model(ModelConfig(CONFIG), seed=1))


def photo(k: int) -> bytes:
    pixels = np.random.default_rng(k).integers(0, 255, size=(20, 44, 3), dtype=np.uint8)
    return encode(Image.fromarray(pixels))


def test_a_photo_is_the_same_wherever_it_lies(tmp_path: Path, encoder: ModelEncoder) -> None:
    (tmp_path / "a.png").write_bytes(photo(0))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/a.png", photo(0))
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        shard.add(tmp_path / "a.png", "a.png")
    pq.write_table(pa.table({"image": [photo(1), photo(0)]}), tmp_path / "a.parquet")
    box = (1.0, 2.0, 19.0, 12.0)
    plain = encoder.read_image(ImageRef(tmp_path / "a.png", box))
    for name, member in (("a.zip", "in/a.png"), ("a.tar", "a.png"), ("a.parquet", "image:1")):
        assert np.array_equal(encoder.read_image(ImageRef(tmp_path / name, box, member)), plain)
    with pytest.raises(CompoclipError, match=r"a\.zip@in/a\.png: box .* lies outside"):
        encoder.read_image(ImageRef(tmp_path / "a.zip", (90, 90, 99, 99), "in/a.png"))


def test_a_model_from_outside_opens_an_archive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("wide.png", photo(0))
        archive.writestr("other.png", photo(1))
    opened = []
    zip_file = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda path: opened.append(path) or zip_file(path))
    read = ImageReader()
    assert read(ImageRef(tmp_path / "a.zip", member="wide.png")).size == (44, 20)
    assert read(ImageRef(tmp_path / "a.zip", member="other.png", squash=True)).size == (20, 20)
    assert opened == [tmp_path / "a.zip"]


def test_squashing_keeps_the_whole_picture(tmp_path: Path, encoder: ModelEncoder) -> None:
    pixels = np.zeros((8, 32, 3), dtype=np.uint8)
    pixels[:, :8] = 255  # lost to a centre crop
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    cropped = encoder.read_image(ImageRef(tmp_path / "wide.png"))
    squashed = encoder.read_image(ImageRef(tmp_path / "wide.png", squash=True))
    assert cropped.shape == squashed.shape == (16, 16, 3)
    assert cropped.std(axis=(0, 1)).max() < 1e-6
    assert squashed[:, :3].min() > squashed[:, 5:].max()


def test_an_elevater_set_with_its_cache(tmp_path: Path, encoder: ModelEncoder) -> None:
    folder = tmp_path / "elevater" / "kitti-distance"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "test.zip", "w") as archive:
        for k in range(8):
            archive.writestr(f"{k}.png", photo(k))
    lines = "".join(f"test.zip@{k}.png {k % 4}\n" for k in range(8))
    (folder / "test.txt").write_text(lines, encoding="utf-8")
    benchmark = load_benchmark("zero_shot:kitti-distance", tmp_path)
    options = Options(allow_partial=True, cache=tmp_path / "cache", resamples=20)
    (first,) = evaluate("m", encoder, [benchmark], tmp_path / "out", options)
    score = first.aggregates["accuracy"]
    assert (score.n, score.expected, first.partial) == (8, 711, True)
    fresh = Options(allow_partial=True, cache=tmp_path / "cache", resamples=20, fresh=True)
    (second,) = evaluate("m", encoder, [benchmark], tmp_path / "again", fresh)
    assert second.aggregates == first.aggregates
    assert list((tmp_path / "cache").rglob("*.safetensors"))
