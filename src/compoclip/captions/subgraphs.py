"""Sub-graphs of a caption's scene graph, and their short texts.

MosaiCLIP (Singh et al., EMNLP 2023) splits a caption into its statements: one object with
attributes, or two objects with their relation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from compoclip.captions.lists import WORDS
from compoclip.captions.types import (
    Caption,
    GraphAttribute,
    GraphObject,
    GraphRelation,
    SceneGraph,
    Span,
    Token,
)


@dataclass(frozen=True, slots=True)
class SubGraph(SceneGraph):
    """Objects in a row, with one relation from each to the next; read from left to right.

    A sub-graph is a scene graph itself; its spans refer to the caption.

    Attributes:
        nodes: Index of each object in the caption's graph, -1 for an added object.
    """

    nodes: tuple[int, ...] = ()

    @property
    def sure(self) -> bool:
        """Return whether the caption entails all of it, rather than only suggesting it."""
        attributes = (a for node in self.objects for a in node.attributes)
        return all(r.sure for r in self.relations) and all(a.sure for a in attributes)


def decompose(graph: SceneGraph) -> tuple[SubGraph, ...]:
    """Split a scene graph into its sub-graphs of one and two objects (MosaiCLIP, section 3.2).

    These are each object with all its attributes, and with each one if there are several; then
    each relation with all attributes of both objects, and without. Numbers are not attributes.

    Args:
        graph: The graph of a caption.

    Returns:
        The sub-graphs, one per text, a sure one if there is any.
    """
    objects = [replace(o, attributes=_qualities(o)) for o in graph.objects]
    subgraphs: list[SubGraph] = []
    for index, node in enumerate(objects):
        subsets = [node.attributes] if node.attributes else []
        if len(node.attributes) > 1:
            subsets += [(attribute,) for attribute in node.attributes]
        subgraphs += [SubGraph((replace(node, attributes=a),), (), (index,)) for a in subsets]
    for relation in graph.relations:
        ends = (relation.subject, relation.object)
        if ends[0] == ends[1]:
            continue
        both = tuple(objects[end] for end in ends)
        link = (replace(relation, subject=0, object=1),)
        subgraphs.append(SubGraph(both, link, ends))
        subgraphs.append(SubGraph(tuple(replace(o, attributes=()) for o in both), link, ends))
    unique: dict[str, SubGraph] = {}
    for subgraph in subgraphs:
        key = phrase(subgraph).lower()
        if key not in unique or (subgraph.sure and not unique[key].sure):
            unique[key] = subgraph
    return tuple(unique.values())


def phrase(subgraph: SubGraph) -> str:
    """Return a sub-graph as text, such as "black cat sitting on red mat".

    Args:
        subgraph: Objects in a row.

    Returns:
        Attributes in caption order and the noun of each object, without articles, with the words of
        the relations between them.
    """
    return " ".join(text for text, _ in pieces(subgraph))


def pieces(subgraph: SubGraph) -> tuple[tuple[str, Span], ...]:
    """Return attributes, nouns and relations in reading order, with their spans."""
    by_object = (pieces_of(subgraph, index) for index in range(len(subgraph.objects)))
    return tuple(chain.from_iterable(chain.from_iterable(by_object)))


def pieces_of(subgraph: SubGraph, index: int) -> Iterator[list[tuple[str, Span]]]:
    """Yield what stands at an object: the relation before it, its attributes, and its noun."""
    node = subgraph.objects[index]
    links = subgraph.relations[max(index - 1, 0) : index]
    yield [(relation_words(link), link.span) for link in links]
    yield [(attribute.name, attribute.span) for attribute in node.attributes]
    yield [(node.name, node.span)]


def relation_words(relation: GraphRelation) -> str:
    """Return the relation as written ("sitting on"), else its name ("sit on")."""
    return relation.words or relation.name


def worded(caption: Caption) -> SceneGraph:
    """Return the graph of a caption in the caption's words, in lower case; empty without a
    graph."""
    if caption.graph is None:
        return SceneGraph()
    objects = []
    for node in caption.graph.objects:
        tokens, name = tokens_in(caption, node.span), node.name.lower()
        lemmas = [*(t.low for t in tokens[:-1]), *(t.lemma.lower() for t in tokens[-1:])]
        if lemmas == name.split():  # else a pronoun, which is called by its name
            name = " ".join(token.low for token in tokens)
        attributes = tuple(
            replace(attribute, name=attribute.name.lower())
            for attribute in _qualities(node)
            if _can_precede(attribute, tokens_in(caption, attribute.span))
        )
        objects.append(replace(node, name=name, attributes=attributes))
    links = (r for r in caption.graph.relations if not r.name.endswith("than"))
    relations = tuple(replace(r, words=relation_words(r).lower()) for r in links)
    return SceneGraph(tuple(objects), relations)


def tokens_in(caption: Caption, span: Span) -> tuple[Token, ...]:
    """Return the tokens in a span of the caption."""
    return tuple(t for t in caption.tokens if span.start <= t.start and t.end <= span.end)


def _qualities(node: GraphObject) -> tuple[GraphAttribute, ...]:
    unique = {a.name: a for a in reversed(node.attributes) if a.kind != "number"}
    return tuple(sorted(unique.values(), key=lambda a: a.span.start))


def _can_precede(attribute: GraphAttribute, tokens: tuple[Token, ...]) -> bool:
    """Return whether the attribute can precede its noun: "smiling", "small", not "smaller"."""
    tags = [token.tag for token in tokens]
    if "JJR" in tags or attribute.name.lower() in WORDS["empty participles"]:
        return False
    return attribute.kind != "action" or tags in (["VBG"], ["VBN"])
