"""The bigram shuffle, the registry, seeding, and rewrites of arbitrary text."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from compoclip.captions.clip_text import token_key
from compoclip.captions.parser import parse
from compoclip.errors import UsageError
from compoclip.rewrites.base import Refused, get_rewrite, rewrite_names, rng_for
from compoclip.rewrites.bigram_shuffle import BIGRAM_SHUFFLE
from compoclip.rewrites.noun_adj_shuffle import NOUN_ADJ_SHUFFLE
from rewrite_facts import PARTS, facts_of, texts

# Rewrites that edit the caption.
NAMES = tuple(name for name in rewrite_names() if not name.startswith(PARTS))


def shuffles(caption: str) -> set[str]:
    return texts(BIGRAM_SHUFFLE, caption, 200)


def test_full_set_of_orders() -> None:
    assert shuffles("one dog chases two cats") == {
        "one dog cats chases two",
        "chases two one dog cats",
        "chases two cats one dog",
        "cats one dog chases two",
        "cats chases two one dog",
    }


def test_final_full_stop_lands_after_a_pair_and_the_capital_moves() -> None:
    found = shuffles("A dog bites.")
    assert found == {"Bites. a dog", "Bites a dog."}


def test_contractions_and_hyphens_stay_one_word() -> None:
    for text in shuffles("a dog doesn't like the well-known man's hat"):
        assert {"doesn't", "well-known", "man's"} <= set(text.split())


def test_no_blank_before_punctuation_and_all_words_kept() -> None:
    caption = "A cat, a dog, and two red birds sit here."
    for text in shuffles(caption):
        assert Counter(token_key(text)) == Counter(token_key(caption))
        assert " ," not in text.replace(", ,", "").replace(". ,", "")


def test_orders_that_say_the_same_are_left_out() -> None:
    assert "a dog next to a cat" not in shuffles("a cat next to a dog")
    assert "a dog and a cat" not in shuffles("a cat and a dog")
    assert "no dog but a cat" not in shuffles("a cat but no dog")


@pytest.mark.parametrize("caption", ["", " ", "dog", "a dog", "a dog.", "!", "a a a a"])
def test_nothing_to_shuffle(caption: str) -> None:
    assert isinstance(BIGRAM_SHUFFLE(parse(caption), random.Random(0)), Refused)


def test_registry_finds_rewrites_and_names_them() -> None:
    assert {"negclip", "replace", "bigram-shuffle", "synonym-strict", "ce-adj"} <= set(NAMES)
    for name in rewrite_names():
        assert get_rewrite(name).name == name
        assert get_rewrite(name).version
    positives = {name for name in NAMES if get_rewrite(name).keeps_meaning}
    assert {"and-swap", "synonym", "synonym-strict"} <= positives
    assert not {"negclip", "replace", "bigram-shuffle"} & positives
    with pytest.raises(UsageError, match="negclip"):
        get_rewrite("negklip")


CAPTIONS = [
    "a large red cup on a small blue plate",
    "two blue fish above a small green tree",
    "A child holding a flowered umbrella and petting a yak.",
    "A small dog walking behind a large horse and an old man holding a box on top of a bench",
    "A man in a red shirt near a white bus, a black car and a blue truck",
    "An old man riding a black horse near a wooden fence and a woman reading a book on a bench",
    "Three small cups on a wooden table near four red chairs and a large lamp",
]


@pytest.mark.parametrize("name", NAMES)
def test_sample_epoch_and_name_fix_the_draw(name: str) -> None:
    rewrite = get_rewrite(name)
    parsed = [parse(text) for text in CAPTIONS]
    forth = [rewrite(c, rng_for(1, str(i), 0, name)) for i, c in enumerate(parsed)]
    back = [rewrite(parsed[i], rng_for(1, str(i), 0, name)) for i in reversed(range(len(parsed)))]
    assert forth == back[::-1]
    if facts_of(name).get("drawn", True):
        drawn = {rewrite(c, rng_for(1, "0", epoch, name)) for epoch in range(20) for c in parsed}
        assert len(drawn) > len(parsed)


# --- Nouns among themselves, and adjectives. ---


def put_in_order(caption: str) -> set[str]:
    return texts(NOUN_ADJ_SHUFFLE, caption, 300)


def test_nouns_and_adjectives_change_places_among_themselves() -> None:
    assert put_in_order("A black cat chases two white dogs.") == {
        "A black dogs chases two white cat.",
        "A white cat chases two black dogs.",
        "A white dogs chases two black cat.",
    }
    assert put_in_order("an old man on a horse") == {"an old horse on a man"}
    three = put_in_order("a boy with a dog under a tree")
    assert len(three) == 5
    assert {" ".join(sorted(text.split())) for text in three} == {"a a a boy dog tree under with"}


def test_what_says_the_same_is_no_shuffle() -> None:
    assert put_in_order("a cat and a dog") == set()
    assert put_in_order("the car is orange and small") == set()
    for text in ("a cat", "a dog beside a dog", "the old old men"):
        refused = NOUN_ADJ_SHUFFLE(parse(text), random.Random(0))
        assert isinstance(refused, Refused)
    assert NOUN_ADJ_SHUFFLE(parse("a cat"), random.Random(0)) == Refused("nothing-to-shuffle")
