"""What is known about a caption: its tokens, noun chunks and scene graph.

Every node keeps its character span in the original text, so that rewrites edit spans and never
substrings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RelationKind = Literal["preposition", "verb", "passive", "possession"]


@dataclass(frozen=True, slots=True)
class Token:
    """One word or punctuation mark of a caption.

    `pos` is the coarse universal part of speech (NOUN, PROPN, VERB, AUX, ADJ, ADV, ADP, DET, PRON,
    NUM, PART, CCONJ, SCONJ, INTJ, PUNCT, SYM, X); `tag` is the fine Penn Treebank tag (NN, NNS,
    VBG, ...). `text == caption.text[start:end]` always holds.
    """

    text: str
    lemma: str
    pos: str
    tag: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A base noun phrase: tokens `first` (inclusive) to `stop` (exclusive), and its head token."""

    first: int
    stop: int
    head: int


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open character range of the caption text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GraphObject:
    """An object of a scene graph: `name` is the head lemma with its compound words."""

    name: str
    span: Span
    attributes: tuple[GraphAttribute, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphAttribute:
    """A property of one object, such as "red", "two" or "sleeping".

    `kind` tells apart what not every use counts as an attribute: qualities ("red", "wooden", "dark
    blue"), numbers ("two", "group of") and actions without an object ("smiling"). `sure`: see
    `GraphRelation`.
    """

    name: str
    span: Span
    kind: Literal["quality", "number", "action"] = "quality"
    sure: bool = True


@dataclass(frozen=True, slots=True)
class GraphRelation:
    """A directed relation between two objects, given by their index in the graph.

    `name` holds lemmas ("sit on", "surround by"), `words` the words as the caption has them,
    without auxiliaries ("sitting on", "surrounded by"), so that "subject words object" reads well.
    A possessor is the object of a relation "of", however it is put ("the man's hat": hat of man).

    `sure`: its words allow no other reading. "A man on a horse with a hat" makes the hat the
    horse's or the man's; the graph holds the likelier, and marks it.
    """

    subject: int
    name: str
    object: int
    span: Span
    words: str = ""
    kind: RelationKind = "preposition"
    sure: bool = True


@dataclass(frozen=True, slots=True)
class SceneGraph:
    """Objects with attributes, and the relations between them."""

    objects: tuple[GraphObject, ...] = ()
    relations: tuple[GraphRelation, ...] = ()


@dataclass(frozen=True, slots=True)
class Caption:
    """A parsed caption. `graph` is None when no scene-graph parser was run.

    cut: the caption goes on behind `text`, longer than any model reads (`words.beginning`).
    """

    text: str
    tokens: tuple[Token, ...]
    chunks: tuple[Chunk, ...] = ()
    graph: SceneGraph | None = None
    cut: bool = False
