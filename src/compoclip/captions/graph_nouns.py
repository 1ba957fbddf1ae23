"""Objects of a scene graph from noun phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compoclip.captions.graph_words import (
    ANIMALS,
    BODY_PARTS,
    CLOTHES,
    COLLOCATIONS,
    MATERIALS,
    NO_QUALITY,
    NUMBERS,
    PEOPLE,
    QUALITY_NOUNS,
    SHADES,
)
from compoclip.captions.tagwords import COLOURS, COMPOUND_ING
from compoclip.captions.types import GraphAttribute, GraphObject, Span, Token

_NOUNS = frozenset({"NOUN", "PROPN"})


@dataclass(slots=True)
class Node:
    """An object while the graph is being built.

    `head` is the lemma of its head noun; `known`: it was named as known already ("the dog").
    """

    name: str
    span: Span
    head: str
    plural: bool = False
    known: bool = False
    attributes: list[GraphAttribute] = field(default_factory=list)

    @property
    def person(self) -> bool:
        """Whether it is one person or more."""
        return self.head in PEOPLE

    @property
    def animate(self) -> bool:
        """Whether it is a person or an animal."""
        return acts(self.head)

    @property
    def worn(self) -> bool:
        """Whether it is a piece of clothing."""
        return self.head in CLOTHES

    def finished(self) -> GraphObject:
        """The object with its attributes in caption order, each once."""
        unique: dict[str, GraphAttribute] = {}
        for attribute in sorted(self.attributes, key=lambda a: a.span.start):
            unique.setdefault(attribute.name, attribute)
        return GraphObject(self.name, self.span, tuple(unique.values()))


def acts(lemma: str) -> bool:
    """Whether the noun names a person or an animal."""
    return lemma in PEOPLE or lemma in ANIMALS


@dataclass(frozen=True, slots=True)
class Part:
    """One object of a noun phrase: tokens `first` to `stop`, and the token that ties it to the
    next part (-1: none): "'s", or the participle of "snow covered ground"."""

    first: int
    stop: int
    tie: int = -1


def parts(tokens: Sequence[Token], first: int, stop: int) -> list[Part]:
    """The objects that a noun phrase holds, in order; the last is the phrase's own.

    "the man's red hat" and "man hand" hold two, "snow covered ground" two with a deed between them.
    """
    found = []
    for at in range(first, stop):
        token = tokens[at]
        noun_before = (
            at > first and tokens[at - 1].pos in _NOUNS and tokens[at - 1].lemma not in COLOURS
        )
        deed = token.tag == "VBN" and token.text.lower() not in QUALITY_NOUNS  # "heart shaped"
        if token.tag == "POS" or (deed and noun_before and at + 1 < stop):
            found.append(Part(first, at, at))
            first = at + 1
        elif noun_before and token.lemma in BODY_PARTS and tokens[at - 1].lemma in PEOPLE | ANIMALS:
            found.append(Part(first, at, at))
            first = at
    return [*found, Part(first, stop)]


def noun_node(tokens: Sequence[Token], first: int, stop: int) -> Node | None:
    """The object that a noun phrase names, with its attributes; None without a noun."""
    head = stop - 1
    if head < first or tokens[head].pos not in _NOUNS:
        return None
    start = head
    while start > first and _belongs(tokens, start):
        start -= 1
    words = [t.text.lower() for t in tokens[start:head] if t.text.lower() not in QUALITY_NOUNS]
    node = Node(
        " ".join([*words, tokens[head].lemma]),
        Span(tokens[start].start, tokens[head].end),
        tokens[head].lemma,
        tokens[head].tag in ("NNS", "NNPS"),
        tokens[first].text.lower() in ("the", "this", "that", "these", "those"),
    )
    node.attributes = attributes(tokens, first, start)
    return node


def _belongs(tokens: Sequence[Token], start: int) -> bool:
    """Whether the word before `start` is a part of the object's name."""
    before = tokens[start - 1]
    low = before.text.lower()
    if f"{low} {tokens[start].text.lower()}" in COLLOCATIONS:
        return True
    if low in COMPOUND_ING and tokens[start].lemma in PEOPLE | ANIMALS:
        return False  # "sleeping man", but "sleeping bag"
    return before.pos in _NOUNS and low not in MATERIALS


def attributes(tokens: Sequence[Token], first: int, stop: int) -> list[GraphAttribute]:
    """The attributes that the modifiers `first` to `stop` state."""
    found: list[GraphAttribute] = []
    at = first
    while at < stop:
        token = tokens[at]
        low = token.text.lower()
        if token.tag == "CD" or low in NUMBERS:
            if low not in ("one", "1"):
                found.append(GraphAttribute(low, Span(token.start, token.end), "number"))
        elif at + 1 < stop and _modifies_next(tokens, at):
            begin = at
            while at + 1 < stop and _modifies_next(tokens, at):
                at += 1
            name = " ".join(t.text.lower() for t in tokens[begin : at + 1])
            found.append(GraphAttribute(name, Span(token.start, tokens[at].end)))
        elif _quality(token):
            found.append(GraphAttribute(low, Span(token.start, token.end)))
        at += 1
    return found


def _modifies_next(tokens: Sequence[Token], at: int) -> bool:
    """ "dark" of "dark blue", "partly" of "partly cloudy"."""
    after = tokens[at + 1]
    if tokens[at].pos == "ADV":
        return after.pos == "ADJ" or after.tag in ("VBN", "VBG")
    low = tokens[at].text.lower()
    return low in SHADES and after.text.lower() in MATERIALS | QUALITY_NOUNS


def _quality(token: Token) -> bool:
    low = token.text.lower()
    if low in NO_QUALITY or low in QUALITY_NOUNS:
        return False
    return token.pos in ("ADJ", "NOUN", "PROPN") or token.tag in ("VBN", "VBG")
