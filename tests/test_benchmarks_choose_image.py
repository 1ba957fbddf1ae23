"""ImageCoDe and SVO-Probes: a text and its photo among others."""

from __future__ import annotations

from collections import Counter
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_csv, write_json, write_photo
from compoclip.benchmarks.case import Form, TiePolicy, present
from compoclip.benchmarks.registry import load_benchmark, meta

STATIC = "open-images-2056_a4b3c2"
VIDEO = "MSR-VTT-videoTrainValVideo_video2044-shot1_0"


def write_sets(root: Path, value: Any) -> Path:
    write_json(root / "imagecode" / "valid_data.json", value)
    return root


def photos(root: Path, name: str, numbers: range, suffix: str = ".jpg") -> Path:
    folder = root / "imagecode" / "image-sets" / name
    for number in numbers:
        write_photo(folder / f"img{number}{suffix}")
    return folder


def test_imagecode_cases(tmp_path: Path) -> None:
    texts = {STATIC: {"5": "A deer head.", "0": "A fox."}, VIDEO: {"9": "No hand in view."}}
    write_sets(tmp_path, texts)
    folder = photos(tmp_path, STATIC, range(10))
    photos(tmp_path, VIDEO, range(3, 30, 3), ".png")
    found = load_benchmark("imagecode", tmp_path)
    first = found.content[0]
    assert [(c.id, c.truth, c.subtask) for c in found.content] == [
        (f"{STATIC}/5", 5, "static"),
        (f"{STATIC}/0", 0, "static"),
        (f"{VIDEO}/9", 9, "video"),
    ]
    assert first.form is Form.CHOOSE_IMAGE
    assert [ref.path for ref in first.images] == [folder / f"img{k}.jpg" for k in range(10)]
    assert found.expected == {"static": 430, "video": 1872}
    assert found.ties == {"": TiePolicy.STRICT}
    used, missing = present(found)
    assert len(used) == 2  # nine frames are there: which one is absent cannot be told
    assert len(missing) == 7
    photos(tmp_path, VIDEO, range(30, 31))
    frames = load_benchmark("imagecode:video", tmp_path).content[0].images
    assert [ref.path.stem for ref in frames] == [f"img{k}" for k in range(3, 31, 3)]
    photos(tmp_path, VIDEO, range(40, 41))
    refuses("11 photos instead of 10", "", "imagecode", tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({STATIC: ["a"]}, f"row '{STATIC}' must be an object, found"),
        ({STATIC: {"10": "a"}}, f"row '{STATIC}': '10' is no place among 10 photos"),
        ({STATIC: {"\u0661": "a"}}, "is no place among 10 photos"),
    ],
)
def test_malformed_imagecode(tmp_path: Path, value: Any, message: str) -> None:
    told = refuses(message, "", "imagecode", write_sets(tmp_path, value))
    assert told.startswith(str(tmp_path / "imagecode" / "valid_data.json"))


def svo_row(task: str = "verb", k: int = 0, **changes: Any) -> dict[str, Any]:
    known = {
        "sentence": "A girl sits on the shore.",
        "pos_triplet": "girl,sit,shore",
        "neg_triplet": "girl,run,shore",
        "pos_url": f"http://example.org/{k}.png",
        "neg_url": "http://example.org/b.jpg?size=2",
        "pos_image_id": k,
        "neg_image_id": 99,
    }
    return {
        **known,
        **{f"{name}_neg": name == task for name in meta("svo_probes").parts},
        **changes,
    }


def write_svo(root: Path, *rows: dict[str, Any]) -> Path:
    path = root / "svo_probes" / "svo_probes.csv"
    write_csv(path, *rows)
    return root


def test_svo_cases_and_their_photos(tmp_path: Path) -> None:
    rows = [svo_row("subj"), svo_row(), svo_row("obj", 1), svo_row("none"), svo_row(obj_neg=True)]
    write_svo(tmp_path, *rows)
    folder = tmp_path / "svo_probes" / "images"
    names = {row["pos_url"]: md5(row["pos_url"].encode()).hexdigest() for row in rows}
    other = md5(rows[0]["neg_url"].encode()).hexdigest()
    write_photo(folder / f"{names['http://example.org/0.png']}.png")
    write_photo(folder / f"{other}.jpg")
    found = load_benchmark("svo_probes", tmp_path)
    assert Counter(case.subtask for case in found.content) == {"subj": 1, "verb": 1, "obj": 1}
    assert found.left_out == {"rows without a flag": 1, "rows with several flags": 1}
    first = found.content[0]
    assert (first.id, first.form, first.truth) == ("subj/0", Form.CHOOSE_IMAGE, 0)
    assert first.texts == ("A girl sits on the shore.",)
    assert [ref.path.name for ref in first.images] == [
        f"{names['http://example.org/0.png']}.png", f"{other}.jpg",
    ]  # fmt: skip
    used, missing = present(found)
    assert len(used) == 2
    assert missing == (str(folder / f"{names['http://example.org/1.png']}.jpg"),)
    assert load_benchmark("svo_probes:obj", tmp_path).content == found.content[2:]


def test_malformed_svo(tmp_path: Path) -> None:
    write_svo(tmp_path, svo_row(), svo_row(verb_neg="maybe"))
    told = refuses("'verb_neg' must be True or False, found 'maybe'", "", "svo_probes", tmp_path)
    assert told.startswith(f"{tmp_path / 'svo_probes' / 'svo_probes.csv'}: row 2: ")
