"""The reader of foils: layouts, sub-tasks from the data, skills, and malformed rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compoclip.benchmarks.case import Form
from compoclip.benchmarks.registry import load_benchmark
from compoclip.errors import CompoclipError, UsageError


def row(**changes: Any) -> dict[str, Any]:
    known = {"id": 1, "image": "photos/1.png", "caption": "a cup", "negative_caption": "a plate"}
    return {**known, **changes}


def write_lines(root: Path, name: str, *rows: dict[str, Any]) -> Path:
    path = root / "foils" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return path


def test_subtasks_and_skills_come_from_the_rows(tmp_path: Path) -> None:
    write_lines(
        tmp_path,
        "b.jsonl",
        row(subtask="left of", skill="spatial", relation="left of", note=3),
        row(subtask="colours"),
        row(id=2, subtask="left of", skill="spatial"),
    )
    (tmp_path / "foils" / "a.json").write_text(json.dumps([row(), row(id="x")]), encoding="utf-8")
    (tmp_path / "foils" / "README.md").write_text("not data", encoding="utf-8")
    found = load_benchmark("foils", tmp_path)
    assert isinstance(found.content, tuple)
    assert [case.id for case in found.content] == [
        "a/1",
        "a/x",
        "left of/1",
        "colours/1",
        "left of/2",
    ]
    assert found.skills == {"left of": "spatial"}
    assert found.content[2].labels == {"relation": "left of"}
    assert all(case.form is Form.CHOOSE_TEXT and case.truth == 0 for case in found.content)
    assert found.content[0].texts == ("a cup", "a plate")
    assert found.content[0].images[0].path == tmp_path / "photos" / "1.png"
    assert found.headline == "macro"
    assert found.aggregates["macro"].parts == ("a", "left of", "colours")
    part = load_benchmark("foils:left*", tmp_path, images=tmp_path / "elsewhere")
    assert isinstance(part.content, tuple)
    assert [case.id for case in part.content] == ["left of/1", "left of/2"]
    assert part.content[0].images[0].path == tmp_path / "elsewhere" / "photos" / "1.png"
    assert part.data_hash == found.data_hash


def test_one_file_by_option(tmp_path: Path) -> None:
    path = write_lines(tmp_path, "mine.jsonl", row())
    found = load_benchmark("foils", tmp_path / "photos", annotations=path)
    assert isinstance(found.content, tuple)
    assert found.content[0].subtask == "mine"
    with pytest.raises(UsageError, match="no sub-task 'other'; known: mine"):
        load_benchmark("foils:other", tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((row(), row()), "line 2: 'id' 1 occurs twice"),
        ((row(skill="luck"),), "line 1: unknown skill 'luck'; known: object"),
        ((row(), row(id=2, skill="object")), "line 2: skill 'object', but earlier rows"),
        ((row(image="../1.png"),), "leads outside the image folder"),
        ((row(caption=" "),), "'caption' is empty"),
        ((row(negative_caption=["a", "b"]),), "'negative_caption' must be text"),
        ((row(subtask=3),), "'subtask' must be text"),
        (({"id": 1},), "no key 'image'"),
        ((), "no rows"),
    ],
)
def test_malformed_rows_end_in_one_line(
    tmp_path: Path, rows: tuple[dict[str, Any], ...], message: str
) -> None:
    write_lines(tmp_path, "x.jsonl", *rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("foils", tmp_path)
    assert "\n" not in str(caught.value)


def test_absent_files(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match="no such file"):
        load_benchmark("foils", tmp_path)
    (tmp_path / "foils").mkdir()
    with pytest.raises(CompoclipError, match=r"holds no \.jsonl or \.json"):
        load_benchmark("foils", tmp_path)
