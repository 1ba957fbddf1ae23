"""Pairs of scenes and captions: neighbours, unlike things, one edit apart, and sets of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from build.tables import read_jsonl
from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip_world import geometry
from compoclip_world.captions import WorldCaption, captions_for
from compoclip_world.dataset import bundled_world, crowded, png_bytes
from compoclip_world.edits import (
    NEGATIVE_SKILLS,
    POSITIVE_RULES,
    hard_negative,
    hard_positive,
    nodes_of,
    substitute,
)
from compoclip_world.export.confusable import build
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.oracle import is_false, is_true
from compoclip_world.pairs import TAUGHT_SKILLS, PairSet, pair, write_pair_set
from compoclip_world.parser import parse
from compoclip_world.render import render
from compoclip_world.sampling import compounds_in, held_out_in, names_held_out, scene_for
from compoclip_world.scene import Scene, WorldConfig

# --- The confusable gallery: four neighbours per group ---


@pytest.fixture(scope="module")
def part() -> Part:
    return build(SuiteSpec(bundled_world(), items=24))[0]


def test_captions_are_true_of_one_image_alone(part: Part) -> None:
    rows = part.files["flickr8k/flickr8k_test.json"]
    scenes = [part.images[f"flickr8k/images/{row['image']}"] for row in rows]
    assert len(rows) == 24
    assert part.items == {"i2t": 24, "t2i": 24}
    for at, row in enumerate(rows):
        for i, scene in enumerate(scenes):
            holds = is_true if at == i else is_false
            assert holds(row["caption"][0], scene)


def test_neighbours_differ_in_one_thing(part: Part) -> None:
    scenes = list(part.images.values())
    for start in range(0, 24, 4):
        first, exchanged, mirrored, other = scenes[start : start + 4]
        looks = [sorted((t.kind, t.colour) for t in scene.things) for scene in scenes[start:][:4]]
        assert [t.kind for t in first.things] == [t.kind for t in exchanged.things]
        assert looks[0] != looks[1]
        assert looks[0] == looks[2]
        assert [(t.x, t.y) for t in first.things] == [(t.x, t.y) for t in exchanged.things]
        assert [(t.x, t.y) for t in first.things] != [(t.x, t.y) for t in mirrored.things]
        assert {t.kind for t in first.things} - {t.kind for t in other.things}


# --- Unlike things, captions that hold with the right binding alone ---


def test_unlike_things_differ_in_kind_and_colour() -> None:
    unlike = WorldConfig(objects=(0.0, 0.6, 0.4), unlike=True, repeat=0.0, synonyms=0.0)
    for i in range(150):
        things = scene_for(unlike, 0, "train", i).things
        assert len({t.kind for t in things}) == len({t.colour for t in things}) == len(things)
    mixed = [scene_for(replace(unlike, unlike=False), 0, "train", i).things for i in range(150)]
    assert any(len({t.colour for t in things}) < len(things) for things in mixed)


def test_what_a_crowded_world_says_is_false_with_the_colours_exchanged() -> None:
    config = crowded(bundled_world())
    judged = refuted = 0
    for i in range(100):
        scene = scene_for(config, 0, "train", i)
        (caption,) = captions_for(scene, config, 0, i, 1)
        if len(scene.things) != 2:
            continue
        a, b = scene.things
        assert a.kind != b.kind
        assert a.colour != b.colour
        if len(caption.form) == 2:
            exchanged = (replace(a, colour=b.colour), replace(b, colour=a.colour))
            refuted += is_false(caption.text, replace(scene, things=exchanged))
            judged += 1
    assert judged > 60
    assert refuted >= 0.95 * judged  # the others name sizes only


# --- Hard negatives, hard positives and minimal pairs ---


CONFIG = WorldConfig(
    objects=(0.1, 0.4, 0.25, 0.25), inside=0.2, occlusion=0.2, repeat=0.4, patterned=0.8
)


def captioned(count: int = 45) -> Iterator[tuple[int, Scene, WorldCaption]]:
    for i in range(count):
        scene = scene_for(CONFIG, 0, "train", i)
        for caption in captions_for(scene, CONFIG, 0, i):
            yield i, scene, caption


def test_negatives_are_false_and_captions_true() -> None:
    skills = set()
    for i, scene, caption in captioned():
        rng = random.Random(i)
        for skill in NEGATIVE_SKILLS:
            texts = hard_negative(scene, caption.form, skill, rng)
            if texts is None:
                continue
            skills.add(skill)
            assert is_true(texts[0], scene)
            if skill == "word-order":
                assert not is_true(texts[1], scene)
                assert sorted(texts[0].split()) == sorted(texts[1].split())
            else:
                assert is_false(texts[1], scene), texts
    assert skills == set(NEGATIVE_SKILLS)


def test_positives_are_true_and_differ() -> None:
    rules = set()
    for i, scene, caption in captioned():
        for rule in POSITIVE_RULES:
            texts = hard_positive(scene, caption.form, rule, random.Random(i))
            if texts is not None:
                rules.add(rule)
                assert texts[0] != texts[1]
                assert is_true(texts[0], scene)
                assert is_true(texts[1], scene)
    assert rules == set(POSITIVE_RULES)


@pytest.mark.parametrize("skill", TAUGHT_SKILLS)
def test_pairs_separate_their_scenes(skill: str) -> None:
    for i in range(6):
        sides = pair(CONFIG, 1, i, skill)
        assert is_true(sides.caption_a, sides.scene_a)
        assert is_true(sides.caption_b, sides.scene_b)
        assert is_false(sides.caption_a, sides.scene_b)
        assert is_false(sides.caption_b, sides.scene_a)
        different = render(sides.scene_a, 64).astype(int) != render(sides.scene_b, 64)
        assert different.any(axis=2).sum() >= 8
        for scene in (sides.scene_a, sides.scene_b):
            assert held_out_in(scene, CONFIG) == (frozenset(), frozenset())


def test_novel_pairs_show_a_held_out_compound() -> None:
    for split, place in (("novel-attribute", 0), ("novel-relation", 1)):
        sides = pair(CONFIG, 0, 0, "relation", split)
        assert any(held_out_in(s, CONFIG)[place] for s in (sides.scene_a, sides.scene_b))


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
    for _, _, caption in captioned(100):
        assert not names_held_out(caption.form, CONFIG), caption.text


def test_bad_requests_are_refused():
    _, scene, caption = next(captioned())
    with pytest.raises(UsageError, match="unknown skill"):
        hard_negative(scene, caption.form, "swap-verb", random.Random(0))
    with pytest.raises(UsageError, match="unknown rule"):
        hard_positive(scene, caption.form, "passive", random.Random(0))
    with pytest.raises(UsageError, match="unknown pair skill"):
        pair(CONFIG, 0, 0, "swap-verb")
    with pytest.raises(UsageError, match="unknown split"):
        pair(CONFIG, 0, 0, "relation", "training")


# --- Training sets of minimal pairs ---


PAIRED = WorldConfig(size=32)
SKILLS = (("swap-place", 3), ("relation", 2))


def test_twins_name_each_other(tmp_path: Path) -> None:
    assert write_pair_set(tmp_path / "set", PairSet(PAIRED, SKILLS, seed=3)) == 10
    rows = read_jsonl(tmp_path / "set" / "pairs.jsonl")
    assert [row["group"] for row in rows[::2]] == [row["group"] for row in rows[1::2]]
    assert len({row["group"] for row in rows}) == 5
    by_image = {row["image"]: row for row in rows}
    for row in rows:
        twin = by_image[row["neg_image"]]
        assert row["neg_caption"] == twin["caption"] != row["caption"]
        assert twin["neg_image"] == row["image"]
    sides, last = pair(PAIRED, 3, 1, "relation", "train"), rows[-2]
    assert (last["caption"], last["neg_caption"]) == (sides.caption_a, sides.caption_b)
    assert (tmp_path / "set" / last["image"]).read_bytes() == png_bytes(sides.scene_a, 32)


def test_no_false_caption_is_true_by_a_small_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [pair(bundled_world(), 0, i, "relation") for i in range(150)]
    monkeypatch.setattr(geometry, "_ahead", lambda along, across: along > 0)
    for sides in pairs:
        assert is_false(sides.caption_a, sides.scene_b), sides.caption_a
        assert is_false(sides.caption_b, sides.scene_a), sides.caption_b


def test_the_table_is_what_methods_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "set"
    words = ["world", "pairs", f"--out={data}", "--size=32", "--skills", "relation=2", "count=2"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 8
    source = open_source(str(data / "pairs.jsonl"))
    assert len(source) == 8
    assert source.brings() == {"group", "negatives", "negative_image"}
    groups = list(source.column("group"))
    assert [groups.count(name) for name in groups] == [2] * 8


@pytest.mark.parametrize(
    ("skills", "why"),
    [
        ("swap-hats=3", "no skill 'swap-hats'; known: swap-colour"),
        ("relation", "'relation' must be SKILL=COUNT"),
        ("relation=0", "with a count of 1 or more"),
        ("relation=many", "with a count of 1 or more"),
        ("relation=1 relation=2", "names a skill twice"),
    ],
)
def test_wrong_skills_are_refused(
    skills: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["world", "pairs", "--out", str(tmp_path / "set"), "--skills", *skills.split()]
    assert main(words) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


def test_a_world_without_such_pairs_leaves_nothing(tmp_path: Path) -> None:
    lonely = WorldConfig(size=32, objects=(1.0,), kinds=("ball",), colours=("red",))
    with pytest.raises(CompoclipError, match="no pair of skill 'object' fits split 'train'"):
        write_pair_set(tmp_path / "set", PairSet(lonely, (("object", 1),)))
    assert not (tmp_path / "set").exists()
