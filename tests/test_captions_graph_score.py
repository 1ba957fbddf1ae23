"""Comparing scene graphs: notation, normal form, hand-computed scores, targets."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from graph_score import (
    Facts,
    agreement,
    factual_triples,
    graph_facts,
    normal_noun,
    normal_triple,
    parse_facts,
)

from graph_captions import graph_of
from rewrite_facts import rows


def test_notation() -> None:
    facts = parse_facts("( Boats , is , 5 ) , ( boats , tie to , docks )")
    assert facts.triples == {("boat", "is", "5"), ("boat", "tie to", "dock")}
    assert facts.entities == {"boat", "dock"}
    bare = parse_facts("( poles )")
    assert bare == Facts(frozenset(), frozenset({"pole"}))


@pytest.mark.parametrize(
    "text", ["", "pole", "( a , b )", "( a , is , )", "( a , is , b ) , ( )", "( a , is , b"]
)
def test_other_notations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"triple|\( subject"):
        parse_facts(text)


def test_normal_names() -> None:
    assert normal_noun("Tennis Rackets") == "tennis racket"
    assert normal_noun("glasses") == "glasses"
    assert normal_triple(("Men", "sitting on", "benches")) == ("man", "sit on", "bench")
    assert normal_triple(("leaves", "is", "Green")) == ("leave", "is", "green") or normal_triple(
        ("leaves", "is", "Green")
    ) == ("leaf", "is", "green")


def test_scores_computed_by_hand() -> None:
    one = frozenset({"a", "b", "c"}), frozenset({"a", "b", "x", "y"})  # 2 of 3, 2 of 4
    same = frozenset({"z"}), frozenset({"z"})
    empty: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
    scores = agreement([one, same, empty])
    assert scores.captions == 3
    assert scores.precision == pytest.approx(3 / 4)
    assert scores.recall == pytest.approx(3 / 5)
    assert scores.f1 == pytest.approx(2 * 3 / 9)
    assert scores.mean_f1 == pytest.approx((4 / 7 + 1 + 1) / 3)
    assert scores.exact == pytest.approx(2 / 3)
    nothing = agreement([])
    assert (nothing.captions, nothing.f1, nothing.mean_f1) == (0, 0.0, 0.0)
    assert agreement([empty]).mean_f1 == 1.0


FACTUAL = rows("""
five boats tied to a dock | boat is 5 | boat tie_to dock
the dog's tail | dog have tail
tail of the dog | dog have tail
a plate of food | food on plate
bear surrounded by grass | grass surround bear
cars parked by a house | car park_by house
a field covered with snow | snow cover field
man in a hat | man wear hat
dog lying on a bed | dog lay_on bed
a cup at the corner of the table | cup in_corner_of table
trees to the left of a bus | tree at_the_left_of bus
a cart with boxes on it | box on cart
a guy using a cell phone | person use cellphone
a wood table | table is wooden
a table
""")


@pytest.mark.parametrize("row", FACTUAL, ids=lambda row: row[0])
def test_factual_form(row: list[str]) -> None:
    triples = {tuple(word.replace("_", " ") for word in each.split()) for each in row[1:]}
    assert factual_triples(graph_of(row[0])) == triples


def test_a_graph_without_triples_has_bare_objects() -> None:
    assert graph_facts(graph_of("a table")) == parse_facts("( table )")


@pytest.mark.parametrize(
    ("split", "triples", "entities"), [("random", 0.80, 0.94), ("length", 0.74, 0.91)]
)
def test_human_graphs_are_met(
    shared_data: Path, split: str, triples: float, entities: float
) -> None:
    path = shared_data / "annotations" / "factual_sg" / split / "dev.csv"
    with path.open(encoding="utf-8", newline="") as file:
        pairs = [
            (graph_facts(graph_of(row["caption"])), parse_facts(row["scene_graph"]))
            for row in csv.DictReader(file)
        ]
    assert len(pairs) == 1000
    assert agreement((a.triples, b.triples) for a, b in pairs).f1 >= triples
    assert agreement((a.entities, b.entities) for a, b in pairs).f1 >= entities
