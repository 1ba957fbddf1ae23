"""CREPE's foils: one atom, two atoms of a type, and the three ways to deny."""

from __future__ import annotations

import random
from collections import Counter

from compoclip.captions.parser import parse
from compoclip.rewrites.base import Refused, Rewrite
from compoclip.rewrites.crepe import CREPE_ATOM, CREPE_NEGATE, CREPE_SWAP, DENIAL, NOTHING_TO_DENY
from compoclip.rewrites.edit import EMPTY
from rewrite_facts import made


def by_rule(rewrite: Rewrite, caption: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for result in made(rewrite, caption):
        assert not result.keeps_meaning
        found.setdefault(result.rule, set()).add(result.text)
    return found


def test_atoms_of_every_type_are_as_likely() -> None:
    rules = Counter(
        r.rule for r in made(CREPE_ATOM, "a large red striped star above a small blue mug", 300)
    )
    assert set(rules) == {"atom:object", "atom:attribute", "atom:relation"}
    assert min(rules.values()) > 50


def test_an_atom_gives_way_to_one_that_excludes_it() -> None:
    found = by_rule(CREPE_ATOM, "a red star above a mug")
    assert found["atom:relation"] <= {
        f"a red star {word} a mug" for word in ("under", "below", "beneath", "underneath")
    }
    assert "a blue star above a mug" in found["atom:attribute"]
    assert not any("crimson" in text for text in found["atom:attribute"])
    assert isinstance(CREPE_ATOM(parse("a star"), random.Random(0)), Refused)


def test_swaps_of_every_type() -> None:
    # Of a couch on a dog no caption speaks.
    assert by_rule(CREPE_SWAP, "a white dog on a brown couch") == {
        "swap:attribute": {"a brown dog on a white couch"},
    }
    assert by_rule(CREPE_SWAP, "a dog on a couch") == {"swap:object": {"a couch on a dog"}}
    # The best of bad ones: nobody walks a racket, but who holds a dog?
    assert by_rule(CREPE_SWAP, "a woman holding a racket and walking a dog") == {
        "swap:object": {"a woman holding a dog and walking a racket"},
    }
    assert by_rule(CREPE_SWAP, "a cat on a box under a table")["swap:relation"] == {
        "a cat under a box on a table"
    }


def test_all_denials_of_a_caption() -> None:
    assert by_rule(CREPE_NEGATE, "A black cat on a mat.") == {
        "negate:relation": {"A black cat not on a mat."},
        "negate:object": {
            "A black cat on a mat. There is no cat.",
            "A black cat on a mat. There is no mat.",
        },
        "negate:statement": {"There is no black cat on a mat."},
    }
    assert by_rule(CREPE_NEGATE, "two dogs chase a ball") == {
        "negate:relation": {"two dogs do not chase a ball"},
        "negate:object": {
            "two dogs chase a ball. There are no dogs.",
            "two dogs chase a ball. There is no ball.",
        },
        "negate:statement": {"There are no dogs chasing a ball."},
    }


def test_a_verb_in_the_third_person() -> None:
    found = by_rule(CREPE_NEGATE, "a man rides a bike")
    assert found["negate:relation"] == {"a man does not ride a bike"}
    assert found["negate:statement"] == {"There is no man riding a bike."}


def test_denials_that_could_be_true_are_not_made() -> None:
    """Another of the kind may be meant; what is not asserted cannot be denied."""
    assert set(by_rule(CREPE_NEGATE, "a star above a star")) == {"negate:object"}
    assert by_rule(CREPE_NEGATE, "a girl in sunglasses standing on grass")["negate:statement"] == {
        "There is no girl in sunglasses."
    }
    for caption in ("there is no dog", "", "??", "running fast"):
        result = CREPE_NEGATE(parse(caption), random.Random(0))
        assert isinstance(result, Refused)
    assert CREPE_NEGATE(parse("there is no dog"), random.Random(0)) == Refused(NOTHING_TO_DENY)


def test_a_denial_names_one_thing_and_nothing_else() -> None:
    one = {"No ball.", "There is no ball.", "There is not any ball.", "The picture has no ball."}
    one |= {"A picture without any ball.", "No ball is in the picture."}
    one |= {"The ball is gone.", "The ball is absent.", "The ball is not there."}
    light = {text.replace("ball", "traffic light") for text in one}
    dogs = {text.replace("ball is", "dogs are").replace("ball", "dogs") for text in one}
    dogs |= {"There are no dogs.", "There are not any dogs."}
    dogs -= {"There is no dogs.", "There is not any dogs."}
    found = by_rule(DENIAL, "Two dogs chase a red ball by the traffic light.")
    assert found == {"denial:object": one | light | dogs}
    boxcars = {text.replace("dogs", "boxcars") for text in dogs}
    assert by_rule(DENIAL, "OLD BOXCARS") == {"denial:object": boxcars}
    for caption in ("there is no cat", "it is dark"):
        assert DENIAL(parse(caption), random.Random(0)) == Refused(NOTHING_TO_DENY)
    assert DENIAL(parse(""), random.Random(0)) == Refused(EMPTY)
