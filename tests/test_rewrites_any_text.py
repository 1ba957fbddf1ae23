"""Whatever a caption holds: it is parsed and rewritten within bounded work, or refused."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from compoclip.captions.clip_text import fits_context, same_to_clip
from compoclip.captions.lists import word_set
from compoclip.captions.parser import parse
from compoclip.captions.types import MOST_CHARACTERS, MOST_TOKENS, beginning
from compoclip.rewrites.base import Refused, Rewritten, get_rewrite, rewrite_names, rng_for
from compoclip.rewrites.cross_swap import cross_swap
from compoclip.rewrites.mosaic import sample_graph_texts
from rewrite_facts import PARTS

#: Calls of Python functions that parsing and all rewrites of one text may take, with the reading of
#: dictionaries. A caption of 20 words takes 30,000, one of 150 some 100,000; what grows with a
#: power of the length takes many millions.
MOST_CALLS = 1_000_000

NOUNS = sorted(
    word_set("cat dog horse mat bed tennis ball surfboard teddy bear men shorts bread plate")
)
OTHERS = word_set(
    "a the two red small and or of on in with by to while not no is close up riding holding "
    "sitting looking run stands there each other's , . ; - ' \" 😀 é"
)
WORDS = st.sampled_from([*NOUNS, *sorted(OTHERS), "\x00"])
SENTENCES = st.lists(WORDS, max_size=30).map(" ".join)
ODD = st.one_of(
    st.text(max_size=80),
    st.text(st.characters(categories=["So", "Mn", "Zs", "Cf", "Lo", "Cs"]), max_size=60),
    st.text(st.sampled_from(" .,;:!?'\"-–()&#0123456789\n\t"), max_size=80),
)
#: One pattern many times over: what a page's alternative text looks like when it goes wrong.
REPEATED = st.builds(
    lambda part, glue, times: glue.join([part] * times),
    st.one_of(SENTENCES, ODD),
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


def check(text: str, number: int = 0) -> None:
    """Parse a text and make every rewrite of it."""
    caption = parse(text)
    assert text.startswith(caption.text)
    assert caption.cut is (caption.text != text)
    made: list[tuple[str, str]] = []
    for name in rewrite_names():
        result = get_rewrite(name)(caption, rng_for(0, str(number), 0, name))
        assert isinstance(result, Rewritten | Refused), name
        if isinstance(result, Rewritten):
            assert not same_to_clip(result.text, caption.text), name
            assert fits_context(result.text), name
            if not name.startswith(PARTS):
                assert_edits_account_for_all(caption.text, result)
            made.append((caption.text, result.text))
        else:
            assert result.reason
    texts = sample_graph_texts(caption, random.Random(number))
    made += [(caption.text, t.text) for t in (*texts.positives, *texts.negatives)]
    other = parse("A woman in a red coat walks two small dogs past a bakery.")
    pair = cross_swap(caption, other, rng_for(0, str(number), 0, "cross-swap"))
    if not isinstance(pair, Refused):
        made += [(one.text, new.text) for one, new in zip((caption, other), pair)]
    for before, after in made:
        assert doubled(after) <= doubled(before), (before, after)


@seed(20)
@settings(max_examples=50, deadline=None, database=None)
@given(st.one_of(SENTENCES, ODD, REPEATED), st.integers(0, 3))
def test_any_text_is_rewritten_or_refused(text: str, number: int) -> None:
    assert calls(lambda: check(text, number)) < MOST_CALLS


@pytest.mark.parametrize(
    "text",
    [
        "the cat of the dog of " * 400,
        "a red cat on a mat " * 1000,
        "man's " * 3000,
        "red, " * 3000,
        "a cat and a dog and " * 1000,
        "running " * 2000,
        " ".join(f"{a} near {b}," for a in NOUNS for b in NOUNS),
        " ".join(f"a {a} chases the {b} and" for a in NOUNS for b in NOUNS),
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
    assert calls(lambda: check(text)) < MOST_CALLS


@given(st.one_of(ODD, REPEATED))
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
