"""EqBen: sub-tasks by folder, first captions, the JPEG edition, caps, and arrays as photos."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import write_json, write_photo
from compoclip.benchmarks.case import Form
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import parse_targets
from compoclip.errors import CompoclipError, UsageError
from evaluation_helpers import flat, rule_value


def row(part: str = "sd", k: int = 0, **changes: Any) -> dict[str, Any]:
    known = {
        "image0": f"eqben{part}/{k}/a.png",
        "image1": f"eqben{part}/{k}/b.png",
        "caption0": "a man opens a door",
        "caption1": "a man closes a door",
        "private_info": {"dataset": part},
    }
    return {**known, **changes}


def write(root: Path, *rows: Any) -> Path:
    write_json(root / "eqben" / "annotation.json", list(rows))
    return root


def everything(count: int = 3) -> list[dict[str, Any]]:
    return [row(part, k) for k in range(count) for part in meta("eqben").parts]


def test_cases(tmp_path: Path) -> None:
    listed = row("ag", caption0=["a person sits", "someone sits"], caption1=["a person stands"])
    frames = row("youcook2", image0="eqbenyoucook2/v/1.npy", image1="eqbenyoucook2/v/2.npy")
    found = load_benchmark("eqben", write(tmp_path, frames, listed, *everything()))
    assert Counter(case.subtask for case in found.content) == {
        **dict.fromkeys(meta("eqben").parts, 3), "ag": 4, "youcook2": 4,
    }  # fmt: skip
    first = found.content[0]
    assert (first.id, first.form) == ("ag/0", Form.GROUP)
    assert first.texts == ("a person sits", "a person stands")
    folder = tmp_path / "eqben" / "images"
    assert [ref.path for ref in first.images] == [
        folder / "eqbenag/0/a.png", folder / "eqbenag/0/b.png",
    ]  # fmt: skip
    array = next(case for case in found.content if case.subtask == "youcook2")
    assert array.images[1].path == folder / "eqbenyoucook2" / "v" / "2.npy"
    assert found.headline == "vl_compo"
    assert sum(found.expected.values()) == 251048
    assert len({case.id for case in found.content}) == len(found.content)


def test_published_scores_of_clip(tmp_path: Path) -> None:
    rules = load_benchmark("eqben", write(tmp_path, *everything())).aggregates
    group = {
        "youcook2": 37.34, "gebc": 4.52, "ag": 3.04, "sd": 77.79,
        "kubric_loc": 1.0, "kubric_cnt": 6.1, "kubric_attr": 22.2,
    }  # fmt: skip
    assert rule_value(rules["vl_compo"], flat(group)) == pytest.approx(26.49, abs=0.01)
    assert rule_value(rules["kubric"], flat(group)) == pytest.approx(29.3 / 3)
    assert [rules[name].metric for name in ("vl_compo", "text", "image")] == [
        "group", "text", "image",
    ]  # fmt: skip


def test_a_cap_keeps_the_same_items_and_is_stated(tmp_path: Path) -> None:
    write(tmp_path, *everything(40))
    (target,) = parse_targets([f"eqben,cap=10,root={tmp_path}"], Path("x"))
    capped, full = target.load(), load_benchmark("eqben", tmp_path)
    assert set(Counter(case.subtask for case in capped.content).values()) == {10}
    assert capped.left_out == {"items beyond the cap of 10 a sub-task": 7 * 30}
    assert set(capped.expected.values()) == {10}
    assert capped.data_hash != full.data_hash
    assert all(case in full.content for case in capped.content)
    ids = [case.id for case in capped.content if case.subtask == "sd"]
    # written down once: another choice would make capped results of two versions differ
    assert ids == SMALLEST
    five = load_benchmark("eqben:sd", tmp_path, cap=5)
    assert {case.id for case in five.content} < set(ids)
    assert load_benchmark("eqben", tmp_path, cap=40).left_out == {}
    with pytest.raises(UsageError, match="at least 1, or none, not 0"):
        load_benchmark("eqben", tmp_path, cap=0)


SMALLEST = ["sd/1", "sd/4", "sd/5", "sd/6", "sd/8", "sd/16", "sd/17", "sd/21", "sd/32", "sd/37"]


def test_the_jpeg_edition_must_be_named(tmp_path: Path) -> None:
    write(tmp_path, row(), row("youcook2", image0="eqbenyoucook2/1.npy"))
    write_photo(tmp_path / "eqben" / "images" / "eqbensd" / "0" / "a.jpg")
    with pytest.raises(UsageError, match="say eqben,jpg=true"):
        load_benchmark("eqben:sd", tmp_path)
    found = load_benchmark("eqben", tmp_path, jpg=True)
    names = [ref.path.name for case in found.content for ref in case.images]
    assert names == ["1.npy", "b.jpg", "a.jpg", "b.jpg"]
    write_photo(tmp_path / "eqben" / "images" / "eqbensd" / "0" / "a.png")
    assert load_benchmark("eqben:sd", tmp_path).data_hash != found.data_hash


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (7, "row 1: expected a JSON object, found the number 7"),
        ({"image": "eqbensd/a.png", "caption": "a"}, "row 1: this is the randomised annotation"),
        (row("other"), "row 1: 'eqbenother/0/a.png' belongs to no known part"),
        (row(image1=None), "row 1: 'image1' must be text, found null"),
        (row(image1="../../etc/a.png"), "row 1: image name '../../etc/a.png' leads outside"),
        (row(caption1=[]), "row 1: 'caption1' must be text, found a list"),
        (row(caption0=" "), "row 1: 'caption0' is empty"),
        ({k: v for k, v in row().items() if k != "caption1"}, "row 1: no key 'caption1'"),
    ],
)
def test_malformed_rows(tmp_path: Path, bad: Any, message: str) -> None:
    with pytest.raises(CompoclipError) as caught:
        load_benchmark("eqben", write(tmp_path, row(), bad))
    assert str(caught.value).startswith(f"{tmp_path / 'eqben' / 'annotation.json'}: {message}")
    assert "\n" not in str(caught.value)


def test_memory_of_a_case_is_small(tmp_path: Path) -> None:
    """The full benchmark has 251,048 cases: 1.5 kB each, as here, are less than 400 MB."""
    rows = [
        {
            "image0": f"eqbenag/clip{k % 40:05d}.mp4/{k:06d}.png",
            "image1": f"eqbenag/clip{(k + 1) % 40:05d}.mp4/{k + 1:06d}.png",
            "caption0": f"a person holding a cup {k % 97} while sitting on a chair",
            "caption1": f"a person holding a book {k % 97} while standing at a table",
        }
        for k in range(5000)
    ]
    path = write_json(tmp_path / "eqben" / "annotation.json", rows)
    assert path.is_file()
    del rows
    tracemalloc.start()
    try:
        found = load_benchmark("eqben:ag", tmp_path)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.content) == 5000
    assert kept / 5000 < 1500
    refs = {id(ref) for case in found.content for ref in case.images}
    assert len(refs) == 5001
