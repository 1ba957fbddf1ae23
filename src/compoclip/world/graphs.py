"""Reading a scene graph of any parser as claims about a world scene."""

from __future__ import annotations

from dataclasses import dataclass

from compoclip.captions.types import GraphObject, SceneGraph
from compoclip.world.lexer import Mark, lex
from compoclip.world.lexicon import NOUNS, NUMBERS, PLACES, RELATIONS
from compoclip.world.logic import (
    Attribute,
    Background,
    Exists,
    Modifier,
    NounPhrase,
    Position,
    Quantifier,
    Statement,
)
from compoclip.world.parser import read_attribute, read_background, read_noun

_PLACE_TAILS = frozenset(("corner", "side", "edge", "part", "half"))


@dataclass(frozen=True, slots=True)
class GraphForm:
    """Nodes to be matched with different things, links between them, and further statements.

    links: (subject node, relation as the oracle names it, object node).
    foreign: a word was met that is not part of the world.
    """

    nodes: tuple[NounPhrase, ...]
    links: tuple[tuple[int, str | None, int], ...]
    statements: tuple[Statement, ...]
    foreign: bool


def _is_place(node: GraphObject) -> bool:
    words = node.name.lower().replace("-", " ").split()
    return bool(words) and all(w in PLACES or w in _PLACE_TAILS for w in words)


def _place(node: GraphObject) -> str | None:
    said = " ".join((*(a.name for a in node.attributes), node.name)).lower()
    found = lex("at the " + said.replace("-", " "))
    if len(found) == 1 and found[0].mark is Mark.POSITION and found[0].text not in "?!":
        return found[0].text
    return None


def _relation(name: str) -> str | None:
    """The oracle's relation for a graph's relation name, None when unknown."""
    words = name.lower()
    for phrase in (words, words.removeprefix("is "), words + " of", words + " as", words + " than"):
        if phrase in RELATIONS:
            relation, negated = RELATIONS[phrase]
            return None if negated else relation
    return None


def graph_form(graph: SceneGraph) -> GraphForm:
    """What the graph claims. Place nodes ("corner") become positions of what they relate to, and
    background nodes claims about the background.
    """
    places = {i: _place(n) for i, n in enumerate(graph.objects) if _is_place(n)}
    grounds = {
        i for i, n in enumerate(graph.objects) if n.name.lower() in ("background", "backdrop")
    }
    extra: dict[int, list[Modifier]] = {}
    links: list[tuple[int, str | None, int]] = []
    for relation in graph.relations:
        if relation.object in places and relation.subject not in places:
            extra.setdefault(relation.subject, []).append(Position(places[relation.object]))
        elif not {relation.subject, relation.object} & (places.keys() | grounds):
            links.append((relation.subject, _relation(relation.name), relation.object))
    statements: list[Statement] = []
    nodes: list[NounPhrase] = []
    number: dict[int, int] = {}
    foreign = False
    for i, node in enumerate(graph.objects):
        if i in places:
            continue
        words = [a.name.lower() for a in node.attributes]
        if i in grounds:
            statements.extend(read_background(w) if w else Background() for w in words)
            continue
        phrase, _ = read_noun(node.name.lower())
        modifiers: list[Modifier] = []
        for word in words:
            if word in NUMBERS:
                continue
            modifiers.append(Position(PLACES[word]) if word in PLACES else read_attribute(word))
        foreign |= node.name.lower() not in NOUNS
        foreign |= any(isinstance(m, Attribute) and m.family == "foreign" for m in modifiers)
        full = NounPhrase(
            phrase.kinds, phrase.word, (*modifiers, *extra.get(i, ())), maybe=phrase.maybe
        )
        for word in words:
            if word in NUMBERS:
                counted = NounPhrase(
                    full.kinds,
                    full.word,
                    full.modifiers,
                    Quantifier.EXACTLY,
                    NUMBERS[word],
                    full.maybe,
                )
                statements.append(Exists(counted))
        number[i] = len(nodes)
        nodes.append(full)
    return GraphForm(
        tuple(nodes),
        tuple((number[a], name, number[b]) for a, name, b in links),
        tuple(statements),
        foreign,
    )
