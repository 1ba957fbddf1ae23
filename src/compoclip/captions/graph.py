"""Scene graphs from tags: objects, their attributes and the relations between them, by rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compoclip.captions.graph_nouns import Node, attributes, noun_node, split_possessors
from compoclip.captions.graph_units import Unit, units
from compoclip.captions.graph_words import ANIMALS, PEOPLE, PRONOUNS, QUANTITIES, VIEWS
from compoclip.captions.types import (
    Caption,
    GraphAttribute,
    GraphRelation,
    RelationKind,
    SceneGraph,
    Span,
    Token,
)


def parse_graph(caption: Caption) -> SceneGraph:
    """The scene graph of a tagged and chunked caption. Never raises on odd text."""
    builder = _Builder(caption.tokens, units(caption))
    return builder.build()


@dataclass(slots=True)
class _Link:
    """A relation that waits for its object."""

    sources: list[int]
    names: tuple[str, ...]
    words: tuple[str, ...]
    span: Span
    kind: RelationKind


@dataclass(slots=True)
class _Builder:
    tokens: Sequence[Token]
    units: list[Unit]
    nodes: list[Node] = field(default_factory=list)
    relations: list[GraphRelation] = field(default_factory=list)
    subject: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    pending: _Link | None = None
    context: _Link | None = None
    verb: Unit | None = None
    doers: list[int] = field(default_factory=list)
    fronted: list[int] = field(default_factory=list)
    copula: bool = False

    def build(self) -> SceneGraph:
        for number, unit in enumerate(self.units):
            before = self.units[number - 1] if number else None
            after = self.units[number + 1] if number + 1 < len(self.units) else None
            if unit.kind == "noun":
                self._noun(number, unit, before, after)
            elif unit.kind == "preposition":
                self._preposition(unit, before)
            elif unit.kind == "verb":
                self._verb(unit, before, after)
            elif unit.kind == "be":
                self._be(unit, before)
            elif unit.kind == "adjective":
                self._adjective(unit, before)
            elif unit.kind == "stop":
                self._reset()
        return SceneGraph(tuple(n.finished() for n in self.nodes), tuple(self.relations))

    def _reset(self) -> None:
        self.pending = self.context = self.verb = None
        self.subject, self.last, self.fronted, self.copula = [], [], [], False

    # noun phrases

    def _noun(self, number: int, unit: Unit, before: Unit | None, after: Unit | None) -> None:
        if unit.negated:
            self.pending = None
            return
        joined = before is not None and before.kind in ("and", "comma")
        of = after is not None and after.names == ("of",)
        low = self.tokens[unit.head].text.lower()
        if of and (low in QUANTITIES or low in VIEWS):
            return  # the noun behind "of" takes its place, see _preposition
        indexes = self._nodes_of(unit)
        if not indexes:
            self.pending = None
            return
        node = indexes[-1]
        if self.pending is not None:
            self._close(self.pending, [node])
            self.context, self.pending = self.pending, None
            self.last = [node]
        elif joined and self.last and not self._new_clause(number):
            if self.context is not None:
                self._close(self.context, [node])
            elif self.last == self.subject:
                self.subject = [*self.subject, node]
                self.last = self.subject
                return
            self.last = [*self.last, node]
        else:
            if before is not None and before.kind in ("noun", "relative") and self.last:
                self.fronted = self.last
            self.subject = self.last = [node]
            self.context = self.verb = None
            self.copula = False

    def _new_clause(self, number: int) -> bool:
        """Whether the noun phrase behind a joint begins a clause: a verb follows it."""
        if self.context is None:
            return False
        after = self.units[number + 1] if number + 1 < len(self.units) else None
        return after is not None and after.kind in ("verb", "be")

    def _nodes_of(self, unit: Unit) -> list[int]:
        """Make the objects of a noun phrase, possessors first; the last index is the head's."""
        made: list[int] = []
        for first, stop in split_possessors(self.tokens, unit.first, unit.stop):
            index = self._node(first, stop)
            if index is None:
                continue
            if made:
                span = Span(self.tokens[first - 1].start, self.tokens[first - 1].end)
                self._relate(index, ("of",), ("of",), made[-1], span, "possession")
            made.append(index)
        return made

    def _node(self, first: int, stop: int) -> int | None:
        head = self.tokens[stop - 1]
        if head.pos == "PRON":
            return self._referent(head)
        node = noun_node(self.tokens, first, stop)
        if node is None:
            return None
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _referent(self, token: Token) -> int | None:
        low = token.text.lower()
        if low in ("it", "itself") and self.nodes:
            candidates = [i for i, n in enumerate(self.nodes) if n.head not in PEOPLE]
            if self.pending and self.pending.sources:
                candidates = [i for i in candidates if i not in self.pending.sources]
            return candidates[0] if candidates else None
        if low in ("they", "them"):
            plural = [i for i, n in enumerate(self.nodes) if n.plural]
            if plural:
                return plural[0]
        if low in PRONOUNS:
            people = [i for i, n in enumerate(self.nodes) if n.head in PEOPLE]
            if people:
                return people[0]
            name = PRONOUNS[low]
            self.nodes.append(Node(name, Span(token.start, token.end), name, name == "people"))
            return len(self.nodes) - 1
        return None

    # relations

    def _preposition(self, unit: Unit, before: Unit | None) -> None:
        span = self._span(unit.first, unit.stop)
        self.pending = None
        if unit.names == ("of",):
            self._of(unit, before, span)
            return
        if unit.negated:
            self.pending = _Link([], unit.names, unit.words, span, "preposition")
            return
        verb = self.verb
        if verb is not None and before is verb:
            if verb.negated:
                self.pending = _Link([], unit.names, unit.words, span, "preposition")
                return
            self.pending = _Link(
                self.doers,
                verb.names + unit.names,
                verb.words + unit.words,
                self._span(verb.head, unit.stop),
                "passive" if self.tokens[verb.head].tag == "VBN" else "verb",
            )
            if self.fronted and not self._has_noun_after(unit):
                self._close(self.pending, self.fronted)
                self.pending = None
            return
        if before is not None and before.kind == "be":
            sources = self.subject
        else:
            sources = self.last or self.subject
        self.pending = _Link(list(sources), unit.names, unit.words, span, "preposition")

    def _has_noun_after(self, unit: Unit) -> bool:
        return any(u.kind == "noun" and u.first >= unit.stop for u in self.units)

    def _of(self, unit: Unit, before: Unit | None, span: Span) -> None:
        if before is None or before.kind != "noun":
            return
        low = self.tokens[before.head].text.lower()
        if low in QUANTITIES or low in VIEWS:
            return
        self.pending = _Link(list(self.last[-1:]), ("of",), ("of",), span, "possession")

    def _verb(self, unit: Unit, before: Unit | None, after: Unit | None) -> None:
        tag = self.tokens[unit.head].tag
        self.pending = None
        self.copula = False
        auxiliary = unit.head > unit.first
        if before is not None and before.kind == "and" and self.verb is not None:
            pass
        elif before is not None and before.kind == "relative":
            self.doers = self.last
        elif tag in ("VBG", "VBN") and not auxiliary:
            self.doers = self._participle_subject()
        else:
            self.doers = self.subject or self.last
        self.verb = unit
        if unit.negated:
            return
        span = self._span(unit.head, unit.stop)
        kind: RelationKind = "passive" if tag == "VBN" else "verb"
        link = _Link(list(self.doers), unit.names, unit.words, span, kind)
        if after is not None and after.kind == "noun":
            self.pending = link
        elif self.fronted and (after is None or after.kind != "preposition"):
            self._close(link, self.fronted)
        elif after is None or after.kind not in ("preposition", "noun"):
            for index in self.doers:
                self.nodes[index].attributes.append(GraphAttribute(unit.words[0], span, "action"))

    def _participle_subject(self) -> list[int]:
        if self.last and self.subject and self.last != self.subject:
            near = self.nodes[self.last[-1]].head
            far = self.nodes[self.subject[-1]].head
            if near not in PEOPLE | ANIMALS and far in PEOPLE | ANIMALS:
                return list(self.subject)
        return list(self.last or self.subject)

    def _be(self, unit: Unit, before: Unit | None) -> None:
        self.pending = None
        self.verb = None
        self.copula = not unit.negated
        if before is not None and before.kind == "relative":
            self.subject = self.last

    def _adjective(self, unit: Unit, before: Unit | None) -> None:
        found = attributes(self.tokens, unit.first, unit.stop)
        if before is None:
            return
        targets = self.subject if self.copula else []
        if before.kind == "noun" and not self.copula:
            targets = self.last[-1:]
        for index in targets:
            self.nodes[index].attributes.extend(found)

    def _close(self, link: _Link, targets: Sequence[int]) -> None:
        for source in link.sources:
            for target in targets:
                if source != target:
                    self._relate(source, link.names, link.words, target, link.span, link.kind)

    def _relate(
        self,
        subject: int,
        names: tuple[str, ...],
        words: tuple[str, ...],
        target: int,
        span: Span,
        kind: RelationKind,
    ) -> None:
        relation = GraphRelation(subject, " ".join(names), target, span, " ".join(words), kind)
        if not any(
            (r.subject, r.name, r.object) == (subject, relation.name, target)
            for r in self.relations
        ):
            self.relations.append(relation)

    def _span(self, first: int, stop: int) -> Span:
        return Span(self.tokens[first].start, self.tokens[stop - 1].end)
