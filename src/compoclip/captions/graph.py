"""Scene graphs from tags: objects, their attributes and the relations between them, by rule.

The caption is cut into units (noun phrases, verbs, prepositions, joints) that are read once from
left to right; `ReadingState` is what is remembered on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from compoclip.captions import lists
from compoclip.captions.graph_units import (
    Draft,
    Node,
    PendingLink,
    ReadSentence,
    Unit,
    acts,
    attributes,
    units,
)
from compoclip.captions.types import Caption, GraphAttribute, GraphObject, RelationKind, SceneGraph

# --- What a preposition, participle or relative clause of a caption belongs to. ---

#: Prepositions that tie a part, a content or a garment to its holder: the next one goes to the
#: holder ("a vase with flowers on the table").
_TYING = frozenset({"with", "of"})
#: Prepositions of a purpose, a direction or a likeness: of a noun they seldom say where it is.
_AIMING = frozenset({"for", "to", "like", "about", "from"})
#: Words that open a clause as often as they tie a thing: "as", "after they married".
_CLAUSES = frozenset({"as", "after", "before", "since", "until"})
#: What is in a place that is in another is in that, too.
_NESTING = frozenset({"in", "inside", "inside of"})
_NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class ReadingState:
    """The state of the parser while it reads a caption from left to right.

    Lists hold indexes of objects: the `subject` of the clause, the `last` noun phrase, the `hosts`
    that the next preposition tells of, the `doers` of the `verb` and those of them that are
    `doubted`, the `holders` of the last part ("with", "of"), and what is `fronted` and waits for a
    verb or preposition without an object.
    `direct`: the verb has had its object. `copula`: a form of "be" waits for an adjective.
    `pending` waits for its object; `context` is what the last noun phrase was the object of, and
    `inner` says that it is in the object of a verb or a preposition, be it as a part ("of");
    `vague` that the subject is a pronoun of which it is not clear what it stands for.
    `measures`: the last noun phrase only counts the next ("two piles of"), and what it says of that
    is `measured`.
    """

    text: ReadSentence
    draft: Draft
    subject: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    hosts: list[int] = field(default_factory=list)
    doers: list[int] = field(default_factory=list)
    doubted: frozenset[int] = _NONE
    holders: list[int] = field(default_factory=list)
    fronted: list[int] = field(default_factory=list)
    verb: Unit | None = None
    direct: bool = False
    copula: bool = False
    pending: PendingLink | None = None
    context: PendingLink | None = None
    inner: bool = False
    vague: bool = False
    measures: bool = False
    measured: list[GraphAttribute] = field(default_factory=list)

    def end_sentence(self) -> None:
        """Forget all but the objects."""
        self.pending = self.context = self.verb = None
        self.copula = self.inner = False
        self.subject, self.last, self.hosts, self.holders, self.fronted = [], [], [], [], []

    def attached(self, number: int, unit: Unit, before: Unit | None) -> PendingLink:
        """The relation that a preposition opens, with its subjects."""
        span = self.text.span(unit.first, unit.stop)
        verb = self.verb
        if unit.negated or (verb is not None and before is verb and verb.negated):
            return PendingLink((), unit.names, unit.words, span, negated=True)
        if verb is not None and before is verb:
            passive = self.text.tokens[verb.head].tag == "VBN"
            clause = unit.names[-1] in _CLAUSES and verb.names[-1] not in lists.DRESSING_VERBS
            return PendingLink(
                self.doers,
                verb.names + unit.names,
                verb.words + unit.words,
                self.text.span(verb.head, unit.stop),
                "passive" if passive else "verb",
                doubted=frozenset(self.doers) if clause else self.doubted,
            )
        if before is not None and before.kind == "be":
            return PendingLink(self.subject, unit.names, unit.words, span, doubted=self.doubted)
        if verb is not None and self._continues(number, unit):
            names, words = verb.names[:1] + unit.names, verb.words[:1] + unit.words
            doubted = frozenset(self.doers) if self.direct else self.doubted
            return PendingLink(self.doers, names, words, span, "verb", doubted=doubted)
        sources = self._place(number, unit)
        doubted = self._unclear(number, unit, sources)
        return PendingLink(sources, unit.names, unit.words, span, doubted=doubted)

    def _unclear(self, number: int, unit: Unit, sources: Sequence[int]) -> frozenset[int]:
        """The sources for which the attachment of a prepositional phrase is ambiguous.

        Of two that are joined ("a hydrant and a man in a coat") it tells of the nearer. Behind the
        object of a verb or preposition it can belong to what came before, unless what is in the
        one is in the other ("a bed in a room in a house"), or both are named: "sauce on it".
        """
        name = " ".join(unit.names)
        if name in _AIMING | _CLAUSES:
            return frozenset(sources)
        company = name == "with" and sources is self.subject and self.text.pronoun_next(number)
        if company or not self.inner:
            return frozenset(sources[:-1])
        if sources == self.last and self._points_back(number) and name != "with":
            return frozenset(sources) if self.draft.garments(sources) else _NONE
        nested = (
            name in _NESTING and self.text.lemma_next(number) not in lists.CLOTHES | lists.MANNERS
        )
        parts = any(self.draft.nodes[i].head in lists.BODY_PARTS for i in sources)
        return _NONE if nested and not (parts or self.doubted) else frozenset(sources)

    def _place(self, number: int, unit: Unit) -> list[int]:
        """The objects that a prepositional phrase after a noun phrase attaches to."""
        own = self.text.pronoun_next(number)
        following = self.text.lemma_next(number)
        if self.text.before(number) == "while" and self.subject:
            return self.subject  # "a man rides a wave while on a board"
        if unit.names == ("with",):
            # "a man in the water with an elephant", "a woman at a table with her laptop"
            company = self.draft.animate(self.subject) and not self.draft.animate(self.hosts)
            return self.subject if company and (own or acts(following)) else self.hosts
        return self.last if own or following in lists.BODY_PARTS else self.hosts

    def _points_back(self, number: int) -> bool:
        """Whether "it" or a part of someone's body follows: "sauce on it", "a hat on his head"."""
        after = self.text.next(number)
        if after is None or not self.text.pronoun_next(number):
            return False
        head = self.text.tokens[after.head]
        return head.pos == "PRON" or head.lemma in lists.BODY_PARTS

    def _continues(self, number: int, unit: Unit) -> bool:
        """Whether a preposition after the direct object attaches to the verb: "throwing a ball to
        a dog", "eating hay with its trunk", "lying on the floor with dogs"."""
        name = unit.names[0]
        acting = self.draft.animate(self.doers)
        near = self.draft.animate(self.last)
        if not acting or name not in ("to", "with") or self.last == self.doers:
            return False
        if self.direct:
            garment = self.draft.garments(self.last)
            return not near and not garment
        animate = acts(self.text.lemma_next(number))
        return name == "with" and not near and (animate or self.text.pronoun_next(number))

    def move_hosts(self, link: PendingLink, own: bool) -> None:
        """Update the attachment site of the next preposition once `link` is closed.

        own: its object is "its", "his" or "her" part, of which captions go on to tell: "with its
        head on a pillow".
        """
        garment = self.draft.garments(self.last)
        people = self.draft.animate(link.sources)
        if own or (link.kind == "possession" and self._place_noun(link.sources)):
            self.hosts = self.last
        elif link.kind in ("preposition", "possession") and link.names[0] in _TYING:
            self.holders = list(link.sources)
        elif link.names in (("in",), ("wear",)) and garment and people:
            return  # a preposition behind clothes tells of who wears them
        elif link.direct and people and link.names[0] not in lists.HOLDING_VERBS:
            self.hosts = self.last if self.draft.animate(self.last) else list(link.sources)
        else:
            self.hosts = self.last

    def _place_noun(self, indexes: Sequence[int]) -> bool:
        """Whether some object is a place at a thing: "the front of a car"."""
        return any(self.draft.nodes[i].head in lists.PLACES_AT_THINGS for i in indexes)

    def antecedent(self, number: int) -> tuple[list[int], bool]:
        """The antecedent of "who" (the nearest person) or "that", and whether it is certain."""
        word = self.text.tokens[self.text.units[number - 1].head].text.lower()
        if word != "who":
            return self.last, not self.inner
        groups = [g for g in (self.last, self.hosts, self.subject) if self.draft.animate(g)]
        return (groups or [self.last])[0], all(group == groups[0] for group in groups)

    def participle_subject(self, number: int, unit: Unit, tag: str) -> tuple[list[int], bool]:
        """The subject of a participle after a noun phrase, and whether it is certain."""
        gerund = self.text.before(number) == "preposition"  # "a book about riding horses"
        if not self.last or not self.subject or self.last == self.subject:
            return self.last or self.subject, not gerund
        tied = self.context is not None and self.context.names[-1] == "with"
        if tied and self.text.own_before(number):
            return self.last, True  # "a man with his arms raised"
        after = self.text.next(number)
        if after is not None and after.kind == "preposition" and self.text.pronoun_next(number + 1):
            return self.last, False
        near = self.draft.animate(self.last)
        far = self.draft.animate(self.subject)
        if tag == "VBG" and far and not near:
            aboard = self.context is not None and self.context.names[-1] in ("in", "on")
            moves = (
                any(self.draft.nodes[i].head in lists.VEHICLES for i in self.last) and not aboard
            )
            return self.subject, not (tied or gerund or moves)
        return self.last, tag == "VBG" and near and not far and not gerund


# --- Scene graphs from tags: objects, their attributes and the relations between them, by rule. ---


def parse_graph(caption: Caption) -> SceneGraph:
    """The scene graph of a tagged and chunked caption. Never raises on odd text.

    Objects come from noun phrases (compound nouns are part of the name, materials and colours are
    attributes, a counting noun gives way to what it counts: "a group of people"), from possessors
    and from pronouns, which stand for an earlier object or a person. Relations come from
    prepositions, verbs with objects and passives; a verb without an object is an attribute. Negated
    objects and relations are left out.

    Args:
        caption: With tokens and chunks; its own graph is not looked at.

    Returns:
        The graph, empty when the caption names nothing.
    """
    return _Reader(ReadSentence(caption.tokens, units(caption)), Draft(caption.tokens)).read()


@dataclass(slots=True)
class _Reader(ReadingState):
    """Reads the units of a caption, each kind by its own rule."""

    def read(self) -> SceneGraph:
        """Read all units and give the graph."""
        for number, unit in enumerate(self.text.units):
            if unit.kind == "noun":
                self._noun(number, unit)
            elif unit.kind == "preposition":
                self._preposition(number, unit)
            elif unit.kind == "verb":
                self._verb(number, unit)
            elif unit.kind == "be":
                self._be(number, unit)
            elif unit.kind == "adjective":
                self._adjective(number, unit)
            elif unit.kind == "while":
                self.pending = self.context = self.verb = None
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
                self._place_at_holder(self.pending, head)
                return
        first = self._split_gap(number, unit)
        taken = self.pending.sources if self.pending is not None else ()
        node = self.draft.add_objects(first, unit.stop, taken)
        if node is None:
            self.pending = None
            if self.text.before(number) not in ("and", "comma"):
                self.subject, self.last, self.hosts = [], [], []
            return
        self.draft.nodes[node].attributes += self.measured
        self.measured = []
        joined = self.text.before(number) in ("and", "comma") and bool(self.last)
        if self.pending is not None:
            self.draft.close(self.pending, [node], self._surely(self.pending, unit, node))
            self.context, self.pending = self.pending, None
            shown = any(self.draft.nodes[i].head in lists.DEPICTIONS for i in self.context.sources)
            self.inner = self.inner or self.context.names != ("of",) or shown
            self.last = [node]
            self.move_hosts(self.context, self.text.tokens[unit.first].tag == "PRP$")
        elif joined and not self._new_clause(number, unit, self.draft.nodes[node]):
            self._join(node, self._another_object(unit))
        else:
            if self.text.before(number) in ("noun", "relative") and first == unit.first:
                self.fronted = self.last
            elif first == unit.first:
                self.fronted = []
            self.subject = self.last = self.hosts = [node]
            self.vague = self.draft.ambiguous
            self.context = self.verb = None
            self.copula = self.inner = False

    def _surely(self, link: PendingLink, unit: Unit, node: int) -> bool:
        """Whether a relation holds of its object as its short text says it: not of "a cap off", nor
        of who is "in a group of men"."""
        crowd = any(each.name.endswith(" of") for each in self.draft.nodes[node].attributes)
        after = self.text.tokens[unit.stop : unit.stop + 1]
        gone = any(token.text.lower() in lists.GONE for token in after)
        return not (self.draft.ambiguous or gone or (crowd and link.names[-1] == "in"))

    def _place_at_holder(self, link: PendingLink, place: str) -> None:
        """ "a truck with a plant on top": the plant is on top of the truck."""
        self.pending = None
        self.draft.close(
            PendingLink(
                self.last, (*link.names, place, "of"), (*link.words, place, "of"), link.span
            ),
            self.holders,
        )

    def _join(self, node: int, sure: bool) -> None:
        """One more subject or object beside the last; sure: it is no subject but an object."""
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

    def _another_object(self, unit: Unit) -> bool:
        """Whether a noun phrase behind a joint surely goes on with the objects before it.

        "A cup on a table and a plate" may say where the plate is, "a cup on tables and chairs"
        and "filled with cakes and a pie" do.
        """
        context = self.context
        if context is None or context.direct or context.names[-1] == "with":
            return True
        return self.text.tokens[unit.first].pos not in ("DET", "NUM", "PRON")

    def _new_clause(self, number: int, unit: Unit, node: Node) -> bool:
        """Whether the noun phrase behind a joint begins something new: a verb follows, or it
        resembles the subject and not the object, or a phrase of its own follows. Behind a clause
        that has told something ("the cup is red and the box is blue") only a verb counts."""
        after = self.text.next(number)
        acts = after is not None and after.kind in ("verb", "be")
        if after is not None and acts and self.draft.animate(self.subject) and not node.animate:
            # "a man in a suit and tie wearing a ring", "a man in a shirt and a hat is on a horse"
            worn = node.worn and self.draft.garments(self.last)
            acts = not worn and not self.text.is_participle(after)
        if self.context is None:
            return acts and (self.copula or self.verb is not None)
        if acts:
            return True
        subject = self.draft.animate(self.subject)
        target = self.draft.animate(self.last)
        if node.animate and subject and not target:
            return True
        own = self.text.tokens[unit.first].pos == "DET"
        phrase = after is not None and after.kind == "preposition" and after.names != ("of",)
        return own and phrase and not self.text.pronoun_next(number + 1)

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
        sure = sure and not self.text.only_meant(unit)
        self.doubted = frozenset() if sure else frozenset(self.doers)
        self.verb = unit
        after = self.text.next(number)
        kind: RelationKind = "passive" if tag == "VBN" else "verb"
        span = self.text.span(unit.head, unit.stop)
        link = PendingLink(
            self.doers, unit.names, unit.words, span, kind, True, unit.negated, self.doubted
        )
        if after is not None and after.kind == "noun":
            self.pending = link
            self.direct = True
        elif (after is not None and after.kind == "preposition") or unit.negated:
            return
        elif self.fronted:
            self.draft.close(link, self.fronted, sure=False)
            self.fronted = []
        elif not self._linking(after, unit):
            self.draft.act(unit.head, self.doers, self.doubted)

    def _linking(self, after: Unit | None, unit: Unit) -> bool:
        return (
            after is not None and after.kind == "adjective" and unit.names[0] in lists.LINKING_VERBS
        )

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
        for index in targets:
            sure = not behind_object and index not in self.doubted
            self.draft.nodes[index].attributes.extend(replace(each, sure=sure) for each in found)


# --- A scene graph drawn as text. ---


def graph_tree(graph: SceneGraph) -> list[str]:
    """Draw a scene graph as text.

    Objects come in caption order and are numbered where two have the same name; attributes stand in
    one column, and so do the relations and their objects.

    Args:
        graph: Any scene graph.

    Returns:
        The lines of a tree: objects with their attributes, below each what it is related to.
    """
    if not graph.objects:
        return ["(no objects)"]
    labels = _labels(graph.objects)
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


def _labels(objects: tuple[GraphObject, ...]) -> list[str]:
    """Names, numbered from 1 where they are not unique."""
    names = [node.name for node in objects]
    labels = []
    for index, name in enumerate(names):
        number = names[: index + 1].count(name)
        labels.append(f"{name} {number}" if names.count(name) > 1 else name)
    return labels
