"""The attachment of prepositions, participles and relative clauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from compoclip.captions.graph_units import Draft, PendingLink, Unit, UnitKind, attributes
from compoclip.captions.lists import WORDS
from compoclip.captions.types import NOUNS, GraphAttribute, Span, Token

#: Prepositions that tie a part, a content or a garment to its holder: the next one goes to the
#: holder ("a vase with flowers on the table").
_TIES = frozenset({("with",), ("of",), ("full", "of")})


@dataclass(slots=True)
class ReadingState:
    """The state of the parser while it reads the units of a caption from left to right.

    `at` is the number of the unit that is read. Lists hold indexes of objects: the `subject` of the
    clause, the `last` noun phrase, the `hosts` of the next preposition, the `doers` of the `verb`
    and the `doubted` ones among them, the `holders` of the last part ("with", "of"), and `fronted`
    objects of a later verb or preposition.
    `direct`: the verb has its object. `copula`: a form of "be" waits for an adjective. `pending`
    waits for its object; `context` is the relation of the last noun phrase, `outer` that of the
    phrase before, if the last one is its place. `inner`: the last noun phrase is within the object
    of a verb or preposition. `vague`: the subject is an ambiguous pronoun. `measures`: the last
    noun phrase counts the next ("two piles of") and gives it the attributes `measured`.
    """

    tokens: Sequence[Token]
    units: Sequence[Unit]
    draft: Draft
    at: int = 0
    subject: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    hosts: list[int] = field(default_factory=list)
    doers: list[int] = field(default_factory=list)
    doubted: frozenset[int] = frozenset()
    holders: list[int] = field(default_factory=list)
    fronted: list[int] = field(default_factory=list)
    verb: Unit | None = None
    direct: bool = False
    copula: bool = False
    pending: PendingLink | None = None
    context: PendingLink | None = None
    outer: PendingLink | None = None
    inner: bool = False
    vague: bool = False
    measures: bool = False
    measured: list[GraphAttribute] = field(default_factory=list)

    # what is around the unit that is read

    @property
    def unit(self) -> Unit:
        """Return the unit that is read."""
        return self.units[self.at]

    @property
    def previous(self) -> Unit | None:
        """Return the unit before it, None at the beginning."""
        return self.units[self.at - 1] if self.at else None

    @property
    def before(self) -> UnitKind | None:
        """Return the kind of the unit before it."""
        return self.units[self.at - 1].kind if self.at else None

    def ahead(self, by: int = 1) -> Unit | None:
        """Return a unit behind it, None at the end."""
        return self.units[self.at + by] if self.at + by < len(self.units) else None

    @property
    def following(self) -> str:
        """Return the lemma of the noun that follows, "" without one."""
        after = self.ahead()
        return self.tokens[after.head].lemma if after is not None and after.kind == "noun" else ""

    def span(self, first: int, stop: int) -> Span:
        """Return the characters of the tokens `first` to `stop`."""
        return Span(self.tokens[first].start, self.tokens[stop - 1].end)

    def pronoun_ahead(self, by: int = 1) -> bool:
        """Return whether a pronoun, or a phrase with a possessive one ("his hand"), follows."""
        after = self.ahead(by)
        if after is None or after.kind != "noun":
            return False
        return self.tokens[after.head].pos == "PRON" or self.tokens[after.first].tag == "PRP$"

    def is_participle(self, unit: Unit) -> bool:
        """Return whether it is a participle without "is" or "has": "riding", "being lit"."""
        bare = unit.head == unit.first or self.tokens[unit.first].low == "being"
        return bare and self.tokens[unit.head].tag in ("VBG", "VBN")

    def counts(self) -> list[GraphAttribute] | None:
        """Return the attributes that "two piles of" gives to "books"; None for other nouns."""
        unit, after, thing = self.unit, self.ahead(), self.ahead(2)
        token = self.tokens[unit.head]
        low = token.low
        pictures = low in WORDS["pictures"]
        if pictures and after is not None and after.kind == "verb":
            shows = after.names[0] in WORDS["picturing verbs"]
            if shows and self.tokens[after.head].tag != "VBN" and thing and thing.kind == "noun":
                return []
        telling = low in WORDS["telling quantities"]
        quantity = telling or pictures or low in WORDS["quantities"]
        if not quantity or after is None or after.names != ("of",):
            return None
        # A black and white photo, or a large group, of dogs: the dogs may be neither.
        modifiers = [] if pictures else attributes(self.tokens, unit.first, unit.head)
        modifiers = [
            modifier
            for modifier in modifiers
            if modifier.name.rpartition(" ")[2] not in WORDS["extents"]
        ]
        if telling:
            span = self.span(unit.head, after.head + 1)
            modifiers.append(GraphAttribute(f"{low} of", span, "number"))
        return modifiers

    def has_gap(self) -> bool:
        """Return whether two nouns are object and subject: "table bowl is sitting on"."""
        unit = self.unit
        opens = self.before in (None, "comma", "and", "stop") and self.pending is None
        compound = unit.stop - unit.first > 1 and self.tokens[unit.stop - 2].pos in NOUNS
        verb, tail, end = (self.ahead(by) for by in (1, 2, 3))
        if not (opens and compound) or verb is None or verb.kind not in ("verb", "be"):
            return False
        if tail is None or tail.kind == "stop":
            return verb.kind == "verb" and verb.names[0] in WORDS["transitive verbs"]
        return tail.kind == "preposition" and (end is None or end.kind == "stop")

    # prepositions

    def attached(self) -> PendingLink:
        """Return the relation that a preposition opens, with its subjects."""
        unit, verb = self.unit, self.verb
        link = PendingLink((), unit.names, unit.words, self.span(unit.first, unit.stop))
        behind = self.previous if self.previous is verb else None
        if unit.negated or (behind and behind.negated):
            return replace(link, negated=True)
        if behind:
            clause = unit.names[-1] in WORDS["clause openers"]
            doubtful = clause and behind.names[-1] not in WORDS["dressing verbs"]
            return PendingLink(
                self.doers,
                behind.names + unit.names,
                behind.words + unit.words,
                self.span(behind.head, unit.stop),
                "passive" if self.tokens[behind.head].tag == "VBN" else "verb",
                doubted=frozenset(self.doers) if doubtful else self.doubted,
            )
        if self.before == "be":
            return replace(link, sources=self.subject, doubted=self.doubted)
        if verb is not None:
            names, words = verb.names[:1] + unit.names, verb.words[:1] + unit.words
            deed = PendingLink(self.doers, names, words, link.span, "verb", doubted=self.doubted)
            tied = self.context is not None and list(self.context.sources) == self.doers
            led = self.tokens[verb.head].tag == "VBN" and unit.names == ("by",)
            if led and tied and self.following in WORDS["alive"]:
                return replace(deed, kind="passive")  # "led down the street by a man"
            moves = verb.names[0] in WORDS["motion verbs"] and not self.direct
            on = tied and self.doers != self.last and unit.names[0] in WORDS["directions"]
            if moves and on:  # "walking along a river towards a bridge"
                return deed
            if self._continues():
                return replace(deed, doubted=frozenset(self.doers)) if self.direct else deed
        sources = self._place()
        return replace(link, sources=sources, doubted=frozenset(self._unclear(sources)))

    def _unclear(self, sources: Sequence[int]) -> Sequence[int]:
        """The sources for which the attachment of a prepositional phrase is ambiguous."""
        name = " ".join(self.unit.names)
        if name in WORDS["aims"] or name in WORDS["clause openers"]:
            return sources
        company = name == "with" and sources is self.subject and self.pronoun_ahead()
        if company or not self.inner:
            return sources[:-1]
        after = self.ahead()
        if after is not None and self.pronoun_ahead() and name != "with" and sources == self.last:
            head = self.tokens[after.head]
            if head.pos == "PRON" or head.lemma in WORDS["body parts"]:
                # "sauce on it", "on his head"
                return sources if self.draft.garments(sources) else ()
        # What is in a place that is in another is in that, too.
        within = name in ("in", "inside", "inside of") and self.following not in WORDS["no places"]
        parts = self.draft.any_in("body parts", sources)
        return () if within and not (parts or self.doubted) else sources

    def _place(self) -> list[int]:
        """The objects that a prepositional phrase after a noun phrase attaches to."""
        names, possessive, following = self.unit.names, self.pronoun_ahead(), self.following
        context = self.context
        if self.before in ("while", "comma") and self.subject:
            return self.subject  # "a man rides a wave while on a board"
        if self.before == "and" and context is not None:
            return list(context.sources)  # "in the grass and near a tree"
        if names == ("with",):
            return self._company(following, possessive)
        tied = context is not None and context.names[-1] == "with"
        if names == ("for",) or (tied and following in ("air", "sky")):
            return self.last  # "a box with cans for sale", "people with kites in the air"
        person, near = (self.draft.any_in("people", nodes) for nodes in (self.subject, self.last))
        if names == ("in",) and following in WORDS["clothes"] and person and not near:
            return self.subject  # "a man on a horse in a hat"
        part = following in WORDS["body parts"] or following in WORDS["backgrounds"]
        if possessive and not part and context is not None and context.names == ("of",):
            return list(context.sources)  # "a bottle of ketchup next to it"
        aside = possessive and not part and " ".join(names) in WORDS["beside"]
        if (possessive or part) and not (aside and self._stander(following)):
            return self.last
        manner = names == ("in",) and following in WORDS["manners"]
        if (following in WORDS["times"] or manner) and self.subject:
            return self.subject
        return self._stander(following) or self.hosts

    def _company(self, following: str, possessive: bool) -> list[int]:
        """The objects that a phrase with "with" attaches to."""
        echoed = ""  # "in" of "with cows in it", within the clause
        for at in range(self.at + 2, min(self.at + 6, len(self.units))):
            unit = self.units[at]
            if unit.kind in ("comma", "stop", "while"):
                break
            if unit.kind == "noun" and self.tokens[unit.head].lemma in ("it", "they"):
                echoed = " ".join(self.units[at - 1].names)
                break
        # "on a floor with toys around it"
        flat = echoed == "around" and self.draft.all_in("scenes", self.last)
        within = echoed and echoed not in WORDS["beside"] and not flat
        if within and not self.draft.animate(self.last):
            return self.last  # "a truck near a field with cows in it"
        if following in WORDS["markings"] and self.draft.garments(self.last):
            return self.last
        if self.context is not None and self.draft.all_in("flat", self.last):
            return list(self.context.sources)  # "a bed on the floor with blankets"
        again = self.context is not None and self.context.names[-1] == "with"
        if again and following not in WORDS["backgrounds"] and not self.draft.animate(self.hosts):
            return self.last  # "a dish with a pizza with cheese"
        things = WORDS["carried" if self.draft.any_in("people", self.subject) else "of the body"]
        brought = possessive or following in WORDS["alive"] or following in things
        company = self.draft.animate(self.subject) and not self.draft.animate(self.hosts)
        return self.subject if company and brought else self.hosts

    def _stander(self, following: str) -> list[int]:
        """The objects that are where the phrase says together with the place before, or []."""
        context, name = self.context, " ".join(self.unit.names)
        if context is None or context.kind == "possession":
            return []
        sources = list(context.sources)
        if context.names[-1] in ("with", "of"):
            holding = context.names[-1] == "with" and self.draft.all_in("holding places", sources)
            return self.last if holding and name in WORDS["beside"] else []
        if sources == self.last or not self.last:
            return []
        animate = self.draft.animate(sources)
        if context.direct:
            adjacent = name in WORDS["beside"] and name not in ("by", "over") and animate
            scene = name in WORDS["where"] and following in WORDS["scenes"] and animate
            depicted = context.names[0] in WORDS["showing verbs"] or self.draft.animate(self.last)
            deed = self.draft.any_in("deeds", self.last)
            return sources if deed or (not depicted and (adjacent or scene)) else []
        if name in WORDS["beside"]:
            return sources
        mounts = name == "on" and following in WORDS["mounts"]
        # "a man on a board in the air"
        flies = following == "air" and self.draft.all_in("mounts", self.last)
        return sources if animate and (name == "at" or mounts or flies) else []

    def _continues(self) -> bool:
        """Return whether it is the verb's: "throwing a ball to a dog", "eating with a fork"."""
        name, following = self.unit.names[0], self.following
        near = self.draft.animate(self.last)
        alive = following in WORDS["alive"]
        if not self.draft.animate(self.doers) or self.last == self.doers:
            return False
        if name not in ("to", "with"):
            return False
        if not self.direct:
            possessive = self.pronoun_ahead() and following not in WORDS["of the body"]
            return name == "with" and not near and (alive or possessive)
        if self.verb is None or self.draft.garments(self.last):
            return False
        if near:
            return name == "to" and self.verb.names[0] in WORDS["giving verbs"]
        used = self.pronoun_ahead() or following in WORDS["carried"] or alive
        return name == "to" or (used and self.verb.names[0] not in WORDS["keeping verbs"])

    def move_hosts(self, link: PendingLink, possessive: bool) -> None:
        """Update the attachment site of the next preposition once `link` is closed.

        possessive: its object is "its", "his" or "her" part, of which captions go on to tell:
        "with its head on a pillow".
        """
        garment = self.draft.garments(self.last)
        people = self.draft.animate(link.sources)
        heads = {self.draft.nodes[i].head for i in self.last}
        # What one is in or on without being there: "in a row", "on display".
        manners = WORDS["in manners"] if link.names == ("in",) else WORDS["on manners"]
        at_things = self.draft.any_in("places at things", link.sources)
        if link.names in (("in",), ("on",)) and heads <= manners:
            self.hosts = list(self.subject)  # "a dog with a stick in its mouth on a path"
        elif link.names[-1] == "for" and heads <= WORDS["posed for"]:
            self.hosts = list(link.sources)  # "posing for a photo in a room"
        elif possessive or (link.kind == "possession" and at_things):  # "the front of a car"
            self.hosts = self.last
        elif link.names in _TIES or (link.kind == "passive" and link.names[-1] == "with"):
            self.holders = list(link.sources)
            limb = heads <= WORDS["limbs"] and people
            if link.names[-1] == "with" and (limb or self.draft.all_in("scenes", link.sources)):
                self.hosts = self.last  # "a kitchen with a table next to a door"
            elif link.names[-1] != "of" and not set(self.hosts) & set(link.sources):
                self.hosts = list(link.sources)
        elif link.names in (("in",), ("wear",)) and garment and people:
            return  # a preposition behind clothes tells of who wears them
        elif link.direct and people and link.names[0] not in WORDS["holding verbs"]:
            self.hosts = self.last if self.draft.animate(self.last) else list(link.sources)
        else:
            self.hosts = self.last

    # relative clauses and participles

    def antecedent(self) -> tuple[list[int], bool]:
        """Return the antecedent of "who" (the nearest person) or "that", and its certainty."""
        if self.tokens[self.units[self.at - 1].head].low != "who":
            dressed = self.draft.garments(self.last) and self.draft.animate(self.subject)
            return (self.subject if dressed else self.last), not self.inner
        groups = [g for g in (self.last, self.hosts, self.subject) if self.draft.animate(g)]
        return (groups or [self.last])[0], all(group == groups[0] for group in groups)

    def participle_subject(self) -> tuple[list[int], bool]:
        """Return the subject of a participle after a noun phrase, and its certainty."""
        unit, before = self.unit, self.previous
        tag = self.tokens[unit.head].tag
        gerund = self.before == "preposition"  # "a book about riding horses"
        if not self.last or not self.subject or self.last == self.subject:
            return self.last or self.subject, not gerund
        tied = self.context is not None and self.context.names[-1] == "with"
        part = before is not None and self.tokens[before.head].lemma in WORDS["body parts"]
        if tied and before and part and self.tokens[before.first].tag == "PRP$":
            return self.last, True  # "a man with his arms raised"
        after = self.ahead()
        if after is not None and after.kind == "preposition" and self.pronoun_ahead(2):
            return self.last, False
        near = self.draft.animate(self.last)
        far = self.draft.animate(self.subject)
        if self.before == "comma":
            return self.subject, not self.inner or (tag == "VBG" and far and not near)
        if tied and tag == "VBN" and far and self.draft.garments(self.last):
            return self.subject, False  # "a man with glasses seated on a bench"
        if tied and unit.names[0] in WORDS["deeds of things"] and not near:
            return self.last, False  # "people on a hill with a kite flying above"
        if tag == "VBG" and not near and not far and self._moves_off(unit.names[0]):
            return self.subject, False
        if tag == "VBG" and far and not near:
            aboard = self.context is not None and self.context.names[-1] in ("in", "on")
            moves = self.draft.any_in("vehicles", self.last) and not aboard
            return self.subject, not (tied or gerund or moves)
        return self.last, tag == "VBG" and near and not far and not gerund

    def _moves_off(self, verb: str) -> bool:
        """Return whether it tells of what is before a place: "a train on a track leaving"."""
        if self.context is None or list(self.context.sources) != self.subject:
            return False
        if self.context.names[-1] == "with" or self.context.names == ("full", "of"):
            room = self.draft.all_in("holding places", self.subject)
            return verb in WORDS["resting verbs"] and not room
        moves = verb in WORDS["motion verbs"] and verb != "run"
        return moves and self.draft.all_in("scenes", self.last)
