"""How an index is stored: floats or eight bits per number, in a file or in a table of LanceDB."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.photos import write_noise
from compoclip import errors
from compoclip.cli.main import main
from compoclip.data.vectors import Quantised, nearest
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation import ModelEncoder
from compoclip.models import load_model
from compoclip.search import PhotoIndex, duplicates, read_index, search
from compoclip.search.index import FileTexts, _FileIndex
from compoclip.search.lance import ABOUT
from compoclip.search.photos import PhotoList
from compoclip.search.query import text_encoder
from search_photos import changes, indexed, stopped_after

needs_lancedb = pytest.mark.skipif(find_spec("lancedb") is None, reason="LanceDB is not installed")
QUERIES = ["a red star", "a blue mug", "a street without cars"]


def hits(index: PhotoIndex, encoder: ModelEncoder, top: int = 10) -> list[list[tuple[str, float]]]:
    answers = search(index, encoder, QUERIES, top)
    return [[(hit.photo, hit.score) for hit in answer.hits] for answer in answers]


# --- Eight bits per number. ---


def unit(number: int, size: int) -> np.ndarray:
    vectors = np.random.default_rng(0).standard_normal((number, size)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_codes_are_numbers_scaled_to_the_largest_of_a_vector() -> None:
    vectors = unit(30, 16)
    codes = Quantised.of(vectors)
    assert codes.codes.dtype == np.int8
    for vector, row in zip(vectors.tolist(), codes.codes.tolist()):
        largest = max(map(abs, vector))
        assert all(abs(code - 127 * x / largest) <= 0.5001 for code, x in zip(row, vector))
        assert max(map(abs, row)) == 127
    assert np.abs(np.linalg.norm(codes[:], axis=1) - 1).max() < 1e-6
    assert np.array_equal(Quantised.of(codes[:]).codes, codes.codes)
    assert np.array_equal(codes[[3, 1]], codes[:][[3, 1]])
    assert not Quantised.of(np.zeros((1, 4), np.float32))[:].any()


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("top", [1, 5, 900])
def test_the_nearest_codes_are_those_of_sorting_everything(queries: int, top: int) -> None:
    rng = np.random.default_rng(0)
    codes = Quantised(rng.integers(-2, 3, (700, 4)).astype(np.int8))  # in several parts, with ties
    vectors = rng.standard_normal((queries, 4)).astype(np.float32)
    rows, scores = nearest(codes, vectors, top)
    for query, query_rows, values in zip(vectors, rows, scores):
        lengths = [max(1.0, sum(c * c for c in row) ** 0.5) for row in codes.codes.tolist()]
        products = [
            sum(c * float(x) for c, x in zip(row, query)) / length
            for row, length in zip(codes.codes.tolist(), lengths)
        ]
        assert values == pytest.approx(sorted(products, reverse=True)[:top], abs=1e-6)
        assert [products[row] for row in query_rows] == pytest.approx(values.tolist(), abs=1e-6)
        same = codes.codes[query_rows[:-1]] == codes.codes[query_rows[1:]]
        assert all(np.diff(query_rows)[same.all(axis=1)] > 0)  # of equal vectors the first


def test_an_index_of_eight_bits_is_continued_as_one(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    floats = indexed(photos, encoder, tmp_path / "floats")
    index = indexed(photos, encoder, tmp_path / "index", vectors="int8")
    read = read_index(tmp_path / "index")
    assert (index.vectors, read.vectors, floats.vectors) == ("int8", "int8", "float32")
    assert np.array_equal(read.features[:], index.features[:])
    cosines = np.vecdot(floats.features[:], index.features[:])
    assert cosines.min() > 0.999
    assert hits(read, encoder) == hits(index, encoder)
    (photos / "2.png").unlink()
    write_noise(photos / "a.png", 78)
    again = indexed(photos, encoder, tmp_path / "index")
    assert (again.vectors, changes(again)) == ("int8", (1, 4, 1))
    fresh = indexed(photos, encoder, tmp_path / "fresh", vectors="int8")
    assert np.abs(again.features[:] - fresh.features[:]).max() < 0.02  # a code may differ by one
    assert np.array_equal(again.features[[0, 1]], index.features[[0, 1]])
    assert duplicates(again, 1.1) == []
    for out, vectors in (("index", "float32"), ("floats", "int8")):
        with pytest.raises(UsageError, match=f"vectors, not {vectors}; leave --vectors out"):
            indexed(photos, encoder, tmp_path / out, vectors=vectors)


ABOUT_PHOTOS: dict[str, Any] = {"identity": {}, "model": "base", "text_tower": None, "root": "/"}
ABOUT_PHOTOS |= {"scale": 100.0, "bias": 0.0, "source": {"spec": "photos"}, "upright": True}
ABOUT_PHOTOS |= {"left_out": {}, "unreadable": {}, "changes": {}, "calibration": None}
DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"scale": "abc"}, "scale must be a number, found 'abc'"),
    ({"scale": 0.0}, "scale must be at least 1e-09, found 0.0"),
    ({"bias": [1]}, "bias must be a number, found"),
    ({"identity": 3}, "identity must be an object"),
    ({"model": None}, "model must be a text"),
    ({"text_tower": {"a": 1}}, "text_tower: unknown field 'a'"),
    ({"text_tower": {"heads": 0}}, "text_tower: no field|heads must be at least 1"),
    ({"source": []}, "source must be an object"),
    ({"source": {}}, "does not say where its photos lie"),
    ({"source": {"spec": "p", "zz": 1}}, "source: no option 'zz'"),
    ({"source": {"spec": "p", "exclude": [1]}}, "source: exclude must be a list of texts"),
    ({"root": 5}, "root must be a text"),
    ({"upright": "no"}, "upright must be true or false"),
    ({"left_out": {"hidden file": -3}}, "must not be negative, found -3"),
    ({"unreadable": []}, "unreadable must be an object"),
    ({"changes": {"encoded": 0.5}}, "changes.encoded must be a whole number"),
    ({"calibration": 5}, "calibration must be an object, found 5"),
    ({"calibration": {"threshold": 0.1}}, "calibration: no field 'captions'"),
    ({"zz": 1}, "unknown field 'zz'"),
]


@pytest.mark.parametrize(("change", "said"), DAMAGED)
def test_the_record_of_an_index_is_typed(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    photos = unit(1, 4), ["a.png"], ["s h"]
    PhotoIndex(*photos, ABOUT_PHOTOS, [""]).save(tmp_path / "index")
    assert read_index(tmp_path / "index").names[0] == "a.png"
    PhotoIndex(*photos, {**ABOUT_PHOTOS, **change}, [""]).save(tmp_path / "index")
    with pytest.raises(CompoclipError, match=f"index: .*({said}).*; delete it and run") as caught:
        read_index(tmp_path / "index")
    assert "\n" not in str(caught.value)


def test_an_index_that_lacks_a_field_or_has_a_photo_twice_is_damaged(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    about = {name: value for name, value in ABOUT_PHOTOS.items() if name != "upright"}
    PhotoIndex(unit(1, 4), ["a.png"], ["s h"], about, [""]).save(out)
    with pytest.raises(CompoclipError, match=r"no field 'upright'; delete it"):
        read_index(out)
    PhotoIndex(unit(2, 4), ["a.png"] * 2, ["s h"] * 2, ABOUT_PHOTOS, [""] * 2).save(out)
    with pytest.raises(CompoclipError, match=r"it has a photo twice\); delete it"):
        indexed(photos, encoder, out)


@pytest.mark.parametrize(
    ("spoil", "searched", "continued"),
    [
        (lambda features: features * 50, "is not of unit length", "is not of unit length"),
        (lambda features: features * np.nan, "is not of unit length", "is not of unit length"),
        (lambda features: features * 0, "is not of unit length", "is not of unit length"),
        (lambda features: features * 0.5, "is not of unit length", "is not of unit length"),
        (lambda features: features[:, :8], "has features of 8 numbers", "is not of unit length"),
    ],
)
def test_features_of_a_file_are_of_unit_length(
    spoil: Callable[[np.ndarray], np.ndarray],
    searched: str,
    continued: str,
    photos: Path,
    encoder: ModelEncoder,
    tmp_path: Path,
) -> None:
    out = tmp_path / "index"
    index = indexed(photos, encoder, out)
    replace(index, features=spoil(index.features[:])).save(out)
    with pytest.raises(CompoclipError, match=f"{searched}.*; delete it and run"):
        hits(read_index(out), encoder)
    if "unit" in searched:
        with pytest.raises(CompoclipError, match=f"{searched}.*; delete it and run"):
            duplicates(read_index(out))
    with pytest.raises(CompoclipError, match=f"{continued}.*; delete it and run"):
        indexed(photos, encoder, out)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 3}, "not the text tower that is recorded .*reshape"),
        ({"prefix": "zz."}, "not the text tower that is recorded .*token_embedding"),
        ({"files": {}}, ""),  # the model is loaded
    ],
)
def test_another_text_tower_than_that_of_the_weights(
    change: dict[str, Any], said: str, photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    index = indexed(photos, encoder, tmp_path / "index")
    index.about["text_tower"].update(change)
    texts = text_encoder(index, ["a red star"])
    assert (texts is None) == (not said)
    if texts is not None:
        with pytest.raises(CompoclipError, match=f"{said}.*; run compoclip index again"):
            search(index, texts, ["a red star"])


@pytest.mark.parametrize(("vectors", "most"), [("float32", 1.4), ("int8", 0.5)])
def test_features_that_are_written_are_in_memory_once(
    vectors: Any, most: float, tmp_path: Path
) -> None:
    """They were there three times, and of eight bits as floats too."""
    count, names = 6000, [f"{row}.png" for row in range(6000)]
    listed = PhotoList("/photos", names, names, names, True, {})
    hashes, about = dict.fromkeys(range(count), ""), ABOUT_PHOTOS
    features = unit(count, 512)
    tracemalloc.start()
    collected = _FileIndex(tmp_path / "i", None, listed, {}, hashes, about, vectors)
    for start in range(0, count, 50):
        collected.add(range(start, start + 50), features[start : start + 50])
    collected.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most * features.nbytes
    assert len(read_index(tmp_path / "i").features) == count


def test_texts_of_a_file_are_read_one_by_one() -> None:
    lines = ["", "a b", "größe", "", "\n"]
    texts = FileTexts(np.frombuffer("".join(f"{line}\0" for line in lines).encode(), np.uint8))
    assert [*texts] == [texts[row] for row in range(5)] == texts[:] == lines
    assert (texts[-3], texts[1:4:2], len(texts)) == (lines[2], lines[1:4:2], 5)
    with pytest.raises(IndexError):
        texts[5]
    with pytest.raises(ValueError, match="utf-8"):
        FileTexts(np.array([255, 0], np.uint8))


# --- A table of LanceDB. ---


@needs_lancedb
def test_a_table_gives_the_results_of_a_file(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    for number in range(20, 60):
        write_noise(photos / "more" / f"it's {number}.png", number)
    plain = indexed(photos, encoder, tmp_path / "plain")
    table = indexed(photos, encoder, tmp_path / "table", to="lancedb")
    for index in (table, read_index(tmp_path / "table")):
        assert (index.storage, plain.storage) == ("lancedb", "file")
        assert (list(index.names), list(index.stamps)) == (list(plain.names), list(plain.stamps))
        assert np.array_equal(index.features[:], plain.features[:])
        assert np.array_equal(index.features[[7, 3, 7]], plain.features[[7, 3, 7]])
        assert index.features[[]].shape == (0, plain.features.shape[1])
        for top in (1, 10, 1000):
            for one, other in zip(hits(index, encoder, top), hits(plain, encoder, top)):
                assert [name for name, _ in one] == [name for name, _ in other]
                values = [value for _, value in other]
                assert [value for _, value in one] == pytest.approx(values, abs=1e-6)
        query = plain.features[:1]
        for one, other in zip(index.nearest(query, 7), plain.nearest(query, 7)):
            assert np.array_equal(one, other)  # of one query to the last digit
        assert duplicates(index, 0.999) == duplicates(plain, 0.999)
        assert index.outdated([0, 1]) == {"missing": [], "changed": []}


@needs_lancedb
def test_a_table_is_brought_up_to_date(photos: Path, encoder: ModelEncoder, tmp_path: Path) -> None:
    out = tmp_path / "table"
    before = indexed(photos, encoder, out, to="lancedb")
    assert changes(before) == (5, 0, 0)
    assert changes(indexed(photos, encoder, out)) == (0, 5, 0)
    write_noise(photos / "1.png", 77)
    (photos / "2.png").unlink()
    write_noise(photos / "a.png", 78)
    (photos / "0.png").touch()  # another time, the same bytes
    index = indexed(photos, encoder, out)
    plain = indexed(photos, encoder, tmp_path / "plain")
    assert changes(index) == (2, 3, 1)
    assert (list(index.names), list(index.stamps)) == (list(plain.names), list(plain.stamps))
    assert np.abs(index.features[:] - plain.features[:]).max() < 1e-6
    assert changes(indexed(photos, encoder, out, fast=True)) == (0, 5, 0)
    assert len(before.names) == 5  # one that is open stays what it was
    assert hits(before, encoder)[0]
    other = ModelEncoder(load_model("bundled"))
    with pytest.raises(CompoclipError, match="made with another model"):
        index.require(other, out)
    assert changes(indexed(photos, other, out)) == (5, 0, 0)
    read_index(out).require(other, out)


@pytest.mark.parametrize("to", ["file", pytest.param("lancedb", marks=needs_lancedb)])
def test_a_stopped_run_leaves_what_it_has_done(
    to: str, photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    with stopped_after(2):
        indexed(photos, encoder, tmp_path / "index", to=to)
    assert read_index(tmp_path / "index").about["left_out"]["not yet encoded"] == 1
    assert changes(indexed(photos, encoder, tmp_path / "index")) == (1, 4, 0)


@needs_lancedb
def test_the_captions_of_a_table_follow_the_data(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    data = tmp_path / "pairs.csv"
    for caption in ("one", "a 'new' one"):
        data.write_text(f"image,caption\n1.png,{caption}\ndeep/er/3.png,three\n")
        index = indexed(data, encoder, tmp_path / "table", images=photos, to="lancedb")
        assert list(index.captions) == [caption, "three"]
    assert changes(index) == (0, 2, 0)


@needs_lancedb
def test_the_commands_work_on_a_table(
    photos: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, held = str(tmp_path / "table"), tmp_path / "held.csv"
    held.write_text("image,caption\n0.png,a star\n1.png,a mug\n")
    words = ["index", str(photos), f"--model={world / 'base'}", f"--out={out}", "--to=lancedb"]
    assert main([*words, f"--calibrate={held}"]) == 0
    assert "nothing matches below" in capsys.readouterr().out
    assert read_index(tmp_path / "table").about["calibration"]["captions"] == 2
    assert main(["search", out, "a star", "--json", f"--page={tmp_path / 'p.html'}"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert len(answer["hits"]) == 5
    assert (tmp_path / "p.html").read_text().count('src="data:image/jpeg;base64,') == 5


VERSIONS = "photos.lance/_versions"


def cut_files(folder: Path) -> None:
    for file in folder.rglob("*.lance"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:50])


def write_again(folder: Path, column: str, values: list[Any]) -> None:
    """Write a table again with other values in a column."""
    import lancedb
    import pyarrow as pa

    database = lancedb.connect(str(folder))
    rows = database.open_table("photos").to_arrow()
    place, cells = rows.schema.get_field_index(column), pa.array(values)
    rows = rows.set_column(place, column, cells)
    database.create_table("photos", rows, mode="overwrite", on_bad_vectors="null")


@needs_lancedb
@pytest.mark.parametrize("scale", [0.0, 50.0, None])
def test_features_of_a_table_are_of_unit_length(
    scale: float | None, photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    index = indexed(photos, encoder, tmp_path / "table", to="lancedb")
    features = index.features[:].tolist()
    width = len(features[0])
    features[0] = None if scale is None else [scale * number for number in features[0]]
    import pyarrow as pa

    write_again(tmp_path / "table", "vector", pa.array(features, pa.list_(pa.float32(), width)))
    spoilt = read_index(tmp_path / "table")
    for look in (lambda: hits(spoilt, encoder), lambda: duplicates(spoilt)):
        with pytest.raises(CompoclipError, match=r"a feature is not of unit length.*delete it"):
            look()


@needs_lancedb
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / ABOUT).write_text("{"), "not valid JSON.*delete the index"),
        (lambda folder: (folder / ABOUT).write_text("[]"), "expected a JSON object.*delete"),
        (lambda folder: (folder / ABOUT).write_text("{}"), "no field 'identity'; delete it"),
        (lambda folder: write_again(folder, "caption", [None] * 5), "not every row of 'caption'"),
        (lambda folder: write_again(folder, "name", [*range(5)]), "not every row of 'name' is a t"),
        (lambda folder: shutil.rmtree(folder / "photos.lance"), "a damaged index.*delete it"),
        (lambda folder: shutil.rmtree(folder / VERSIONS), "a damaged index.*delete it"),
        (cut_files, "a damaged index.*delete it"),
        (lambda folder: (folder / ABOUT).unlink(), "is a folder; to search photos in it"),
    ],
)
def test_a_damaged_table_is_refused(
    spoil: Callable[[Path], object], words: str, photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    indexed(photos, encoder, tmp_path / "table", to="lancedb")
    spoil(tmp_path / "table")
    with pytest.raises(CompoclipError, match=words) as caught:
        read_index(tmp_path / "table")
    assert "\n" not in str(caught.value)


def test_a_table_without_lancedb_names_the_extra(
    photos: Path, encoder: ModelEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> None:
        raise ImportError(package)

    monkeypatch.setattr(errors.importlib, "import_module", missing)
    with pytest.raises(CompoclipError, match="--to lancedb needs lancedb: pip install"):
        indexed(photos, encoder, tmp_path / "table", to="lancedb")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / ABOUT).write_text("{}")
    with pytest.raises(CompoclipError, match="table needs lancedb: pip install"):
        read_index(tmp_path / "table")
