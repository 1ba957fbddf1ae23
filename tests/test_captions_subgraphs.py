"""Sub-graphs of captions and how they read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compoclip.captions.parser import parse
from compoclip.captions.subgraphs import decompose, phrase, pieces, worded
from compoclip.captions.types import (
    GraphAttribute,
    GraphObject,
    GraphRelation,
    SceneGraph,
    Span,
)
from graph_captions import CAT, graph_caption

HERE = Span(0, 0)


def texts(caption_text: str, *graph: object) -> list[str]:
    caption = graph_caption(caption_text, *graph)  # type: ignore[arg-type]
    return [phrase(s) for s in decompose(worded(caption))]


def test_the_example_of_the_method() -> None:
    assert [phrase(s) for s in decompose(worded(CAT))] == [
        "black cat",
        "red mat",
        "small dog",
        "black cat sitting on red mat",
        "cat sitting on mat",
        "red mat next to small dog",
        "mat next to dog",
    ]


def test_the_example_as_the_parser_reads_it() -> None:
    parsed = parse(CAT.text)
    assert parsed.graph is not None
    ours = {phrase(s) for s in decompose(worded(parsed))}
    paper = {phrase(s) for s in decompose(worded(CAT))}
    assert paper - ours == {"red mat next to small dog", "mat next to dog"}
    assert ours - paper == {"black cat next to small dog", "cat next to dog"}  # who sits is there


def test_several_attributes_together_and_each_alone() -> None:
    made = texts("a big brown shaggy dog", [("dog", ["big", "brown", "shaggy"])])
    assert made == ["big brown shaggy dog", "big dog", "brown dog", "shaggy dog"]


def test_an_object_without_attributes_is_no_subgraph_and_a_bare_relation_comes_once() -> None:
    assert texts("a dog on a mat", [("dog", []), ("mat", [])], [(0, "on", 1)]) == ["dog on mat"]
    assert texts("a dog and a mat", [("dog", []), ("mat", [])]) == []


def test_plurals_stay_and_predicate_attributes_go_before_the_noun() -> None:
    made = texts(
        "The horses are wet and stand on grass",
        [("horses", ["wet"]), ("grass", [])],
        [(0, "stand on", 1)],
    )
    assert made == ["wet horses", "wet horses stand on grass", "horses stand on grass"]


def test_numbers_comparatives_and_finite_verbs_are_no_attributes() -> None:
    caption = parse("two smaller dogs smile")
    span = Span(12, 16)
    attributes = (
        GraphAttribute("two", Span(0, 3), "number"),
        GraphAttribute("smaller", Span(4, 11)),
        GraphAttribute("smile", Span(17, 22), "action"),
    )
    graph = SceneGraph((GraphObject("dog", span, attributes),))
    assert worded(replace(caption, graph=graph)).objects[0].attributes == ()
    assert worded(replace(caption, graph=graph)).objects[0].name == "dogs"


def test_a_comparison_is_no_relation_and_a_loop_no_subgraph() -> None:
    made = texts("a dog bigger than a cat", [("dog", []), ("cat", [])], [(0, "than", 1)])
    assert made == []
    loop = SceneGraph((GraphObject("dog", HERE),), (GraphRelation(0, "lick", 0, HERE),))
    assert decompose(loop) == ()


def test_a_pronoun_is_read_as_its_noun() -> None:
    caption = parse("he holds a cup")
    graph = SceneGraph(
        (GraphObject("man", Span(0, 2)), GraphObject("cup", Span(11, 14))),
        (GraphRelation(0, "hold", 1, Span(3, 8), "holds"),),
    )
    (only,) = decompose(worded(replace(caption, graph=graph)))
    assert phrase(only) == "man holds cup"
    assert only.nodes == (0, 1)


def test_pieces_keep_their_place_in_the_caption() -> None:
    for subgraph in decompose(worded(CAT)):
        for text, span in pieces(subgraph):
            assert CAT.text[span.start : span.end] == text


def test_subgraphs_that_read_alike_come_once() -> None:
    made = texts(
        "a red ball on a box and a red ball on a box",
        [("ball", ["red"]), ("box", []), ("ball", ["red"]), ("box", [])],
        [(0, "on", 1), (2, "on", 3)],
    )
    assert made == ["red ball", "red ball on box", "ball on box"]


@pytest.mark.parametrize("text", ["", " ", "😀", "\n\n"])
def test_no_graph_no_subgraphs(text: str) -> None:
    caption = replace(parse(text), graph=None)
    assert worded(caption) == SceneGraph()
    assert decompose(worded(caption)) == ()
