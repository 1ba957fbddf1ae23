"""Another number of things: every text of fixed captions, and the numbers that stay."""

from __future__ import annotations

import json
import random
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
from compoclip.rewrites.base import Refused, Rewritten, rng_for
from compoclip.rewrites.count import COUNT, COUNTS, NO_COUNT, counted_noun
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
