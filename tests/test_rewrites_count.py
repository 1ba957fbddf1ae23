"""Statements changed: numbers, absent objects, CREPE's negative captions, converse relations."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from compoclip.captions.lists import NUMBERS
from compoclip.captions.parser import parse
from compoclip.captions.tagrules import Patterns
from compoclip.cli.main import main
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.rewrites import absent_object
from compoclip.rewrites.absent_object import ABSENT_OBJECT, AFFIRMED_OBJECT, say_absent
from compoclip.rewrites.base import Refused, Rewrite, Rewritten, rng_for
from compoclip.rewrites.converse import CONVERSE, CONVERSES, NO_RELATION
from compoclip.rewrites.count import COUNT, COUNTS, NO_COUNT, counted_noun
from compoclip.rewrites.crepe import CREPE_ATOM, CREPE_NEGATE, CREPE_SWAP, DENIAL, NOTHING_TO_DENY
from compoclip.rewrites.edit import EMPTY
from compoclip.rewrites.exclusion import EVERYWHERE
from compoclip.rewrites.legality import FIXED_COUNT, MAY_HOLD, NOT_ASSERTED
from compoclip.rewrites.reading import EXCEPTIONS, read
from rewrite_facts import made, rows, texts

RNG = random.Random(0)

# Caption with {} for its one number | the number | those that may take its place
CHANGED = rows("""
{} dogs run on a beach | two | three four five
{} dogs run on a beach | Two | Three Four Five
A man walks his {} black dogs. | three | two four five six
there are {} birds on a wire | five | two three four six seven eight
{} SHEEP ON A HILL | FOUR | TWO THREE FIVE SIX SEVEN
a box with {} donuts and a cup | 9 | 6 7 8 10
the {} chairs near a table | ten | seven eight nine
all {} boys wear hats | three | two four five six
a dog next to {} fire hydrants | two | three four five
{} girls look at each other | two | three four five
""")


def filled(template: str, numbers: Iterable[str]) -> set[str]:
    return {template.format(number) for number in numbers}


@pytest.mark.parametrize(("template", "number", "others"), CHANGED)
def test_every_number_that_may_take_the_place(template: str, number: str, others: str) -> None:
    caption = template.format(number)
    results = made(COUNT, caption)
    assert {each.text for each in results} == filled(template, others.split())
    start = template.index("{}")
    for each in results:
        (edit,) = each.edits
        assert (caption[edit.start : edit.end], edit.start) == (number, start)
        assert (each.rule, each.keeps_meaning) == ("count:number", False)


def test_one_of_several_counts_is_changed() -> None:
    template = "{} cups and {} plates"
    expected = {("three", n) for n in ("three", "four", "five")}
    expected |= {(n, "two") for n in ("two", "four", "five", "six")}
    assert texts(COUNT, template.format("three", "two")) == {template.format(*p) for p in expected}


STAYS = rows("""
a dog on a beach | no-count
one dog on a beach | no-count
twelve dogs on a beach | no-count
a three-wheeled bike near a car | no-count
the two of them on a bench | no-count
a man on a four wheeler | no-count
a child with a team of five | no-count
a two story building with a red door | no-count
no two dogs on a beach | not-asserted
two or three dogs on a beach | not-asserted
two dogs or a cat on a beach | not-asserted
a girl who is ten years old | fixed-count
a cake that is five days old | fixed-count
a man with two hands on a wheel | fixed-count
a bike on two wheels | fixed-count
two teams play on a field | fixed-count
at least two dogs on a beach | fixed-count
over five dogs on a beach | fixed-count
a dog between two trees | fixed-count
two to three birds on a wire | fixed-count
three dozen donuts in a box | fixed-count
a player in number 5 shorts | fixed-count
a plate with $ 5 bills | fixed-count
two players tied in a score | fixed-count
two dogs, one black and one white | fixed-count
four men, two in hats | no-count
two dogs in a pair | fixed-count
two men on the same bike | fixed-count
two cups stand near the others | fixed-count
two men and a man | may-hold-as-well
two people and a woman on a bench | may-hold-as-well
""")


@pytest.mark.parametrize(("caption", "reason"), STAYS)
def test_what_stays(caption: str, reason: str) -> None:
    assert reason in (NO_COUNT, NOT_ASSERTED, FIXED_COUNT, MAY_HOLD)
    assert {COUNT(parse(caption), random.Random(k)) for k in range(8)} == {Refused(reason)}


def test_every_exception_has_a_caption_in_which_its_number_stays() -> None:
    table = EXCEPTIONS["counts"]
    assert isinstance(table, Patterns)
    for row in table.rows:
        reading = read(parse(row.example))
        at = [i for i, low in enumerate(reading.lows) if low in NUMBERS or low.isdigit()]
        held = [
            i for i in at if all(holds(reading.columns, i) for holds in (*row.local, *row.around))
        ]
        assert held, row.example
        assert all(
            isinstance(result, Refused) or result.edits[0].start != reading.caption.tokens[i].start
            for i, k in product(held, range(8))
            for result in [COUNT(reading.caption, random.Random(k))]
        ), row.example


def test_what_a_number_counts() -> None:
    for caption, number, noun in (
        ("two black and white dogs on a mat", 0, "dogs"),
        ("a man with his two small dogs", 4, "dogs"),
        ("two of the dogs", 0, ""),
        ("a two story building", 1, ""),
        ("dogs", 0, ""),
        ("", 0, ""),
    ):
        reading = read(parse(caption))
        head = counted_noun(reading, number)
        assert (reading.lows[head] if head >= 0 else "") == noun


def test_odd_captions_are_refused() -> None:
    for text in ("", "2", "two", "10 10 10", "three three", "\n two \x00", "two " * 90):
        assert isinstance(COUNT(parse(text), RNG), Refused)
    long = f"two dogs near a {'very ' * 80}long fence"
    assert COUNT(parse(long), RNG) == Refused("too-long")
    assert list(COUNTS) == list(range(2, 11))


def test_a_caption_table_gets_counts(tmp_path: Path) -> None:
    path, out = tmp_path / "captions.csv", tmp_path / "out.jsonl"
    path.write_text("id,caption\n1,two dogs on a beach\n2,a dog on a beach\n")
    assert main(["rewrite", str(path), "--rewrites=count", "-o", str(out)]) == 0
    first, second = map(json.loads, out.read_text().splitlines())
    expected = COUNT(parse("two dogs on a beach"), rng_for(0, "1", 0, "count"))
    assert isinstance(expected, Rewritten)
    assert (first["text"], first["rule"], first["version"]) == (expected.text, "count:number", "1")
    assert (second["text"], second["reason"]) == (None, NO_COUNT)


def test_a_method_takes_counts_as_texts() -> None:
    method = compose(load_recipe("negclip")(), texts=("+count",))
    assert method.name == "negclip+count"
    assert method.kinds == ("negclip", "count")
    alone = compose(load_recipe("negclip")(), texts=("count",))
    assert alone.kinds == ("count",)


# --- Objects that are absent, or affirmed. ---


def all_texts(rewrite: Rewrite, text: str, draws: int = 300) -> set[str]:
    found = made(rewrite, text, draws)
    assert len(found) == draws
    for each in found:
        (edit,) = each.edits
        assert text[: edit.start] == each.text[: edit.new_start]
        assert (edit.end, edit.new_end) == (len(text), len(each.text))
    return {each.text for each in found}


def objects(texts: Iterable[str]) -> set[str]:
    return {text.rstrip(".").rpartition(" no ")[2] for text in texts}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scenes of few things."""
    scenes = {
        "street": ("car", "bench", "traffic light", "fire hydrant"),
        "bathroom": ("sink", "mirror", "scissors"),
    }
    monkeypatch.setattr(absent_object, "_scenes", lambda: scenes)


def test_every_text_of_an_absent_object(few: None) -> None:
    assert all_texts(ABSENT_OBJECT, "A dog beside a car.") == {
        f"A dog beside a car{form.format(thing)}"
        for thing in ("bench", "traffic light", "fire hydrant")
        for form in (", but no {}", ", but there is no {}", ". There is no {}.")
    }


def test_every_text_of_an_affirmed_object(few: None) -> None:
    assert all_texts(AFFIRMED_OBJECT, "a clean sink") == {
        "a clean sink and a mirror",
        "a clean sink and scissors",
        "a clean sink. There is a mirror.",
        "a clean sink. There are scissors.",
    }


def test_a_scene_may_be_named_itself(few: None) -> None:
    assert objects(all_texts(ABSENT_OBJECT, "people on a street")) == {
        "car", "bench", "traffic light", "fire hydrant",
    }  # fmt: skip


def test_without_a_scene_anything_may_be_missed(few: None) -> None:
    assert objects(all_texts(ABSENT_OBJECT, "a giraffe")) == {
        "car", "bench", "traffic light", "fire hydrant", "sink", "mirror", "scissors",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("caption", "never"),
    [
        ("two cars and a truck on a street", {"car"}),  # what is named
        ("a vehicle on a street", {"car"}),  # a kind of what is named
        ("a taxi on a street", {"car"}),  # may be the same thing
        ("a street with no bench", {"bench"}),  # what is denied already
        ("a street in the traffic", {"traffic light"}),  # a word of it
    ],
)
def test_what_may_be_there_is_not_said_to_be_absent(
    few: None, caption: str, never: set[str]
) -> None:
    found = objects(all_texts(ABSENT_OBJECT, caption))
    assert found
    assert not found & never


def test_no_caption_of_the_image_names_the_object(few: None) -> None:
    captions = [parse(text) for text in ("a man in a street", "A taxi passes.", "an old bench")]
    drawn = [say_absent(captions, random.Random(i)) for i in range(300)]
    texts = [each.text for each in drawn if isinstance(each, Rewritten)]
    assert len(texts) == 300
    assert all(text.startswith("a man in a street") for text in texts)
    assert objects(texts) == {"fire hydrant", "traffic light"}


def test_refusals(few: None) -> None:
    rng = random.Random(0)
    for rewrite in (ABSENT_OBJECT, AFFIRMED_OBJECT):
        assert rewrite(parse(""), rng) == Refused("empty-caption")
        everything = parse(
            "a car, a bench, a traffic light, a fire hydrant, a sink, a mirror, scissors"
        )
        assert rewrite(everything, rng) == Refused("no-candidate")
        assert rewrite(parse("a dog " * 60), rng) == Refused("too-long")


def test_the_list_names_things_that_can_be_missed() -> None:
    scenes = absent_object._scenes()
    assert len(scenes) > 20
    for name, things in scenes.items():
        assert len(things) == len(set(things)) >= 4, name
        assert not EVERYWHERE.intersection(things), name


# --- CREPE: one atom, two atoms of a type, and the three ways to negate. ---


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


# --- Relations seen from their other side. ---


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
def test_relations_that_stay(caption: str) -> None:
    assert CONVERSE(parse(caption), RNG) == Refused(NO_RELATION)


def test_one_of_several_sentences_is_drawn() -> None:
    assert texts(CONVERSE, "A cat above a dog. A cup near a plate.", 9) == {
        "A dog below a cat. A cup near a plate.",
        "A cat above a dog. A plate near a cup.",
    }


def test_every_converse_has_one() -> None:
    assert set(CONVERSES.values()) <= CONVERSES.keys()
    assert CONVERSES["near"] == "near"
