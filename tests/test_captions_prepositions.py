"""Prepositions: weights, near-synonyms, symmetric relations."""

from __future__ import annotations

from compoclip.rewrites.relations import (
    PREPOSITIONS,
    RELATIONS,
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


ALIKE = """under / beneath, below / underneath, next to / beside, near / by, over / above,
on / on top of, On  Top of / atop, in / inside, behind / in back of"""
OPPOSITES = """under / over, under / on, in front of / behind, inside / outside,
to the left of / to the right of, above / below, with / without"""


def test_near_synonyms_and_opposites() -> None:
    for pairs, alike in ((ALIKE, True), (OPPOSITES, False)):
        for pair in pairs.split(","):
            a, b = pair.strip().split(" / ")
            assert (b in preposition_synonyms(a)) is alike, pair


SYMMETRIC = """standing next to, sitting beside, parked near, is next to, sits right beside,
are standing close to, hugging, hugs, is hugging, Kisses, touch, met, talks to, talked with,
playing with, parked by"""
DIRECTED = """
on, under, in front of, left of, eating, looking at, pulled by, topped with, covered with,
surrounded by, sitting on, is behind, riding, made with, is,"""


def test_symmetric_relations() -> None:
    for relation in (*sorted(RELATIONS["symmetric"]), *map(str.strip, SYMMETRIC.split(","))):
        assert is_symmetric(relation.split()), relation
        assert is_symmetric([relation]), relation
    for relation in DIRECTED.split(","):
        assert not is_symmetric(relation.split()), relation
    assert not is_symmetric([])
