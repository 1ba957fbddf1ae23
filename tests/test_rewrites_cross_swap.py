"""The exchange between two captions, against the category rule spelt out."""

from __future__ import annotations

import random

import pytest

from compoclip.captions.parser import parse
from compoclip.rewrites.base import Refused
from compoclip.rewrites.cross_swap import FIXED, NO_CATEGORY, cross_swap


def drawn(first: str, second: str, count: int = 150) -> dict[str, set[tuple[str, str]]]:
    """rule -> pairs of texts."""
    a, b = parse(first), parse(second)
    found: dict[str, set[tuple[str, str]]] = {}
    for seed in range(count):
        result = cross_swap(a, b, random.Random(seed))
        if not isinstance(result, Refused):
            left, right = result
            assert left.rule == right.rule
            assert not left.keeps_meaning
            found.setdefault(left.rule, set()).add((left.text, right.text))
    return found


def test_every_category_and_pair() -> None:
    made = drawn("a black bag on a table", "a white box under a chair")
    assert made.keys() == {"cross-swap:ADJ", "cross-swap:ADP", "cross-swap:NOUN"}
    assert made["cross-swap:ADJ"] == {("a white bag on a table", "a black box under a chair")}
    assert made["cross-swap:ADP"] == {("a black bag under a table", "a white box on a chair")}
    # "a black chair on a table" is none that captions show.
    assert made["cross-swap:NOUN"] == {("a black box on a table", "a white bag under a chair")}


def test_what_fits_comes_first() -> None:
    made = drawn("a man in a car", "a woman on a horse")
    assert made == {"cross-swap:NOUN": {("a woman in a car", "a man on a horse")}}


def test_words_take_the_form_of_what_they_replace() -> None:
    assert drawn("An old apple.", "two dogs on it")["cross-swap:NOUN"] == {
        ("An old dog.", "two apples on it")
    }
    assert ("a man jumps", "a dog running") in drawn("a man runs", "a dog jumping")[
        "cross-swap:VERB"
    ]


def test_every_occurrence_changes_and_only_whole_words() -> None:
    made = drawn("a red cat and a cat in a category", "a tall dog")["cross-swap:NOUN"]
    assert ("a red dog and a dog in a category", "a tall cat") in made


# the same word; the same lemma; nothing is said of the dog; no category left; not asserted; names
# the picture
APART = """a big dog > a big dog; a big dog > big dogs; a dog > a cat on a mat; the > a
there is no big dog > a tall cat; a photo on it > a tall cat"""
# hypernym; may be the same; the same is said of both; related; both can hold; a vague preposition
# and another kind of pronoun
RELATED = """a tall dog > an animal on it; a mug on it > a tall cup; the bus is red > a red car
the crimson one > the red one; the red one > the large one; it on a > that with a"""


def pairs(text: str) -> list[list[str]]:
    return [pair.split(" > ") for pair in text.replace("\n", "; ").split("; ")]


@pytest.mark.parametrize(("first", "second"), pairs(APART))
def test_nothing_to_exchange(first: str, second: str) -> None:
    assert cross_swap(parse(first), parse(second), random.Random(0)) == Refused(NO_CATEGORY)


@pytest.mark.parametrize(("first", "second"), pairs(RELATED))
def test_related_words_stay(first: str, second: str) -> None:
    assert drawn(first, second) == {}


def test_categories_are_drawn_evenly() -> None:
    a, b = parse("a black bag on a table"), parse("a white box under a chair")
    rules = [
        result[0].rule
        for seed in range(600)
        if not isinstance(result := cross_swap(a, b, random.Random(seed)), Refused)
    ]
    for rule in ("cross-swap:ADJ", "cross-swap:ADP", "cross-swap:NOUN"):
        assert 150 < rules.count(rule) < 250
    assert not any(rule.removeprefix("cross-swap:") in FIXED for rule in rules)
