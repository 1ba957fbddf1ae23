"""The replacement: what may replace what, and what never is replaced."""

from __future__ import annotations

import random

import pytest

from compoclip.captions.lexicon import lexicon
from compoclip.captions.parser import parse
from compoclip.captions.tagger import PLURAL_ONLY
from compoclip.captions.tagrules import TagRow
from compoclip.rewrites import exclusion as candidates
from compoclip.rewrites.base import Refused, get_rewrite
from compoclip.rewrites.edit import MASS_NOUNS
from compoclip.rewrites.exclusion import exclusive, families, may_coincide
from compoclip.rewrites.reading import EXCEPTIONS, read
from compoclip.rewrites.relations import CONTRADICTIONS, contradicting
from compoclip.rewrites.replace import (
    REPLACE,
    drawn_candidate,
    elements,
    forbidden,
    replacement,
)
from rewrite_facts import made, rows, texts


def found(caption: str) -> dict[tuple[str, str], set[str]]:
    """(kind, words) -> candidates of every element."""
    parsed = parse(caption)
    return {
        (e.kind, " ".join(t.text for t in parsed.tokens[e.first : e.stop])): {
            e.form(word) for word, _ in e.candidates
        }
        for e in elements(read(parsed))
    }


def draws(caption: str, count: int = 60) -> set[str]:
    return texts(REPLACE, caption, count)


def test_full_candidate_set_of_a_relation_caption() -> None:
    options = found("a red star to the left of a large striped mug")
    assert set(options) == {
        ("entity", "star"),
        ("entity", "mug"),
        ("modifier", "red"),
        ("modifier", "large"),
        ("modifier", "striped"),
        ("relation", "to the left of"),
    }
    assert options["relation", "to the left of"] == {"to the right of"}
    assert options["modifier", "large"] == {"small"}
    assert {"blue", "green"} <= options["modifier", "red"]
    assert not {"crimson", "scarlet", "large"} & options["modifier", "red"]
    assert "cup" not in options["entity", "mug"]


PREPOSITIONS = rows("""
on | near | next to | on top of | in | at | by | above | over
above | on top of | over | on | near | to the left of
inside | in | within | near | on
in front of | near | next to | facing
next to | near | beside | with | in front of
to the left of | next to | above | left of
""")


@pytest.mark.parametrize("row", PREPOSITIONS, ids=lambda row: row[0])
def test_prepositions_contradict(row: list[str]) -> None:
    options = {word for word, _ in contradicting(row[0])}
    assert options
    assert options.isdisjoint(row)


def test_preposition_table_never_maps_to_a_synonym_or_itself() -> None:
    for word in CONTRADICTIONS:
        options = {other for other, _ in contradicting(word)}
        assert word not in options
        assert options, word


@pytest.mark.parametrize(
    "caption",
    ["there is no red star", "a red star", "a ball", "", "!!!", "red", "the mat is not red"],
)
def test_refuses_what_it_cannot_contradict(caption: str) -> None:
    assert isinstance(REPLACE(parse(caption), random.Random(0)), Refused)


def test_negated_parts_stay() -> None:
    for text in draws("a red star above a house but no blue boat"):
        assert text.endswith("but no blue boat")
    for text in draws("a dog on a mat without a leash"):
        assert text.endswith("without a leash")


def test_numerals_and_determiners_stay() -> None:
    for text in draws("two blue fish above the three small trees"):
        words = text.split()
        assert words[0] == "two"
        assert "three" in words
        assert "the" in words


def test_listed_things_without_description_stay() -> None:
    """ "A star and a red ball": a mug may well be there too, but no second red one."""
    options = found("a star and a red ball")
    assert ("entity", "star") not in options
    assert ("entity", "ball") in options


def test_relations_between_things_of_one_kind_stay() -> None:
    options = found("a red star above a star")
    assert not any(kind == "relation" for kind, _ in options)
    assert ("modifier", "red") not in options


def test_same_becomes_different() -> None:
    options = found("a circle and a square of the same colour")
    assert options["modifier", "the same"] == {"a different"}
    assert ("entity", "colour") not in options


def test_comparatives_take_the_opposite_only() -> None:
    assert found("the spotted hat is bigger than the umbrella")["modifier", "bigger"] == {"smaller"}
    assert found("the boat is taller than the house")["modifier", "taller"] == {"shorter"}


def test_forms_follow_the_original() -> None:
    options = found("Two dogs are chasing a woman who rides an elephant.")
    assert {"cats", "horses"} <= options["entity", "dogs"]
    assert "man" in options["entity", "woman"]
    drawn = draws("A dog on an armchair.", 400)
    assert all(text[0].isupper() for text in drawn)
    assert "An elephant on an armchair." in drawn


def test_compounds_are_replaced_whole() -> None:
    options = found("a fire hydrant next to a hot dog")
    assert ("entity", "fire hydrant") in options
    assert ("entity", "hot dog") in options
    assert ("modifier", "hot") not in options


def test_stuff_has_no_plural() -> None:
    for noun in ("sandwich", "carrot", "cup", "shirt"):
        many = dict(candidates.entity(noun, noun, single=False, plural=True))
        assert many
        assert not MASS_NOUNS & many.keys()
        one = dict(candidates.entity(noun, noun, single=True, plural=False))
        assert not {*MASS_NOUNS, *PLURAL_ONLY} & one.keys()
    drawn = texts(get_rewrite("ce-noun"), "two pears on a box", 200)
    assert not any(word in text for text in drawn for word in ("breads", "corns", "rices"))


def test_rule_5_synonyms_kinds_and_repeated_words() -> None:
    for noun in ("dog", "man", "car", "table", "star", "mug", "bus", "street", "pizza", "window"):
        for word, weight in candidates.entity(noun, noun, single=True, plural=False):
            assert weight >= 1
            assert word != noun
            assert not lexicon().related(noun, word, "NOUN") or not (
                families(noun, "NOUN") & families(word, "NOUN")
            )
    reading = read(parse("a dog on a mat near a cat and a kitten"))
    dog = next(e for e in elements(reading) if e.kind == "entity")
    assert forbidden(reading, dog, "cat") == "occurs-in-caption"
    assert forbidden(reading, dog, "kitty") == "related-words"
    assert forbidden(reading, dog, "horse") is None


def test_families_exclude_and_coincide() -> None:
    assert may_coincide("mug", "cup", "NOUN")
    assert not may_coincide("mug", "bowl", "NOUN")
    assert "cup" not in exclusive("mug", "NOUN")
    assert set(exclusive("large", "ADJ")) == {"small", "medium"}
    assert exclusive("zyzzy", "NOUN") == ()
    for family in ("animals", "vehicles", "furniture"):
        word = {"animals": "dog", "vehicles": "car", "furniture": "chair"}[family]
        assert family in families(word, "NOUN")


def test_old_and_short_depend_on_the_thing() -> None:
    assert dict(candidates.modifier("old", "man")).keys() == {"young"}
    assert dict(candidates.modifier("old", "house")).keys() == {"new"}
    assert dict(candidates.modifier("short", "man")).keys() == {"tall"}
    assert dict(candidates.modifier("short", "scarf")).keys() == {"long"}


def test_verbs_keep_their_objects_possible() -> None:
    assert "sit" in dict(candidates.verb("stand", transitive=False))
    assert "sit" not in dict(candidates.verb("hold", transitive=True))
    assert candidates.verb("be", transitive=True) == ()


def test_up_to_two_candidates_then_one_evenly() -> None:
    """A candidate of weight 999 does not crowd out the other: both are drawn, one is taken."""
    options = ("cat", 999), ("horse", 1)
    drawn = [drawn_candidate(options, random.Random(i)) for i in range(400)]
    assert 140 < drawn.count("horse") < 260


def test_only_the_asked_kinds() -> None:
    rewrite = replacement(parts=("ADP", "VERB"))
    drawn = made(rewrite, "a red star above a large mug", 40)
    assert {each.rule for each in drawn} == {"replace:relation"}


EXCEPTION_ROWS = [(name, row) for name, table in EXCEPTIONS.items() for row in table.rows]


@pytest.mark.parametrize(("name", "row"), EXCEPTION_ROWS, ids=lambda x: getattr(x, "example", x))
def test_an_exception_holds_in_its_example(name: str, row: TagRow) -> None:
    words = read(parse(row.example)).columns
    places = range(len(words[0]))
    held = [at for at in places if row in EXCEPTIONS[name][tuple(c[at] for c in words)]]
    assert any(all(holds(words, at) for holds in row.around) for at in held)
