"""Units of captions and their foils: what there is to draw, rules, slots; noun phrases."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from compoclip.captions.parser import parse
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.data.texts import PhrasePlan, UnitPlan
from compoclip.losses.contract import Role
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.units import (
    ENTITY,
    PAIR,
    RELATION,
    UNIT,
    UNIT_FOIL,
    draw_units,
    graph_parts,
    noun_phrases,
)
from compoclip_world.captions import captions_for
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig
from data_samples import Parses

CAPTION = "A black cat riding a brown horse on the beach."


def texts(caption: str) -> tuple[list[str], list[str]]:
    entities, relations = graph_parts(parse(caption))
    return [each.text for each in entities], [each.text for each in relations]


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
    assert texts(caption) == (entities, relations)


def test_every_kind_of_foil_is_drawn() -> None:
    entities, relations = graph_parts(parse("a black cat sits on a red mat"))
    rules = {relations[0].foil(random.Random(seed)) for seed in range(80)}
    made = {each.text: each.rule for each in rules if isinstance(each, Rewritten)}
    assert made["black cat does not sit on red mat"] == "negate-relation"
    # No caption speaks of a mat on a cat.
    assert set(made.values()) == {"replace-relation", "replace-object", "negate-relation"}
    _, chasing = graph_parts(parse("a small dog chases a white cat"))
    foils = [chasing[0].foil(random.Random(seed)) for seed in range(80)]
    exchanged = {each.text for each in foils if getattr(each, "rule", "") == "exchange-objects"}
    assert exchanged == {"white cat chases small dog"}
    assert any(text.startswith("black cat sits on red ") for text in made)  # another object
    assert any(text.endswith(" sits on red mat") for text in made)  # another subject
    changed = {entities[0].foil(random.Random(seed)) for seed in range(40)}
    kinds = {each.rule for each in changed if isinstance(each, Rewritten)}
    assert kinds == {"replace-object", "replace-attribute"}


def test_what_holds_both_ways_is_not_exchanged() -> None:
    _, relations = graph_parts(parse("a black cat next to a red mat"))
    for seed in range(60):
        foil = relations[0].foil(random.Random(seed))
        assert isinstance(foil, Refused) or foil.rule != "exchange-objects"


def test_a_relation_of_two_alike_is_not_denied() -> None:
    _, relations = graph_parts(parse("a small dog behind a large dog"))
    for each in relations:
        foils = [each.foil(random.Random(seed)) for seed in range(60)]
        assert not any(isinstance(f, Rewritten) and f.rule == "negate-relation" for f in foils)


def test_slots_take_relations_first_and_nothing_twice() -> None:
    parts = graph_parts(parse(CAPTION))
    rules = set()
    for seed in range(60):
        drawn = draw_units(*parts, random.Random(seed), slots=3)
        (unit, foil), *others = drawn.units
        assert (unit.rule, unit.text) == (RELATION, "black cat riding brown horse")
        assert all(each.rule in (ENTITY, PAIR) for each, _ in others)
        said = [text.text for pair in drawn.units for text in pair]
        assert len(set(said)) == len(said)
        assert (unit.rewrite, foil.rewrite) == (UNIT, UNIT_FOIL)
        assert (unit.keeps_meaning, foil.keeps_meaning) == (True, False)
        rules |= {each.rule for each, _ in others}
    assert rules == {ENTITY, PAIR}


def test_the_foil_of_two_entities_changes_one_of_them() -> None:
    parts = graph_parts(parse(CAPTION))
    orders = set()
    for seed in range(60):
        for unit, foil in draw_units(
            *parts, random.Random(seed), relation_share=0.0, pair_share=1.0
        ).units:
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
    found = {
        word
        for seed in range(200)
        for _, foil in draw_units(*parts, random.Random(seed), named=named).units
        for word in foil.text.split()
    }
    assert len(found) > 20
    assert found.isdisjoint(named)
    anything = [draw_units(*parts, random.Random(seed)).units for seed in range(200)]
    assert any(named & set(foil.text.split()) for units in anything for _, foil in units)


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
    found, counts = drawing(plan).draw(sample, 3)
    assert [(text.rewrite, text.role) for text in found[1:]] == [
        ("unit-1", Role.POSITIVE),
        ("unit-foil-1", Role.NEGATIVE),
        ("unit-2", Role.POSITIVE),
        ("unit-foil-2", Role.NEGATIVE),
    ]
    assert counts.accepted == {UNIT: 2, UNIT_FOIL: 2}
    assert drawing(plan).draw(sample, 3)[0] == found != drawing(plan).draw(sample, 4)[0]
    none = CaptionPlan(texts=(UnitPlan(),), hn_fraction=0.0)
    assert {text.role for text in drawing(none).draw(sample, 0)[0][1:]} == {Role.POSITIVE}


def test_a_caption_without_noun_phrases_is_its_own() -> None:
    plan = CaptionPlan(texts=(PhrasePlan(2),))
    assert plan.kinds == ("noun-phrase",)
    found, counts = drawing(plan).draw(Sample("0", b"", (CAPTION,)), 0)
    assert len(found) == 3
    assert {text.role for text in found[1:]} == {Role.POSITIVE}
    assert counts.accepted == {"noun-phrase": 2}
    found, counts = drawing(plan).draw(Sample("0", b"", ("running",)), 0)
    assert [(text.text, text.rewrite) for text in found[1:]] == [("running", "noun-phrase")]
    assert counts.refused == {("noun-phrase", "no-noun-phrase"): 1}


def test_units_of_a_scene_hold_and_foils_do_not() -> None:
    """The oracle of the world on what a run would draw: all slots, pairs, other captions' too."""
    world, oracle = WorldConfig(size=32), Oracle()
    plan = drawing(CaptionPlan(texts=(UnitPlan(slots=3), PhrasePlan(6))))
    judged = {Role.POSITIVE: [0, 0], Role.NEGATIVE: [0, 0]}
    for index in range(120):
        scene = scene_for(world, 5, "train", index)
        captions = tuple(each.text for each in captions_for(scene, world, 5, index, 2))
        for text in plan.draw(Sample(str(index), b"", captions), 0)[0][1:]:
            truth = oracle.verdict(text.text, scene).truth
            if truth is not Truth.UNKNOWN:
                count = judged[text.role]
                count[0] += 1
                count[1] += (truth is Truth.TRUE) != (text.role is Role.POSITIVE)
    for count, wrong in judged.values():
        assert count > 150
        assert wrong <= 0.02 * count
