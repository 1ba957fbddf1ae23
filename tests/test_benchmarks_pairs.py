"""ColorSwap, BiVLC, COLA and MMVP-VLM: pairs of photos and texts from official formats."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmark_files import expect_one_line, write_json, write_photo
from compoclip.benchmarks import bivlc, cola, mmvp_vlm
from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy
from compoclip.benchmarks.check import check
from compoclip.benchmarks.coverage import present
from compoclip.benchmarks.files import file_hash
from compoclip.benchmarks.registry import load_benchmark
from compoclip.data.members import Members
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.score import score_cases
from compoclip.evaluation.targets import find_in
from evaluation_helpers import FakeEncoder, features_from, features_of, flat, rule_value


def colorswap_row(**changes: Any) -> dict[str, Any]:
    row = {
        "id": 0,
        "caption_1": "someone holding a yellow umbrella wearing a white dress",
        "caption_2": "someone holding a white umbrella wearing a yellow dress",
        "image_1": "images/img_0_1.png",
        "image_2": "images/img_0_2.png",
        "image_source": "midjourney",
        "caption_source": "human",
    }
    return {**row, **changes}


def test_colorswap(tmp_path: Path) -> None:
    write_json(tmp_path / "colorswap" / "test.json", [colorswap_row()])
    write_json(tmp_path / "colorswap" / "train.json", [colorswap_row(id="7")])
    found = load_benchmark("colorswap", tmp_path)
    folder = tmp_path / "colorswap" / "images"
    assert found.content == (
        Case(
            "0",
            Form.GROUP,
            (ImageRef(folder / "img_0_1.png"), ImageRef(folder / "img_0_2.png")),
            (colorswap_row()["caption_1"], colorswap_row()["caption_2"]),
            "colorswap",
            labels={"image_source": "midjourney", "caption_source": "human"},
        ),
    )
    assert (found.headline, found.ties) == ("group", {"": TiePolicy.STRICT})
    assert found.expected == {"colorswap": 300}
    train = load_benchmark("colorswap", tmp_path, split="train")
    assert (train.name, train.content[0].id) == ("colorswap_train", "7")
    with pytest.raises(UsageError, match="no split 'val'"):
        load_benchmark("colorswap", tmp_path, split="val")
    assert found.aggregates["group"].metric == "group"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "expected a JSON list"),
        ([], "no examples"),
        ([{"id": 1}], "row 0: no key 'image_1'"),
        ([colorswap_row(), colorswap_row()], "row 1: 'id' 0 occurs twice"),
        ([colorswap_row(caption_2=["x"])], "'caption_2' must be text, found a list"),
        ([colorswap_row(image_2="../../x.png")], "leads outside"),
    ],
)
def test_malformed_colorswap(tmp_path: Path, rows: Any, message: str) -> None:
    path = write_json(tmp_path / "colorswap" / "test.json", rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("colorswap", tmp_path)
    expect_one_line(caught.value, str(path))


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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_bivlc(tmp_path: Path) -> None:
    rows = [bivlc_row(), bivlc_row(subtype="obj"), bivlc_row(type="add", subtype="obj")]
    write_bivlc(tmp_path, *rows, bivlc_row(caption="another"))
    found = load_benchmark("bivlc", tmp_path)
    assert [case.id for case in found.content] == [
        "swap_att/0",
        "swap_obj/0",
        "add_obj/0",
        "swap_att/1",
    ]
    first = found.content[0]
    folder = tmp_path / "bivlc" / "images"
    assert first.images == (
        ImageRef(folder / "000000565045.jpg"),
        ImageRef(folder / "0_negative.jpg"),
    )
    assert first.texts == (rows[0]["caption"], rows[0]["negative_caption"])
    assert sum(found.expected.values()) == 2933
    assert found.headline == "group"
    assert {"text", "image", "replace_group", "add_text", "swap_image"} <= set(found.aggregates)
    some = load_benchmark("bivlc:swap_*", tmp_path)
    assert Counter(case.subtask for case in some.content) == {"swap_att": 2, "swap_obj": 1}
    assert some.headline == "group"
    assert "add_text" not in some.aggregates
    write_photo(folder / "000000565045.jpg")
    assert len(present(found)[1]) == 1


def test_bivlc_group_score_is_over_all_items(tmp_path: Path) -> None:
    rows = [bivlc_row(caption=f"{k} towels", subtype="obj") for k in range(3)]
    write_bivlc(tmp_path, bivlc_row(), *rows)
    for name in ("000000565045.jpg", "0_negative.jpg"):
        write_photo(tmp_path / "bivlc" / "images" / name)
    found = load_benchmark("bivlc:swap_*", tmp_path)
    (result,) = evaluate(
        "m", FakeEncoder(), [found], tmp_path / "out", Options(allow_partial=True, resamples=20)
    )
    assert result.aggregates["group"].n == 4
    assert result.aggregates["group"].chance == pytest.approx(1 / 6)
    assert result.aggregates["text"].chance == pytest.approx(1 / 4)
    assert result.aggregates["group"].expected == 278 + 81


def test_bivlc_as_parquet(tmp_path: Path) -> None:
    write_bivlc(tmp_path, bivlc_row())
    lines = load_benchmark("bivlc", tmp_path)
    path = tmp_path / "bivlc" / "bivlc.parquet"
    pq.write_table(pa.Table.from_pylist([bivlc_row()]), path)
    assert load_benchmark("bivlc", tmp_path).content == lines.content
    pq.write_table(pa.table({"image": ["1.jpg"]}), path)
    with pytest.raises(CompoclipError, match="no column 'negative_image', only 'image'"):
        load_benchmark("bivlc", tmp_path)
    held = [bivlc_row(image={"bytes": data, "path": "1.jpg"}) for data in (b"x", None)]
    pq.write_table(pa.Table.from_pylist(held), path)
    with pytest.raises(CompoclipError, match="row 1: 'image' holds no picture"):
        load_benchmark("bivlc", tmp_path)
    path.write_bytes(b"PAR1")
    with pytest.raises(CompoclipError, match="not a whole Parquet file") as caught:
        load_benchmark("bivlc", tmp_path)
    expect_one_line(caught.value, str(path))


class OfBytes(FakeEncoder):
    """Features of a picture that depend on its bytes alone."""

    def encode_images(self, images: Sequence[ImageRef]) -> np.ndarray:
        read = Members()
        stored = [read(i.path, i.member) if i.member else i.path.read_bytes() for i in images]
        return np.stack([self._feature(data.hex()) for data in stored])


def clusters(cases: Sequence[Case]) -> int:
    features = features_of(cases, np.eye(16, dtype=np.float32), np.eye(16, dtype=np.float32))
    return len(set(score_cases(cases, features).clusters))


def picture(k: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (40 * k, 20, 200 - 40 * k)).save(stream, "png")
    return stream.getvalue()


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


def test_bivlc_rows_listed_twice(tmp_path: Path) -> None:
    path = write_bivlc(tmp_path, bivlc_row(), bivlc_row(caption="other"), bivlc_row())
    with pytest.raises(CompoclipError, match=r"line 3: the same as .*line 1") as caught:
        load_benchmark("bivlc", tmp_path)
    expect_one_line(caught.value, str(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "line 1: expected a JSON object"),
        ({"image": "1.jpg"}, "line 1: no key 'negative_image'"),
        (bivlc_row(subtype="size"), "type 'swap' with subtype 'size' is unknown"),
        (bivlc_row(negative_image="/x.jpg"), "leads outside"),
        (bivlc_row(negative_caption=None), "must be text, found null"),
    ],
)
def test_malformed_bivlc(tmp_path: Path, row: Any, message: str) -> None:
    path = write_bivlc(tmp_path, row)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("bivlc", tmp_path)
    expect_one_line(caught.value, str(path))


def test_cola_official_file(shared_data: Path, tmp_path: Path) -> None:
    root = shared_data / "annotations"
    found = load_benchmark("cola", root, tmp_path)
    assert Counter(case.subtask for case in found.content) == cola.META.expected
    assert found.content[0] == Case(
        "multi_object/0",
        Form.GROUP,
        (ImageRef(tmp_path / "2390970.jpg"), ImageRef(tmp_path / "2388902.jpg")),
        (
            "standing tall long giraffe to the right of brown giraffe",
            "brown giraffe behind tall white giraffe",
        ),
        "multi_object",
    )
    assert (found.headline, found.aggregates["image"].metric) == ("image", "image")
    for name, known in cola.META.hashes.items():
        assert file_hash(root / name) == known


def test_cola_photos_lie_in_either_folder(tmp_path: Path) -> None:
    pair = ["https://x/1.jpg", "a", "https://x/2.jpg", "b"]
    write_json(tmp_path / "cola" / "COLA_multiobjects_matching_benchmark.json", [pair])
    write_photo(tmp_path / "vg" / "VG_100K" / "2.jpg")
    write_photo(tmp_path / "vg" / "VG_100K_2" / "1.jpg")
    found = load_benchmark("cola", tmp_path)
    assert present(found) == (found.content, ())
    (result,) = evaluate(
        "m", FakeEncoder(), [found], tmp_path / "out", Options(allow_partial=True, resamples=20)
    )
    assert result.headline == "image"
    assert result.aggregates["image"].chance == 1 / 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": 1}, "expected a JSON list"),
        ([], "no pairs"),
        ([["http://x/1.jpg", "a", "http://x/2.jpg"]], "row 0: expected .* found 3 entries"),
        ([["http://x/1.jpg", "", "http://x/2.jpg", "b"]], "row 0: entry 1 is empty"),
        ([["http://x/..", "a", "http://x/2.jpg", "b"]], "leads outside"),
    ],
)
def test_malformed_cola(tmp_path: Path, rows: Any, message: str) -> None:
    path = write_json(tmp_path / "cola" / "COLA_multiobjects_matching_benchmark.json", rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("cola", tmp_path)
    expect_one_line(caught.value, str(path))


FOLDERS = ("Orientation", "Presence", "State", "Quantity", "Spatial", "Color")
FOLDERS += ("Structural Character", "Text", "Camera Perspective")


def write_mmvp(
    root: Path, folders: tuple[str, ...] = FOLDERS, pairs: int = 2, text: str = ""
) -> Path:
    path = root / "mmvp_vlm" / "Questions.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ["Question ID,Type,Statement"]
    for k, folder in enumerate(folders):
        for number in range(2 * pairs * k + 1, 2 * pairs * (k + 1) + 1):
            rows.append(f'{number},{folder},"statement {number}, of {folder}"')
    path.write_text(text or "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_mmvp_cases_and_the_published_number_of_clip(tmp_path: Path) -> None:
    write_mmvp(tmp_path)
    found = load_benchmark("mmvp_vlm", tmp_path)
    assert Counter(case.subtask for case in found.content) == dict.fromkeys(mmvp_vlm.META.parts, 2)
    first = found.content[0]
    folder = tmp_path / "mmvp_vlm" / "MLLM_VLM Images" / "Orientation"
    assert first.images == (ImageRef(folder / "1.jpg"), ImageRef(folder / "2.jpg"))
    assert first.texts[0] == "a photo of statement 1, of Orientation"
    assert found.headline == "vl_compo"
    clip = dict(zip(mmvp_vlm.META.parts, (0, 0, 13.333, 0, 0, 13.333, 13.333, 6.667, 13.333)))
    for name in ("vl_compo", "image"):
        got = rule_value(found.aggregates[name], flat(clip))
        assert got == pytest.approx(6.67, abs=0.01)
    plain = load_benchmark("mmvp_vlm", tmp_path, prompt="{}")
    assert plain.content[0].texts[1] == "statement 2, of Orientation"
    assert plain.data_hash != found.data_hash
    some = load_benchmark("mmvp_vlm:color,state", tmp_path)
    assert {case.subtask for case in some.content} == {"color", "state"}
    assert sum(found.expected.values()) == 135
    with pytest.raises(UsageError, match="has no"):
        load_benchmark("mmvp_vlm", tmp_path, prompt="a photo")


def test_mmvp_patterns_by_any_name_and_photos_of_any_kind(tmp_path: Path) -> None:
    write_mmvp(tmp_path)
    by_folder = load_benchmark("mmvp_vlm", tmp_path)
    write_mmvp(tmp_path, tuple(f"p{k}" for k in range(9)))
    by_order = load_benchmark("mmvp_vlm", tmp_path)
    assert [c.subtask for c in by_order.content] == [c.subtask for c in by_folder.content]
    write_mmvp(tmp_path, ("Quantity and Count",), pairs=1)
    for k in (1, 2):
        photos = tmp_path / "mmvp_vlm" / "MLLM_VLM Images" / "Quantity and Count"
        write_photo(photos / f"{k}.png")
    one = load_benchmark("mmvp_vlm", tmp_path)
    assert present(one) == (one.content, ())
    assert one.content[0].subtask == "quantity"


HEADER = "Question ID,Type,Statement\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "no rows"),
        (HEADER + "1,Color,a\n", "line 2: the last pair has one row"),
        (HEADER + "1,Color,a\n3,Color,b\n", "number 3 .* is no pair"),
        (HEADER + "2,Color,a\n3,Color,b\n", "number 3 .* is no pair"),
        (HEADER + "1,Color,a\n2,State,b\n", "is no pair"),
        (HEADER + "1,Colour,a\n2,Colour,b\n", "unknown pattern 'Colour'"),
        (HEADER + "1,Color\n2,Color,b\n", "line 2: expected a number, a pattern and a statement"),
        (HEADER + "x,Color,a\n2,Color,b\n", "line 2: expected a number"),
        (HEADER + "1,Color,\n2,Color,b\n", "line 2: statement is empty"),
        (HEADER + "1,Color,a\n1,Color,b\n", "line 3: 'number' 1 occurs twice"),
        (HEADER + '1,Color,"a\n', "line 2"),
        (HEADER + "1,../x,a\n2,../x,b\n", "unknown pattern"),
    ],
)
def test_malformed_mmvp(tmp_path: Path, text: str, message: str) -> None:
    path = write_mmvp(tmp_path, text=text)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("mmvp_vlm", tmp_path)
    expect_one_line(caught.value, str(path))


def test_absent_files_and_unknown_parts(tmp_path: Path) -> None:
    for name in ("colorswap", "bivlc", "cola", "mmvp_vlm"):
        with pytest.raises(CompoclipError, match="no such file") as caught:
            load_benchmark(name, tmp_path)
        expect_one_line(caught.value, str(tmp_path))
        with pytest.raises(UsageError, match=f"{name} has no sub-task 'xyz'"):
            load_benchmark(f"{name}:xyz", tmp_path)


def test_bivlc_expects_the_published_counts() -> None:
    assert sum(bivlc.META.expected.values()) == 2933


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
    items = score_cases(cases, features_from(scores))
    for place, metric in enumerate(("text", "image", "group"), start=4):
        assert items.outcomes[metric].used.tolist() == [row[place] for row in rows], metric
    assert not any(items.tied())
