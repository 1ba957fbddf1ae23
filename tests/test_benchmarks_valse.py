"""VALSE: the official files, packed or not, their votes and photos, and malformed ones."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_json
from compoclip.benchmarks.case import present
from compoclip.benchmarks.files import bytes_hash
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in
from compoclip.errors import CompoclipError
from evaluation_helpers import flat, rule_value

CLIP = {
    "existence": 69.31, "plurals": 57.58, "counting-hard": 64.52, "counting-small-quant": 61.89,
    "counting-adversarial": 58.18, "relations": 65.98, "action-replacement": 77.78,
    "actant-swap": 71.76, "coreference-standard": 54.94, "coreference-hard": 51.92,
    "foil-it": 90.14,
}  # fmt: skip


def row(votes: int = 3, **changes: Any) -> dict[str, Any]:
    known = {
        "dataset": "visual7w",
        "image_file": "v7w_1.jpg",
        "caption": "There are no people.",
        "foil": "There are people.",
        "mturk": {"foil": 0, "caption": votes, "other": 0},
    }
    return {**known, **changes}


def write(root: Path, **rows: Any) -> Path:
    for name in meta("valse").parts:
        value = rows.get(name.replace("-", "_"), {"a": row(), "b": row(1)})
        write_json(root / "valse" / f"{name}.json", value)
    return root


def pack(root: Path, prefix: str = "", name: str = "valse_json.zip") -> Path:
    """The unpacked files as an archive in their own folder."""
    folder = root / "valse"
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.glob("*.json")):
            archive.write(file, prefix + file.name)
            file.unlink()
    return path


def test_official_files(shared_data: Path, tmp_path: Path) -> None:
    photos = shared_data / "photos" / "sugarcrepe_coco" / "images"
    packed = load_benchmark("valse", shared_data / "annotations", photos)
    assert Counter(case.subtask for case in packed.content) == meta("valse").expected
    assert len(packed.content) == 7702
    assert sum(packed.left_out.values()) == 8782 - 7702
    assert len(present(packed)[0]) == 16  # of the plurals and relations, whose photos these are
    assert len({(case.subtask, case.id) for case in packed.content}) == 7702
    archive = shared_data / "annotations" / "valse" / "valse_json.zip"
    with zipfile.ZipFile(archive) as opened:
        for name in meta("valse").parts:
            data = opened.read(f"{name}.json")
            assert bytes_hash(data) == meta("valse").hashes[f"valse/{name}.json"]
            (tmp_path / "valse").mkdir(exist_ok=True)
            (tmp_path / "valse" / f"{name}.json").write_bytes(data)
    unpacked = load_benchmark("valse", tmp_path)
    assert unpacked.data_hash == packed.data_hash
    assert [case.texts for case in unpacked.content] == [case.texts for case in packed.content]
    folders = Counter(
        case.images[0].path.parent.relative_to(tmp_path).as_posix() for case in unpacked.content
    )
    assert folders == {
        "visual7w": 505 + 868 + 900 + 691,
        "coco/val2017": 851 + 535,
        "swig": 648 + 949,
        "coco/train2014": 493,
        "coco/val2014": 215 + 943,
        "visdial/val2018": 104,
    }


def test_published_scores_of_clip(tmp_path: Path) -> None:
    found = load_benchmark("valse", write(tmp_path))
    assert found.headline == "vl_compo"
    assert rule_value(found.aggregates["vl_compo"], flat(CLIP)) == pytest.approx(67.53, abs=0.01)
    assert rule_value(found.aggregates["macro"], flat(CLIP)) == pytest.approx(65.82, abs=0.01)
    assert rule_value(found.aggregates["counting"], flat(CLIP)) == pytest.approx(61.53, abs=0.01)
    assert found.left_out == {"rows that fewer than two annotators found right": 11}


def test_photos_by_source_and_places_of_ones_own(tmp_path: Path) -> None:
    rows = {
        "coco": row(dataset="coco_2017", image_file="000000000001.jpg"),
        "swig": row(dataset="SWiG", image_file="running_1.jpg"),
        "dialog": row(dataset="VisDial_v1.0", image_file="VisualDialog_val2018_000000000001.jpg"),
        "train": row(dataset="VisDial_v1.0", image_file="COCO_train2014_000000000001.jpg"),
        "foil": row(dataset="FOIL dataset", image_file="COCO_val2014_000000000001.jpg"),
    }
    write(tmp_path, existence=rows)
    here = load_benchmark("valse:existence", tmp_path)
    assert [c.images[0].path.parent.relative_to(tmp_path).as_posix() for c in here.content] == [
        "coco/val2017", "swig", "visdial/val2018", "coco/train2014", "coco/val2014",
    ]  # fmt: skip
    options = {"coco_images": tmp_path / "c", "swig_images": tmp_path / "s"}
    moved = load_benchmark("valse:existence", tmp_path, **options)
    assert moved.content[3].images[0].path.parent == tmp_path / "c" / "train2014"
    assert moved.content[1].images[0].path.parent == tmp_path / "s"
    flat_folder = load_benchmark("valse:existence", tmp_path, tmp_path / "all")
    assert {c.images[0].path.parent for c in flat_folder.content} == {tmp_path / "all"}


def test_an_archive_stands_for_the_files(tmp_path: Path) -> None:
    expected = load_benchmark("valse", write(tmp_path))
    path = pack(tmp_path, "VALSE/data/")
    assert load_benchmark("valse", tmp_path) == expected
    assert load_benchmark("valse", Path("x"), annotations=path).data_hash == expected.data_hash
    assert [target.spec for target in find_in(tmp_path)] == ["valse"]


def test_malformed_archives(tmp_path: Path) -> None:
    path = pack(write(tmp_path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../existence.json", "{}")
    with pytest.raises(CompoclipError, match=r"'\.\./existence\.json' leads outside") as caught:
        load_benchmark("valse:existence", tmp_path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "existence.json").exists()
    path.unlink()
    path = pack(write(tmp_path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("more/plurals.json", "{}")
    refuses(r"two files plurals\.json", "", "valse:plurals", tmp_path)
    path.write_bytes(path.read_bytes()[:300])
    refuses("cannot be unpacked", "", "valse", tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("plurals.json", "{")
    refuses(r"zip: plurals\.json: not valid JSON", "", "valse:plurals", tmp_path)
    refuses(r"holds no existence\.json", "", "valse", tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        nameless = zipfile.ZipInfo("x")
        nameless.filename = ""
        archive.writestr(nameless, "")
    refuses(r"zip: plurals\.json: not valid JSON", "", "valse:plurals", tmp_path)
    (path.parent / "other.zip").write_bytes(b"")
    refuses("holds 2 archives", "", "valse", tmp_path)


def test_rows_that_too_few_annotators_found_right(tmp_path: Path) -> None:
    write(tmp_path, plurals={"a": row(0)})
    refuses("no valid rows", "plurals.json", "valse:plurals", tmp_path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "row 'x': expected a JSON object, found a list"),
        ({k: v for k, v in row().items() if k != "mturk"}, "row 'x': no key 'mturk'"),
        (row(mturk=3), "row 'x': 'mturk': expected a JSON object"),
        (row(mturk={"foil": 1}), "row 'x': 'mturk': no key 'caption'"),
        (row("3"), "'caption' must be a number, found text"),
        (row(foil=""), "row 'x': 'foil' is empty"),
        (row(caption=None), "row 'x': 'caption' must be text, found null"),
        (row(image_file="../v7w_1.jpg"), "leads outside the image folder"),
        (row(dataset="unknown"), "photo 'v7w_1.jpg' of data set 'unknown' is of no known source"),
    ],
)
def test_malformed_rows(tmp_path: Path, bad: Any, message: str) -> None:
    write(tmp_path, actant_swap={"w": row(), "x": bad})
    with pytest.raises(CompoclipError) as caught:
        load_benchmark("valse", tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'valse' / 'actant-swap.json'}: row 'x'")
    assert "\n" not in str(caught.value)
