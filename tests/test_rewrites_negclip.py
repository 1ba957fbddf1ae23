"""The swap: full candidate sets of fixed sentences, forbidden exchanges, real captions."""

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
from compoclip.rewrites.edit import doubles_a_word
from compoclip.rewrites.negclip import NEGCLIP, SpanPair, candidates, swapping
from compoclip.rewrites.reading import read
from real_captions import negclip
from rewrite_facts import made, rows, tagged, texts


def swaps(caption: Caption | str) -> set[str]:
    """All legal rewrites of a caption."""
    parsed = parse(caption) if isinstance(caption, str) else caption
    results = [
        NEGCLIP.sample(parsed, [swapping(parsed, pair)]) for pair in candidates(read(parsed))
    ]
    return {result.text for result in results if isinstance(result, Rewritten)}


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
    assert isinstance(NEGCLIP(parse(caption), random.Random(0)), Refused)


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


def test_refusals_name_the_reason() -> None:
    draw = random.Random(0)
    assert NEGCLIP(parse("a cat next to a dog"), draw) == Refused("no-legal-pair")
    assert NEGCLIP(parse(""), draw) == Refused("empty-caption")
    long = "a cat on a dog " * 30
    assert NEGCLIP(parse(long), draw).__class__ is Refused


def test_adjectives_of_two_things_swap_with_their_own_kind() -> None:
    found = swaps("a small red cup on a large blue plate")
    assert "a large red cup on a small blue plate" in found
    assert "a small blue cup on a large red plate" in found
    assert not any("red large" in text or "blue small" in text for text in found)


def test_groups_are_drawn_evenly() -> None:
    """Group first, then pair: one plural-noun pair weighs as much as four noun pairs."""
    drawn = made(NEGCLIP, "a small dog looking at a large cat", 400)
    rules = Counter(result.rule for result in drawn)
    assert set(rules) == {"swap:noun-phrase", "swap:noun", "swap:adjective"}
    assert min(rules.values()) > 100


def test_a_swap_that_fits_comes_before_others() -> None:
    found = texts(NEGCLIP, "two small dogs on a large couch", 40)
    assert found == {"two large dogs on a small couch"}


def words_of(text: str) -> Counter[str]:
    return Counter("a" if piece == "an" else piece for piece in token_key(text))


#: Rewrites whose coverage is held.
SWEPT = ("negclip", "replace", "bigram-shuffle")


def test_official_validation_captions(shared_data: Path) -> None:
    pairs = negclip(shared_data)
    assert len(pairs) == 4839
    pairs = pairs[::16]
    captions = parse_many([row["title"] for row in pairs])
    covered: Counter[str] = Counter()
    for number, caption in enumerate(captions):
        for name in SWEPT:
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
