"""VL-CheckList: 56 files, the first listed items, means of means, absent photos in view."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import write_json, write_photo
from compoclip.benchmarks.case import present
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import parse_targets
from compoclip.errors import UsageError
from evaluation_helpers import rule_value
from official.vl_checklist import LAYOUT

FOLDER = Path("vl_checklist") / "data"
CLIP = {
    "object_location_center": 87.42, "object_location_mid": 84.43, "object_location_margin": 74.95,
    "object_size_large": 87.21, "object_size_medium": 81.57, "object_size_small": 74.10,
    "attribute_action": 70.60, "attribute_color": 69.55, "attribute_material": 69.75,
    "attribute_size": 61.10, "attribute_state": 67.30, "relation_action": 72.07,
    "relation_spatial": 54.00,
}  # fmt: skip


def item(photo: str = "1.jpg", **changes: Any) -> list[Any]:
    return [photo, {"POS": ["brown knob", "knob"], "NEG": ["teal knob"], **changes}]


def write(root: Path, rows: Any = None, only: str = "") -> Path:
    """Three items in every file; `rows` are those of the file `only`, or of all."""
    for files in LAYOUT.values():
        for file in files:
            mine = rows is not None and only in ("", file)
            write_json(root / FOLDER / file, rows if mine else [item(f"{k}.jpg") for k in "012"])
    return root


def test_the_layout_is_the_official_one() -> None:
    assert len(meta("vl_checklist").files) == len(set(meta("vl_checklist").files)) == 56
    assert {
        "vl_checklist/data/Object/Location/hake_location/hake_obj_margin.json",
        "vl_checklist/data/Object/Size/swig_size/swig_tool/swig_tool_small.json",
        "vl_checklist/data/Object/Location/vg_location/vg_subj_mid.json",
        "vl_checklist/data/Attribute/vaw/action.json",
        "vl_checklist/data/Relation/swig_action.json",
        "vl_checklist/data/Relation/vg/spatial.json",
    } <= set(meta("vl_checklist").files)
    assert Counter(len(files) for files in LAYOUT.values()) == {7: 6, 2: 5, 3: 1, 1: 1}


def test_cases_and_the_limit(tmp_path: Path) -> None:
    write(tmp_path)
    (target,) = parse_targets([f"vl_checklist,limit=2,root={tmp_path}"], Path("x"))
    found = target.load()
    assert len(found.content) == 2 * 56
    assert found.left_out == {"items beyond the first 2 of their file": 56}
    first = found.content[0]
    assert first.id == "Object/Location/hake_location/hake_obj_center/0"
    assert first.texts == ("brown knob", "teal knob")
    assert first.images[0].path == tmp_path / "hake" / "0.jpg"
    assert first.labels["source"] == "hake"
    vaw = next(case for case in found.content if case.labels["source"] == "vaw")
    assert vaw.images[0].path == tmp_path / "vg" / "0.jpg"
    (target,) = parse_targets([f"vl_checklist,limit=none,root={tmp_path}"], Path("x"))
    every = target.load()
    assert len(every.content) == 3 * 56
    assert every.left_out == {}
    assert every.data_hash != found.data_hash
    assert len({case.id for case in every.content}) == 3 * 56
    assert load_benchmark("vl_checklist:attribute_*", tmp_path).headline == "micro"
    with pytest.raises(UsageError, match="at least 1"):
        load_benchmark("vl_checklist", tmp_path, limit=0)


def test_published_scores_of_clip(tmp_path: Path) -> None:
    rules = load_benchmark("vl_checklist", write(tmp_path)).aggregates
    table = {
        name: [(CLIP[name], {"file": file.removesuffix(".json")}) for file in files]
        for name, files in LAYOUT.items()
    }
    known = {"vl_compo": 70.77, "object": 81.61, "attribute": 67.66, "relation": 63.03}
    for name, value in {**known, **CLIP}.items():
        assert rule_value(rules[name], table) == pytest.approx(value, abs=0.011), name


def test_a_source_counts_as_much_as_another(tmp_path: Path) -> None:
    rules = load_benchmark("vl_checklist", write(tmp_path)).aggregates
    files = LAYOUT["object_size_small"]
    values = {"hake": 1.0, "swig": 0.0, "vg": 0.5}
    # one more item in a file does not weigh: a file is a mean, a source the mean of its files
    table = [
        (values[source], {"file": file.removesuffix(".json")})
        for file, source in files.items()
        for _ in range(3 if source == "swig" else 1)
    ]
    rule = rules["object_size_small"]
    assert rule_value(rule, {"object_size_small": table}) == pytest.approx(0.5)
    without = [each for each in table if "hake" not in each[1]["file"]]
    assert rule_value(rule, {"object_size_small": without}) == pytest.approx(0.25)


def test_absent_hake_photos_are_counted_not_skipped(tmp_path: Path) -> None:
    write(tmp_path)
    for source in ("swig", "vg"):
        for name in "012":
            write_photo(tmp_path / source / f"{name}.jpg")
    found = load_benchmark("vl_checklist", tmp_path)
    used, missing = present(found)
    assert isinstance(used, tuple)
    assert missing == tuple(str(tmp_path / "hake" / f"{name}.jpg") for name in "012")
    absent = [case for case in found.content if case not in used]
    assert {case.labels["source"] for case in absent} == {"hake"}
    assert len(absent) == 7 * 3  # six files of objects, one of relations
