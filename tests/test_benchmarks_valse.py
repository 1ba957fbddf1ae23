"""VALSE: the official files, packed or not, their votes and photos, and malformed ones."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_json
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in


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
    refuses(r"'\.\./existence\.json' leads outside", str(path), "valse:existence", tmp_path)
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
        (row(mturk={"foil": 1}), "row 'x': 'mturk': no key 'caption'"),
        (row(dataset="unknown"), "photo 'v7w_1.jpg' of data set 'unknown' is of no known source"),
    ],
)
def test_malformed_rows(tmp_path: Path, bad: Any, message: str) -> None:
    write(tmp_path, actant_swap={"w": row(), "x": bad})
    told = refuses(message, "", "valse", tmp_path)
    assert told.startswith(f"{tmp_path / 'valse' / 'actant-swap.json'}: row 'x'")
