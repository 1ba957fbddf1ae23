"""Rule-based scene graphs from tags: objects, their attributes and the relations between them.

The caption is cut into units (noun phrases, verbs, prepositions, joints) that are read once from
left to right; `ReadingState` holds the context on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compoclip.captions.graph_state import ReadingState
from compoclip.captions.graph_units import Draft, Node, PendingLink, attributes, units
from compoclip.captions.lists import WORDS
from compoclip.captions.types import Caption, GraphAttribute, RelationKind, SceneGraph


def parse_graph(caption: Caption) -> SceneGraph:
    """Return the scene graph of a tagged and chunked caption. Never raises on odd text.

    Objects come from noun phrases (compound nouns are part of the name, materials and colours are
    attributes, a counting noun gives way to what it counts: "a group of people"), from possessors
    and from pronouns, which stand for an earlier object or a person. Relations come from
    prepositions, verbs with objects and passives; a verb without an object is an attribute. Negated
    objects and relations are left out.
    """
    reader = _Reader(caption.tokens, units(caption), Draft(caption.tokens))
    readers = {
        "noun": reader.noun,
        "each other": reader.each_other,
        "preposition": reader.preposition,
        "verb": reader.read_verb,
        "be": reader.be,
        "adjective": reader.adjective,
        "while": reader.end_clause,
        "stop": reader.end_sentence,
    }
    for number, unit in enumerate(reader.units):
        reader.at = number
        if unit.kind in readers:
            readers[unit.kind]()
    return reader.draft.graph()


@dataclass(slots=True)
class _Reader(ReadingState):
    """Reads the units of a caption, each kind by its own rule."""

    def end_clause(self) -> None:
        """Forget what belongs to a clause."""
        self.pending = self.context = self.outer = self.verb = None
        self.copula = self.inner = False

    def end_sentence(self) -> None:
        """Forget all but the objects."""
        self.end_clause()
        self.subject, self.last, self.hosts, self.holders, self.fronted = [], [], [], [], []

    # noun phrases

    def noun(self) -> None:
        """Add a noun phrase: the object of what is pending, one more of a list, or a subject."""
        unit, pending = self.unit, self.pending
        if unit.negated or (pending is not None and pending.negated):
            self.pending = None
            return
        head = self.tokens[unit.head].low
        hung = pending is not None and head in WORDS["pictures"]  # "a wall with a picture of"
        measured = None if hung else self.counts()
        self.measures = measured is not None
        if measured is not None:
            self.measured = measured
            return
        if pending is not None and pending.kind == "preposition":
            if head in WORDS["backdrops"]:
                self.pending = None
                return
            if head in WORDS["places at things"] and self.holders and unit.stop - unit.first <= 2:
                # "a truck with a plant on top": the plant is on top of the truck.
                names, words = ((*said, head, "of") for said in (pending.names, pending.words))
                self.draft.close(PendingLink(self.last, names, words, pending.span), self.holders)
                self.pending = None
                return
        first = unit.first
        if self.has_gap():
            fronted = self.draft.add_objects(first, unit.stop - 1)
            if fronted is not None:
                self.fronted, first = [fronted], unit.stop - 1
        taken = pending.sources if pending is not None else ()
        near = self.context.sources if self.context is not None and taken == self.last else ()
        node = self.draft.add_objects(first, unit.stop, taken, near)
        listed = self.before in ("and", "comma")
        if node is None:
            reflexive = head.endswith(("self", "selves"))
            direct = pending is not None and pending.direct
            if reflexive and direct and self.verb is not None:  # "drying himself"
                self.draft.act(self.verb.head, self.doers, self.doubted)
            self.pending = None
            if not listed and not reflexive:
                self.subject, self.last, self.hosts = [], [], []
            return
        qualities = self.draft.nodes[node].attributes
        qualities += self.measured
        self.measured = []
        if pending is not None:
            # Not of "a cap off", nor of who is "in a group of men".
            crowd = pending.names[-1] == "in" and any(q.name.endswith(" of") for q in qualities)
            after = self.tokens[unit.stop : unit.stop + 1]
            gone = any(token.low in WORDS["gone"] for token in after)
            self.draft.close(pending, [node], not (self.draft.ambiguous or gone or crowd))
            self._remember_outer(pending)
            self.context, self.pending = pending, None
            depicted = self.draft.any_in("depictions", pending.sources)
            self.inner = self.inner or pending.names != ("of",) or depicted
            self.last = [node]
            self.move_hosts(pending, self.tokens[unit.first].tag == "PRP$")
        elif (  # the second object of "handing a woman a plate"
            self.context is not None
            and self.context.direct
            and self.before == "noun"
            and self.context.names[0] in WORDS["giving verbs"]
            and self.draft.animate(self.last)
        ):
            self.draft.close(self.context, [node])
            self.last = [node]
        elif listed and self.last and not self._new_clause(self.draft.nodes[node]):
            self._step_out()
            apart = self._listing() and self._has_phrase()
            # "A cup on a table and a plate" may say where the plate is, "a cup on tables and
            # chairs" and "filled with cakes and a pie" do.
            context = self.context
            surely = context is None or context.direct or context.names[-1] == "with"
            surely = surely or not self._opens_with("DET", "NUM", "PRON")
            joined, moved = [*self.last, node], self.hosts == self.last
            if context is not None:
                self.draft.close(context, [node], surely and not apart)
            elif self.last == self.subject:
                self.subject = joined
            self.last = joined
            if moved:
                self.hosts = joined
            if apart:
                self.last = self.hosts = [node]
        else:
            if first == unit.first:
                self.fronted = self.last if self.before in ("noun", "relative") else []
            self.subject = self.last = self.hosts = [node]
            self.vague = self.draft.ambiguous
            self.context = self.outer = self.verb = None
            self.copula = self.inner = False

    def _opens_with(self, *parts: str) -> bool:
        return self.tokens[self.unit.first].pos in parts

    def _remember_outer(self, link: PendingLink) -> None:
        """Remember the relation of a list while its last part is given a place."""
        context = self.context
        if link.kind == "possession":
            self.outer = context
            return
        self.outer = None
        if link.kind == "preposition" and context and list(link.sources) == self.last:
            self.outer = context if context.direct or context.names[-1] == "with" else None

    def each_other(self) -> None:
        """Relate "zebras standing next to each other": what follows belongs to the zebras."""
        link, self.pending = self.pending, None
        if link is None or not link.sources or link.negated:
            return
        self.draft.close_mutual(link)
        self.last = self.hosts = list(link.sources)
        self.context = None

    def _step_out(self) -> None:
        """Return to an outer list: "a bowl of rice and a jar of oil"."""
        context, after = self.context, self.ahead()
        if context is None:
            return
        if context.names == ("of",):
            of_follows = after is not None and after.names == ("of",)
            if of_follows and self._opens_with("DET", "NUM"):
                self.last = list(context.sources)
                self.context, self.outer = self.outer, None
        elif self.outer is not None:
            # Behind the place of its last part: "with a lake in the background and hills".
            pointing = any(i in self.outer.sources for i in self.last)
            if pointing or self.draft.all_in("parts and places", self.last):
                self.context, self.outer = self.outer, None

    def _new_clause(self, node: Node) -> bool:
        """Return whether the noun phrase behind a joint begins something new."""
        after, context = self.ahead(), self.context
        acts = after is not None and after.kind in ("verb", "be")
        alive, subject = node.head in WORDS["alive"], self.draft.animate(self.subject)
        if after is not None and acts and subject and not alive:
            # "a man in a suit and tie wearing a ring", "a man in a shirt and a hat is on a horse"
            worn = node.head in WORDS["clothes"] and self.draft.garments(self.last)
            # "a bear in bed and a blanket covering it"
            thing = self.ahead(2)
            pointing = thing and thing.kind == "noun" and self.tokens[thing.head].pos == "PRON"
            passive = self.tokens[after.head].tag == "VBN"  # "and a bicycle parked nearby"
            deed = pointing or (passive and self._opens_with("DET", "NUM"))
            acts = not worn and bool(deed or not self.is_participle(after))
        if context is None:
            return acts and (self.copula or self.verb is not None)
        if acts:  # but "a pizza with greens and meat is on a table"
            bare = not self._opens_with("DET", "NUM", "PRON")
            return not (bare and context.names[-1] in ("with", "of") and self.verb is None)
        if alive and subject and not self.draft.animate(self.last):
            return True
        alike = after is not None and after.names == ("with",)  # "a pan with eggs, a pot with peas"
        return self._has_phrase() and (alike or not self._listing())

    def _listing(self) -> bool:
        """Return whether the last noun phrase belongs to a list after "with"."""
        context = self.context
        if context is None:
            return False
        keeps = context.direct and context.names[0] in WORDS["keeping verbs"]
        return keeps or context.names[-1] == "with"

    def _has_phrase(self) -> bool:
        """Return whether a preposition behind a joined noun phrase tells of it alone."""
        after = self.ahead()
        if after is None or after.kind != "preposition" or after.names == ("of",):
            return False
        if self.context is not None and self.context.names == after.names != ("with",):
            return True  # "a bike on a path and cars on the road"
        return not self.pronoun_ahead(2) and self._opens_with("DET")

    # prepositions

    def preposition(self) -> None:
        """Open the relation of a preposition; close it where its object stands before it."""
        unit, before = self.unit, self.previous
        if unit.names == ("of",) and (before is None or before.kind == "noun"):
            if before is not None and not self.measures:  # not "most of the walls"
                span = self.span(unit.first, unit.stop)
                self.pending = PendingLink(self.last[-1:], ("of",), ("of",), span, "possession")
            return
        self.pending = self.attached()
        after = self.ahead()
        # Perhaps after a second preposition: "from under".
        if after is None or after.kind not in ("noun", "adjective", "preposition", "each other"):
            if self.fronted:
                self.draft.close(self.pending, self.fronted, sure=False)
                self.fronted = []
            elif before is not None and before is self.verb and not before.negated:
                self.draft.act(before.head, self.doers, self.doubted)
            self.pending = None

    # verbs and adjectives

    def read_verb(self) -> None:
        """Find who does it, and open the relation to its object."""
        unit, before, after = self.unit, self.before, self.ahead()
        tag, name = self.tokens[unit.head].tag, unit.names[0]
        self.pending = None
        self.copula = self.direct = False
        sure = True
        if before == "relative":
            self.doers, sure = self.antecedent()
        elif before == "and" and self.verb is not None:
            sure = not self.doubted  # the same doers
        elif before == "while":
            self.doers, sure = self.subject or self.last, bool(self.subject)
        elif self.is_participle(unit):
            self.doers, sure = self.participle_subject()
        else:
            self.doers, sure = self.subject or self.last, not self.vague
        everyone = frozenset(self.doers)
        # A purpose or ability is no fact: "to catch", "can sit".
        leading = self.tokens[max(unit.first - 1, 0) : unit.head]
        meant = any(t.tag in ("TO", "MD") or t.low == "to" for t in leading)
        meant = meant or tag == "VB"
        self.doubted = frozenset() if sure and not meant else everyone
        self.verb = unit
        # The verb that serves another: "leaping" of "leaping to hit".
        verbs = [i for i in range(unit.first, unit.head) if self.tokens[i].pos == "VERB"]
        serves = verbs and any(t.tag == "TO" for t in self.tokens[verbs[0] : unit.head])
        if serves and self.tokens[verbs[0]].lemma not in WORDS["striving verbs"]:
            self.draft.act(verbs[0], self.doers, frozenset() if sure else everyone)
        for attribute in attributes(self.tokens, unit.head + 1, unit.stop):
            if attribute.name in WORDS["whereabouts"]:  # "are sitting outside"
                self._describe(self.doers, [attribute])
        kind: RelationKind = "passive" if tag == "VBN" else "verb"
        span = self.span(unit.head, unit.stop)
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
            tells = after is not None and (
                after.kind == "adjective"
                or (
                    (after.kind == "verb" and after.first == unit.stop)
                    and self.tokens[after.head].tag == "VBN"
                )
            )
            # "It appears to be" says nothing of its subject alone.
            linking = tells and name in WORDS["linking verbs"]
            if name not in ("appear", "seem") and not linking:
                self.draft.act(unit.head, self.doers, self.doubted)

    def _describe(
        self, nodes: list[int], qualities: Sequence[GraphAttribute], sure: bool = True
    ) -> None:
        for index in nodes:
            certain = sure and index not in self.doubted
            self.draft.nodes[index].attributes += [
                replace(quality, sure=certain) for quality in qualities
            ]

    def be(self) -> None:
        """Wait for the adjective of a form of "be"."""
        self.pending = self.verb = None
        self.copula = not self.unit.negated
        sure = True
        if self.before == "relative":
            self.subject, sure = self.antecedent()
        self.doubted = frozenset() if sure else frozenset(self.subject)

    def adjective(self) -> None:
        """Add an adjective behind its noun, a form of "be" or a linking verb."""
        unit, verb = self.unit, self.verb
        if self.copula:
            targets = self.subject
        elif self.before == "verb" and verb and verb.names[0] in WORDS["linking verbs"]:
            targets = self.doers
        elif self.before == "noun":
            targets = self.last[-1:]
        else:
            return
        if self.tokens[unit.head].low not in WORDS["no qualities"]:
            behind_object = self.before == "noun" and self.inner  # "hold the rope one-handed"
            qualities = attributes(self.tokens, unit.first, unit.stop)
            self._describe(targets, qualities, not behind_object)


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
    names = [r.words or r.name for r in graph.relations]
    wide, long = max(map(len, labels)), max(map(len, names), default=0)
    lines: list[str] = []
    for index, node in enumerate(graph.objects):
        attributes = ", ".join(attribute.name for attribute in node.attributes)
        lines.append(f"{labels[index].ljust(wide)}  {attributes}".rstrip())
        links = [(n, r.object) for n, r in zip(names, graph.relations) if r.subject == index]
        for number, (name, target) in enumerate(links, 1):
            branch = "└─" if number == len(links) else "├─"
            lines.append(f"{branch} {name.ljust(long)} ─▶ {labels[target]}")
    return lines
