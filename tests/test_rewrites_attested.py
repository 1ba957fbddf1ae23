"""Counts of the words that captions put side by side, and what an edit comes to by them."""

from __future__ import annotations

import pytest
from count_attested import count_slots

from compoclip.captions.parser import parse
from compoclip.rewrites.attested import Attested
from compoclip.rewrites.base import get_rewrite
from compoclip.rewrites.negclip import NEGCLIP_FLUENT
from compoclip.rewrites.slots import slots, words_of
from rewrite_facts import rows, texts


def named(text: str) -> set[tuple[str, str, str]]:
    """The slots of a caption by their words."""
    tokens = parse(text).tokens
    words, ends = words_of(tokens)
    found = slots(tokens, ends)
    return {(s.kind, words[s.left] if s.left >= 0 else "", words[s.right]) for s in found}


def test_slots_of_a_caption() -> None:
    assert named("A young man riding a brown horse on the beach.") == {
        ("mod", "young", "man"),
        ("a", "", "man"),
        ("subj", "man", "ride"),
        ("obj", "ride", "horse"),
        ("mod", "brown", "horse"),
        ("a", "", "horse"),
        ("np", "horse", "on"),
        ("pn", "on", "beach"),
        ("act", "man", "horse"),
        ("tie", "horse", "beach"),
        ("the", "", "beach"),
    }


def test_prepositions_of_several_words_are_one() -> None:
    made = named("a cat sits on top of a car, a dog in front of it")
    assert {("vp", "sit", "on"), ("pn", "on", "car"), ("tie", "sit", "car")} <= made
    assert ("act", "cat", "car") in made
    assert ("np", "dog", "in_front_of") in made


def test_a_verb_behind_a_place_is_said_of_what_is_there() -> None:
    made = named("a dog in a field chasing a ball")
    assert ("subj", "dog", "chase") in made
    assert ("subj", "field", "chase") not in made


def test_levels_are_words_then_classes() -> None:
    seen = [parse(t) for t in ("a man riding a horse", "a man riding a cow", "a girl riding a dog")]
    known = Attested(count_slots(seen))
    assert known.level("obj", "ride", "horse") == 2
    assert known.level("obj", "ride", "zebra") == 1
    assert known.level("obj", "ride", "fork") == 0


def test_the_fluent_swap_refuses_what_captions_do_not_show() -> None:
    found = texts(NEGCLIP_FLUENT, "a dog in a bathroom reaching for the toilet paper", 20)
    assert not any(text.startswith("a bathroom in a dog") for text in found)


WRONG = rows("""
ce-adj | a cute dog on a bench | picturesque
ce-adj | a young boy on a bench | old boy
ce-adj | an old fashioned train on a track | new fashioned
ce-noun | a tennis player on a court | sportsman
ce-noun | a cow in a field near a barn | plot
ce-verb | a plate sitting on a table | lying
ce-verb | a fresh looking salad on a plate | ignoring
ce-verb | a man sitting up in bed | walking up
synonym | a bus in route near a station | within route
synonym | a game in progress on a field | within progress
synonym | a fresh looking salad on a plate | gazing
synonym | a plate sitting on a table | seated
synonym | a bird standing near a tree | next to
tsvlc-rb-spatial | a man on a beach with a kite | under a beach
tsvlc-rb-spatial | a couple sitting on a bench near a tree | under a bench
tsvlc-rb-spatial | a game in progress on a field | outside progress
replace | a group of people playing baseball on a field | horses
ce-noun | a man in a helmet on a skateboard | in a shoe
ce-noun | a person holding a hotdog in their hand | eye
ce-adj | a woman riding a brown horse in a field | green horse
ce-adj | a dimly lit room with a table | unlit
ce-verb | a girl holding a doughnut with sprinkles | wearing
ce-verb | a person playing a video game on a couch | watching
ce-verb | a hot dog sitting on a bun in a carton | standing
crepe-negate | many trucks parked on a street | no many
crepe-negate | a bed with a metal frame | not with
negclip-fluent | a table and a cell phone on a laptop | on a table
graph-rel | a man in a field with a ball | apron
""")


@pytest.mark.parametrize(("name", "caption", "never"), WRONG)
def test_what_readers_found_wrong_is_not_made(name: str, caption: str, never: str) -> None:
    assert not any(never in text for text in texts(get_rewrite(name), caption, 60))
