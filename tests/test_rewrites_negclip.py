"""Swaps within a caption, around "and", and between two captions."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from compoclip.captions.clip_text import same_to_clip, token_key
from compoclip.captions.parser import parse, parse_many
from compoclip.captions.types import Caption, Chunk
from compoclip.rewrites.base import Refused, Rewritten, get_rewrite, rng_for
from compoclip.rewrites.cross_swap import FIXED, NO_CATEGORY, cross_swap
from compoclip.rewrites.edit import doubles_a_word
from compoclip.rewrites.negclip import (
    AND_SWAP,
    NEGCLIP,
    SpanPair,
    candidates,
    swapping,
)
from compoclip.rewrites.reading import read
from real_captions import negclip
from rewrite_facts import results, rows, tagged


def swaps(caption: Caption | str) -> set[str]:
    """All legal rewrites of a caption."""
    parsed = parse(caption) if isinstance(caption, str) else caption
    pairs = candidates(read(parsed))
    swapped = (NEGCLIP.sample(parsed, [swapping(parsed, pair)]) for pair in pairs)
    return {result.text for result in swapped if isinstance(result, Rewritten)}


def test_hand_tagged_caption() -> None:
    """Independent of any tagger: two phrases tied by "above", words tagged by hand."""
    text = "a red star above a small blue mug"
    the, noun, tall = ("DET", "DT"), ("NOUN", "NN"), ("ADJ", "JJ")
    tags = (the, tall, noun, ("ADP", "IN"), the, tall, tall, noun)
    caption = tagged(text, *tags, chunks=(Chunk(0, 3, 2), Chunk(4, 8, 7)))
    assert [(p.group, p.a, p.b) for p in candidates(read(caption))] == [
        ("noun-phrase", (0, 3), (4, 8)),
        ("noun", (2, 3), (7, 8)),
        ("adjective", (1, 2), (6, 7)),
    ]
    assert swaps(caption) == {
        "a small blue mug above a red star",
        "a red mug above a small blue star",
        "a blue star above a small red mug",
    }


SWAPS = rows("""
An apple on a table. | A table on an apple.
a red star to the left of a large striped mug
  | a large striped mug to the left of a red star | a red mug to the left of a large striped star
a yellow ball inside a box | a yellow box inside a ball
two blue fish above a small green tree
  | a small green tree above two blue fish | two green fish above a small blue tree
the spotted hat is bigger than the umbrella | the spotted umbrella is bigger than the hat
a key in front of a house and a blue boat | a house in front of a key and a blue boat
a red car next to a blue truck | a blue car next to a red truck
A child holding a flowered umbrella and petting a yak.
  | A child petting a flowered umbrella and holding a yak.
  | An umbrella holding a flowered child and petting a yak.
  | A yak holding a flowered umbrella and petting a child.
  | A child holding a flowered yak and petting an umbrella.
a cat on a chair and a dog on a table
  | a chair on a cat and a dog on a table | a dog on a chair and a cat on a table
  | a table on a chair and a dog on a cat | a cat on a table and a dog on a chair
  | a cat on a chair and a table on a dog
Dogs are chasing cats. | Cats are chasing dogs.
a chicken sandwich beside a tomato soup | a tomato sandwich beside a chicken soup
""")


@pytest.mark.parametrize(("caption", "expected"), [(row[0], {*row[1:]}) for row in SWAPS])
def test_full_candidate_set(caption: str, expected: set[str]) -> None:
    # "a chair ... a dog": exchanging chair and dog across "and" is forbidden.
    assert swaps(caption) == expected


TRUE_EITHER_WAY = """a cat next to a dog; a cat and a dog; a cat, a dog and a bird
a cat, a dog, and a bird; a man with a dog; a woman standing next to a man
a woman is standing next to a man; a car parked near a truck; a boy talking to a girl
a boy hugging a girl; a boat beside a bridge; a big red ball; a red ball and a red ball
a red ball next to a blue ball; a ball; there is no red star; there is no star above the mug
the cat is not on the mat; a circle and a square of the same colour
the hat is as big as the umbrella; the man is a chef; a red and white bus
a cat is small and black; a dog or a cat on a sofa; red and blue balls; ; Hello; ..."""


@pytest.mark.parametrize("caption", re.split("; |\n", TRUE_EITHER_WAY))
def test_no_swap_that_may_stay_true(caption: str) -> None:
    assert swaps(caption) == set()


@pytest.mark.parametrize(
    ("caption", "still_true"),
    [
        ("a dog on a couch and a cat on a couch", "a cat on a couch and a dog on a couch"),
        ("a dog in a park in a city", "a dog in a city in a park"),
        ("a cat on a bed next to a dog", "a dog on a bed next to a cat"),
        ("a girl sits on a bench next to a boy", "a boy sits on a bench next to a girl"),
        ("a man wearing a hat and wearing a scarf", "a man wearing a scarf and wearing a hat"),
        ("a red box but no top hat", "a top box but no red hat"),
        ("a star without a red fish", "a fish without a red star"),
    ],
)
def test_left_out_of_the_candidates(caption: str, still_true: str) -> None:
    assert still_true not in swaps(caption)


def test_adjectives_of_two_things_swap_with_their_own_kind() -> None:
    swapped = swaps("a small red cup on a large blue plate")
    assert "a large red cup on a small blue plate" in swapped
    assert "a small blue cup on a large red plate" in swapped
    assert not any("red large" in text or "blue small" in text for text in swapped)


def test_groups_are_drawn_evenly() -> None:
    """Group first, then pair: one plural-noun pair weighs as much as four noun pairs."""
    drawn = results(NEGCLIP, "a small dog looking at a large cat", 400)
    rules = Counter(result.rule for result in drawn)
    assert set(rules) == {"swap:noun-phrase", "swap:noun", "swap:adjective"}
    assert min(rules.values()) > 100


def words_of(text: str) -> Counter[str]:
    return Counter("a" if piece == "an" else piece for piece in token_key(text))


def test_official_validation_captions(shared_data: Path) -> None:
    pairs = negclip(shared_data)
    assert len(pairs) == 4839
    pairs = pairs[::32]
    captions = parse_many([row["title"] for row in pairs])
    covered: Counter[str] = Counter()
    for number, caption in enumerate(captions):
        for name in ("negclip", "replace", "bigram-shuffle"):
            result = get_rewrite(name)(caption, rng_for(0, str(number), 0, name))
            if isinstance(result, Refused):
                continue
            covered[name] += 1
            assert not same_to_clip(result.text, caption.text)
            if name == "negclip":
                assert words_of(result.text) == words_of(caption.text)
    assert covered["negclip"] > 0.75 * len(pairs)
    assert covered["replace"] > 0.87 * len(pairs)  # what captions show of the words that exclude
    assert covered["bigram-shuffle"] > 0.99 * len(pairs)
    agreeing = 0
    for row, caption in zip(pairs, captions):
        ours = {token_key(text.replace(" an ", " a ")) for text in swaps(caption)}
        official = [str(n).replace(" an ", " a ") for n in ast.literal_eval(row["neg_caption"])]
        agreeing += any(token_key(text) in ours for text in official)
    assert agreeing > len(pairs) / 2


@pytest.mark.parametrize(
    ("text", "twice", "a", "b"),
    [
        ("two guys playing tennis on a tennis court", "tennis tennis", 3, 7),
        ("a baby elephant stands under a larger adult elephant", "elephant elephant", 1, 8),
    ],
)
def test_no_word_is_doubled(text: str, twice: str, a: int, b: int) -> None:
    caption = parse(text)
    pair = SpanPair("noun", (a, a + 1), (b, b + 1))
    assert NEGCLIP.sample(caption, [swapping(caption, pair)]) == Refused("doubled-word")
    assert not any(twice in text for text in swaps(caption))
    assert doubles_a_word(f"a {twice}", caption)
    assert not doubles_a_word(f"a {twice}", parse(f"the {twice.upper()} thing"))
    assert not doubles_a_word("the them, them", caption)


# --- The exchange around "and": what it exchanges, what it refuses, and that it undoes itself. ---


RNG = random.Random(0)
EXCHANGED = rows("""
the black cat and the carpeted floor | the carpeted floor and the black cat | noun-phrase
A dog and an apple. | An apple and a dog. | noun-phrase
there is a cat and a dog | there is a dog and a cat | noun-phrase
a car and bus | a bus and car | noun-phrase
an apple and pear | a pear and apple | noun-phrase
cats and dogs | dogs and cats | noun-phrase
a man and a woman sitting on a bench | a woman and a man sitting on a bench | noun-phrase
A dog and a cat are asleep | A cat and a dog are asleep | noun-phrase
a table with a cup and a plate | a table with a plate and a cup | noun-phrase
a man wearing a hat and a shirt | a man wearing a shirt and a hat | noun-phrase
a plate and a cup of coffee | a cup of coffee and a plate | noun-phrase
a cup of coffee and a plate | a plate and a cup of coffee | noun-phrase
a man in a hat and a woman in a dress | a woman in a dress and a man in a hat | noun-phrase
a black and white cat | a white and black cat | adjective
the cat is white and small | the cat is small and white | adjective
a man sitting on a bench and reading a book
  | a man reading a book and sitting on a bench | verb-phrase
A dog running and jumping. | A dog jumping and running. | verb-phrase
""")


@pytest.mark.parametrize(("caption", "expected", "kind"), EXCHANGED)
def test_exchanges_the_smallest_like_phrases_and_back(
    caption: str, expected: str, kind: str
) -> None:
    result = AND_SWAP(parse(caption), RNG)
    assert isinstance(result, Rewritten)
    assert (result.text, result.rule) == (expected, f"and:{kind}")
    assert result.keeps_meaning
    back = AND_SWAP(parse(result.text), RNG)
    assert isinstance(back, Rewritten)
    assert back.text == caption


# --- The exchange between two captions, against the category rule spelt out. ---


BAG, BOX = "a black bag on a table", "a white box under a chair"
Pairs = dict[str, set[tuple[str, str]]]


def crossed(first: str, second: str) -> Pairs:
    """Return rule -> pairs of texts that the first 150 seeds give."""
    captions = parse(first), parse(second)
    pairs: Pairs = {}
    for seed in range(150):
        result = cross_swap(*captions, random.Random(seed))
        if not isinstance(result, Refused):
            left, right = result
            assert left.rule == right.rule
            assert not left.keeps_meaning
            pairs.setdefault(left.rule, set()).add((left.text, right.text))
    return pairs


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        (BAG, BOX, {
            "cross-swap:ADJ": {("a white bag on a table", "a black box under a chair")},
            "cross-swap:ADP": {("a black bag under a table", "a white box on a chair")},
            # "a black chair on a table" is none that captions show.
            "cross-swap:NOUN": {("a black box on a table", "a white bag under a chair")},
        }),
        ("a man in a car", "a woman on a horse",  # what fits comes first
         {"cross-swap:NOUN": {("a woman in a car", "a man on a horse")}}),
        ("An old apple.", "two dogs on it",
         {"cross-swap:NOUN": {("An old dog.", "two apples on it")}}),
    ],
)  # fmt: skip
def test_all_pairs_of_two_captions(first: str, second: str, pairs: Pairs) -> None:
    assert crossed(first, second) == pairs


def test_verbs_take_the_form_of_what_they_replace() -> None:
    pairs = crossed("a man runs", "a dog jumping")["cross-swap:VERB"]
    assert ("a man jumps", "a dog running") in pairs


def test_every_occurrence_changes_and_only_whole_words() -> None:
    pairs = crossed("a red cat and a cat in a category", "a tall dog")["cross-swap:NOUN"]
    assert ("a red dog and a dog in a category", "a tall cat") in pairs


APART = rows("""
a big dog | a big dog
a big dog | big dogs # the same lemma
a dog | a cat on a mat # nothing is said of the dog
the | a
there is no big dog | a tall cat
a photo on it | a tall cat # it names the picture
""")
RELATED = rows("""
a tall dog | an animal on it
a mug on it | a tall cup # which may be the same
the bus is red | a red car # the same is said of both
the crimson one | the red one
the red one | the large one # both can hold
it on a | that with a # a vague preposition and another kind of pronoun
""")


@pytest.mark.parametrize(("first", "second"), APART)
def test_nothing_to_exchange(first: str, second: str) -> None:
    assert cross_swap(parse(first), parse(second), random.Random(0)) == Refused(NO_CATEGORY)


@pytest.mark.parametrize(("first", "second"), RELATED)
def test_related_words_stay(first: str, second: str) -> None:
    assert crossed(first, second) == {}


def test_categories_are_drawn_evenly() -> None:
    results = (cross_swap(parse(BAG), parse(BOX), random.Random(seed)) for seed in range(600))
    rules = Counter(result[0].rule for result in results if not isinstance(result, Refused))
    assert all(150 < rules[f"cross-swap:{part}"] < 250 for part in ("ADJ", "ADP", "NOUN"))
    assert not {f"cross-swap:{part}" for part in FIXED} & rules.keys()
