"""TSVLC's word lists and CE-CLIP's replacements."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from compoclip.captions.parser import parse
from compoclip.rewrites.base import Refused
from compoclip.rewrites.ce_clip import CE_ADJ, CE_NOUN, CE_SWAP, CE_VERB
from compoclip.rewrites.replace import (
    CATEGORIES,
    NO_LIST,
    TSVLC_RB,
    TSVLC_RB_RELEASED,
    TSVLC_RB_SPATIAL,
    WORDS,
)
from rewrite_facts import made, texts


def test_lists_are_read() -> None:
    lists = WORDS
    assert set(lists) == {*CATEGORIES, "spatial", "relation"}
    assert len(lists["relation"]) == 47
    assert {"in", "on", "with", "holding", "wearing", "in front of"} <= lists["relation"]
    assert lists["relation"].isdisjoint(lists["action"])
    assert {"red", "blue"} <= lists["colour"]
    assert "on top of" in lists["spatial"]
    assert all(word == word.strip().lower() for words in lists.values() for word in words)


def test_categories_that_apply_are_drawn_evenly() -> None:
    caption = "a red dog sitting on a large wooden chair under an open umbrella near a car"
    rules = Counter(r.rule for r in made(TSVLC_RB, caption, 500))
    assert set(rules) == {f"list:{c}" for c in CATEGORIES}
    assert min(rules.values()) > 65
    spatial = Counter(r.rule for r in made(TSVLC_RB_SPATIAL, caption, 500))
    assert set(spatial) == {*rules, "list:spatial"}


def test_as_released_any_other_word_of_the_list_takes_the_place() -> None:
    listed = WORDS["relation"]
    caption = "A man wearing a hat is on a covered wagon in front of it"
    by_place: dict[str, set[str]] = {}
    for result in made(TSVLC_RB_RELEASED, caption, 3000):
        (edit,) = result.edits
        assert (result.rule, result.rewrite) == ("list:relation", "tsvlc-rb-released")
        new = result.text[edit.new_start : edit.new_end]
        by_place.setdefault(caption[edit.start : edit.end], set()).add(new)
    # Words of the caption that are on the list, by themselves: not "in front of", nor "covered".
    said = {"wearing", "on", "in", "of"}
    assert set(by_place) == said
    assert all(words == listed - said for words in by_place.values())
    colours = made(TSVLC_RB_RELEASED, "An azure car", 300)
    assert {r.rule for r in colours} == {"list:colour"}
    assert {"A navy car", "An orange car", "A blue car"} <= {r.text for r in colours}
    assert TSVLC_RB_RELEASED(parse("a dog"), random.Random(0)) == Refused(NO_LIST)
    categories = Counter(
        r.rule for r in made(TSVLC_RB_RELEASED, "a red dog on a wooden chair", 600)
    )
    assert set(categories) == {"list:colour", "list:relation", "list:material"}
    assert min(categories.values()) > 150  # the category first, evenly


def test_foils_come_from_the_same_list() -> None:
    lists = WORDS
    found = texts(TSVLC_RB, "a red car on a road")
    assert found
    for text in found:
        word = text.split()[1]
        assert word in lists["colour"]
        assert word not in ("red", "crimson", "scarlet", "maroon")
    assert texts(TSVLC_RB, "the door is open") == {"the door is closed"}


@pytest.mark.parametrize("caption", ["a covered wagon", "a predator", "no red dog", "", "a dog"])
def test_no_list_applies(caption: str) -> None:
    result = TSVLC_RB(parse(caption), random.Random(0))
    assert isinstance(result, Refused)
    if caption:
        assert result.reason == NO_LIST


def test_ce_types_touch_only_their_part_of_speech() -> None:
    caption = "a young man riding a small horse near a fence"
    for rewrite, originals in (
        (CE_ADJ, {"young", "small"}),
        (CE_NOUN, {"man", "young man", "horse", "fence"}),
        (CE_VERB, {"riding"}),
    ):
        results = made(rewrite, caption)
        assert results
        for result in results:
            changed = {caption[e.start : e.end] for e in result.edits} - {"a"}
            assert len(changed) == 1
            assert changed <= originals
            assert result.rewrite == rewrite.name
    assert {r.rule for r in made(CE_SWAP, caption)} == {"swap:noun"}
