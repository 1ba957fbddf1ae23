"""VisMin-bench, NaturalBench-Retrieval and BiVLC: tables with pictures, published numbers."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmark_files import expect_one_line, refuses
from build.photos import picture, write_photo
from build.tables import write_arrow, write_json, write_jsonl, write_parquet
from compoclip.archives import Members
from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy, present
from compoclip.benchmarks.check import check
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in
from compoclip.errors import CompoclipError
from compoclip.evaluation.published.read import published_table
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import OfBytes, features_from, features_of, score_items

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
    write_parquet(parquet, rows)
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


# --- BiVLC: exported rows, the hub's tables with their pictures, group scores. ---


def bivlc_row(**changes: Any) -> dict[str, Any]:
    row = {
        "image": "000000565045.jpg",
        "caption": "Blue bathroom with two white towels",
        "negative_caption": "White bathroom with two blue towels",
        "negative_image": "0_negative.jpg",
        "type": "swap",
        "subtype": "att",
    }
    return {**row, **changes}


def write_bivlc(root: Path, *rows: Any) -> Path:
    path = root / "bivlc" / "bivlc.jsonl"
    return write_jsonl(path, rows)


def test_bivlc_as_parquet(tmp_path: Path) -> None:
    write_bivlc(tmp_path, bivlc_row())
    lines = load_benchmark("bivlc", tmp_path)
    path = tmp_path / "bivlc" / "bivlc.parquet"
    write_parquet(path, [bivlc_row()])
    assert load_benchmark("bivlc", tmp_path).content == lines.content
    write_parquet(path, {"image": ["1.jpg"]})
    refuses("no column 'negative_image', only 'image'", "", "bivlc", tmp_path)
    held = [bivlc_row(image={"bytes": data, "path": "1.jpg"}) for data in (b"x", None)]
    write_parquet(path, held)
    refuses("row 2: 'image' holds no picture", "", "bivlc", tmp_path)
    path.write_bytes(b"PAR1")
    refuses("not a whole Parquet file", str(path), "bivlc", tmp_path)


def clusters(cases: Sequence[Case]) -> int:
    features = features_of(cases, np.eye(16, dtype=np.float32), np.eye(16, dtype=np.float32))
    return len(set(score_items(cases, features).clusters))


def test_bivlc_as_the_hub_has_it(tmp_path: Path) -> None:
    """Pictures inside, in two tables; three questions about one photo stay one photo."""
    hub, exported = tmp_path / "hub", tmp_path / "exported"
    words = [(f"{k} towels", f"no {k} towels", ("obj", "att")[k % 2]) for k in range(4)]
    rows = [
        {
            **bivlc_row(caption=caption, negative_caption=negative, subtype=subtype),
            "image": {"bytes": picture(k // 3), "path": f"{k}.png"},
            "negative_image": {"bytes": picture(k + 2), "path": None},
        }
        for k, (caption, negative, subtype) in enumerate(words)
    ]
    folder = hub / "bivlc" / "data"
    folder.mkdir(parents=True)
    for shard in (0, 1):
        table = pa.Table.from_pylist(rows[2 * shard : 2 * shard + 2])
        pq.write_table(table, folder / f"test-0000{shard}-of-00002.parquet")
    names = [(f"{k // 3}.png", f"negative_{k}.png") for k in range(4)]
    for k, pair in enumerate(names):
        for name, number in zip(pair, (k // 3, k + 2)):
            path = exported / "bivlc" / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number))
    lines = [
        {**row, "image": image, "negative_image": negative}
        for row, (image, negative) in zip(rows, names)
    ]
    write_bivlc(exported, *lines)

    inside, outside = (load_benchmark("bivlc:swap_*", root) for root in (hub, exported))
    assert [c.id for c in inside.content] == [c.id for c in outside.content]
    first = folder / "test-00000-of-00002.parquet"
    assert [c.images[0].photo for c in inside.content[:3]] == [f"{first}@image:0"] * 3
    assert present(inside) == (inside.content, ())
    options = Options(allow_partial=True, resamples=50)
    results = [
        evaluate("m", OfBytes(), [found], tmp_path / name, options)[0]
        for name, found in (("inside", inside), ("outside", outside))
    ]
    assert results[0].aggregates == results[1].aggregates
    assert clusters(inside.content) == clusters(outside.content) == 2
    states = {each.path: each.state for each in check("bivlc", hub).files}
    assert states == {"bivlc/bivlc.jsonl": "archive"}
    assert "bivlc" in [target.spec for target in find_in(hub)]


BIVLC_OUTCOMES = """
TTFTTFF TTTTTTT TTTTTTT FTTTFTF FTTFFFF TTFTTFF TTFTTFF TTTFTFF TTFTTFF TTTTTTT FTTFFFF
TTTFTFF TTTTTTT TTTTTTT TTTTTTT TTTTTTT TTTFTFF TTFTTFF TTFTTFF FTFTFFF TTTTTTT FTTTFTF
TTTTTTT TTTTTTT TTFTTFF TTFTTFF FTTTFTF TTTTTTT TTTTTTT FTFTFFF TTTFTFF FTTFFFF TTTFTFF
FTFTFFF TTTTTTT TTTTTTT TTFTTFF TTTTTTT FTFTFFF TTFTTFF TTFTTFF TTTTTTT FTTFFFF TTTTTTT
"""
"""The first 44 items of CLIP ViT-B/32 as BiVLC's authors publish them (repository IMirandaM/BiVLC,
results/BiVLC_ViT-B-32.csv, MIT): text_score_i0, text_score_i1, image_score_c0, image_score_c1,
text_score, image_score, group_score."""


def scores_with(i0: bool, i1: bool, c0: bool, c1: bool) -> np.ndarray:
    """s(image, text), (2, 2), in which just these of the four comparisons come out right."""
    for order in permutations((0.1, 0.2, 0.3, 0.4)):
        (a, b), (c, d) = found = np.array(order, dtype=np.float32).reshape(2, 2)
        if (a > b, d > c, a > c, d > b) == (i0, i1, c0, c1):
            return found
    raise AssertionError("no scores give these outcomes")


def test_outcomes_of_the_publication() -> None:
    rows = [[letter == "T" for letter in outcome] for outcome in BIVLC_OUTCOMES.split()]
    names = [[f"{kind}{k}-{side}" for side in (0, 1)] for k in range(len(rows)) for kind in "it"]
    scores = {
        names[2 * k][i]: dict(zip(names[2 * k + 1], each))
        for k, row in enumerate(rows)
        for i, each in enumerate(scores_with(*row[:4]).tolist())
    }
    cases = [
        Case(
            str(k),
            Form.GROUP,
            tuple(ImageRef(Path(name)) for name in names[2 * k]),
            tuple(names[2 * k + 1]),
            "add_obj",
        )
        for k in range(len(rows))
    ]
    items = score_items(cases, features_from(scores))
    for place, metric in enumerate(("text", "image", "group"), start=4):
        assert items.outcomes[metric].used.tolist() == [row[place] for row in rows], metric
    assert not any(items.to_arrow()["tie"].to_pylist())
