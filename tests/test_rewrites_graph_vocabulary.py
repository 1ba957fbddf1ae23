"""Vocabularies of graph negatives: the shipped one, built ones, their files; relation senses."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from build_graph_vocabulary import build_vocabulary, read_scene_graphs

from compoclip.errors import CompoclipError
from compoclip.files import write_json
from compoclip.rewrites.exclusion import MAY_HOLD
from compoclip.rewrites.graph_edits import (
    WORD_KINDS,
    attribute_candidates,
    default_vocabulary,
    load_vocabulary,
    relation_candidates,
)
from compoclip.rewrites.relations import as_link, relation_refusal, sense_of

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "build_graph_vocabulary.py"
SHIPPED = ROOT / "src/compoclip/rewrites/data/graph_vocabulary.json"
FACTUAL = """image_id,region_id,caption,scene_graph
1,1,red cup on a table,"( cup , is , red ) , ( cup , on , table )"
1,2,two red cups,"( cups , is , red ) , ( cups , is , 2 )"
2,3,pole,( pole )
2,4,cup on a shelf,"( cup , on , shelf ) , ( cup , near , shelf )"
"""
GENOME = [
    {
        "image_id": 1,
        "objects": [
            {"object_id": 10, "names": ["Cup"], "attributes": ["Red", "shiny"]},
            {"object_id": 11, "names": ["table"]},
        ],
        "relationships": [{"predicate": "ON", "subject_id": 10, "object_id": 11}],
    },
    {"image_id": 2, "objects": [{"object_id": 3, "names": ["cup"]}], "relationships": []},
]
GQA = {
    "7": {
        "objects": {
            "1": {
                "name": "cup",
                "attributes": ["red"],
                "relations": [{"name": "on", "object": "2"}],
            },
            "2": {"name": "table", "attributes": [], "relations": []},
        }
    }
}


def test_the_shipped_vocabulary() -> None:
    words = default_vocabulary()
    assert len(words.objects) >= 500
    assert len(words.attributes) >= 150
    assert len(words.relations) == 50
    for kind in (words.objects, words.attributes, words.relations):
        assert len(set(kind)) == len(kind)
        assert all(word == " ".join(word.lower().split()) for word in kind)


def test_every_usual_colour_and_place_has_candidates() -> None:
    words = default_vocabulary()
    for colour in ("red", "blue", "white", "dark blue"):
        found = attribute_candidates(words, colour, "JJ", "car")
        assert len(found) > 8
        assert not {"large", "wooden", "round", colour.split()[-1]} & set(found)
    for relation in ("on", "sitting on", "riding", "holding", "under", "behind", "in"):
        assert len(relation_candidates(words, relation)) > 3


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {
        "factual": write(tmp_path, "dev.csv", FACTUAL),
        "genome": write(tmp_path, "scene_graphs.json", json.dumps(GENOME, indent=1)),
        "gqa": write(tmp_path, "sceneGraphs.json", json.dumps(GQA)),
    }


def test_counts_and_thresholds(files: dict[str, Path]) -> None:
    words = build_vocabulary(
        read_scene_graphs(files["factual"]),
        source="dev.csv",
        licence="CC BY 4.0",
        min_objects=2,
        attributes=1,
        relations=1,
    )
    assert {kind: words[kind] for kind in WORD_KINDS} == {
        "objects": {"cup": 3},
        "attributes": {"red": 2},
        "relations": {"on": 2},
    }
    assert words["built"]["graphs"] == 4
    assert words["built"]["objects_met"] == 6
    assert words["built"]["objects_distinct"] == 4
    assert words["built"]["relations_distinct"] == 2
    assert words["built"]["min_objects"] == 2


@pytest.mark.parametrize("kind", ["genome", "gqa"])
def test_formats_of_visual_genome_and_gqa(files: dict[str, Path], kind: str) -> None:
    first = next(iter(read_scene_graphs(files[kind])))
    assert [name.lower() for name in first["objects"]] == ["cup", "table"]
    assert first["attributes"][0].lower() == "red"
    assert [name.lower() for name in first["relations"]] == ["on"]
    words = build_vocabulary(read_scene_graphs(files[kind]), source="s", licence="l", min_objects=1)
    assert "cup" in words["objects"]
    assert [*words["relations"]] == ["on"]


def test_a_vocabulary_survives_its_file(files: dict[str, Path], tmp_path: Path) -> None:
    words = build_vocabulary(
        read_scene_graphs(files["factual"]), source="s", licence="l", min_objects=1
    )
    path = tmp_path / "folder" / "words.json"
    write_json(path, words)
    again = load_vocabulary(path)
    assert {kind: getattr(again, kind) for kind in WORD_KINDS} == {
        kind: tuple(words[kind]) for kind in WORD_KINDS
    }


def test_the_command(
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "words.json"
    options = [str(files["factual"]), str(files["genome"]), "-o", str(out), "--min-objects", "3"]
    monkeypatch.setattr(sys, "argv", ["build", *options])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert end.value.code == 0
    assert load_vocabulary(out).objects == ("cup",)
    shown = capsys.readouterr().out
    assert "from 6 scene graphs" in shown
    assert "objects: 1 of 4 words" in shown


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "caption\nx\n", "no column scene_graph"),
        ("a.csv", "scene_graph\n( a , b )\n", "line 2"),
        ("a.json", "[{]", "not valid JSON"),
        ("a.json", '{"objects": 3}', "not a file of scene graphs"),
        ("a.json", "7", "not a file of scene graphs"),
        ("a.json", '[{"objects": []}]', "not a file of scene graphs"),
    ],
)
def test_broken_scene_graphs(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(CompoclipError, match=message) as error:
        list(read_scene_graphs(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_and_binary_scene_graphs(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match="no such file"):
        list(read_scene_graphs(tmp_path / "none.json"))
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CompoclipError, match="not UTF-8"):
        list(read_scene_graphs(tmp_path / "b.csv"))


def test_nothing_left_after_the_thresholds(files: dict[str, Path]) -> None:
    with pytest.raises(CompoclipError, match="no objects left of 4 in 4 scene graphs"):
        build_vocabulary(read_scene_graphs(files["factual"]), source="f", licence="l")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a graph vocabulary"),
        ({"objects": []}, "objects must be a list of words"),
        ({"attributes": "red"}, "attributes must be a list"),
        ({"relations": [1]}, "relations must be a list of words"),
    ],
)
def test_broken_vocabularies(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write(tmp_path, "v.json", json.dumps(json.loads(SHIPPED.read_text()) | change))
    with pytest.raises(CompoclipError, match=message) as error:
        load_vocabulary(path)
    assert "build_graph_vocabulary" in str(error.value)


DENYING = """on > under; sitting on > standing on; sitting on > under; walking on > below
riding > eating; wearing > holding; to the left of > to the right of; in front of > behind
in > outside; chases > pushing"""
COMPATIBLE = """sitting on > on; sitting on > near; riding > on; holding > under; holding > eating
wearing > in; in > wearing; on > riding; with > holding; next to > in front of; behind > near
on > has; of > on; under > beneath; sit on > sitting on"""


def relations(text: str) -> list[list[str]]:
    return [pair.split(" > ") for pair in text.replace("\n", "; ").split("; ")]


@pytest.mark.parametrize(("old", "new"), relations(DENYING))
def test_relations_that_deny_each_other(old: str, new: str) -> None:
    assert relation_refusal(old, new) is None


@pytest.mark.parametrize(("old", "new"), relations(COMPATIBLE))
def test_relations_that_may_hold_as_well(old: str, new: str) -> None:
    assert relation_refusal(old, new) in (MAY_HOLD, "related-words")


def test_relation_forms() -> None:
    assert sense_of("sitting on") == sense_of("sits on") == sense_of("sit on")
    assert sense_of("to the left of").verb == ""
    assert [as_link(r) for r in ("sit on", "wear", "have", "on", "attached to", "in front of")] == [
        "sitting on",
        "wearing",
        "has",
        "on",
        "attached to",
        "in front of",
    ]
