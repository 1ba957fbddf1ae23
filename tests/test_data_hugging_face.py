"""Data sets of Hugging Face's library, made by itself and read without a network."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compoclip.data.decode import decode
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from data_samples import encode

ROWS = 12


def colour(row: int) -> tuple[int, int, int]:
    return (20 * row, 255 - 20 * row, 90)


def picture(row: int) -> Image.Image:
    return Image.new("RGB", (20, 16), colour(row))


def encoded(row: int) -> bytes:
    return encode(picture(row))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    datasets = pytest.importorskip("datasets", reason="the datasets library is not installed")
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("cache")
    datasets.disable_progress_bars()
    return datasets


def made(library: Any, **columns: Any) -> Any:
    usual = {
        "image": [picture(row) for row in range(ROWS)],
        "captions": [[f"a square {row}", f"a box {row}"] for row in range(ROWS)],
        "number": list(range(ROWS)),
    }
    data = library.Dataset.from_dict({**usual, **columns})
    return data if "image" in columns else data.cast_column("image", library.Image())


def test_a_saved_data_set_by_split(library: Any, tmp_path: Path) -> None:
    data = made(library)
    library.DatasetDict({"train": data, "val": data.select([2, 5])}).save_to_disk(tmp_path / "d")
    for spec in (f"hf:{tmp_path / 'd'}", f"hf:{tmp_path / 'd'}/train"):
        source = open_source(spec)
        assert len(source) == ROWS
        sample = source[3]
        assert sample.captions == ("a square 3", "a box 3")
        assert isinstance(sample.image, bytes)
        assert decode(sample.image).getpixel((0, 0)) == colour(3)
        assert source.bare(3).image == b""
        assert list(source.column("id")) == [f"row {row + 1}" for row in range(ROWS)]
        assert source.brings() == frozenset()
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert again[3] == sample
    # Rows that were selected, not copied, are those that are read.
    few = open_source(f"hf:{tmp_path / 'd'}", split="val")
    assert [each[0] for each in few.column("captions")] == ["a square 2", "a square 5"]
    assert decode(few[1].image).getpixel((0, 0)) == colour(5)
    with pytest.raises(UsageError, match="no split 'test'; it has: train, val"):
        open_source(f"hf:{tmp_path / 'd'}", split="test")
    every = open_source(f"hf:{tmp_path / 'd'}", split="all")
    assert list(every.column("id"))[-2:] == ["val row 1", "val row 2"]
    assert decode(every[ROWS + 1].image).getpixel((0, 0)) == colour(5)


def test_rows_of_a_single_part_say_their_splits(library: Any, tmp_path: Path) -> None:
    """Flickr30k has one part, "test", whose column `split` tells the three apart."""
    data = made(library, split=["train"] * 8 + ["val"] * 2 + ["test"] * (ROWS - 10))
    library.DatasetDict({"test": data}).save_to_disk(tmp_path / "d")
    for spec in (f"hf:{tmp_path / 'd'}", f"hf:{tmp_path / 'd'}/test"):
        sizes = {split: len(open_source(spec, split=split)) for split in ("train", "val", "test")}
        assert sizes == {"train": 8, "val": 2, "test": ROWS - 10}
        assert len(open_source(spec)) == 8


def test_a_folder_of_parquet_as_the_library_reads_it(library: Any, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    made(library).to_parquet(tmp_path / "p" / "train-00000-of-00001.parquet")
    source = open_source(f"hf:{tmp_path / 'p'}/train")
    assert [source[row].captions[1] for row in (0, 11)] == ["a box 0", "a box 11"]
    assert decode(source[11].image).getpixel((0, 0)) == colour(11)
    assert str(tmp_path / "p") in source.describe()
    with pytest.raises(CompoclipError, match="cannot be opened") as raised:
        open_source(f"hf:{tmp_path / 'p'}/nope")
    assert "\n" not in str(raised.value)


def test_images_as_bytes_and_as_paths(library: Any, tmp_path: Path) -> None:
    for row in range(ROWS):
        picture(row).save(tmp_path / f"{row}.png")
    data = made(library, image=[encoded(row) for row in range(ROWS)])
    data.save_to_disk(tmp_path / "bytes")
    assert decode(open_source(f"hf:{tmp_path / 'bytes'}")[4].image).getpixel((0, 0)) == colour(4)

    data = made(library, image=[f"{row}.png" for row in range(ROWS)])
    data.save_to_disk(tmp_path / "paths")
    spec = f"hf:{tmp_path / 'paths'}"
    with pytest.raises(UsageError, match="say with --images"):
        open_source(spec)
    assert open_source(spec, images=tmp_path)[4].image == tmp_path / "4.png"
    outside = made(library, image=["../x.png"] * ROWS)
    outside.save_to_disk(tmp_path / "outside")
    with pytest.raises(CompoclipError, match=r"row 1.*\.\./x\.png"):
        open_source(f"hf:{tmp_path / 'outside'}", images=tmp_path)

    files = made(library, image=[str(tmp_path / f"{row}.png") for row in range(ROWS)])
    files.cast_column("image", library.Image()).save_to_disk(tmp_path / "files")
    source = open_source(f"hf:{tmp_path / 'files'}")
    assert decode(source[4].image).getpixel((0, 0)) == colour(4)


def test_columns_and_what_is_left_out(library: Any, tmp_path: Path) -> None:
    captions = [f"a square {row}" for row in range(ROWS)]
    captions[1] = " "
    data = made(
        library,
        title=captions,
        more=[f"one more {row}" for row in range(ROWS)],
        neg_caption=[f"no square {row}" for row in range(ROWS)],
    )
    data.save_to_disk(tmp_path / "d")
    spec = f"hf:{tmp_path / 'd'}"
    source = open_source(spec, caption_column="title,more", image_column="image")
    assert source[1].captions == ("one more 1",)
    assert source[0].negatives == ("no square 0",)
    assert source.brings() == {"negatives"}
    assert sum(source.left_out.values()) == 1
    left = open_source(spec, caption_column="title")
    assert len(left) == ROWS - 1
    assert decode(left[1].image).getpixel((0, 0)) == colour(2)
    with pytest.raises(UsageError, match="no column 'nope'; the columns are: image, captions"):
        open_source(spec, caption_column="nope")
    with pytest.raises(UsageError, match="column 'image' holds images, not captions"):
        open_source(spec, caption_column="image")


# --- Without the library. ---


def test_what_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"a stream cannot be trained on.*hf:me/data/train"):
        open_source("hf-stream:me/data/train")
    with pytest.raises(CompoclipError, match=r"hf:me/data/SPLIT"):
        open_source("me/data")

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(CompoclipError, match="pip install datasets"):
        open_source("hf:me/data/train")


def test_names_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library is asked for; it answers with why there is nothing."""
    asked: list[Any] = []

    class Library:
        @staticmethod
        def load_dataset(name: str, config: str | None, split: str) -> Any:
            asked.append((name, config, split))
            raise ConnectionError("no network\nat all")

        @staticmethod
        def is_progress_bar_enabled() -> bool:
            return False

        @staticmethod
        def disable_progress_bars() -> None: ...

    monkeypatch.setattr("importlib.import_module", lambda name: Library)
    for spec in ("hf:train", "hf:"):
        with pytest.raises(UsageError, match="name data set and split"):
            open_source(spec)
    for spec in ("hf:me/data/train", "hf:me/data:small/val[:10%]", "hf:mnist/test"):
        with pytest.raises(CompoclipError, match="ConnectionError: no network at all") as raised:
            open_source(spec)
        assert "\n" not in str(raised.value)
    assert asked == [
        ("me/data", None, "train"),
        ("me/data", "small", "val[:10%]"),
        ("mnist", None, "test"),
    ]


def test_a_column_of_images_goes_before_one_of_file_names(library: Any, tmp_path: Path) -> None:
    names = [f"{row}.jpg" for row in range(ROWS)]
    made(library, file_name=names).save_to_disk(tmp_path / "d")
    source = open_source(f"hf:{tmp_path / 'd'}")
    assert len(source) == ROWS
    assert decode(source[3].image).getpixel((0, 0)) == colour(3)
