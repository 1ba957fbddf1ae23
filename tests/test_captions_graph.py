"""Scene graphs: hand-checked captions, spans, odd text, records and drawing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compoclip.captions.graph import graph_tree
from compoclip.captions.lists import word_set
from compoclip.captions.parser import caption_record, parse, parse_records
from compoclip.captions.store import decode, encode
from compoclip.captions.types import SceneGraph

# caption, objects with their attributes, relations as (subject, words, object)
CHECKED: list[tuple[str, list[tuple[str, ...]], list[tuple[str, str, str]]]] = [
    (
        "A black cat sitting on a red mat next to a small dog",
        [("cat", "black"), ("mat", "red"), ("dog", "small")],
        [("cat", "sitting on", "mat"), ("cat", "next to", "dog")],
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
    (
        "A close up of flowers in a vase",
        [("flower",), ("vase",)],
        [("flower", "in", "vase")],
    ),
    ("black and white photo of two men", [("man", "two")], []),
    ("a large group of small dogs", [("dog", "group of", "small")], []),
    (
        "a wall with pictures of dogs",
        [("wall",), ("picture",), ("dog",)],
        [("wall", "with", "picture"), ("picture", "of", "dog")],
    ),
    (
        "the cross is red and the box is blue and large",
        [("cross", "red"), ("box", "blue", "large")],
        [],
    ),
    (
        "a fence has a teddy bear on it",
        [("fence",), ("teddy bear",)],
        [("fence", "has", "teddy bear"), ("teddy bear", "on", "fence")],
    ),
    (
        "a heart shaped pillow on a bed",
        [("pillow", "heart"), ("bed",)],
        [("pillow", "on", "bed")],
    ),
    ("people walking past a bus", [("people",), ("bus",)], [("people", "walking past", "bus")]),
    (
        "a cat with its paws hanging over a sofa",
        [("cat",), ("paw",), ("sofa",)],
        [("cat", "with", "paw"), ("paw", "hanging over", "sofa")],
    ),
    (
        "a man in a suit and tie wearing a ring",
        [("man",), ("suit",), ("tie",), ("ring",)],
        [("man", "in", "suit"), ("man", "in", "tie"), ("man", "wearing", "ring")],
    ),
    (
        "a man in a shirt and a hat is on a horse",
        [("man",), ("shirt",), ("hat",), ("horse",)],
        [("man", "in", "shirt"), ("man", "in", "hat"), ("man", "on", "horse")],
    ),
    (
        "a man rides a wave while on a board",
        [("man",), ("wave",), ("board",)],
        [("man", "rides", "wave"), ("man", "on", "board")],
    ),
    (
        "a girl watching a candle being lit by a man",
        [("girl",), ("candle",), ("man",)],
        [("girl", "watching", "candle"), ("candle", "lit by", "man")],
    ),
    ("a fridge in he kitchen", [("fridge",), ("kitchen",)], []),  # a slip, and no man
    ("", [], []),
    ("...", [], []),
]
# caption, what it must mean, what the graph holds as the likelier of several readings
SURE: list[tuple[str, set[str], set[str]]] = [
    ("a man on a horse with a hat", {"man on horse"}, {"horse with hat"}),
    ("a child with a bag on a bench", {"child with bag"}, {"child on bench"}),
    ("a hydrant and a man in a coat", {"man in coat"}, {"hydrant in coat"}),
    ("bikes parked in a row and some men", {"bike parked in row"}, {"bike parked in man"}),
    (
        "a bowl filled with cakes and a pie",
        {"bowl filled with cake", "bowl filled with pie"},
        set(),
    ),
    ("a plate of pizza on a table", {"plate of pizza", "plate on table"}, set()),
    ("a painting of a boat on the water", {"painting of boat"}, {"painting on water"}),
    ("a woman riding waves on a surfboard", {"woman riding wave"}, {"woman on surfboard"}),
    ("a man rides a horse in a field", {"man rides horse", "horse in field"}, set()),
    ("a man holds a rope in a hat", {"man holds rope"}, {"man in hat"}),
    ("a cat jumps to catch a ball", {"jumping cat"}, {"cat catch ball"}),
    ("a cat tries to catch a ball", set(), {"cat catch ball"}),
    ("a man can throw a ball", set(), {"man throw ball"}),
    ("a man helps a boy make a cake", {"man helps boy"}, {"man make cake"}),
    ("a plate with sauce on it", {"plate with sauce", "sauce on plate"}, set()),
    (
        "a cat is on a table with a cloth on it",
        {"cat on table"},
        {"table with cloth", "cloth on table"},
    ),
    ("a hydrant has its cap off", set(), {"hydrant has cap"}),
    ("a box for gloves", set(), {"box for glove"}),
    ("a beach with kites flying over people", {"beach with kite"}, {"kite flying over people"}),
    ("a man with a hat sitting on a bench", {"man with hat"}, {"man sitting on bench"}),
    ("a man in a field holding a kite", {"man in field", "man holding kite"}, set()),
    ("a girl watching a bus waiting at a stop", {"girl watching bus"}, {"girl waiting at stop"}),
    ("a cow near a tree that is eating grass", {"cow near tree"}, {"tree eating grass"}),
    ("a man holding the rope one-handed", {"man holding rope"}, {"one-handed rope"}),
    ("a store full of books put together", {"store full of book"}, {"put book"}),
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


@pytest.mark.parametrize(("text", "sure", "likely"), SURE)
def test_what_may_be_said_of_another_thing_is_marked(
    text: str, sure: set[str], likely: set[str]
) -> None:
    graph = graph_of(text)
    names = [node.name for node in graph.objects]
    told = [(f"{names[r.subject]} {r.words} {names[r.object]}", r.sure) for r in graph.relations]
    told += [(f"{a.name} {n.name}", a.sure) for n in graph.objects for a in n.attributes]
    assert {words for words, known in told if known} == sure
    assert {words for words, known in told if not known} == likely
    assert decode(text, encode(parse(text))) == parse(text)


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


def test_the_graph_of_a_long_caption_is_that_of_its_beginning() -> None:
    text = " ".join(["a red dog with a hat on a box and"] * 200)
    assert graph_of(text) == graph_of(" ".join(text.split()[:150]))
    assert len(graph_of(text).objects) == 45


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
    lines = graph_tree(graph_of("a red cat sitting on a mat near a black cat in a box"))
    assert lines == [
        "cat 1  red",
        "├─ sitting on ─▶ mat",
        "└─ near       ─▶ cat 2",
        "mat",
        "cat 2  black",
        "└─ in         ─▶ box",
        "box",
    ]
    assert graph_tree(SceneGraph()) == ["(no objects)"]
