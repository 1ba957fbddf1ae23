"""Captions with scene graphs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compoclip.captions.parser import parse
from compoclip.captions.types import (
    Caption,
    GraphAttribute,
    GraphObject,
    GraphRelation,
    SceneGraph,
    Span,
)
from compoclip.rewrites.graph_edits import GraphVocabulary

WORDS = GraphVocabulary(
    objects=("table", "puppy", "kitten", "dog", "hat"),
    attributes=("blue", "crimson", "large", "tiny", "striped"),
    relations=("on", "under", "near", "wearing"),
)


def graph_of(text: str) -> SceneGraph:
    """The graph that the parser makes."""
    graph = parse(text).graph
    assert graph is not None
    return graph


def graph_caption(
    text: str,
    objects: Sequence[tuple[str, Sequence[str]]],
    relations: Sequence[tuple[int, str, int]] = (),
) -> Caption:
    """A tagged caption with the given graph; names as written, found from left to right.

    objects: (name as written, attributes as written), in the order of the nouns.
    """
    caption = parse(text)
    lemmas = {t.text.lower(): t.lemma for t in caption.tokens}
    nodes = []
    at = 0
    for words, attributes in objects:
        start = text.lower().index(words, at)
        at = start + len(words)
        first, space, last = words.rpartition(" ")
        nodes.append(
            GraphObject(
                first + space + lemmas[last],
                Span(start, at),
                tuple(GraphAttribute(a, _find(text, a)) for a in attributes),
            )
        )
    links = tuple(
        GraphRelation(
            a, " ".join(lemmas.get(w, w) for w in words.split()), b, _find(text, words), words
        )
        for a, words, b in relations
    )
    return replace(caption, graph=SceneGraph(tuple(nodes), links))


def _find(text: str, words: str) -> Span:
    start = text.lower().index(words)
    return Span(start, start + len(words))


CAT = graph_caption(
    "A black cat sitting on a red mat next to a small dog",
    [("cat", ["black"]), ("mat", ["red"]), ("dog", ["small"])],
    [(0, "sitting on", 1), (1, "next to", 2)],
)
