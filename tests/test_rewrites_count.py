"""Statements changed: numbers, absent objects, CREPE's negative captions, converse relations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from compoclip.captions.lists import NUMBERS
from compoclip.captions.parser import parse
from compoclip.captions.tagrules import TagRow
from compoclip.rewrites import absent_object
from compoclip.rewrites.absent_object import ABSENT_OBJECT, AFFIRMED_OBJECT, say_absent
from compoclip.rewrites.base import Refused, Rewrite, Rewritten
from compoclip.rewrites.converse import CONVERSES
from compoclip.rewrites.count import COUNT, COUNTS, counted_noun
from compoclip.rewrites.crepe import CREPE_ATOM, CREPE_NEGATE, CREPE_SWAP, DENIAL
from compoclip.rewrites.exclusion import EVERYWHERE
from compoclip.rewrites.reading import EXCEPTIONS, read
from rewrite_facts import results, rows, texts

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


@pytest.mark.parametrize(("template", "number", "others"), CHANGED)
def test_every_number_that_may_take_the_place(template: str, number: str, others: str) -> None:
    caption = template.format(number)
    rewritten = results(COUNT, caption)
    assert {result.text for result in rewritten} == {template.format(n) for n in others.split()}
    for result in rewritten:
        (edit,) = result.edits
        assert (caption[edit.start : edit.end], edit.start) == (number, template.index("{}"))
        assert (result.rule, result.keeps_meaning) == ("count:number", False)


def test_one_of_several_counts_is_changed() -> None:
    template = "{} cups and {} plates"
    expected = {("three", n) for n in ("three", "four", "five")}
    expected |= {(n, "two") for n in ("two", "four", "five", "six")}
    assert texts(COUNT, template.format("three", "two")) == {template.format(*p) for p in expected}


@pytest.mark.parametrize("row", EXCEPTIONS["counts"].rows, ids=lambda row: row.example)
def test_the_number_in_the_example_of_an_exception_stays(row: TagRow) -> None:
    reading = read(parse(row.example))
    tokens = reading.caption.tokens
    fixed = {
        tokens[i].start
        for i, low in enumerate(reading.lows)
        if (low in NUMBERS or low.isdigit())
        and all(holds(reading.columns, i) for holds in (*row.local, *row.around))
    }
    assert fixed
    changed = {result.edits[0].start for result in results(COUNT, row.example, 8)}
    assert not fixed & changed


@pytest.mark.parametrize(
    ("caption", "number", "noun"),
    [
        ("two black and white dogs on a mat", 0, 4),
        ("a man with his two small dogs", 4, 6),
        ("two of the dogs", 0, -1),
        ("a two story building", 1, -1),
        ("dogs", 0, -1),
        ("", 0, -1),
    ],
)
def test_what_a_number_counts(caption: str, number: int, noun: int) -> None:
    assert counted_noun(read(parse(caption)), number) == noun


def test_numbers_from_two_to_ten_are_exchanged() -> None:
    assert [*COUNTS] == [*range(2, 11)]


# --- Objects that are absent, or affirmed. ---


def all_texts(rewrite: Rewrite, text: str) -> set[str]:
    rewritten = results(rewrite, text, 300)
    assert len(rewritten) == 300
    for result in rewritten:
        (edit,) = result.edits
        assert text[: edit.start] == result.text[: edit.new_start]
        assert (edit.end, edit.new_end) == (len(text), len(result.text))
    return {result.text for result in rewritten}


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


@pytest.mark.parametrize(
    ("caption", "things"),
    [
        ("people on a street", "car, bench, traffic light, fire hydrant"),  # the scene is named
        ("a giraffe", "car, bench, traffic light, fire hydrant, sink, mirror, scissors"),
        ("two cars and a truck on a street", "bench, traffic light, fire hydrant"),
        ("a vehicle on a street", "bench, traffic light, fire hydrant"),  # a car is one
        ("a taxi on a street", "bench, traffic light, fire hydrant"),  # may be the same thing
        ("a street with no bench", "car, traffic light, fire hydrant"),
        ("a street in the traffic", "car, bench, fire hydrant"),  # a word of it
    ],
)
def test_what_may_be_there_is_not_said_to_be_absent(few: None, caption: str, things: str) -> None:
    assert objects(all_texts(ABSENT_OBJECT, caption)) == {*things.split(", ")}


def test_no_caption_of_the_image_names_the_object(few: None) -> None:
    captions = [parse(text) for text in ("a man in a street", "A taxi passes.", "an old bench")]
    drawn = [say_absent(captions, random.Random(seed)) for seed in range(300)]
    texts = [result.text for result in drawn if isinstance(result, Rewritten)]
    assert len(texts) == 300
    assert all(text.startswith("a man in a street") for text in texts)
    assert objects(texts) == {"fire hydrant", "traffic light"}


def test_a_caption_that_names_everything_is_refused(few: None) -> None:
    everything = "a car, a bench, a traffic light, a fire hydrant, a sink, a mirror, scissors"
    for rewrite in (ABSENT_OBJECT, AFFIRMED_OBJECT):
        assert rewrite(parse(everything), RNG) == Refused("no-candidate")


def test_the_list_names_things_that_can_be_missed() -> None:
    scenes = absent_object._scenes()
    assert len(scenes) > 20
    for name, things in scenes.items():
        assert len(things) == len(set(things)) >= 4, name
        assert not EVERYWHERE.intersection(things), name


# --- CREPE: one atom, two atoms of a type, and the three ways to negate. ---


def by_rule(rewrite: Rewrite, caption: str) -> dict[str, set[str]]:
    by_rule: dict[str, set[str]] = {}
    for result in results(rewrite, caption):
        by_rule.setdefault(result.rule, set()).add(result.text)
    return by_rule


def test_atoms_of_every_type_are_as_likely() -> None:
    rules = Counter(
        result.rule
        for result in results(CREPE_ATOM, "a large red striped star above a small blue mug", 300)
    )
    assert set(rules) == {"atom:object", "atom:attribute", "atom:relation"}
    assert min(rules.values()) > 50


def test_an_atom_gives_way_to_one_that_excludes_it() -> None:
    negatives = by_rule(CREPE_ATOM, "a red star above a mug")
    assert negatives["atom:relation"] <= {
        f"a red star {word} a mug" for word in ("under", "below", "beneath", "underneath")
    }
    assert "a blue star above a mug" in negatives["atom:attribute"]
    assert not any("crimson" in text for text in negatives["atom:attribute"])


def test_rules_of_swaps_and_negations() -> None:
    assert by_rule(CREPE_SWAP, "a white dog on a brown couch").keys() == {"swap:attribute"}
    assert by_rule(CREPE_SWAP, "a cat on a box under a table") == {
        "swap:relation": {"a cat under a box on a table"},
        "swap:object": {"a cat on a table under a box"},
    }
    assert by_rule(CREPE_NEGATE, "A black cat on a mat.") == {
        "negate:relation": {"A black cat not on a mat."},
        "negate:object": {
            "A black cat on a mat. There is no cat.",
            "A black cat on a mat. There is no mat.",
        },
        "negate:statement": {"There is no black cat on a mat."},
    }


def test_a_denial_names_one_thing_and_nothing_else() -> None:
    one = {"No ball.", "There is no ball.", "There is not any ball.", "The picture has no ball."}
    one |= {"A picture without any ball.", "No ball is in the picture."}
    one |= {"The ball is gone.", "The ball is absent.", "The ball is not there."}
    light = {text.replace("ball", "traffic light") for text in one}
    dogs = {text.replace("ball is", "dogs are").replace("ball", "dogs") for text in one}
    dogs |= {"There are no dogs.", "There are not any dogs."}
    dogs -= {"There is no dogs.", "There is not any dogs."}
    denials = by_rule(DENIAL, "Two dogs chase a red ball by the traffic light.")
    assert denials == {"denial:object": one | light | dogs}
    boxcars = {text.replace("dogs", "boxcars") for text in dogs}
    assert by_rule(DENIAL, "OLD BOXCARS") == {"denial:object": boxcars}


# --- Relations seen from their other side. ---


def test_every_converse_has_one() -> None:
    assert set(CONVERSES.values()) <= CONVERSES.keys()
    assert CONVERSES["near"] == "near"
