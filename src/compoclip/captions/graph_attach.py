"""What a preposition, participle or relative clause of a caption belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compoclip.captions.graph_draft import Draft, Link
from compoclip.captions.graph_nouns import acts
from compoclip.captions.graph_sentence import Sentence
from compoclip.captions.graph_units import Unit
from compoclip.captions.graph_words import BODY_PARTS, HOLDING_VERBS, PLACES
from compoclip.captions.types import GraphAttribute

#: Prepositions that tie a part, a content or a garment to its holder: the next one goes to the
#: holder ("a vase with flowers on the table").
_TYING = frozenset({"with", "of"})


@dataclass(slots=True)
class Reading:
    """What is remembered while a caption is read from left to right.

    Lists hold indexes of objects: the `subject` of the clause, the `last` noun phrase, the `hosts`
    that the next preposition tells of, the `doers` of the `verb`, the `holders` of the last part
    ("with", "of"), and what is `fronted` and waits for a verb or preposition without an object.
    `direct`: the verb has had its object. `copula`: a form of "be" waits for an adjective.
    `pending` waits for its object; `context` is what the last noun phrase was the object of.
    `measured` is said of the next noun ("two piles of").
    """

    text: Sentence
    draft: Draft
    subject: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    hosts: list[int] = field(default_factory=list)
    doers: list[int] = field(default_factory=list)
    holders: list[int] = field(default_factory=list)
    fronted: list[int] = field(default_factory=list)
    verb: Unit | None = None
    direct: bool = False
    copula: bool = False
    pending: Link | None = None
    context: Link | None = None
    measured: list[GraphAttribute] = field(default_factory=list)

    def end_sentence(self) -> None:
        """Forget all but the objects."""
        self.pending = self.context = self.verb = None
        self.copula = False
        self.subject, self.last, self.hosts, self.holders, self.fronted = [], [], [], [], []

    def attached(self, number: int, unit: Unit, before: Unit | None) -> Link:
        """The relation that a preposition begins, with its subjects."""
        span = self.text.span(unit.first, unit.stop)
        verb = self.verb
        if unit.negated or (verb is not None and before is verb and verb.negated):
            return Link((), unit.names, unit.words, span, negated=True)
        if verb is not None and before is verb:
            passive = self.text.tokens[verb.head].tag == "VBN"
            return Link(
                self.doers,
                verb.names + unit.names,
                verb.words + unit.words,
                self.text.span(verb.head, unit.stop),
                "passive" if passive else "verb",
            )
        if before is not None and before.kind == "be":
            return Link(self.subject, unit.names, unit.words, span)
        if verb is not None and self._continues(number, unit):
            names, words = verb.names[:1] + unit.names, verb.words[:1] + unit.words
            return Link(self.doers, names, words, span, "verb")
        return Link(self._place(number, unit), unit.names, unit.words, span)

    def _place(self, number: int, unit: Unit) -> list[int]:
        """What a preposition behind a noun phrase tells of."""
        own = self.text.pronoun_next(number)
        following = self.text.lemma_next(number)
        if unit.names == ("with",):
            # "a man in the water with an elephant", "a woman at a table with her laptop"
            company = self.draft.animate(self.subject) and not self.draft.animate(self.hosts)
            return self.subject if company and (own or acts(following)) else self.hosts
        return self.last if own or following in BODY_PARTS else self.hosts

    def _continues(self, number: int, unit: Unit) -> bool:
        """Whether a preposition behind the verb's object belongs to the verb: "throwing a ball to
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

    def move_hosts(self, link: Link, own: bool) -> None:
        """Say where the next preposition attaches, after `link` was closed.

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
        elif link.direct and people and link.names[0] not in HOLDING_VERBS:
            self.hosts = self.last if self.draft.animate(self.last) else list(link.sources)
        else:
            self.hosts = self.last

    def _place_noun(self, indexes: Sequence[int]) -> bool:
        """Whether the objects are places at a thing: "the front of a car"."""
        return any(self.draft.nodes[i].head in PLACES for i in indexes)

    def antecedent(self, number: int) -> list[int]:
        """What "who" or "that" stands for: with "who" the nearest person."""
        word = self.text.tokens[self.text.units[number - 1].head].text.lower()
        for group in (self.last, self.hosts, self.subject):
            if word != "who" or self.draft.animate(group):
                return group
        return self.last

    def participle_subject(self, number: int, unit: Unit, tag: str) -> list[int]:
        """Whose deed or state a participle behind a noun phrase is."""
        if not self.last or not self.subject or self.last == self.subject:
            return self.last or self.subject
        after = self.text.next(number)
        if after is not None and after.kind == "preposition" and self.text.pronoun_next(number + 1):
            return self.last
        near = self.draft.animate(self.last)
        far = self.draft.animate(self.subject)
        if tag == "VBG" and far and not near:
            return self.subject
        return self.last
