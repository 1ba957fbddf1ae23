"""Units of captions and their foils; the vocabulary of graph negatives."""

from __future__ import annotations

import json
import random
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from build_graph_vocabulary import build_vocabulary, read_scene_graphs

from build.tables import write_text
from compoclip.captions.parser import parse
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.data.texts import PhrasePlan, UnitPlan
from compoclip.errors import CompoclipError
from compoclip.losses.contract import Role
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.exclusion import MAY_HOLD
from compoclip.rewrites.graph_edits import (
    WORD_KINDS,
    attribute_candidates,
    default_vocabulary,
    load_vocabulary,
    relation_candidates,
)
from compoclip.rewrites.relations import as_link, relation_refusal, sense_of
from compoclip.rewrites.units import (
    ENTITY,
    PAIR,
    RELATION,
    UNIT,
    UNIT_FOIL,
    GraphPart,
    draw_units,
    graph_parts,
    noun_phrases,
)
from compoclip_world.captions import captions_for
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig
from data_samples import Parses
from rewrite_facts import rows

CAPTION = "A black cat riding a brown horse on the beach."


@pytest.mark.parametrize(
    ("caption", "entities", "relations"),
    [
        (CAPTION, ["black cat", "brown horse", "beach"], ["black cat riding brown horse"]),
        ("a red ball left of a blue cube", ["red ball", "blue cube"],
         ["red ball left of blue cube"]),
        ("a cat without a collar", ["cat"], []),
        ("a cat or a dog", [], []),
        ("the left side of the picture", [], []),
        ("a cat", ["cat"], []),
        ("cat", [], []),  # the caption itself
        ("", [], []),
    ],
)  # fmt: skip
def test_what_a_caption_asserts(caption: str, entities: list[str], relations: list[str]) -> None:
    parts = graph_parts(parse(caption))
    assert [[unit.text for unit in units] for units in parts] == [entities, relations]


def foils_of(unit: GraphPart) -> dict[str, str]:
    """Return text -> rule of the foils of 80 seeds."""
    foils = (unit.foil(random.Random(seed)) for seed in range(80))
    return {foil.text: foil.rule for foil in foils if isinstance(foil, Rewritten)}


def test_every_kind_of_foil_is_drawn() -> None:
    entities, relations = graph_parts(parse("a black cat sits on a red mat"))
    foils = foils_of(relations[0])
    assert foils["black cat does not sit on red mat"] == "negate-relation"
    # No caption speaks of a mat on a cat.
    assert set(foils.values()) == {"replace-relation", "replace-object", "negate-relation"}
    assert any(text.startswith("black cat sits on red ") for text in foils)  # another object
    assert any(text.endswith(" sits on red mat") for text in foils)  # another subject
    assert set(foils_of(entities[0]).values()) == {"replace-object", "replace-attribute"}
    _, chasing = graph_parts(parse("a small dog chases a white cat"))
    exchanged = [text for text, rule in foils_of(chasing[0]).items() if rule == "exchange-objects"]
    assert exchanged == ["white cat chases small dog"]


@pytest.mark.parametrize(
    ("caption", "rule"),
    [
        ("a black cat next to a red mat", "exchange-objects"),  # it holds both ways
        ("a small dog behind a large dog", "negate-relation"),  # of two alike
    ],
)
def test_foils_that_could_be_true_are_not_made(caption: str, rule: str) -> None:
    _, relations = graph_parts(parse(caption))
    assert relations
    assert all(rule not in foils_of(relation).values() for relation in relations)


def test_slots_take_relations_first_and_nothing_twice() -> None:
    parts = graph_parts(parse(CAPTION))
    rules = set()
    for seed in range(60):
        units = draw_units(*parts, random.Random(seed), slots=3).units
        (unit, foil), *others = units
        assert (unit.rule, unit.text) == (RELATION, "black cat riding brown horse")
        texts = [text.text for pair in units for text in pair]
        assert len(set(texts)) == len(texts)
        assert (unit.rewrite, foil.rewrite) == (UNIT, UNIT_FOIL)
        assert (unit.keeps_meaning, foil.keeps_meaning) == (True, False)
        rules |= {other.rule for other, _ in others}
    assert rules == {ENTITY, PAIR}


def test_the_foil_of_two_entities_changes_one_of_them() -> None:
    parts = graph_parts(parse(CAPTION))
    orders = set()
    for seed in range(60):
        rng = random.Random(seed)
        for unit, foil in draw_units(*parts, rng, relation_share=0.0, pair_share=1.0).units:
            assert unit.rule == PAIR
            (first, second), (one, other) = unit.text.split(" and "), foil.text.split(" and ")
            assert (first == one) != (second == other)
            orders.add(first == one)
            (edit,) = foil.edits
            assert foil.text[edit.new_start : edit.new_end] not in unit.text
    assert orders == {True, False}


def test_empty_slots_are_counted() -> None:
    drawn = draw_units(*graph_parts(parse("two trees")), random.Random(0), slots=2, pair_share=1.0)
    assert len(drawn.units) == 1
    assert drawn.refused["no-unit"] == 1
    assert draw_units((), (), random.Random(0)).refused["no-unit"] == 2


@dataclass(frozen=True)
class Fixed:
    text: str
    name: str = "x"

    def foil(self, rng: random.Random) -> Rewritten | Refused:
        return Rewritten(f"no {self.text}", UNIT_FOIL, False, "fixed", ())


def test_units_that_are_taken_stay_away() -> None:
    both = [Fixed("one"), Fixed("two")]
    taken = frozenset({("one",)})
    for seed in range(8):
        drawn = draw_units(both, (), random.Random(seed), taken=taken, pair_share=0.0)
        assert [unit.text for unit, _ in drawn.units] == ["two"]
        assert drawn.refused == {"equals-another-text": 1, "no-unit": 1}


def test_what_another_caption_names_is_no_foil() -> None:
    parts = graph_parts(parse("a cat on a mat"))
    named = frozenset({"dog", "dogs", "horse", "sheep", "rug"})

    def words(**options: Any) -> set[str]:
        draws = (draw_units(*parts, random.Random(seed), **options) for seed in range(200))
        foils = [foil.text for draw in draws for _, foil in draw.units]
        return {word for text in foils for word in text.split()}

    assert len(words(named=named)) > 20
    assert words(named=named).isdisjoint(named)
    assert words() & named


@pytest.mark.parametrize(
    ("caption", "phrases"),
    [
        (CAPTION, ("A black cat", "a brown horse", "the beach")),
        ("A dog and a dog.", ("A dog",)),
        ("a man with no hat sees it", ("a man",)),
        ("a red mat", ()),  # the caption itself
        ("on the left side of a couch", ("a couch",)),
        ("", ()),
    ],
)
def test_noun_phrases(caption: str, phrases: tuple[str, ...]) -> None:
    assert noun_phrases(parse(caption)) == phrases


# --- Drawn for samples, as plans say. ---


def drawing(plan: CaptionPlan) -> TextPlan:
    return TextPlan(plan, parsed=Parses())


def test_units_have_the_kinds_of_their_slots() -> None:
    plan = CaptionPlan(texts=(UnitPlan(slots=2),))
    assert plan.kinds == ("unit-1", "unit-foil-1", "unit-2", "unit-foil-2")
    assert plan.needs_parsing
    sample = Sample("0", b"", (CAPTION,))
    texts, counts = drawing(plan).draw(sample, 3)
    assert [(text.rewrite, text.role) for text in texts[1:]] == [
        ("unit-1", Role.POSITIVE),
        ("unit-foil-1", Role.NEGATIVE),
        ("unit-2", Role.POSITIVE),
        ("unit-foil-2", Role.NEGATIVE),
    ]
    assert counts.accepted == {UNIT: 2, UNIT_FOIL: 2}
    assert drawing(plan).draw(sample, 3)[0] == texts != drawing(plan).draw(sample, 4)[0]
    none = CaptionPlan(texts=(UnitPlan(),), hn_fraction=0.0)
    assert {text.role for text in drawing(none).draw(sample, 0)[0][1:]} == {Role.POSITIVE}


def test_a_caption_without_noun_phrases_is_its_own() -> None:
    plan = CaptionPlan(texts=(PhrasePlan(2),))
    assert plan.kinds == ("noun-phrase",)
    texts, counts = drawing(plan).draw(Sample("0", b"", (CAPTION,)), 0)
    assert len(texts) == 3
    assert {text.role for text in texts[1:]} == {Role.POSITIVE}
    assert counts.accepted == {"noun-phrase": 2}
    texts, counts = drawing(plan).draw(Sample("0", b"", ("running",)), 0)
    assert [(text.text, text.rewrite) for text in texts[1:]] == [("running", "noun-phrase")]
    assert counts.refused == {("noun-phrase", "no-noun-phrase"): 1}


def test_units_of_a_scene_hold_and_foils_do_not() -> None:
    """The oracle of the world on what a run would draw: all slots, pairs, other captions' too."""
    world, oracle = WorldConfig(size=32), Oracle()
    plan = drawing(CaptionPlan(texts=(UnitPlan(slots=3), PhrasePlan(6))))
    judged = {Role.POSITIVE: [0, 0], Role.NEGATIVE: [0, 0]}
    for index in range(120):
        scene = scene_for(world, 5, "train", index)
        captions = tuple(sentence.text for sentence in captions_for(scene, world, 5, index, 2))
        for text in plan.draw(Sample(str(index), b"", captions), 0)[0][1:]:
            truth = oracle.verdict(text.text, scene).truth
            if truth is not Truth.UNKNOWN:
                count = judged[text.role]
                count[0] += 1
                count[1] += (truth is Truth.TRUE) != (text.role is Role.POSITIVE)
    for count, wrong in judged.values():
        assert count > 150
        assert wrong <= 0.02 * count


# --- Vocabularies: the shipped one, built ones, their files; relation senses. ---


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
        candidates = attribute_candidates(words, colour, "JJ", "car")
        assert len(candidates) > 8
        assert not {"large", "wooden", "round", colour.split()[-1]} & set(candidates)
    for relation in ("on", "sitting on", "riding", "holding", "under", "behind", "in"):
        assert len(relation_candidates(words, relation)) > 3


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {
        "factual": write_text(tmp_path / "dev.csv", FACTUAL),
        "genome": write_text(tmp_path / "scene_graphs.json", json.dumps(GENOME, indent=1)),
        "gqa": write_text(tmp_path / "sceneGraphs.json", json.dumps(GQA)),
    }


def test_counts_and_thresholds(files: dict[str, Path]) -> None:
    graphs, least = read_scene_graphs(files["factual"]), {"attributes": 1, "relations": 1}
    words = build_vocabulary(graphs, source="s", licence="l", min_objects=2, **least)
    assert {kind: words[kind] for kind in WORD_KINDS} == {
        "objects": {"cup": 3},
        "attributes": {"red": 2},
        "relations": {"on": 2},
    }
    built = {"graphs": 4, "objects_met": 6, "objects_distinct": 4, "relations_distinct": 2}
    assert (built | {"min_objects": 2}).items() <= words["built"].items()


def test_formats_of_visual_genome_and_gqa(files: dict[str, Path]) -> None:
    assert list(read_scene_graphs(files["genome"])) == [
        {"objects": ["Cup", "table"], "attributes": ["Red", "shiny"], "relations": ["ON"]},
        {"objects": ["cup"], "attributes": [], "relations": []},
    ]
    assert list(read_scene_graphs(files["gqa"])) == [
        {"objects": ["cup", "table"], "attributes": ["red"], "relations": ["on"]}
    ]


def test_the_command_writes_a_vocabulary(
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "folder" / "words.json"
    options = [str(files["factual"]), str(files["genome"]), "-o", str(out), "--min-objects", "3"]
    monkeypatch.setattr(sys, "argv", ["build", *options])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert end.value.code == 0
    words = load_vocabulary(out)
    assert (words.objects, words.attributes) == (("cup",), ("red", "shiny"))
    assert words.relations == ("on", "near")
    printed = capsys.readouterr().out
    assert "from 6 scene graphs" in printed
    assert "objects: 1 of 4 words" in printed


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "no such file"),
        ("a.csv", b"\xff\xfe\x00", "not UTF-8"),
        ("a.csv", b"caption\nx\n", "no column scene_graph"),
        ("a.csv", b"scene_graph\n( a , b )\n", "line 2"),
        ("a.json", b"[{]", "not valid JSON"),
        ("a.json", b'{"objects": 3}', "not a file of scene graphs"),
        ("a.json", b"7", "not a file of scene graphs"),
        ("a.json", b'[{"objects": []}]', "not a file of scene graphs"),
    ],
)
def test_broken_scene_graphs(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CompoclipError, match=message) as error:
        list(read_scene_graphs(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_left_after_the_thresholds(files: dict[str, Path]) -> None:
    with pytest.raises(CompoclipError, match="no objects left of 4 in 4 scene graphs"):
        build_vocabulary(read_scene_graphs(files["factual"]), source="f", licence="l")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a graph vocabulary"),
        ({"adjectives": ["red"]}, "unknown field 'adjectives'"),
        ({"objects": []}, "objects must be a list of words"),
        ({"attributes": "red"}, "attributes must be a list"),
        ({"relations": [1]}, "relations must be a list of words"),
    ],
)
def test_broken_vocabularies(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write_text(tmp_path / "v.json", json.dumps(json.loads(SHIPPED.read_text()) | change))
    with pytest.raises(CompoclipError, match=message) as error:
        load_vocabulary(path)
    assert "build_graph_vocabulary" in str(error.value)


# Relation | relations that deny it
DENYING = rows("""
on | under
sitting on | standing on | under
walking on | below
riding | eating
wearing | holding
to the left of | to the right of
in front of | behind
in | outside
chases | pushing
""")
# Relation | relations that may hold as well
COMPATIBLE = rows("""
sitting on | on | near
riding | on
holding | under | eating
wearing | in
in | wearing
on | riding | has
with | holding
next to | in front of
behind | near
of | on
under | beneath
sit on | sitting on
""")


@pytest.mark.parametrize("row", DENYING)
def test_relations_that_deny_each_other(row: list[str]) -> None:
    assert {relation_refusal(row[0], other) for other in row[1:]} == {None}


@pytest.mark.parametrize("row", COMPATIBLE)
def test_relations_that_may_hold_as_well(row: list[str]) -> None:
    assert {relation_refusal(row[0], other) for other in row[1:]} <= {MAY_HOLD, "related-words"}


def test_forms_of_a_verb_have_one_sense() -> None:
    assert sense_of("sitting on") == sense_of("sits on") == sense_of("sit on")
    assert sense_of("to the left of").verb == ""


def test_a_link_is_a_participle() -> None:
    links = {"sit on": "sitting on", "wear": "wearing", "have": "has"}
    links |= {words: words for words in ("on", "attached to", "in front of")}
    assert {relation: as_link(relation) for relation in links} == links
