"""Span edits, articles, capitals, inflection: exact characters."""

from __future__ import annotations

import re

import pytest

from compoclip.captions.parser import parse
from compoclip.captions.tagger import inflect
from compoclip.rewrites.base import Edit
from compoclip.rewrites.edit import (
    SpanChange,
    apply_changes,
    article_for,
    cased_like,
    exchanged,
    on_word_boundaries,
)
from rewrite_facts import tagged

AN = "apple umbrella hour honest herb onion owl 8 18 11 811 urn X-ray F-16 unidentified MRI"
A = "user unicorn uniform ukulele European one once house horse 1 180 UFO red unit useful TV"


def test_articles_follow_the_sound() -> None:
    for word in AN.split():
        assert article_for(word) == "an", word
    for word in A.split():
        assert article_for(word) == "a", word
    assert article_for("") == "a"


def test_changes_keep_every_other_character() -> None:
    caption = tagged("a  cat \t sees an   owl ;  truly")
    text, edits = apply_changes(caption, [SpanChange(1, 2, "eagle"), SpanChange(4, 5, "big dog")])
    assert text == "an  eagle \t sees a   big dog ;  truly"
    assert edits == (
        Edit(0, 1, 0, 2),
        Edit(3, 6, 4, 9),
        Edit(14, 16, 17, 18),
        Edit(19, 22, 21, 28),
    )
    rebuilt, old, new = [], 0, 0
    for edit in edits:
        assert caption.text[old : edit.start] == text[new : edit.new_start]
        rebuilt += [caption.text[old : edit.start], text[edit.new_start : edit.new_end]]
        old, new = edit.end, edit.new_end
    assert "".join(rebuilt) + caption.text[old:] == text


def test_overlapping_or_empty_changes_are_a_mistake() -> None:
    caption = tagged("one two three")
    with pytest.raises(ValueError, match="overlap"):
        apply_changes(caption, [SpanChange(0, 2, "x"), SpanChange(1, 3, "y")])
    with pytest.raises(ValueError, match="at least one token"):
        apply_changes(caption, [SpanChange(1, 1, "x")])


def test_article_keeps_its_capital_and_stays_when_apart() -> None:
    assert apply_changes(tagged("An owl"), [SpanChange(1, 2, "dog")])[0] == "A dog"
    assert apply_changes(tagged("A, owl"), [SpanChange(1, 2, "ant")])[0] == "A, ant"
    assert apply_changes(tagged("the owl"), [SpanChange(1, 2, "ant")])[0] == "the ant"


def test_sentence_capital_stays_at_the_front() -> None:
    caption = parse("Dogs chase cats. Birds watch the children.")
    words = [t.text for t in caption.tokens]
    a, b = words.index("Dogs"), words.index("cats")
    text, _ = apply_changes(caption, exchanged(caption, (a, a + 1), (b, b + 1)))
    assert text == "Cats chase dogs. Birds watch the children."
    c, d = words.index("Birds"), words.index("children")
    text, _ = apply_changes(caption, exchanged(caption, (c, c + 1), (d, d + 1)))
    assert text == "Dogs chase cats. Children watch the birds."


def test_names_and_shouting_keep_their_case() -> None:
    caption = parse("NASA launches a rocket")
    end = len(caption.tokens)
    text, _ = apply_changes(caption, exchanged(caption, (0, 1), (end - 1, end)))
    assert text == "Rocket launches a NASA"
    loud = parse("A DOG ON A BED")
    assert cased_like("cat", loud, 1) == "CAT"
    assert cased_like("cat", parse("Dogs run"), 0) == "Cat"
    assert cased_like("cat", parse("two Dogs run"), 1) == "cat"


@pytest.mark.parametrize(
    ("text", "word", "whole"),
    [
        ("covered", "red", False),
        ("category", "cat", False),
        ("a red ball", "red", True),
        ("the dog's tail", "dog", True),
        ("the dogs' tails", "dogs", True),
        ("don't go", "do", False),
        ("a well-known man", "known", False),
        ("a well-known man", "well", False),
        ("a dog, sleeping", "dog", True),
        ("(dog)", "dog", True),
        ("3d view", "3", False),
    ],
)
def test_edits_cut_no_word(text: str, word: str, whole: bool) -> None:
    start = text.index(word)
    assert on_word_boundaries(text, start, start + len(word)) is whole


FORMS = """dog NN dog, dog NNS dogs, woman NNS women, fish NNS fish, box NNS boxes, bus NNS buses
shorts NNS shorts, skis NNS skis, lie VBG lying, ride VBD rode, throw VBN thrown, wash VBZ washes
small JJR smaller, tiny JJS tiniest, small JJ small, blorf VBG blorfing"""


@pytest.mark.parametrize(("lemma", "tag", "form"), map(str.split, re.split(", |\n", FORMS)))
def test_inflection_follows_the_tag(lemma: str, tag: str, form: str) -> None:
    assert inflect(lemma, tag) == form


def test_inflection_of_phrases() -> None:
    assert inflect("french fries", "NNS") == "french fries"
    assert inflect("fire hydrant", "NNS") == "fire hydrants"
    assert inflect("wooden", "JJR") == "more wooden"
