"""Training rows whose photo is held out: counted, by either of COCO's names, and dropped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from build.photos import write_photos
from build.tables import write_json, write_jsonl
from compoclip.cli.main import main
from compoclip.data.overlap import coco_number, held_out_photos, overlap
from compoclip.data.sources.open import KEY, Request, open_source, write_selection
from compoclip.errors import CompoclipError, UsageError

Capture = pytest.CaptureFixture[str]


def train_table(folder: Path, numbers: Sequence[int]) -> Path:
    rows = [{"image": f"{n:012d}.jpg", "caption": f"photo {n}"} for n in numbers]
    write_photos(folder, *(row["image"] for row in rows))
    return write_jsonl(folder / "train.jsonl", rows)


NUMBERS = {
    "000000391895.jpg": 391895,
    "val2014/COCO_val2014_000000391895.jpg": 391895,
    "COCO_train2014_000000000007.jpg#12": 7,
    "C:\\coco\\000000000007.png": 7,
    "000000391979": 391979,
}
NONE = ("1000268201_693b08cb0e.jpg", "391895.jpg", "0000000000391895.jpg", "rows.parquet, row 3")


def test_numbers() -> None:
    numbers = NUMBERS | dict.fromkeys(NONE)
    assert {name: coco_number(name) for name in numbers} == numbers


def test_held_out_sets(tmp_path: Path) -> None:
    names = [f"COCO_val2014_{n:012d}.jpg" for n in (1, 2, 3)]
    rows = [{"image": f"val2014/{name}", "caption": []} for name in names]
    assert held_out_photos(write_json(tmp_path / "blip.json", rows)) == {1, 2, 3}
    splits = zip(names, ("test", "val", "test"))
    images = [{"filename": name, "split": split} for name, split in splits]
    assert held_out_photos(write_json(tmp_path / "karpathy.json", {"images": images})) == {1, 3}
    images = [{**image, "split": image["split"].title()} for image in images]
    assert held_out_photos(write_json(tmp_path / "capitals.json", {"images": images})) == {1, 3}
    listed = [{"id": 9, "file_name": "000000000009.jpg"}]
    assert held_out_photos(write_json(tmp_path / "val2017.json", {"images": listed})) == {9}
    folder = write_photos(tmp_path / "val2017", "000000000004.jpg")
    (folder / "README.md").touch()
    assert held_out_photos(folder) == {4}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rows": []}, "no list of photos; pass Karpathy's or COCO's JSON"),
        ([{"image": 3}], "photo 1: has no file name"),
        ([{"image": "a.jpg"}], "names no photo of COCO"),
        ([1], "no list of photos"),
        (None, "no list of photos"),
    ],
)
def test_malformed_sets(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(CompoclipError, match=rf"held\.json.*{message}"):
        held_out_photos(write_json(tmp_path / "held.json", value))


def test_overlap_looks_at_negative_photos_too(tmp_path: Path) -> None:
    rows = [
        {"image": "a.jpg", "caption": "x", "neg_caption": "y", "neg_image": "000000000005.jpg"},
        {"image": "b.jpg", "caption": "x"},
        {"image": "000000000006.jpg", "caption": "x"},
    ]
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    found = overlap(open_source(str(path)), {"one": frozenset({5, 6}), "two": frozenset({6})})
    both = ["a.jpg#0", "000000000006.jpg#2"]
    assert found == ({"one": both, "two": both[1:]}, 1)


def test_the_audit_reports_and_drops(tmp_path: Path, capsys: Capture) -> None:
    path = train_table(tmp_path, range(1, 11))
    rows = [{"image": f"COCO_val2014_{n:012d}.jpg"} for n in (3, 7)]
    held, kept = write_json(tmp_path / "test.json", rows), tmp_path / "kept.json"
    command = ["data", "audit", f"--train={path}", f"--overlap={held}", f"--kept={kept}"]
    assert main([*command, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["audits"]
    counts = {"held_out": {str(held): 2}, "rows": {str(held): 2}, "all_rows": 2, "unknown": 0}
    assert record["overlap"] == counts
    assert main(command) == 0
    printed = capsys.readouterr()
    assert f"held-out photos of {held}: 2 of 10 rows show one of its 2" in printed.out
    assert f"train --data {kept}" in printed.err
    source = open_source(str(kept))
    left = [n for n in range(1, 11) if n not in (3, 7)]
    assert list(source.column("captions")) == [(f"photo {n}",) for n in left]
    assert list(source.column("id")) == [source[i].id for i in range(len(source))]
    assert [source.bare(i).image for i in range(8)] == [source[i].image for i in range(8)]
    assert source.left_out == {f"photo held out by {held}": 2}
    assert set(source.column("group")) == {""}
    assert set(source.column("score")) == {None}
    assert list(source.column("image_score")) == [None] * 8
    assert "without 2" in source.describe()
    with pytest.raises(IndexError):
        source[8]
    assert main(["data", "pack", str(kept), f"--out={tmp_path / 'pack'}", "--workers=1"]) == 0
    assert len(open_source(str(tmp_path / "pack"))) == 8


def test_neighbours_are_those_that_are_left(tmp_path: Path) -> None:
    lines = ["title\tfilepath\tneg_caption\tneg_image"]
    lines += [f"t{i}\t{i}.jpg\t['n']\t{[(i + 1) % 4, (i + 2) % 4]}" for i in range(4)]
    path = tmp_path / "near.tsv"
    path.write_text("\n".join(lines) + "\n")
    kept = tmp_path / "kept.json"
    write_selection(kept, Request(str(path)), ["1.jpg#1"], "held out")
    samples = list(open_source(str(kept)))
    assert [sample.captions for sample in samples] == [("t0",), ("t2",), ("t3",)]
    assert [sample.neighbours for sample in samples] == [(1,), (2, 0), (0,)]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"without": "a"}, CompoclipError, "'without' must be a list of texts"),
        ({"witout": []}, CompoclipError, r"kept\.json: unknown field 'witout'"),
        ({KEY: {"spec": 3}}, UsageError, r"kept\.json: spec must be a text"),
        ({KEY: {"spec": "x", "other": "y"}}, UsageError, r"kept\.json: no option 'other'"),
        ({KEY: {}}, CompoclipError, "no selection of a source"),
        ({"without": ["none#1"]}, CompoclipError, "leaves out 'none#1', unknown to "),
        ({"without": ["000000000001.jpg#0"]}, CompoclipError, "leaves out every sample"),
    ],
)
def test_malformed_selections(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = train_table(tmp_path, [1])
    kept = tmp_path / "kept.json"
    write_selection(kept, Request(str(path)), [], "held out")
    write_json(kept, {**json.loads(kept.read_text()), **changes})
    with pytest.raises(error, match=message):
        open_source(str(kept))


def test_selections_take_no_options_and_not_themselves(tmp_path: Path, capsys: Capture) -> None:
    path = train_table(tmp_path, [1])
    kept = tmp_path / "kept.json"
    write_selection(kept, Request(str(path), images=tmp_path), [], "held out")
    assert open_source(str(kept))[0].image == tmp_path / "000000000001.jpg"
    with pytest.raises(UsageError, match="selections take no --split"):
        open_source(str(kept), split="val")
    write_selection(kept, Request(str(kept)), [], "held out")
    with pytest.raises(UsageError, match="selects from itself"):
        open_source(str(kept))
    assert main(["data", "audit", f"--train={path}", f"--kept={kept}"]) == 2
    assert "--kept needs --overlap and exactly one --train" in capsys.readouterr().err


def test_real_photos_and_sets(shared_data: Path) -> None:
    """COCO's photos of SugarCrepe are of val2017, some of them in the Karpathy test."""
    karpathy = shared_data / "annotations" / "coco_karpathy" / "coco_karpathy_test.json"
    photos = shared_data / "photos" / "sugarcrepe_coco" / "images"
    assert len(held_out_photos(karpathy)) == 5000
    assert len(held_out_photos(photos)) == 60
    source = open_source(str(karpathy))
    sets = {"test": held_out_photos(karpathy), "here": held_out_photos(photos)}
    found, unknown = overlap(source, sets)
    assert len(found["test"]) == 5000
    assert 0 <= len(found["here"]) < 60
    assert unknown == 0
