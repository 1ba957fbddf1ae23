"""Noun chunks checked by hand, and parsing many captions at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compoclip.captions.parser as parse_module
from compoclip.captions.parser import parse, parse_many

pytestmark = pytest.mark.usefixtures("warm_workers")

# Chunks stand in brackets; the head of each is its last word.
CHECKED = """[A man] wearing [a striped shirt] near [the big red bus].
[A black and white cat] on top of [a man's brown leather jacket].
[Two very tall giraffes] and [a zebra] next to [her].
There is [a snow covered mountain] behind [the kids' school].
[a small red cube] is to the left of [a large blue metal sphere]
[Someone] with [an umbrella] that is open
[A group] of [people] walking down [a street] near [a river].
[A dinner table] with [salad], [pizza] and [wine] on [it]
[a young girl], [a boy] and [their two dogs]
Sitting, running and very red
"""


@pytest.mark.parametrize("marked", CHECKED.split("\n"))
def test_hand_checked_chunks(marked: str) -> None:
    text = marked.replace("[", "").replace("]", "")
    caption = parse(text)
    for chunk in reversed(caption.chunks):
        first, last = caption.tokens[chunk.first], caption.tokens[chunk.stop - 1]
        assert chunk.head == chunk.stop - 1
        text = f"{text[: first.start]}[{text[first.start : last.end]}]{text[last.end :]}"
    assert text == marked


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
