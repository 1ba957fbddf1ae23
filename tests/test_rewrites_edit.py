"""Span edits and inflection, shuffles, the registry; any text is rewritten or refused."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from compoclip.captions.clip_text import fits_context, same_to_clip, token_key
from compoclip.captions.lists import word_set
from compoclip.captions.parser import parse
from compoclip.captions.tagger import inflect
from compoclip.captions.types import MOST_CHARACTERS, MOST_TOKENS, beginning
from compoclip.errors import UsageError
from compoclip.rewrites.base import Edit, Refused, Rewritten, get_rewrite, rewrite_names, rng_for
from compoclip.rewrites.bigram_shuffle import BIGRAM_SHUFFLE
from compoclip.rewrites.cross_swap import cross_swap
from compoclip.rewrites.edit import (
    SpanChange,
    apply_changes,
    article_for,
    cased_like,
    exchanged,
    on_word_boundaries,
)
from compoclip.rewrites.mosaic import sample_graph_texts
from compoclip.rewrites.noun_adj_shuffle import NOUN_ADJ_SHUFFLE
from rewrite_facts import PARTS, facts_of, rows, tagged, texts

AN = "apple umbrella hour honest herb onion owl 8 18 11 811 urn X-ray F-16 unidentified MRI"
A = "user unicorn uniform ukulele European one once house horse 1 180 UFO red unit useful TV"


def test_articles_follow_the_sound() -> None:
    assert [word for word in AN.split() if article_for(word) != "an"] == []
    assert [word for word in ["", *A.split()] if article_for(word) != "a"] == []


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


def test_overlapping_or_empty_changes_are_a_mistake() -> None:
    caption = tagged("one two three")
    with pytest.raises(ValueError, match="overlap"):
        apply_changes(caption, [SpanChange(0, 2, "x"), SpanChange(1, 3, "y")])
    with pytest.raises(ValueError, match="at least one token"):
        apply_changes(caption, [SpanChange(1, 1, "x")])


@pytest.mark.parametrize(
    ("text", "word", "changed"),
    [
        ("An owl", "dog", "A dog"),
        ("A, owl", "ant", "A, ant"),
        ("the owl", "ant", "the ant"),
    ],
)
def test_an_article_keeps_its_capital_and_stays_when_apart(
    text: str, word: str, changed: str
) -> None:
    assert apply_changes(tagged(text), [SpanChange(1, 2, word)])[0] == changed


@pytest.mark.parametrize(
    ("text", "words", "changed"),
    [
        ("Dogs chase cats. Birds run.", ("Dogs", "cats"), "Cats chase dogs. Birds run."),
        ("Cats run. Birds watch the children.", ("Birds", "children"),
         "Cats run. Children watch the birds."),
        ("NASA launches a rocket", ("NASA", "rocket"), "Rocket launches a NASA"),
    ],
)  # fmt: skip
def test_exchanged_words_leave_the_capital_in_front(
    text: str, words: tuple[str, str], changed: str
) -> None:
    caption = parse(text)
    spans = [(at, at + 1) for at, token in enumerate(caption.tokens) if token.text in words]
    assert apply_changes(caption, exchanged(caption, *spans))[0] == changed


@pytest.mark.parametrize(
    ("caption", "place", "word"),
    [("A DOG ON A BED", 1, "CAT"), ("Dogs run", 0, "Cat"), ("two Dogs run", 1, "cat")],
)
def test_a_word_takes_the_case_of_the_caption(caption: str, place: int, word: str) -> None:
    assert cased_like("cat", parse(caption), place) == word


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


FORMS = rows("""
dog | NN | dog
dog | NNS | dogs
woman | NNS | women
fish | NNS | fish
box | NNS | boxes
bus | NNS | buses
shorts | NNS | shorts
skis | NNS | skis
french fries | NNS | french fries
fire hydrant | NNS | fire hydrants
lie | VBG | lying
blorf | VBG | blorfing
ride | VBD | rode
throw | VBN | thrown
wash | VBZ | washes
small | JJ | small
small | JJR | smaller
tiny | JJS | tiniest
wooden | JJR | more wooden
""")


@pytest.mark.parametrize(("lemma", "tag", "form"), FORMS)
def test_inflection_follows_the_tag(lemma: str, tag: str, form: str) -> None:
    assert inflect(lemma, tag) == form


# --- Shuffles, the registry, seeding. ---


# Rewrites that edit the caption.
NAMES = tuple(name for name in rewrite_names() if not name.startswith(PARTS))


def test_contractions_and_hyphens_stay_one_word() -> None:
    for text in texts(BIGRAM_SHUFFLE, "a dog doesn't like the well-known man's hat"):
        assert {"doesn't", "well-known", "man's"} <= set(text.split())


def test_no_blank_before_punctuation_and_all_words_kept() -> None:
    caption = "A cat, a dog, and two red birds sit here."
    for text in texts(BIGRAM_SHUFFLE, caption):
        assert Counter(token_key(text)) == Counter(token_key(caption))
        assert " ," not in text.replace(", ,", "").replace(". ,", "")


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
    captions = [parse(text) for text in CAPTIONS]
    forth = [rewrite(c, rng_for(1, str(i), 0, name)) for i, c in enumerate(captions)]
    for other in ("crepe-swap", "negclip", "replace", "tsvlc-rb", "synonym"):
        for caption in captions:
            get_rewrite(other)(caption, rng_for(5, "y", 0, other))
    back = [rewrite(captions[i], rng_for(1, str(i), 0, name)) for i in reversed(range(len(forth)))]
    assert forth == back[::-1]
    if facts_of(name).get("drawn", True):
        drawn = {rewrite(c, rng_for(1, "0", epoch, name)) for epoch in range(20) for c in captions}
        assert len(drawn) > len(captions), (
            f"too few texts; if a caption has only one text of {name}, or these captions give "
            f'none, write "drawn": false into tests/golden/rewrites/{name}.json'
        )


def test_all_orders_of_three_nouns() -> None:
    orders = texts(NOUN_ADJ_SHUFFLE, "a boy with a dog under a tree", 300)
    assert len(orders) == 5
    assert {" ".join(sorted(text.split())) for text in orders} == {"a a a boy dog tree under with"}


# --- Whatever a caption holds: it is parsed and rewritten within bounded work, or refused. ---


#: Calls of Python functions that parsing and all rewrites of one text may take, with the reading of
#: dictionaries. A caption of 20 words takes 30,000, one of 150 some 100,000; what grows with a
#: power of the length takes many millions.
MOST_CALLS = 1_000_000

ANY_NOUNS = sorted(
    word_set("cat dog horse mat bed tennis ball surfboard teddy bear men shorts bread plate")
)
ANY_OTHERS = word_set(
    "a the two red small and or of on in with by to while not no is close up riding holding "
    "sitting looking run stands there each other's , . ; - ' \" 😀 é"
)
ANY_WORDS = st.sampled_from([*ANY_NOUNS, *sorted(ANY_OTHERS), "\x00"])
SENTENCES = st.lists(ANY_WORDS, max_size=30).map(" ".join)
ANY_ODD = st.one_of(
    st.text(max_size=80),
    st.text(st.characters(categories=["So", "Mn", "Zs", "Cf", "Lo", "Cs"]), max_size=60),
    st.text(st.sampled_from(" .,;:!?'\"-–()&#0123456789\n\t"), max_size=80),
)
#: One pattern many times over: what a page's alternative text looks like when it goes wrong.
REPEATED = st.builds(
    lambda part, glue, times: glue.join([part] * times),
    st.one_of(SENTENCES, ANY_ODD),
    st.sampled_from([" ", "", ", ", " and ", " of the ", "'s ", " on a ", "\n"]),
    st.integers(2, 4000),
)


def doubled(text: str) -> set[str]:
    """The words that stand twice in a row, nothing but blanks between them."""
    parts = re.findall(r"\w+|\s+|[^\w\s]", text.lower())
    triples = zip(parts, parts[1:], parts[2:])
    return {a for a, gap, b in triples if a == b and gap.isspace() and re.match(r"\w", a)}


def calls(work: Callable[[], Any]) -> int:
    """How many Python functions are called while `work` runs."""
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += 1  # of each call of a Python function; its lines are not traced

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def assert_edits_account_for_all(text: str, result: Rewritten) -> None:
    old = new = 0
    for edit in result.edits:
        assert text[old : edit.start] == result.text[new : edit.new_start]
        assert edit.start <= edit.end
        old, new = edit.end, edit.new_end
    assert text[old:] == result.text[new:]


def check_text(text: str, number: int = 0) -> None:
    """Parse a text and make every rewrite of it."""
    caption = parse(text)
    assert text.startswith(caption.text)
    assert caption.cut is (caption.text != text)
    rewritten: list[tuple[str, str]] = []
    for name in rewrite_names():
        result = get_rewrite(name)(caption, rng_for(0, str(number), 0, name))
        assert isinstance(result, Rewritten | Refused), name
        if isinstance(result, Rewritten):
            assert not same_to_clip(result.text, caption.text), name
            assert fits_context(result.text), name
            if not name.startswith(PARTS):
                assert_edits_account_for_all(caption.text, result)
            rewritten.append((caption.text, result.text))
        else:
            assert result.reason
    texts = sample_graph_texts(caption, random.Random(number))
    rewritten += [(caption.text, t.text) for t in (*texts.positives, *texts.negatives)]
    other = parse("A woman in a red coat walks two small dogs past a bakery.")
    pair = cross_swap(caption, other, rng_for(0, str(number), 0, "cross-swap"))
    if not isinstance(pair, Refused):
        rewritten += [(one.text, new.text) for one, new in zip((caption, other), pair)]
    for before, after in rewritten:
        assert doubled(after) <= doubled(before), (before, after)


@seed(20)
@settings(max_examples=50, deadline=None, database=None)
@given(st.one_of(SENTENCES, ANY_ODD, REPEATED), st.integers(0, 3))
def test_any_text_is_rewritten_or_refused(text: str, number: int) -> None:
    assert calls(lambda: check_text(text, number)) < MOST_CALLS


@pytest.mark.parametrize(
    "text",
    [
        "the cat of the dog of " * 400,
        "a red cat on a mat " * 1000,
        "man's " * 3000,
        "red, " * 3000,
        "a cat and a dog and " * 1000,
        "running " * 2000,
        " ".join(f"{a} near {b}," for a in ANY_NOUNS for b in ANY_NOUNS),
        " ".join(f"a {a} chases the {b} and" for a in ANY_NOUNS for b in ANY_NOUNS),
        "x" * 100_000,
        "A DOG ON A BIG RED MAT",
        "\x00 \ud800 a dog\r\non 😀 a mat, isn't it?",
        "a,b." * 25_000,
        "1.1." * 25_000 + "a",
        "?!" * 20_000,
        " " * 50_000 + "a cat on a mat" + " " * 50_000,
        "e\u0301" * 20_000,
    ],
    ids=lambda text: text.strip()[:18],
)
def test_long_texts_take_bounded_work(text: str) -> None:
    assert calls(lambda: check_text(text)) < MOST_CALLS


@given(st.one_of(ANY_ODD, REPEATED))
@seed(21)
@settings(max_examples=40, deadline=None, database=None)
def test_the_beginning_of_a_text(text: str) -> None:
    head = beginning(text)
    assert text.startswith(head)
    assert beginning(head) == head
    assert len(parse(text).tokens) <= 2 * MOST_TOKENS  # "man's" is one word and two tokens
    assert sum(len(token.text) for token in parse(text).tokens) <= MOST_CHARACTERS
    if head != text and head and not text[len(head)].isspace():
        assert len(head.split()) == 1  # no blank to cut at
