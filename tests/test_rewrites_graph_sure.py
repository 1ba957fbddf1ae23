"""Graph texts: what a caption must mean, no doubled words, and bounded work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from compoclip.captions.parser import parse
from compoclip.captions.subgraphs import phrase
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.graph_edits import JOIN, Transform, slots_of
from compoclip.rewrites.legality import NO_THING
from compoclip.rewrites.mosaic import NOT_SURE, usable_subgraphs
from compoclip.rewrites.reading import read
from graph_captions import WORDS, graph_caption


@pytest.mark.parametrize(
    ("text", "positives"),
    [
        ("a man on a horse with a hat", {"man on horse"}),
        ("a close up of a red cat in a box", {"red cat", "cat in box", "red cat in box"}),
        ("black and white photo of a man on a boat", {"man on boat"}),
        ("a cat jumps to catch a ball in a garden", set()),
        ("bikes parked in a row and some men", {"bikes parked in row"}),
        ("a fat dog getting off", {"fat dog"}),
        ("a yellow hydrant and a man in a coat", {"yellow hydrant", "man in coat"}),
    ],
)
def test_positives_say_only_what_the_caption_must_mean(text: str, positives: set[str]) -> None:
    reading = read(parse(text))
    usable, refused = usable_subgraphs(reading)
    assert {phrase(each) for each in usable} == positives
    assert refused.keys() <= {NOT_SURE, NO_THING}


def test_no_text_doubles_a_word() -> None:
    hats = graph_caption(
        "a red top hat next to a tall hat", [("top hat", ["red"]), ("hat", ["tall"])], []
    )
    reading = read(hats)
    words = replace(WORDS, attributes=("top", "blue"))
    transform = Transform(reading, words, valid=False)
    slot = next(
        s for s in slots_of(usable_subgraphs(reading)[0][0]) if s.rule.startswith("replace")
    )
    assert transform.make(slot, ("top",)) == Refused("doubled-word")
    assert isinstance(transform.make(slot, ("blue",)), Rewritten)


def test_what_a_negative_says_is_looked_for_among_many_objects() -> None:
    """Once every choice of three objects was tried: 70 times 69 times 68 of them for each draw."""
    words = sorted(WORDS.objects) + [f"thing{i}" for i in range(65)]
    text = " near ".join(words)
    caption = graph_caption(text, [(w, []) for w in words], [(0, "near", 1)])
    reading = read(caption)
    calls = 0
    links = reading.links

    class Counted(dict[tuple[int, int], Sequence[str]]):
        def get(self, key, default=None):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            return links.get(key, default)

    counted = replace(reading)
    vars(counted)["links"] = Counted(links)
    pair = reading.subgraphs[0]
    joined = next(s for s in slots_of(pair) if s.rule == JOIN)
    transform = Transform(counted, WORDS)
    assert isinstance(transform.make(joined, ("wearing", "blue", "cup")), Rewritten)
    assert calls < 10
