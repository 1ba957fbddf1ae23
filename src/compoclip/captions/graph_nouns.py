"""Objects of a scene graph from noun phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compoclip.captions.graph_words import MATERIALS, NO_QUALITY, NUMBERS, SHADES
from compoclip.captions.types import GraphAttribute, GraphObject, Span, Token


@dataclass(slots=True)
class Node:
    """An object while the graph is being built."""

    name: str
    span: Span
    head: str
    plural: bool
    attributes: list[GraphAttribute] = field(default_factory=list)

    def finished(self) -> GraphObject:
        """The object with its attributes in caption order, each once."""
        unique = {a.name: a for a in reversed(self.attributes)}
        ordered = sorted(unique.values(), key=lambda a: a.span.start)
        return GraphObject(self.name, self.span, tuple(ordered))


def split_possessors(tokens: Sequence[Token], first: int, stop: int) -> list[tuple[int, int]]:
    """The parts of a noun phrase between possessive endings: "the man's red hat" has two."""
    parts = []
    for at in range(first, stop):
        if tokens[at].tag == "POS":
            parts.append((first, at))
            first = at + 1
    return [*parts, (first, stop)]


def noun_node(tokens: Sequence[Token], first: int, stop: int) -> Node | None:
    """The object that a noun phrase names, with its attributes; None without a noun."""
    head = stop - 1
    if head < first or tokens[head].pos not in ("NOUN", "PROPN"):
        return None
    start = head
    while start > first and tokens[start - 1].pos in ("NOUN", "PROPN"):
        if tokens[start - 1].text.lower() in MATERIALS:
            break
        start -= 1
    words = [t.text.lower() for t in tokens[start:head]] + [tokens[head].lemma]
    node = Node(
        " ".join(words),
        Span(tokens[start].start, tokens[head].end),
        tokens[head].lemma,
        tokens[head].tag in ("NNS", "NNPS"),
    )
    node.attributes = attributes(tokens, first, start)
    return node


def attributes(tokens: Sequence[Token], first: int, stop: int) -> list[GraphAttribute]:
    """The attributes that the modifiers `first` to `stop` state."""
    found: list[GraphAttribute] = []
    at = first
    while at < stop:
        token = tokens[at]
        low = token.text.lower()
        begin = at
        if token.tag == "CD" or low in NUMBERS:
            if low not in ("one", "1"):
                found.append(GraphAttribute(low, Span(token.start, token.end), "number"))
        elif (
            (low in SHADES or token.pos == "ADV")
            and at + 1 < stop
            and _colour_or_adverb(tokens, at)
        ):
            at += 1
            name = f"{low} {tokens[at].text.lower()}"
            found.append(GraphAttribute(name, Span(tokens[begin].start, tokens[at].end)))
        elif _quality(token):
            found.append(GraphAttribute(low, Span(token.start, token.end)))
        at += 1
    return found


def _colour_or_adverb(tokens: Sequence[Token], at: int) -> bool:
    after = tokens[at + 1]
    if tokens[at].pos == "ADV":
        return after.pos == "ADJ" or after.tag in ("VBN", "VBG")
    return after.text.lower() in MATERIALS and after.pos in ("ADJ", "NOUN")


def _quality(token: Token) -> bool:
    if token.text.lower() in NO_QUALITY:
        return False
    return token.pos in ("ADJ", "NOUN", "PROPN") or token.tag in ("VBN", "VBG")
