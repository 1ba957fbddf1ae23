"""Scene graphs: hand-checked captions, spans, odd text, records and drawing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compoclip.captions.graph_records import caption_record, parse_records
from compoclip.captions.graph_tree import graph_tree
from compoclip.captions.parse import parse
from compoclip.captions.records import decode, encode
from compoclip.captions.types import SceneGraph
from compoclip.captions.words import word_set

# caption, objects with their attributes, relations as (subject, words, object)
CHECKED: list[tuple[str, list[tuple[str, ...]], list[tuple[str, str, str]]]] = [
    (
        "A black cat sitting on a red mat next to a small dog",
        [("cat", "black"), ("mat", "red"), ("dog", "small")],
        [("cat", "sitting on", "mat"), ("mat", "next to", "dog")],
    ),
    (
        "the man's red hat is on the table",
        [("man",), ("hat", "red"), ("table",)],
        [("hat", "of", "man"), ("hat", "on", "table")],
    ),
    ("man 's foot", [("man",), ("foot",)], [("foot", "of", "man")]),
    (
        "two men and a woman holding rackets",
        [("man", "two"), ("woman",), ("racket",)],
        [("man", "holding", "racket"), ("woman", "holding", "racket")],
    ),
    (
        "a woman holding a ball and a bat",
        [("woman",), ("ball",), ("bat",)],
        [("woman", "holding", "ball"), ("woman", "holding", "bat")],
    ),
    (
        "a plate with food on it",
        [("plate",), ("food",)],
        [("plate", "with", "food"), ("food", "on", "plate")],
    ),
    ("a bear surrounded by grass", [("bear",), ("grass",)], [("bear", "surrounded by", "grass")]),
    ("the car is red and shiny", [("car", "red", "shiny")], []),
    ("there is no dog in the car", [("car",)], []),
    ("a man without a hat sits on a bench", [("man",), ("bench",)], [("man", "sits on", "bench")]),
    ("a man is not wearing a hat", [("man",)], []),
    (
        "a group of people walking on the beach",
        [("people", "group of"), ("beach",)],
        [("people", "walking on", "beach")],
    ),
    (
        "two slices of pizza on a paper plate",
        [("pizza", "two", "slices of"), ("paper plate",)],
        [("pizza", "on", "paper plate")],
    ),
    (
        "a cat on top of a wooden table",
        [("cat",), ("table", "wooden")],
        [("cat", "on top of", "table")],
    ),
    (
        "windows on the left side of a building",
        [("window",), ("building",)],
        [("window", "on the left side of", "building")],
    ),
    (
        "a truck with a plant on top",
        [("truck",), ("plant",)],
        [("truck", "with", "plant"), ("plant", "on top of", "truck")],
    ),
    ("a snow covered mountain", [("snow",), ("mountain",)], [("snow", "covered", "mountain")]),
    ("a brick wall and a tennis racket", [("wall", "brick"), ("tennis racket",)], []),
    ("a red, white and blue flag", [("flag", "red", "white", "blue")], []),
    (
        "a dark blue sky with partly cloudy areas",
        [("sky", "dark blue"), ("area", "partly cloudy")],
        [("sky", "with", "area")],
    ),
    ("a dog that is chasing a cat", [("dog",), ("cat",)], [("dog", "chasing", "cat")]),
    ("the table the vase is on", [("table",), ("vase",)], [("vase", "on", "table")]),
    ("table bowl is sitting on", [("table",), ("bowl",)], [("bowl", "sitting on", "table")]),
    (
        "a boy throwing a ball to a dog",
        [("boy",), ("ball",), ("dog",)],
        [("boy", "throwing", "ball"), ("boy", "throwing to", "dog")],
    ),
    (
        "a man in a suit and a woman in a dress",
        [("man",), ("suit",), ("woman",), ("dress",)],
        [("man", "in", "suit"), ("woman", "in", "dress")],
    ),
    (
        "a vase with flowers on the table",
        [("vase",), ("flower",), ("table",)],
        [("vase", "with", "flower"), ("vase", "on", "table")],
    ),
    (
        "a dog on a bed with its head on a pillow",
        [("dog",), ("bed",), ("head",), ("pillow",)],
        [("dog", "on", "bed"), ("dog", "with", "head"), ("head", "on", "pillow")],
    ),
    (
        "a man riding a bike on the street while talking on a phone",
        [("man",), ("bike",), ("street",), ("phone",)],
        [("man", "riding", "bike"), ("man", "on", "street"), ("man", "talking on", "phone")],
    ),
    ("people are smiling", [("people", "smiling")], []),
    ("a woman sits", [("woman", "sitting")], []),
    ("he is skiing down the hill", [("man",), ("hill",)], [("man", "skiing down", "hill")]),
    ("a hot dog on a plate", [("hot dog",), ("plate",)], [("hot dog", "on", "plate")]),
    ("a dog and the dog's bowl", [("dog",), ("bowl",)], [("bowl", "of", "dog")]),
    ("duck on the water", [("duck",), ("water",)], [("duck", "on", "water")]),
    ("woman holding kite", [("woman",), ("kite",)], [("woman", "holding", "kite")]),
    ("", [], []),
    ("...", [], []),
]


def graph_of(text: str) -> SceneGraph:
    graph = parse(text).graph
    assert graph is not None
    return graph


@pytest.mark.parametrize(("text", "objects", "relations"), CHECKED)
def test_checked_captions(
    text: str, objects: list[tuple[str, ...]], relations: list[tuple[str, str, str]]
) -> None:
    graph = graph_of(text)
    names = [node.name for node in graph.objects]
    assert [(n.name, *(a.name for a in n.attributes)) for n in graph.objects] == objects
    assert [(names[r.subject], r.words, names[r.object]) for r in graph.relations] == relations


def test_names_are_lemmas_and_kinds_tell_apart() -> None:
    graph = graph_of("two small dogs running are pulled by a man's horses near trees")
    kinds = {a.name: a.kind for node in graph.objects for a in node.attributes}
    assert kinds["two"] == "number"
    assert kinds["small"] == "quality"
    assert kinds["running"] == "action"
    told = {r.name: r.kind for r in graph.relations}
    assert told["pull by"] == "passive"
    assert told["of"] == "possession"
    assert told["near"] == "preposition"
    assert graph_of("a man holds a cup").relations[0].kind == "verb"


def test_spans_are_where_the_words_stand() -> None:
    text = "A very dark green car parked in front of two tennis rackets"
    graph = graph_of(text)
    shown = [text[n.span.start : n.span.end] for n in graph.objects]
    assert shown == ["car", "tennis rackets"]
    attributes = [text[a.span.start : a.span.end] for n in graph.objects for a in n.attributes]
    assert attributes[-1] == "two"
    assert attributes[0] == "very dark green"
    relation = graph.relations[0]
    assert text[relation.span.start : relation.span.end] == "parked in front of"
    assert (relation.name, relation.words) == ("park in front of", "parked in front of")


WORDS = st.sampled_from(
    sorted(
        word_set(
            "a the man dog dogs red two of with on it its who that is are not no and , holding "
            "sitting in front top group wearing hat 's behind table full there he left side while "
            "by . covered snow 😀 ' ( color"
        )
    )
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=18).map(" ".join)))
def test_any_text_gives_a_sound_graph(text: str) -> None:
    caption = parse(text)
    graph = graph_of(text)
    size = len(graph.objects)
    for node in graph.objects:
        assert node.name
        assert 0 <= node.span.start < node.span.end <= len(text)
        assert len({a.name for a in node.attributes}) == len(node.attributes)
        for attribute in node.attributes:
            assert 0 <= attribute.span.start < attribute.span.end <= len(text)
    for relation in graph.relations:
        assert relation.subject != relation.object
        assert min(relation.subject, relation.object) >= 0
        assert max(relation.subject, relation.object) < size
        assert 0 <= relation.span.start < relation.span.end <= len(text)
        assert relation.name
        assert relation.words
    triples = [(r.subject, r.name, r.object) for r in graph.relations]
    assert len(set(triples)) == len(triples)
    assert decode(text, encode(caption)) == caption


def test_long_captions_take_little_time() -> None:
    text = " ".join(["a red dog with a hat on a box and"] * 200)
    graph = graph_of(text)
    assert len(graph.objects) == 600


def test_records_are_readable() -> None:
    (record,) = parse_records([("7", "a red cat on two mats")])
    assert record["id"] == "7"
    assert record["caption"] == "a red cat on two mats"
    assert record["tokens"][1] == {
        "text": "red",
        "lemma": "red",
        "pos": "ADJ",
        "tag": "JJ",
        "start": 2,
        "end": 5,
    }
    assert record["objects"] == [
        {
            "name": "cat",
            "start": 6,
            "end": 9,
            "attributes": [{"name": "red", "kind": "quality", "start": 2, "end": 5}],
        },
        {
            "name": "mat",
            "start": 17,
            "end": 21,
            "attributes": [{"name": "two", "kind": "number", "start": 13, "end": 16}],
        },
    ]
    assert record["relations"] == [
        {
            "subject": 0,
            "name": "on",
            "object": 1,
            "words": "on",
            "kind": "preposition",
            "start": 10,
            "end": 12,
        }
    ]
    assert record["tagger"].startswith("hanta")
    assert "graph" not in caption_record(parse("a cat"))


def test_trees_are_aligned() -> None:
    lines = graph_tree(graph_of("a red cat sitting on a mat near a black cat"))
    assert lines == [
        "cat 1  red",
        "└─ sitting on ─▶ mat",
        "mat",
        "└─ near       ─▶ cat 2",
        "cat 2  black",
    ]
    assert graph_tree(SceneGraph()) == ["(no objects)"]
