"""Rule-based scene graphs from tags: objects, their attributes and the relations between them.

The caption is cut into units (noun phrases, verbs, prepositions, joints) that are read once from
left to right; `ReadingState` holds the context on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compoclip.captions import lists
from compoclip.captions.graph_sentence import ReadSentence
from compoclip.captions.graph_state import ReadingState
from compoclip.captions.graph_units import (
    Draft,
    Node,
    PendingLink,
    Unit,
    attributes,
    units,
)
from compoclip.captions.types import Caption, GraphAttribute, RelationKind, SceneGraph

_BACKDROPS = lists.BACKGROUNDS | lists.PLACES_AT_THINGS | lists.BODY_PARTS
#: Verbs that say nothing of their subject alone: "it appears to be".
_SEEMING = frozenset({"appear", "seem"})


def parse_graph(caption: Caption) -> SceneGraph:
    """Return the scene graph of a tagged and chunked caption. Never raises on odd text.

    Objects come from noun phrases (compound nouns are part of the name, materials and colours are
    attributes, a counting noun gives way to what it counts: "a group of people"), from possessors
    and from pronouns, which stand for an earlier object or a person. Relations come from
    prepositions, verbs with objects and passives; a verb without an object is an attribute. Negated
    objects and relations are left out.
    """
    return _Reader(ReadSentence(caption.tokens, units(caption)), Draft(caption.tokens)).read()


@dataclass(slots=True)
class _Reader(ReadingState):
    """Reads the units of a caption, each kind by its own rule."""

    def read(self) -> SceneGraph:
        """Return the graph of all units."""
        for number, unit in enumerate(self.text.units):
            if unit.kind == "noun":
                self._noun(number, unit)
            elif unit.kind == "each other":
                self._each_other()
            elif unit.kind == "preposition":
                self._preposition(number, unit)
            elif unit.kind == "verb":
                self._verb(number, unit)
            elif unit.kind == "be":
                self._be(number, unit)
            elif unit.kind == "adjective":
                self._adjective(number, unit)
            elif unit.kind == "while":
                self.pending = self.context = self.outer = self.verb = None
                self.copula = self.inner = False
            elif unit.kind == "stop":
                self.end_sentence()
        return self.draft.graph()

    # noun phrases

    def _noun(self, number: int, unit: Unit) -> None:
        if unit.negated or (self.pending is not None and self.pending.negated):
            self.pending = None
            return
        measured = self.text.measured(number)
        hung = self.pending is not None and self.text.pictures(unit)  # "a wall with a picture of"
        self.measures = measured is not None and not hung
        if measured is not None and not hung:
            self.measured = measured
            return
        head = self.text.tokens[unit.head].text.lower()
        if self.pending is not None and self.pending.kind == "preposition":
            if head in lists.BACKDROPS:
                self.pending = None
                return
            if head in lists.PLACES_AT_THINGS and self.holders and unit.stop - unit.first <= 2:
                # "a truck with a plant on top": the plant is on top of the truck.
                link, self.pending = self.pending, None
                names, words = ((*said, head, "of") for said in (link.names, link.words))
                self.draft.close(PendingLink(self.last, names, words, link.span), self.holders)
                return
        first = self._split_gap(number, unit)
        taken = self.pending.sources if self.pending is not None else ()
        near = self.context.sources if self.context is not None and taken == self.last else ()
        node = self.draft.add_objects(first, unit.stop, taken, near)
        if node is None:
            reflexive = head.endswith(("self", "selves"))
            direct = self.pending is not None and self.pending.direct
            if reflexive and direct and self.verb is not None:  # "drying himself"
                self.draft.act(self.verb.head, self.doers, self.doubted)
            self.pending = None
            if self.text.before(number) not in ("and", "comma") and not reflexive:
                self.subject, self.last, self.hosts = [], [], []
            return
        self.draft.nodes[node].attributes += self.measured
        self.measured = []
        joined = self.text.before(number) in ("and", "comma") and bool(self.last)
        if self.pending is not None:
            # Not of "a cap off", nor of who is "in a group of men".
            qualities = self.draft.nodes[node].attributes
            crowd = self.pending.names[-1] == "in" and any(
                q.name.endswith(" of") for q in qualities
            )
            after = self.text.tokens[unit.stop : unit.stop + 1]
            gone = any(token.text.lower() in lists.GONE for token in after)
            unclear = self.draft.ambiguous or gone or crowd
            self.draft.close(self.pending, [node], not unclear)
            self._remember_outer(self.pending)
            self.context, self.pending = self.pending, None
            shown = any(self.draft.nodes[i].head in lists.DEPICTIONS for i in self.context.sources)
            self.inner = self.inner or self.context.names != ("of",) or shown
            self.last = [node]
            self.move_hosts(self.context, self.text.tokens[unit.first].tag == "PRP$")
        elif (  # the second object of "handing a woman a plate"
            self.context is not None
            and self.context.direct
            and self.text.before(number) == "noun"
            and self.context.names[0] in lists.GIVING_VERBS
            and self.draft.animate(self.last)
        ):
            self.draft.close(self.context, [node])
            self.last = [node]
        elif joined and not self._new_clause(number, unit, self.draft.nodes[node]):
            self._step_out(number, unit)
            apart = self._listing() and self._own_phrase(number, unit)
            # "A cup on a table and a plate" may say where the plate is, "a cup on tables and
            # chairs" and "filled with cakes and a pie" do.
            context = self.context
            counted = self.text.tokens[unit.first].pos in ("DET", "NUM", "PRON")
            surely = context is None or context.direct or context.names[-1] == "with" or not counted
            self._join(node, surely and not apart)
            if apart:
                self.last = self.hosts = [node]
        else:
            if self.text.before(number) in ("noun", "relative") and first == unit.first:
                self.fronted = self.last
            elif first == unit.first:
                self.fronted = []
            self.subject = self.last = self.hosts = [node]
            self.vague = self.draft.ambiguous
            self.context = self.outer = self.verb = None
            self.copula = self.inner = False

    def _remember_outer(self, link: PendingLink) -> None:
        """Remember the relation of a list while its last part is given a place."""
        if link.kind == "possession":
            self.outer = self.context
            return
        tells = link.kind == "preposition" and self.context is not None
        if tells and list(link.sources) == self.last and self.context is not None:
            opens = self.context.direct or self.context.names[-1] == "with"
            self.outer = self.context if opens else None
        else:
            self.outer = None

    def _each_other(self) -> None:
        """ "zebras standing next to each other": what follows belongs to the zebras."""
        link, self.pending = self.pending, None
        if link is None or not link.sources or link.negated:
            return
        self.draft.close_mutual(link)
        self.last = self.hosts = list(link.sources)
        self.context = None

    def _join(self, node: int, sure: bool) -> None:
        """Join a subject or object to the last; sure: it is an object."""
        moved = self.hosts == self.last
        if self.context is not None:
            self.draft.close(self.context, [node], sure)
            self.last = [*self.last, node]
        elif self.last == self.subject:
            self.last = self.subject = [*self.subject, node]
        else:
            self.last = [*self.last, node]
        if moved:
            self.hosts = self.last

    def _step_out(self, number: int, unit: Unit) -> None:
        """Return to an outer list: "a bowl of rice and a jar of oil", "with a bird on it and a
        nest"."""
        context, after = self.context, self.text.next(number)
        if context is None:
            return
        counted = self.text.tokens[unit.first].pos in ("DET", "NUM")
        if context.names == ("of",):
            if after is not None and after.names == ("of",) and counted:
                self.last = list(context.sources)
                self.context, self.outer = self.outer, None
        elif self.outer is not None:
            # Behind the place of its last part: "with a lake in the background and hills".
            pointing = any(i in self.outer.sources for i in self.last)
            if pointing or all(self.draft.nodes[i].head in _BACKDROPS for i in self.last):
                self.context, self.outer = self.outer, None

    def _new_clause(self, number: int, unit: Unit, node: Node) -> bool:
        """Return whether the noun phrase behind a joint begins something new: a verb follows, or it
        resembles the subject and not the object, or a phrase of its own follows. Behind a clause
        that has told something ("the cup is red and the box is blue") only a verb counts."""
        after = self.text.next(number)
        acts = after is not None and after.kind in ("verb", "be")
        alive = node.head in lists.ALIVE
        if after is not None and acts and self.draft.animate(self.subject) and not alive:
            # "a man in a suit and tie wearing a ring", "a man in a shirt and a hat is on a horse"
            worn = node.head in lists.CLOTHES and self.draft.garments(self.last)
            # "a bear in bed and a blanket covering it"
            pointing = self.text.points_next(number + 1)
            passive = self.text.tokens[after.head].tag == "VBN"  # "and a bicycle parked nearby"
            counted = self.text.tokens[unit.first].pos in ("DET", "NUM")
            deed = pointing or (passive and counted) or not self.text.is_participle(after)
            acts = not worn and deed
        if self.context is None:
            return acts and (self.copula or self.verb is not None)
        bare = self.text.tokens[unit.first].pos not in ("DET", "NUM", "PRON")
        if acts and bare and self.context.names[-1] in ("with", "of") and self.verb is None:
            return False  # "a pizza with greens and meat is on a table"
        if acts:
            return True
        subject = self.draft.animate(self.subject)
        target = self.draft.animate(self.last)
        if alive and subject and not target:
            return True
        alike = after is not None and after.names == ("with",)  # "a pan with eggs, a pot with peas"
        return self._own_phrase(number, unit) and (alike or not self._listing())

    def _listing(self) -> bool:
        """Return whether the last noun phrase belongs to a list after "with": "a room with a bed
        and a lamp on a table" has the lamp, wherever it is."""
        context = self.context
        if context is None:
            return False
        kept = context.direct and context.names[0] in lists.KEEPING_VERBS
        return kept or context.names[-1] == "with"

    def _own_phrase(self, number: int, unit: Unit) -> bool:
        """Return whether a preposition behind a joined noun phrase tells of it alone."""
        after = self.text.next(number)
        if after is None or after.kind != "preposition" or after.names == ("of",):
            return False
        if self.context is not None and self.context.names == after.names != ("with",):
            return True  # "a bike on a path and cars on the road"
        if self.text.pronoun_next(number + 1):
            return False
        return self.text.tokens[unit.first].pos == "DET"

    def _split_gap(self, number: int, unit: Unit) -> int:
        """Where the subject begins in "table bowl is sitting on": the words before are the object
        of the preposition left alone, and become `fronted`."""
        start = None if self.pending else self.text.gap_start(number)
        if start is None:
            return unit.first
        node = self.draft.add_objects(unit.first, start)
        if node is None:
            return unit.first
        self.fronted = [node]
        return start

    # prepositions

    def _preposition(self, number: int, unit: Unit) -> None:
        before = self.text.units[number - 1] if number else None
        if unit.names == ("of",) and before is None:
            return  # "most of the walls"
        if unit.names == ("of",) and before is not None and before.kind == "noun":
            if not self.measures:
                span = self.text.span(unit.first, unit.stop)
                self.pending = PendingLink(self.last[-1:], ("of",), ("of",), span, "possession")
            return
        self.pending = self.attached(number, unit, before)
        if not self.text.noun_next(number):
            if self.fronted:
                self.draft.close(self.pending, self.fronted, sure=False)
                self.fronted = []
            elif before is not None and before is self.verb and not before.negated:
                self.draft.act(before.head, self.doers, self.doubted)
            self.pending = None

    # verbs and adjectives

    def _verb(self, number: int, unit: Unit) -> None:
        tag = self.text.tokens[unit.head].tag
        before = self.text.before(number)
        self.pending = None
        self.copula = False
        self.direct = False
        sure = True
        if before == "relative":
            self.doers, sure = self.antecedent(number)
        elif before == "and" and self.verb is not None:
            sure = not self.doubted  # the same doers
        elif before == "while":
            self.doers, sure = self.subject or self.last, bool(self.subject)
        elif self.text.is_participle(unit):
            self.doers, sure = self.participle_subject(number, unit, tag)
        else:
            self.doers, sure = self.subject or self.last, not self.vague
        certain = sure
        sure = sure and not self.text.only_meant(unit)
        self.doubted = frozenset() if sure else frozenset(self.doers)
        self.verb = unit
        first = self.text.first_deed(unit)
        if first is not None:
            self.draft.act(first, self.doers, frozenset() if certain else frozenset(self.doers))
        for each in attributes(self.text.tokens, unit.head + 1, unit.stop):
            if each.name in lists.WHEREABOUTS:  # "are sitting outside"
                self._describe(self.doers, [each])
        after = self.text.next(number)
        kind: RelationKind = "passive" if tag == "VBN" else "verb"
        span = self.text.span(unit.head, unit.stop)
        link = PendingLink(
            self.doers, unit.names, unit.words, span, kind, True, unit.negated, self.doubted
        )
        if after is not None and after.kind in ("noun", "each other"):
            self.pending = link
            self.direct = True
        elif (after is not None and after.kind == "preposition") or unit.negated:
            return
        elif self.fronted:
            self.draft.close(link, self.fronted, sure=False)
            self.fronted = []
        else:
            parked = after is not None and after.kind == "verb" and after.first == unit.stop
            passive = after is not None and self.text.tokens[after.head].tag == "VBN"
            quality = after is not None and after.kind == "adjective"
            tells = unit.names[0] in lists.LINKING_VERBS and (quality or (parked and passive))
            if unit.names[0] not in _SEEMING and not tells:
                self.draft.act(unit.head, self.doers, self.doubted)

    def _describe(
        self, nodes: list[int], found: Sequence[GraphAttribute], sure: bool = True
    ) -> None:
        for index in nodes:
            certain = sure and index not in self.doubted
            self.draft.nodes[index].attributes += [replace(each, sure=certain) for each in found]

    def _be(self, number: int, unit: Unit) -> None:
        self.pending = None
        self.verb = None
        self.copula = not unit.negated
        sure = True
        if self.text.before(number) == "relative":
            self.subject, sure = self.antecedent(number)
        self.doubted = frozenset() if sure else frozenset(self.subject)

    def _adjective(self, number: int, unit: Unit) -> None:
        found = attributes(self.text.tokens, unit.first, unit.stop)
        before = self.text.before(number)
        if self.copula:
            targets = self.subject
        elif (
            before == "verb" and self.verb is not None and self.verb.names[0] in lists.LINKING_VERBS
        ):
            targets = self.doers
        elif before == "noun":
            targets = self.last[-1:]
        else:
            return
        if self.text.tokens[unit.head].text.lower() in lists.NO_QUALITY:
            return
        behind_object = before == "noun" and self.inner  # "hold the rope one-handed"
        self._describe(targets, found, not behind_object)


# --- A scene graph drawn as text. ---


def graph_tree(graph: SceneGraph) -> list[str]:
    """Draw a scene graph as text.

    Objects come in caption order, numbered if two share a name. Attributes are aligned in one
    column, relations and their objects in others.

    Args:
        graph: Any scene graph.

    Returns:
        The lines of a tree: objects with their attributes, and below each its relations.
    """
    if not graph.objects:
        return ["(no objects)"]
    heads = [node.name for node in graph.objects]
    labels = [  # numbered from 1 where they are not unique
        f"{name} {heads[: at + 1].count(name)}" if heads.count(name) > 1 else name
        for at, name in enumerate(heads)
    ]
    lines: list[str] = []
    wide = max(map(len, labels))
    names = [r.words or r.name for r in graph.relations]
    long = max(map(len, names), default=0)
    for index, node in enumerate(graph.objects):
        attributes = ", ".join(attribute.name for attribute in node.attributes)
        lines.append(f"{labels[index].ljust(wide)}  {attributes}".rstrip())
        own = [
            (name, labels[relation.object])
            for name, relation in zip(names, graph.relations, strict=True)
            if relation.subject == index
        ]
        for number, (name, target) in enumerate(own, 1):
            branch = "└─" if number == len(own) else "├─"
            lines.append(f"{branch} {name.ljust(long)} ─▶ {target}")
    return lines
