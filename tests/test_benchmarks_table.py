"""An entry is all that a benchmark of tables needs: what its keys say, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import expect_one_line
from build.tables import write_json
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, TiePolicy
from compoclip.benchmarks.entries import entries, rule_of
from compoclip.benchmarks.reader import CaseReader
from compoclip.benchmarks.registry import meta
from compoclip.benchmarks.table import reader_of
from compoclip.errors import CompoclipError
from evaluation_helpers import flat, rule_value

ENTRY: dict[str, Any] = {
    "title": "Cups",
    "citation": "Nobody, Cups, 2026",
    "source": "made up",
    "licence": "CC0",
    "images": ["cups/photos"],
    "chance": "1/3",
    "parts": {"color": ["attribute", 2], "size": ["attribute"]},
    "file": "cups/cups.json",
    "form": "choose-text",
    "part": "{about}",
    "id": "{part}/{count}",
    "photos": ["photo"],
    "named": {"last": 1, "suffix": ".png"},
    "texts": ["said.true", "said.false*2"],
    "labels": {"maker": "maker?"},
    "unique": True,
}


def row(**changes: Any) -> dict[str, Any]:
    said = {"true": "a red cup", "false": ["a blue cup", "a green cup"]}
    return {"photo": "http://x/1", "about": " Color", "said": said, **changes}


def cups(**changes: Any) -> CaseReader:
    return reader_of("cups", {**ENTRY, **changes})


def test_an_entry_makes_items(tmp_path: Path) -> None:
    write_json(tmp_path / "cups" / "cups.json", [row(), row(photo="a.JPG", about="size", maker=3)])
    found = cups(ties="first", rules={"paper": {"micro": "all"}}, headline="paper").load(tmp_path)
    photos = tmp_path / "cups" / "photos"
    texts = ("a red cup", "a blue cup", "a green cup")
    second = ImageRef(photos / "a.JPG")
    assert found.content == (
        Case("color/0", Form.CHOOSE_TEXT, (ImageRef(photos / "1.png"),), texts, "color"),
        Case("size/0", Form.CHOOSE_TEXT, (second,), texts, "size", labels={"maker": "3"}),
    )
    assert (found.headline, found.ties) == ("paper", {"": TiePolicy.FIRST})
    assert found.aggregates["paper"] == Aggregate(("color", "size"), "micro")
    assert (found.expected, cups().meta.chance) == ({"color": 2}, {"": 1 / 3})
    assert cups(places={"images": "a", "vg": "b"}).options == {
        "annotations": "Path | None",
        "vg_images": "Path | None",
    }


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([], {}, "no rows; fetch"),
        ({}, {}, "no rows; fetch"),
        ([3], {}, "row 0 must be an object, found 3"),
        ([row(about="shape")], {}, "row 0: 'about' 'shape' is unknown; known: color, size"),
        ([row(said=3)], {}, "row 0: 'said' must be an object"),
        ([row(said={"false": ["a", "b"]})], {}, "row 0: 'said': no key 'true'"),
        ([row(said={"true": "a", "false": ["a"]})], {}, "'said.false' must hold 2 texts, not 1"),
        ([row(photo="..")], {"named": {}}, "leads outside"),
        ([row(), row()], {}, "row 1: the same as .*row 0"),
        ([row(right=3)], {"truth": "right"}, "'right' 3 is no place among 3 candidates"),
        ([row(right=0.5)], {"truth": "right"}, "'right' 0.5 is no place among 3 candidates"),
        ([row(a=0)], {"truth": "a", "texts": ["said.true"]}, "is no place among 1 candidates"),
        ([row(a=[])], {"texts": ["a.0"]}, "row 0: 'a': the list is empty; fetch"),
        ([row(a="x")], {"among": {"a": ["y", "z"]}}, "'a' 'x' is unknown; known: y, z"),
        ([row(), row()], {"key": "photo"}, "row 1: 'photo': 'http://x/1' occurs twice"),
        ([["a", "b"]], {"values": ["photo"]}, r"row 0: expected \[photo\], found 2"),
        ([row(box=0)], {"box": ["box"] * 4}, "a box of 0 x 0 pixels is empty"),
    ],
)
def test_malformed_rows(tmp_path: Path, rows: Any, changes: dict[str, Any], message: str) -> None:
    path = write_json(tmp_path / "cups" / "cups.json", rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        cups(**changes).load(tmp_path)
    expect_one_line(caught.value, str(path))


def test_lists_in_cells(tmp_path: Path) -> None:
    path = tmp_path / "cups" / "cups.csv"
    path.parent.mkdir()
    entry = {"file": "cups/cups.csv", "texts": ["true", "false*2"], "columns": ["photo", "about"]}
    for false, message in (("['a']", "must hold 2"), ("a", "must be a Python list")):
        path.write_text(f"photo,about,true,false\n1,color,a,{json.dumps(false)}\n")
        with pytest.raises(CompoclipError, match=f"row 1: 'false' {message}"):
            cups(**entry).load(tmp_path)
    path.write_text("photo,about,true\n1,color,a\n")
    with pytest.raises(CompoclipError, match="row 1: no key 'false'"):
        cups(**entry).load(tmp_path)


def test_rules_as_they_are_written() -> None:
    groups = {"all": ("a", "b"), "chosen": ("a",)}
    assert rule_of("all", groups) == Aggregate(("a", "b"))
    assert rule_of(["a", ["b", "c"]], groups) == Aggregate(("a", Aggregate(("b", "c"))))
    assert rule_of([{"micro": "chosen", "metric": "group"}], groups) == Aggregate(
        (Aggregate(("a",), "micro", metric="group"),)
    )
    assert rule_of({"mean": "c", "by": "kind"}, groups) == Aggregate(("c",), macro_by="kind")


PUBLISHED: dict[str, tuple[tuple[float, ...], dict[str, float]]] = {
    "sugarcrepe": (
        (90.92, 80.08, 69.20, 61.22, 63.96, 77.21, 68.79),
        {"vl_compo": 73.03, "paper": 76.55, "replace": 80.07, "swap": 62.59, "add": 73.00},
    ),
    "sugarcrepe_pp": ((90, 60, 30, 50, 10), {"replace": 60, "swap": 30, "clic": 45}),
    "imagecode": ((50.70, 15.06), {"vl_compo": 21.72}),
    "svo_probes": ((84.07, 79.73, 88.62), {"vl_compo": 84.14}),
    "crepe_prod": ((18.96, 17.26, 34.90), {"vl_compo": 23.71}),
    "eqben": (
        (3.04, 4.52, 37.34, 22.2, 6.1, 1.0, 77.79),
        {"vl_compo": 26.49, "kubric": 9.77},
    ),
    "valse": (
        (69.31, 57.58, 64.52, 61.89, 58.18, 65.98, 77.78, 71.76, 54.94, 51.92, 90.14),
        {"vl_compo": 67.53, "counting": 61.53},
    ),
    "whatsup": ((30.58, 30.88, 43.26, 50.68, 46.29, 47.08), {"vl_compo": 41.46}),
    "mmvp_vlm": ((0, 0, 13.333, 0, 0, 13.333, 13.333, 6.667, 13.333), {"vl_compo": 6.67}),
}
"""Benchmark -> published scores of CLIP by sub-task, and the means that they have to give."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_rules_return_the_published_means(name: str) -> None:
    scores, expected = PUBLISHED[name]
    about = meta(name)
    table = flat(dict(zip(about.parts, scores, strict=True)), about.expected)
    for rule, value in expected.items():
        found = rule_of(entries()[name]["rules"][rule], {"all": about.parts, "chosen": about.parts})
        assert rule_value(found, table) == pytest.approx(value, abs=0.011), rule
