"""Synonyms: the published table, word forms, word boundaries, and where an entry does not fit."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from compoclip.captions.parser import parse
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.reading import read
from compoclip.rewrites.synonyms import NO_SYNONYM, SYNONYM, SYNONYM_STRICT, places, table
from rewrite_facts import made, rows, texts


def test_the_table_is_the_published_one() -> None:
    entries = table()
    assert Counter(e.kind for e in entries) == {"relation": 16, "attribute": 23}
    rows = {(e.word, e.synonym): e.rows for e in entries if e.kind == "relation"}
    assert rows["in", "within"] == 6173
    assert rows["riding on", "traveling on"] == 38
    assert {(e.word, e.synonym) for e in entries if e.never} == {("near", "next to")}
    loose = {(e.word, e.synonym) for e in entries if e.loose}
    assert {("red", "crimson"), ("white", "ivory"), ("near", "next to"), ("small", "tiny")} <= loose
    assert {("large", "big"), ("next to", "near"), ("in", "within")}.isdisjoint(loose)
    assert loose >= {
        ("above", "on top of"),
        ("wearing", "in"),
        ("wears", "in"),
        ("by", "near"),
    }


FITTING = rows("""
a red star | a crimson star
A white mug. | An ivory mug.
an old house | an aged house
a larger dog | a bigger dog
the smallest dog | the tiniest dog
a man holding a cup | a man grasping a cup
a man holds a cup | a man grasps a cup
a man rides a horse | a man travels on a horse
a man riding on a horse | a man traveling on a horse
a dog walks along | a dog strolls along
a man sitting on a chair | a man seated on a chair
a smiling woman | a happy woman
the woman is smiling | the woman is happy
a man looks at a dog | a man gazes at a dog
a cat in a box | a cat within a box
a cat on top of a box | a cat on a box
a boat behind a tree | a boat to the rear of a tree
Black cats | Ebony cats
a bird above a tree | a bird on top of a tree
a car parked by a tree | a car parked near a tree
a man wearing a hat | a man in a hat
a big red ball | a large red ball | a big crimson ball
""")


@pytest.mark.parametrize(("caption", "expected"), [(row[0], {*row[1:]}) for row in FITTING])
def test_all_texts_of_a_caption(caption: str, expected: set[str]) -> None:
    assert texts(SYNONYM, caption, 40) == expected


@pytest.mark.parametrize(
    "caption",
    [
        "a snow covered road",  # holds "red"
        "a blacksmith at work",
        "a man in a shirt",  # worn, not inside
        "a man in front of a house",  # part of a phrase
        "a cart pulled by a dog",
        "a glass of white wine",
        "a black and white photo",
        "a dark blue sky",
        "a two year old boy",
        "a bowl holding fruit",  # bowls do not grasp
        "a man walking a dog",
        "a man looking for a dog",
        "people hanging out",
        "a clear bottle",
        "no red star",
        "the star is not near a mug",
        "a black woman",
        "a dog",
    ],
)
def test_nothing_fits(caption: str) -> None:
    assert SYNONYM(parse(caption), random.Random(0)) == Refused(NO_SYNONYM)


def test_the_strict_table_leaves_loose_entries_out() -> None:
    caption = "a man wearing a red hat"
    assert texts(SYNONYM, caption) == {"a man in a red hat", "a man wearing a crimson hat"}
    assert texts(SYNONYM_STRICT, caption) == set()
    assert texts(SYNONYM_STRICT, "a large man") == {"a big man"}
    rules = {each.rule for each in made(SYNONYM, caption, 40)}
    assert rules == {"synonym:relation-loose", "synonym:attribute-loose"}


def test_bijective_entries_can_be_undone() -> None:
    """Putting the word back where its synonym stands gives the caption."""
    targets = Counter(e.synonym for e in table())
    sources = Counter(e.word for e in table())
    checked = 0
    for entry in table():
        if targets[entry.synonym] > 1 or sources[entry.word] > 1 or entry.kind == "relation":
            continue
        head = "sky" if entry.word == "clear" else "dog"
        caption = parse(f"the {entry.word} {head} on the grass")
        for found, (_, _, text) in places(read(caption)):
            if found == entry:
                changed = caption.text.replace(f" {entry.word} ", f" {text} ")
                assert changed.replace(entry.synonym, entry.word) == caption.text
                checked += 1
    assert checked >= 10


def test_only_one_word_changes() -> None:
    result = SYNONYM(parse("a white cat and a white dog"), random.Random(0))
    assert isinstance(result, Rewritten)
    assert result.text.count("ivory") == 1
    assert result.keeps_meaning
