"""Prepositions: weights, near-synonyms, symmetric relations."""

from __future__ import annotations

import pytest

from compoclip.rewrites.relations import (
    PREPOSITIONS,
    SYMMETRIC_RELATIONS,
    is_symmetric,
    preposition_synonyms,
)


def test_the_table() -> None:
    assert 70 <= len(PREPOSITIONS) <= 85
    assert all(weight >= 1 for weight in PREPOSITIONS.values())
    assert all(word == " ".join(word.lower().split()) for word in PREPOSITIONS)
    assert {"in front of", "on top of", "next to", "to the left of", "under"} <= set(PREPOSITIONS)


def test_synonyms_are_mutual_and_known() -> None:
    for word in PREPOSITIONS:
        others = preposition_synonyms(word)
        assert word not in others
        assert others <= set(PREPOSITIONS)
        assert all(word in preposition_synonyms(other) for other in others)
        assert len(set(PREPOSITIONS) - others) > 20, f"{word} could hardly be replaced"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("under", "beneath"),
        ("below", "underneath"),
        ("next to", "beside"),
        ("near", "by"),
        ("over", "above"),
        ("on", "on top of"),
        ("On  Top of", "atop"),
        ("in", "inside"),
        ("behind", "in back of"),
    ],
)
def test_near_synonyms(a: str, b: str) -> None:
    assert b in preposition_synonyms(a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("under", "over"),
        ("under", "on"),
        ("in front of", "behind"),
        ("inside", "outside"),
        ("to the left of", "to the right of"),
        ("above", "below"),
        ("with", "without"),
    ],
)
def test_opposites_are_no_synonyms(a: str, b: str) -> None:
    assert b not in preposition_synonyms(a)


@pytest.mark.parametrize(
    "relation",
    [
        *sorted(SYMMETRIC_RELATIONS),
        "standing next to",
        "sitting beside",
        "parked near",
        "is next to",
        "sits right beside",
        "are standing close to",
        "hugging",
        "hugs",
        "is hugging",
        "Kisses",
        "touch",
        "met",
        "talks to",
        "talked with",
        "playing with",
        "parked by",
    ],
)
def test_symmetric(relation: str) -> None:
    assert is_symmetric(relation.split())
    assert is_symmetric([relation])


@pytest.mark.parametrize(
    "relation",
    ["on", "under", "in front of", "left of", "eating", "looking at", "pulled by", "topped with",
     "covered with", "surrounded by", "sitting on", "is behind", "riding", "made with", "is", ""],
)  # fmt: skip
def test_not_symmetric(relation: str) -> None:
    assert not is_symmetric(relation.split())


def test_no_words() -> None:
    assert not is_symmetric([])
