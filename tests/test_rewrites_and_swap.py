"""The exchange around "and": what it exchanges, what it refuses, and that it undoes itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compoclip.captions.parser import parse, parse_many
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.negclip import AND_SWAP, CLAUSE, LIST, NO_AND, PRONOUN, SCOPE, UNLIKE
from real_captions import coco
from rewrite_facts import rows

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


@pytest.mark.parametrize(
    ("caption", "reason"),
    [
        ("a cat on a mat", NO_AND),
        ("a sandy beach", NO_AND),
        ("A cat is on a chair and a dog is on a mat", CLAUSE),
        ("a red car and bus", SCOPE),
        ("two cats and dogs", SCOPE),
        ("a car and a bus on a road", SCOPE),
        ("a cat on a mat and a dog", SCOPE),
        ("a cat in the corner of the picture and a dog", SCOPE),
        ("a ball, a cat in front of a dog and a cow", LIST),
        ("a cup and a plate with food", SCOPE),
        ("a cat, a dog and a cow", LIST),
        ("a cat and a dog and a cow", LIST),
        ("a red, white and blue flag", LIST),
        ("a man and his dog", PRONOUN),
        ("a man holding a cat and petting it", PRONOUN),
        ("and", UNLIKE),
        ("a cat and", UNLIKE),
    ],
)
def test_refused(caption: str, reason: str) -> None:
    assert AND_SWAP(parse(caption), RNG) == Refused(reason)


def test_a_phrase_under_a_negation_stays() -> None:
    assert isinstance(AND_SWAP(parse("no cat and dog"), RNG), Refused)


def test_real_captions_come_back(shared_data: Path) -> None:
    """Only where the tagger reads the new order otherwise, or a typo was mended, they do not."""
    captions = [t for texts in coco(shared_data)[::16] for t in texts if " and " in t]
    made = back = 0
    for caption in parse_many(captions):
        result = AND_SWAP(caption, RNG)
        if isinstance(result, Refused):
            continue
        made += 1
        again = AND_SWAP(parse(result.text), RNG)
        back += isinstance(again, Rewritten) and again.text.lower() == caption.text.lower()
    assert made > 100
    assert back >= 0.96 * made
