"""VisMin-bench and NaturalBench-Retrieval: tables with pictures, an archive, published numbers."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmark_files import expect_one_line, picture, refuses, write_json, write_photo
from compoclip.archives import Members
from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy, present
from compoclip.benchmarks.check import check
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in
from compoclip.errors import CompoclipError
from compoclip.evaluation.published.read import published_table
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import OfBytes

QUICK = Options(allow_partial=True, resamples=20)


def row(k: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "id": f"id{k}",
        "image_0": {"bytes": picture(k), "path": None},
        "text_0": f"a cup left of plate {k}",
        "image_1": {"bytes": picture(k + 1), "path": None},
        "text_1": f"a cup right of plate {k}",
        "text_question_0": "?",
        "category": "relation",
    }
    return {**made, **changes}


def write_arrow(path: Path, rows: list[dict[str, Any]], footer: bool = False) -> Path:
    """As the datasets library saves it, a stream; or with a footer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    new = pa.ipc.new_file if footer else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def test_vismin_shards_of_arrow(tmp_path: Path) -> None:
    folder = tmp_path / "vismin_bench"
    categories = ("object", "attribute", "relation", "counting", "relation")
    rows = [row(k, category=each) for k, each in enumerate(categories)]
    first = write_arrow(folder / "data-00000-of-00002.arrow", rows[:3])
    second = write_arrow(folder / "data-00001-of-00002.arrow", rows[3:], footer=True)
    found = load_benchmark("vismin_bench", tmp_path)
    # Photo 1 of row 0 is photo 0 of row 1: one photo, the first that was seen.
    refs = [ImageRef(first, member="image_0:0"), ImageRef(first, member="image_0:1")]
    assert found.content[0] == Case(
        "object/0", Form.GROUP, tuple(refs), (rows[0]["text_0"], rows[0]["text_1"]), "object"
    )
    assert found.content[4].id == "relation/1"
    assert found.content[4].images == (
        ImageRef(second, member="image_0:1"),
        ImageRef(second, member="image_1:1"),
    )
    read = Members()
    stored = [[read(i.path, i.member) for i in case.images] for case in found.content]
    assert stored == [[picture(k), picture(k + 1)] for k in range(5)]
    assert (found.headline, found.ties) == ("group", {"": TiePolicy.STRICT})
    assert found.expected == {"object": 579, "attribute": 294, "relation": 622, "counting": 589}
    assert sum(found.expected.values()) == 2084
    assert [target.spec for target in find_in(tmp_path)] == ["vismin_bench"]
    state = check("vismin_bench", tmp_path, decoding=True)
    assert (state.damaged_count, state.missing_count) == (0, 0)
    with pytest.raises(CompoclipError, match="holds no image 'image_0:9'"):
        read(first, "image_0:9")


def test_vismin_is_the_same_in_any_table(tmp_path: Path) -> None:
    """Arrow shards, the hub's Parquet conversion, a folder `data`: one measurement."""
    rows = [row(k, category=each) for k, each in enumerate(meta("vismin_bench").parts)]
    arrow = tmp_path / "a"
    write_arrow(arrow / "vismin_bench" / "data" / "data-00000-of-00001.arrow", rows)
    (tmp_path / "p" / "vismin_bench").mkdir(parents=True)
    parquet = tmp_path / "p" / "vismin_bench" / "test-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), parquet)
    results = [
        evaluate("m", OfBytes(), [load_benchmark("vismin_bench", root)], root / "out", QUICK)[0]
        for root in (arrow, tmp_path / "p")
    ]
    one, two = ({k: v.value for k, v in each.aggregates.items()} for each in results)
    assert one == two
    mean = results[0].aggregates["mean"]
    three = ("text", "image", "group")
    parts = [metrics[name].value for metrics in results[0].scores.values() for name in three]
    assert len(parts) == 12
    assert mean.value == pytest.approx(np.mean(parts))
    assert mean.chance == pytest.approx((1 / 4 + 1 / 4 + 1 / 6) / 3)
    alone = load_benchmark("vismin_bench", tmp_path, annotations=parquet)
    assert len(alone.content) == 4


def test_the_published_means_are_those_of_the_printed_parts() -> None:
    table = published_table("vismin")
    for each in table.rows:
        *parts, mean = each.values
        assert np.mean([part for part in parts if part is not None]) == pytest.approx(
            mean, abs=0.01
        )
    # Printed percentages are whole numbers of items.
    counts = meta("vismin_bench").expected
    for each in table.rows[:3]:
        for value, column in zip(each.values[:-1], table.columns):
            items = value * counts[column.terms[0][0].score] / 100
            assert abs(items - round(items)) < 0.04, (each.labels, column.id)
    for each in published_table("naturalbench").rows:
        for value in each.values:
            assert abs(value * 12.27 - round(value * 12.27)) < 0.07, each.labels


# --- NaturalBench-Retrieval. ---


def pair(k: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "index": k,
        "image_0": f"{k}_0.jpg",
        "image_1": f"{k}_1.jpg",
        "caption_0": f"a man rides horse {k}",
        "caption_1": f"a man leads horse {k}",
    }
    return {**made, **changes}


def write_archive(root: Path, rows: Any, inner: str = "NaturalBench-Retrieval/") -> Path:
    path = root / "naturalbench" / "NaturalBench-Retrieval.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{inner}metadata.json", json.dumps(rows))
        named = {each["index"]: k for k, each in enumerate(rows)} if isinstance(rows, list) else {}
        for index, number in named.items():
            for k in range(2):
                archive.writestr(f"{inner}images/{index}_{k}.jpg", picture(2 * number + k))
    return path


@pytest.mark.parametrize("inner", ["", "NaturalBench-Retrieval/"])
def test_naturalbench_as_published_in_an_archive(tmp_path: Path, inner: str) -> None:
    rows = [pair(k) for k in range(3)]
    path = write_archive(tmp_path, rows, inner)
    found = load_benchmark("naturalbench_retrieval", tmp_path)
    assert found.content[2].images[1] == ImageRef(path, member=f"{inner}images/2_1.jpg")
    assert present(found) == (found.content, ())
    named = load_benchmark("naturalbench_retrieval", tmp_path / "x", annotations=path)
    assert named.content == found.content
    (packed,) = evaluate("m", OfBytes(), [found], tmp_path / "packed", QUICK)
    for k in range(3):
        for side in range(2):
            photo = write_photo(tmp_path / "naturalbench" / "images" / f"{k}_{side}.jpg")
            photo.write_bytes(picture(2 * k + side))
    write_json(tmp_path / "naturalbench" / "metadata.json", rows)
    folder = load_benchmark("naturalbench_retrieval", tmp_path)
    (unpacked,) = evaluate("m", OfBytes(), [folder], tmp_path / "unpacked", QUICK)
    for name in ("text", "image", "group"):
        assert packed.aggregates[name].value == unpacked.aggregates[name].value


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([pair(), pair()], "row 1: 'index': 0 occurs twice"),
        ([pair(image_0="../x.jpg")], "leads outside|holds no '../x.jpg'"),
        ([pair(image_0="9.jpg")], "the archive holds no '9.jpg'"),
    ],
)
def test_malformed_naturalbench(tmp_path: Path, rows: Any, message: str) -> None:
    path = write_archive(tmp_path, rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("naturalbench_retrieval", tmp_path)
    if rows:
        expect_one_line(caught.value, str(path))
    path.write_bytes(path.read_bytes()[:50])
    refuses(
        r"NaturalBench-Retrieval\.zip: cannot be unpacked", "", "naturalbench_retrieval", tmp_path
    )
    path.unlink()
    refuses(r"metadata\.json: no such file", "", "naturalbench_retrieval", tmp_path)
