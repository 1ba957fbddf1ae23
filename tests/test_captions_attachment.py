"""What the phrases of long captions belong to."""

from __future__ import annotations

import pytest

from compoclip.captions.parser import parse
from compoclip.captions.types import SceneGraph

# caption, relations as "subject words object"
TOLD: dict[str, set[str]] = {
    # what stands beside a thing stands there with its place
    "a cat standing on a trunk next to a car": {"cat standing on trunk", "cat next to car"},
    "a kitchen with a table next to a door": {"kitchen with table", "table next to door"},
    "a girl holding skis in front of a lodge": {"girl holding ski", "girl in front of lodge"},
    "a boat in the water, near an island": {"boat in water", "boat near island"},
    "a man on a wave on a surf board": {"man on wave", "man on surf board"},
    "animals eating food inside a pen": {"animal eating food", "animal inside pen"},
    "birds in grass between trees": {"bird in grass", "grass between tree"},
    # times, backgrounds, manners
    "a bear lying in grass on a sunny day": {"bear lying in grass", "bear on day"},
    "a bus on a street with trees in the background": {
        "bus on street",
        "street with tree",
        "tree in background",
    },
    "a dog with a stick in its mouth on a path": {
        "dog with stick",
        "stick in mouth",
        "dog on path",
    },
    # company
    "men on a field with bats": {"man on field", "man with bat"},
    "a man in a shirt with stripes": {"man in shirt", "shirt with stripe"},
    "a truck near a field with cows in it": {
        "truck near field",
        "field with cow",
        "cow in field",
    },
    "a woman holding a plate with pizza": {"woman holding plate", "plate with pizza"},
    "a man cutting a pizza with scissors": {"man cutting pizza", "man cutting with scissors"},
    # what something is filled with is not where it is
    "boxes full of chicks on a table": {"box full of chick", "box on table"},
    "a bowl filled with peas sitting on a mat": {"bowl filled with pea", "bowl sitting on mat"},
    # ways and agents
    "a dog walking along a river towards a bridge": {
        "dog walking along river",
        "dog walking towards bridge",
    },
    "a horse led down the street by a man": {"horse led down street", "horse led by man"},
    "a train on a track pulling into a station": {"train on track", "train pulling into station"},
    "a man on a hill with a kite flying": {"man on hill", "man with kite"},
    # lists
    "a bowl of rice and a jar of oil on a table": {
        "bowl of rice",
        "jar of oil",
        "bowl on table",
        "jar on table",
    },
    "a room with a bed and a lamp on a desk": {"room with bed", "room with lamp", "lamp on desk"},
    "a park with a lake in the background and hills": {
        "park with lake",
        "lake in background",
        "park with hill",
    },
    "bikes on a path and cars on a road": {"bike on path", "car on road"},
    "a bear in bed and a blanket covering it": {"bear in bed", "blanket covering bear"},
    # small things
    "two zebras standing next to each other in a field": {
        "zebra standing next to zebra",
        "zebra in field",
    },
    "a man and a woman hugging one another": {"man hugging woman"},
    "a cat sits on one of the couches": {"cat sits on couch"},
    "a man handing a woman a plate": {"man handing woman", "man handing plate"},
    "a picture showing a dog on a mat": {"dog on mat"},
    "a tree lined street with a trash can": {"tree lined street", "street with trash can"},
}
# caption, attributes as (object, attribute)
SAID: dict[str, set[tuple[str, str]]] = {
    "a high tech toilet": {("toilet", "high tech")},
    "a two story house": {("house", "two story")},
    "a polka dot dress": {("dress", "polka dot")},
    "people are standing outside": {("people", "standing"), ("people", "outside")},
    "a truck sits parked in a lot": set(),
    "a man leaping to hit a ball": {("man", "leaping")},
    "a nice looking kitchen": {("kitchen", "nice")},
    "a man is drying himself": {("man", "drying")},
    "a salad that appears to be fresh": {("salad", "fresh")},
}


def graph_of(text: str) -> SceneGraph:
    graph = parse(text).graph
    assert graph is not None
    return graph


@pytest.mark.parametrize(("text", "told"), TOLD.items())
def test_phrases_belong_to_what_they_tell_of(text: str, told: set[str]) -> None:
    graph = graph_of(text)
    names = [node.name for node in graph.objects]
    assert {f"{names[r.subject]} {r.words} {names[r.object]}" for r in graph.relations} == told


@pytest.mark.parametrize(("text", "said"), SAID.items())
def test_attributes_of_two_words_and_of_place(text: str, said: set[tuple[str, str]]) -> None:
    graph = graph_of(text)
    assert {(node.name, a.name) for node in graph.objects for a in node.attributes} == said


def test_a_plural_in_relation_to_itself_is_never_sure() -> None:
    (relation,) = graph_of("two dogs near each other").relations
    assert relation.subject == relation.object
    assert not relation.sure
