"""Noun chunks checked by hand, and parsing many captions at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compoclip.captions.parser as parse_module
from compoclip.captions.parser import parse, parse_many

CHECKED = {
    "A man wearing a striped shirt near the big red bus.": [
        "A man>man",
        "a striped shirt>shirt",
        "the big red bus>bus",
    ],
    "A black and white cat on top of a man's brown leather jacket.": [
        "A black and white cat>cat",
        "a man's brown leather jacket>jacket",
    ],
    "Two very tall giraffes and a zebra next to her.": [
        "Two very tall giraffes>giraffes",
        "a zebra>zebra",
        "her>her",
    ],
    "There is a snow covered mountain behind the kids' school.": [
        "a snow covered mountain>mountain",
        "the kids' school>school",
    ],
    "a small red cube is to the left of a large blue metal sphere": [
        "a small red cube>cube",
        "a large blue metal sphere>sphere",
    ],
    "Someone with an umbrella that is open": ["Someone>Someone", "an umbrella>umbrella"],
    "A group of people walking down a street near a river.": [
        "A group>group",
        "people>people",
        "a street>street",
        "a river>river",
    ],
    "A dinner table with salad, pizza and wine on it": [
        "A dinner table>table",
        "salad>salad",
        "pizza>pizza",
        "wine>wine",
        "it>it",
    ],
    "a young girl, a boy and their two dogs": [
        "a young girl>girl",
        "a boy>boy",
        "their two dogs>dogs",
    ],
    "Sitting, running and very red": [],
    "": [],
}


@pytest.mark.parametrize("text", CHECKED)
def test_hand_checked_chunks(text: str) -> None:
    caption = parse(text)
    tokens = caption.tokens
    got = [
        f"{text[tokens[c.first].start : tokens[c.stop - 1].end]}>{tokens[c.head].text}"
        for c in caption.chunks
    ]
    assert got == CHECKED[text]


WORDS = ["a", "the", "two", "red", "and", ",", "dog", "man", "'s", "her", "very", "covered", "in"]


@given(st.lists(st.sampled_from(WORDS)))
@settings(max_examples=150, deadline=None)
def test_chunks_are_ordered_and_hold_their_head(words: list[str]) -> None:
    caption = parse(" ".join(words))
    at = 0
    for chunk in caption.chunks:
        assert at <= chunk.first <= chunk.head < chunk.stop <= len(caption.tokens)
        assert caption.tokens[chunk.head].pos in ("NOUN", "PROPN", "PRON")
        at = chunk.stop


def test_many_captions_are_the_same_for_any_number_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parse_module, "POOL_FLOOR", 1)
    monkeypatch.setattr(parse_module, "_BATCH", 7)
    texts = [f"{n} red dogs near a cat's table\n" for n in range(30)] + ["", "😀"]
    alone = parse_many(texts)
    assert [caption.text for caption in alone] == texts
    assert parse_many(texts, workers=2) == alone == [parse(text) for text in texts]
