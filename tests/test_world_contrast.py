"""Hard negatives, hard positives and minimal pairs: true and false as claimed, one edit apart."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from compoclip.errors import CompoclipError, UsageError
from compoclip_world.captions import captions_for
from compoclip_world.edits import (
    NEGATIVE_SKILLS,
    POSITIVE_RULES,
    hard_negative,
    hard_positive,
    nodes_of,
    substitute,
)
from compoclip_world.oracle import Oracle
from compoclip_world.pairs import TAUGHT_SKILLS, pair
from compoclip_world.parser import parse
from compoclip_world.render import render
from compoclip_world.sampling import compounds_in, held_out_in, names_held_out, scene_for
from compoclip_world.scene import WorldConfig

CONFIG = WorldConfig(
    objects=(0.1, 0.4, 0.25, 0.25), inside=0.2, occlusion=0.2, repeat=0.4, patterned=0.8
)
ORACLE = Oracle()


def truth(text, scene):
    return ORACLE.verdict(text, scene).truth.value


def made(count=45):
    for i in range(count):
        scene = scene_for(CONFIG, 0, "train", i)
        for caption in captions_for(scene, CONFIG, 0, i):
            yield i, scene, caption


def test_negatives_are_false_and_captions_true():
    found = Counter()
    for i, scene, caption in made():
        rng = random.Random(i)
        for skill in NEGATIVE_SKILLS:
            contrast = hard_negative(scene, caption, skill, rng)
            if contrast is None:
                continue
            found[skill] += 1
            assert contrast.skill == skill
            assert not contrast.keeps_meaning
            assert truth(contrast.caption, scene) == "true"
            if skill == "word-order":
                assert truth(contrast.other, scene) != "true"
                assert sorted(contrast.caption.split()) == sorted(contrast.other.split())
            else:
                assert truth(contrast.other, scene) == "false", contrast
    assert set(found) == set(NEGATIVE_SKILLS)


def test_positives_are_true_and_differ():
    found = Counter()
    for i, scene, caption in made():
        for rule in POSITIVE_RULES:
            contrast = hard_positive(scene, caption, rule, random.Random(i))
            if contrast is None:
                continue
            found[rule] += 1
            assert contrast.keeps_meaning
            assert contrast.caption != contrast.other
            assert truth(contrast.caption, scene) == truth(contrast.other, scene) == "true"
    assert set(found) == set(POSITIVE_RULES)


@pytest.mark.parametrize("skill", TAUGHT_SKILLS)
def test_pairs_separate_their_scenes(skill):
    for i in range(6):
        found = pair(CONFIG, 1, i, skill)
        assert truth(found.caption_a, found.scene_a) == "true"
        assert truth(found.caption_b, found.scene_b) == "true"
        assert truth(found.caption_a, found.scene_b) == "false"
        assert truth(found.caption_b, found.scene_a) == "false"
        different = render(found.scene_a, 64).astype(int) != render(found.scene_b, 64)
        assert different.any(axis=2).sum() >= 8
        for scene in (found.scene_a, found.scene_b):
            assert held_out_in(scene, CONFIG) == (frozenset(), frozenset())


def test_novel_pairs_show_a_held_out_compound():
    for split, place in (("novel-attribute", 0), ("novel-relation", 1)):
        found = pair(CONFIG, 0, 0, "relation", split)
        assert any(held_out_in(s, CONFIG)[place] for s in (found.scene_a, found.scene_b))


def test_substitution_replaces_just_the_chosen_node():
    form = parse("a red star left of a blue mug and a hat")
    for place, node in enumerate(nodes_of(form)):
        assert substitute(form, {place: node}) == form
    assert len(nodes_of(form)) == 8


def test_compounds_of_captions():
    pairs, triples = compounds_in(parse("a red star to the right of a blue mug and no pink hat"))
    assert pairs == {("red", "star"), ("blue", "mug"), ("pink", "hat")}
    assert triples == {("mug", "left", "star")}
    assert compounds_in(parse("the star is red"))[0] == {("red", "star")}
    assert compounds_in(parse("the star is not red"))[0] == frozenset()
    for i in range(100):
        scene = scene_for(CONFIG, 0, "train", i)
        for caption in captions_for(scene, CONFIG, 0, i):
            assert not names_held_out(caption.form, CONFIG), caption.text


def test_bad_requests_are_refused():
    _, scene, caption = next(made())
    with pytest.raises(UsageError, match="unknown skill"):
        hard_negative(scene, caption, "swap-verb", random.Random(0))
    with pytest.raises(UsageError, match="unknown rule"):
        hard_positive(scene, caption, "passive", random.Random(0))
    with pytest.raises(UsageError, match="unknown pair skill"):
        pair(CONFIG, 0, 0, "swap-verb")
    with pytest.raises(UsageError, match="unknown split"):
        pair(CONFIG, 0, 0, "relation", "training")
    with pytest.raises(CompoclipError, match="no pair of skill"):
        pair(WorldConfig(kinds=("ball",), colours=("red",)), 0, 0, "swap-colour")
