"""A scene graph while it is being built: objects, relations, and what pronouns stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from compoclip.captions.graph_nouns import Node, noun_node, parts
from compoclip.captions.graph_words import PRONOUNS
from compoclip.captions.types import (
    GraphAttribute,
    GraphRelation,
    RelationKind,
    SceneGraph,
    Span,
    Token,
)


@dataclass(frozen=True, slots=True)
class Link:
    """A relation that waits for its object.

    `direct`: a verb and its object. `negated`: its object is not there, nor is the relation.
    `doubted`: those of the sources that it may not be said of.
    """

    sources: Sequence[int]
    names: tuple[str, ...]
    words: tuple[str, ...]
    span: Span
    kind: RelationKind = "preposition"
    direct: bool = False
    negated: bool = False
    doubted: frozenset[int] = frozenset()


@dataclass(slots=True)
class Draft:
    """Objects and relations found so far; objects are known by their index.

    `ambiguous`: the noun phrase added last is a pronoun that may stand for another object, too.
    """

    tokens: Sequence[Token]
    nodes: list[Node] = field(default_factory=list)
    relations: list[GraphRelation] = field(default_factory=list)
    ambiguous: bool = False
    _known: set[tuple[int, str, int]] = field(default_factory=set)

    def graph(self) -> SceneGraph:
        """The finished graph."""
        return SceneGraph(tuple(n.finished() for n in self.nodes), tuple(self.relations))

    def animate(self, indexes: Iterable[int]) -> bool:
        """Whether a person or an animal is among the objects."""
        return any(self.nodes[i].animate for i in indexes)

    def garments(self, indexes: Iterable[int]) -> bool:
        """Whether all of the objects are clothes."""
        return all(self.nodes[i].worn for i in indexes)

    def add_objects(self, first: int, stop: int, taken: Sequence[int] = ()) -> int | None:
        """Add the objects of the noun phrase `first` to `stop`, possessors first.

        The index of the phrase's own object, None when it names none. `taken`: objects that a
        pronoun in it cannot stand for.
        """
        self.ambiguous = False
        before: int | None = None
        tie = -1
        index: int | None = None
        for part in parts(self.tokens, first, stop):
            index = self._object(part.first, part.stop, taken)
            if before is not None and index is not None:
                self._tie(before, index, tie)
            before, tie = index, part.tie
        return index

    def _tie(self, before: int, after: int, tie: int) -> None:
        """Relate two objects of one noun phrase: possessor and thing, or doer and thing."""
        token = self.tokens[tie]
        span = Span(token.start, token.end)
        if token.tag == "VBN":
            words = (token.text.lower(),)
            self.close(Link([before], (token.lemma,), words, span, "verb"), [after])
        else:
            self.close(Link([after], ("of",), ("of",), span, "possession"), [before])

    def _object(self, first: int, stop: int, taken: Sequence[int]) -> int | None:
        if stop > first and self.tokens[stop - 1].pos == "PRON":
            return self._referent(self.tokens[stop - 1], taken)
        node = noun_node(self.tokens, first, stop)
        if node is None:
            return None
        if node.known and not node.attributes:
            for index, earlier in enumerate(self.nodes):
                if earlier.name == node.name and not earlier.known and index not in taken:
                    return index  # "a dog ... the dog"
        return self._added(node)

    def _added(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _referent(self, token: Token, taken: Sequence[int]) -> int | None:
        """The object that a pronoun stands for: an earlier one, or a new person."""
        low = token.text.lower()
        if taken and low in ("he", "she", "they", "i"):
            return None  # "in he mirror": no object, but a slip
        if low in ("it", "itself", "they", "them", "themselves"):
            plural = low.startswith("t")
            found = [
                index
                for index, node in enumerate(self.nodes)
                if index not in taken and node.plural == plural and (plural or not node.person)
            ]
            if found:
                self.ambiguous = len(found) > 1
                return found[0]
        name = PRONOUNS.get(low)
        if name is None:
            return None
        found = [
            index
            for index, node in enumerate(self.nodes)
            if node.person and index not in taken and (node.plural or name != "people")
        ]
        if found:
            self.ambiguous = len(found) > 1
            return found[0]
        return self._added(Node(name, Span(token.start, token.end), name, name == "people"))

    def act(self, head: int, doers: Iterable[int], doubted: frozenset[int] = frozenset()) -> None:
        """Note what the doers do, as an attribute: the verb `head` without an object."""
        token = self.tokens[head]
        name = token.text.lower() if token.tag in ("VBN", "VBG") else _ing_form(token.lemma)
        span = Span(token.start, token.end)
        for index in doers:
            attribute = GraphAttribute(name, span, "action", index not in doubted)
            self.nodes[index].attributes.append(attribute)

    def close(self, link: Link, targets: Sequence[int], sure: bool = True) -> None:
        """Add the relation between each of its sources and each target, once."""
        name, words = " ".join(link.names), " ".join(link.words)
        for source in link.sources:
            known = sure and source not in link.doubted
            for target in targets:
                key = (source, name, target)
                if source != target and key not in self._known:
                    self._known.add(key)
                    self.relations.append(
                        GraphRelation(source, name, target, link.span, words, link.kind, known)
                    )


@lru_cache(maxsize=4096)
def _ing_form(lemma: str) -> str:
    import lemminflect

    forms = lemminflect.getInflection(lemma, "VBG")
    return forms[0] if forms else lemma
