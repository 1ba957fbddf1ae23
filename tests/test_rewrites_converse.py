"""Relations told from their other side."""

from __future__ import annotations

import random

import pytest

from compoclip.captions.parser import parse
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.converse import CONVERSE, CONVERSES, NO_RELATION
from rewrite_facts import rows, texts

RNG = random.Random(0)


TOLD = rows("""
A red cat above a blue dog | A blue dog below a red cat
a star left of a box | a box right of a star
a star is to the left of an egg. | an egg is to the right of a star.
there is a cat next to an umbrella | there is an umbrella next to a cat
two cats next to a bowl | a bowl next to two cats
a car in front of a house | a house behind a car
A large grey horse is behind a fence. | A fence is in front of a large grey horse.
a traffic light under a cloudy sky | a cloudy sky above a traffic light
""")


@pytest.mark.parametrize(("caption", "expected"), TOLD)
def test_what_is_told(caption: str, expected: str) -> None:
    result = CONVERSE(parse(caption), RNG)
    assert isinstance(result, Rewritten)
    assert result.text == expected
    assert result.keeps_meaning


@pytest.mark.parametrize(
    "caption",
    [
        "a picture on a wall",  # "a wall under a picture"
        "a man in front of a laptop",  # which he has before him
        "a cat is under two tables",  # "two tables is"
        "a woman next to her dog",
        "one dog next to another dog",
        "a cat sitting next to a dog",  # the dog may stand
        "a cat next to a dog on a sofa",  # on which both may be
        "a man in a hat next to a dog",
        "a cat and a dog above a mat",
        "a cat not above a dog",
        "no cat above a dog",
        "a cat",
    ],
)
def test_what_stays(caption: str) -> None:
    assert CONVERSE(parse(caption), RNG) == Refused(NO_RELATION)


def test_one_of_several_sentences_is_drawn() -> None:
    assert texts(CONVERSE, "A cat above a dog. A cup near a plate.", 9) == {
        "A dog below a cat. A cup near a plate.",
        "A cat above a dog. A plate near a cup.",
    }


def test_every_converse_has_one() -> None:
    assert set(CONVERSES.values()) <= CONVERSES.keys()
    assert CONVERSES["near"] == "near"
