"""EqBen: sub-tasks by folder, first captions, the JPEG edition, caps, and arrays as photos."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_json, write_photo
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import parse_targets
from compoclip.errors import UsageError


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
        ({"image": "eqbensd/a.png", "caption": "a"}, "row 1: this is the randomised annotation"),
        (row("other"), "row 1: 'eqbenother/0/a.png' belongs to no known part"),
    ],
)
def test_malformed_rows(tmp_path: Path, bad: Any, message: str) -> None:
    told = refuses(message, "", "eqben", write(tmp_path, row(), bad))
    assert told.startswith(f"{tmp_path / 'eqben' / 'annotation.json'}: {message}")
