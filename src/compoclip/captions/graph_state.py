"""The attachment of prepositions, participles and relative clauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compoclip.captions import lists
from compoclip.captions.graph_sentence import ReadSentence
from compoclip.captions.graph_units import Draft, PendingLink, Unit, acts
from compoclip.captions.types import GraphAttribute

#: Prepositions that tie a part, a content or a garment to its holder: the next one goes to the
#: holder ("a vase with flowers on the table").
_TYING = frozenset({"with", "of"})
_TIES = frozenset({("with",), ("of",), ("full", "of")})
#: Prepositions of a purpose, a direction or a likeness: of a noun they seldom say where it is.
_AIMING = frozenset({"for", "to", "like", "about", "from"})
#: Words that open a clause as often as they tie a thing: "as", "after they married".
_CLAUSES = frozenset({"as", "after", "before", "since", "until"})
#: What is in a place that is in another is in that, too.
_NESTING = frozenset({"in", "inside", "inside of"})
#: Prepositions of a place near a thing: things on, at or in something share its place ("a cat on a
#: chair next to a lamp").
_BESIDE = frozenset(
    {
        "next to", "near", "near to", "beside", "by", "behind", "close to", "across from",
        "in front of", "in back of", "against", "above", "below", "beneath", "under", "underneath",
        "over", "to the left of", "to the right of", "adjacent to", "outside", "outside of",
    }
)  # fmt: skip
#: Prepositions of a direction: behind a verb of motion and its place they go to the verb.
_DIRECTIONS = frozenset(
    {"toward", "towards", "into", "through", "across", "along", "down", "up", "past", "onto"}
)
#: Prepositions of the place of a deed.
_WITHIN = frozenset({"in", "on", "at", "inside", "inside of", "outside", "outside of"})
_WHERE = _WITHIN | _DIRECTIONS
#: What one is in that is no place.
_NO_PLACES = lists.CLOTHES | lists.MANNERS
_IN_MANNERS = lists.MANNERS | lists.BODY_PARTS
#: What one poses for.
_TAKEN = lists.PICTURES | lists.DEEDS
_ALOFT = frozenset({"air", "sky"})
_FLAT = frozenset({"floor", "ground"})
#: Parts of the body that are put somewhere: "with one foot on a boat".
_LIMBS = frozenset({"arm", "elbow", "foot", "hand", "head", "knee", "leg", "paw"})
_ON_MANNERS = frozenset({"display"})
_NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class ReadingState:
    """The state of the parser while it reads a caption from left to right.

    Lists hold indexes of objects: the `subject` of the clause, the `last` noun phrase, the `hosts`
    of the next preposition, the `doers` of the `verb` and the `doubted` ones among them, the
    `holders` of the last part ("with", "of"), and `fronted` objects of a later verb or preposition.
    `direct`: the verb has its object. `copula`: a form of "be" waits for an adjective. `pending`
    waits for its object; `context` is the relation of the last noun phrase, `outer` that of the
    phrase before, if the last one is its place. `inner`: the last noun phrase is within the object
    of a verb or preposition. `vague`: the subject is an ambiguous pronoun. `measures`: the last
    noun phrase counts the next ("two piles of") and gives it the attributes `measured`.
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
    outer: PendingLink | None = None
    inner: bool = False
    vague: bool = False
    measures: bool = False
    measured: list[GraphAttribute] = field(default_factory=list)

    def end_sentence(self) -> None:
        """Forget all but the objects."""
        self.pending = self.context = self.outer = self.verb = None
        self.copula = self.inner = False
        self.subject, self.last, self.hosts, self.holders, self.fronted = [], [], [], [], []

    def attached(self, number: int, unit: Unit, before: Unit | None) -> PendingLink:
        """Return the relation that a preposition opens, with its subjects."""
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
        if verb is not None:
            names, words = verb.names[:1] + unit.names, verb.words[:1] + unit.words
            tied = self.context is not None and list(self.context.sources) == self.doers
            led = self.text.tokens[verb.head].tag == "VBN" and unit.names == ("by",)
            if (
                led and tied and acts(self.text.lemma_next(number))
            ):  # "led down the street by a man"
                return PendingLink(self.doers, names, words, span, "passive", doubted=self.doubted)
            moves = verb.names[0] in lists.MOTION_VERBS and not self.direct
            on = tied and self.doers != self.last and unit.names[0] in _DIRECTIONS
            if moves and on:  # "walking along a river towards a bridge"
                return PendingLink(self.doers, names, words, span, "verb", doubted=self.doubted)
            if self._continues(number, unit):
                doubted = frozenset(self.doers) if self.direct else self.doubted
                return PendingLink(self.doers, names, words, span, "verb", doubted=doubted)
        sources = self._place(number, unit)
        doubted = self._unclear(number, unit, sources)
        return PendingLink(sources, unit.names, unit.words, span, doubted=doubted)

    def _unclear(self, number: int, unit: Unit, sources: Sequence[int]) -> frozenset[int]:
        """The sources for which the attachment of a prepositional phrase is ambiguous."""
        name = " ".join(unit.names)
        if name in _AIMING or name in _CLAUSES:
            return frozenset(sources)
        company = name == "with" and sources is self.subject and self.text.pronoun_next(number)
        if company or not self.inner:
            return frozenset(sources[:-1])
        after = self.text.next(number)
        back = after is not None and self.text.pronoun_next(number)  # "sauce on it", "on his head"
        if back and after is not None:
            head = self.text.tokens[after.head]
            back = head.pos == "PRON" or head.lemma in lists.BODY_PARTS
        if sources == self.last and back and name != "with":
            return frozenset(sources) if self.draft.garments(sources) else _NONE
        nested = name in _NESTING and self.text.lemma_next(number) not in _NO_PLACES
        parts = any(self.draft.nodes[i].head in lists.BODY_PARTS for i in sources)
        return _NONE if nested and not (parts or self.doubted) else frozenset(sources)

    def _place(self, number: int, unit: Unit) -> list[int]:
        """The objects that a prepositional phrase after a noun phrase attaches to."""
        own = self.text.pronoun_next(number)
        following = self.text.lemma_next(number)
        before = self.text.before(number)
        if before == "while" and self.subject:
            return self.subject  # "a man rides a wave while on a board"
        if before == "comma" and self.subject:
            return self.subject  # "a boat in the water, near an island"
        if before == "and" and self.context is not None:
            return list(self.context.sources)  # "in the grass and near a tree"
        if unit.names == ("with",):
            return self._company(number, following, own)
        tied = self.context is not None and self.context.names[-1] == "with"
        if unit.names == ("for",) or (tied and following in _ALOFT):
            return self.last  # "a box with cans for sale", "people with kites in the air"
        dressed = unit.names == ("in",) and following in lists.CLOTHES
        if dressed and self._person(self.subject) and not self._person(self.last):
            return self.subject  # "a man on a horse in a hat"
        part = following in lists.BODY_PARTS or following in lists.BACKGROUNDS
        if own and not part and self.context is not None and self.context.names == ("of",):
            return list(self.context.sources)  # "a bottle of ketchup next to it"
        aside = own and not part and " ".join(unit.names) in _BESIDE
        if (own or part) and not (aside and self._stander(unit, following)):
            return self.last
        manner = unit.names == ("in",) and following in lists.MANNERS
        if (following in lists.TIMES or manner) and self.subject:
            return self.subject
        return self._stander(unit, following) or self.hosts

    def _company(self, number: int, following: str, own: bool) -> list[int]:
        """The objects that a phrase with "with" attaches to: "a man in the water with an elephant",
        "a woman at a table with her laptop", "men on a field with bats"."""
        echoed = self.text.echoed(number)
        flat = echoed == "around" and self._scenery(self.last)  # "on a floor with toys around it"
        if echoed and echoed not in _BESIDE and not flat and not self.draft.animate(self.last):
            return self.last  # "a truck near a field with cows in it"
        if following in lists.MARKINGS and self.draft.garments(self.last):
            return self.last
        if self.context is not None and self._scenery(self.last, _FLAT):
            return list(self.context.sources)  # "a bed on the floor with blankets"
        again = self.context is not None and self.context.names[-1] == "with"
        if again and following not in lists.BACKGROUNDS and not self.draft.animate(self.hosts):
            return self.last  # "a dish with a pizza with cheese"
        things = lists.CARRIED if self._person(self.subject) else lists.OF_THE_BODY
        brought = own or acts(following) or following in things
        company = self.draft.animate(self.subject) and not self.draft.animate(self.hosts)
        return self.subject if company and brought else self.hosts

    def _stander(self, unit: Unit, following: str) -> list[int]:
        """The objects that are where the phrase says together with the place named before:
        "a cat standing on a trunk next to a car", "a man on a wave on a board". None: []."""
        context = self.context
        if context is None or context.kind == "possession":
            return []
        sources = list(context.sources)
        if context.names[-1] in _TYING:
            held = context.names[-1] == "with" and self._scenery(sources, lists.HOLDING_PLACES)
            return self.last if held and " ".join(unit.names) in _BESIDE else []
        if sources == self.last or not self.last:
            return []
        name = " ".join(unit.names)
        animate = self.draft.animate(sources)
        if context.direct:
            shown = context.names[0] in lists.SHOWING_VERBS
            deed = any(self.draft.nodes[i].head in lists.DEEDS for i in self.last)
            beside = name in _BESIDE and name not in ("by", "over") and animate
            scene = name in _WHERE and following in lists.SCENES and animate
            near = self.draft.animate(self.last)
            return sources if deed or (not shown and not near and (beside or scene)) else []
        if name in _BESIDE:
            return sources
        mounted = all(self.draft.nodes[i].head in lists.MOUNTS for i in self.last)
        mounts = name == "on" and following in lists.MOUNTS
        flies = mounted and following == "air"  # "a man on a board in the air"
        return sources if animate and (name == "at" or mounts or flies) else []

    def _continues(self, number: int, unit: Unit) -> bool:
        """Return whether a preposition after the direct object attaches to the verb: "throwing a
        ball to a dog", "eating hay with its trunk", "lying on the floor with dogs"."""
        name = unit.names[0]
        acting = self.draft.animate(self.doers)
        near = self.draft.animate(self.last)
        if not acting or name not in ("to", "with") or self.last == self.doers:
            return False
        if self.direct:
            if self.verb is None or self.draft.garments(self.last):
                return False
            if near:
                return name == "to" and self.verb.names[0] in lists.GIVING_VERBS
            following = self.text.lemma_next(number)
            used = self.text.pronoun_next(number) or following in lists.CARRIED or acts(following)
            kept = self.verb.names[0] in lists.KEEPING_VERBS
            return name == "to" or (used and not kept)
        following = self.text.lemma_next(number)
        own = self.text.pronoun_next(number) and following not in lists.OF_THE_BODY
        return name == "with" and not near and (acts(following) or own)

    def move_hosts(self, link: PendingLink, own: bool) -> None:
        """Update the attachment site of the next preposition once `link` is closed.

        own: its object is "its", "his" or "her" part, of which captions go on to tell: "with its
        head on a pillow".
        """
        garment = self.draft.garments(self.last)
        people = self.draft.animate(link.sources)
        heads = {self.draft.nodes[i].head for i in self.last}
        # What one is in or on without being there: "in a row", "on display".
        manners = _IN_MANNERS if link.names == ("in",) else _ON_MANNERS
        at_things = any(self.draft.nodes[i].head in lists.PLACES_AT_THINGS for i in link.sources)
        if link.names in (("in",), ("on",)) and heads <= manners:
            self.hosts = list(self.subject)  # "a dog with a stick in its mouth on a path"
        elif link.names[-1] == "for" and heads <= _TAKEN:
            self.hosts = list(link.sources)  # "posing for a photo in a room"
        elif own or (link.kind == "possession" and at_things):  # "the front of a car"
            self.hosts = self.last
        elif link.names in _TIES or (link.kind == "passive" and link.names[-1] == "with"):
            self.holders = list(link.sources)
            limb = heads <= _LIMBS and people
            if link.names[-1] == "with" and (limb or self._scenery(link.sources)):
                self.hosts = self.last  # "a kitchen with a table next to a door"
            elif link.names[-1] != "of" and not set(self.hosts) & set(link.sources):
                self.hosts = list(link.sources)
        elif link.names in (("in",), ("wear",)) and garment and people:
            return  # a preposition behind clothes tells of who wears them
        elif link.direct and people and link.names[0] not in lists.HOLDING_VERBS:
            self.hosts = self.last if self.draft.animate(self.last) else list(link.sources)
        else:
            self.hosts = self.last

    def _person(self, indexes: Sequence[int]) -> bool:
        """Return whether a person is among the objects."""
        return any(self.draft.nodes[i].head in lists.PEOPLE for i in indexes)

    def _scenery(self, indexes: Sequence[int], holding: frozenset[str] = lists.SCENES) -> bool:
        """Return whether all objects are rooms or grounds: things in them have places."""
        return all(self.draft.nodes[i].head in holding for i in indexes)

    def antecedent(self, number: int) -> tuple[list[int], bool]:
        """Return the antecedent of "who" (the nearest person) or "that", and its certainty."""
        word = self.text.tokens[self.text.units[number - 1].head].text.lower()
        if word != "who":
            dressed = self.draft.garments(self.last) and self.draft.animate(self.subject)
            return (self.subject if dressed else self.last), not self.inner
        groups = [g for g in (self.last, self.hosts, self.subject) if self.draft.animate(g)]
        return (groups or [self.last])[0], all(group == groups[0] for group in groups)

    def participle_subject(self, number: int, unit: Unit, tag: str) -> tuple[list[int], bool]:
        """Return the subject of a participle after a noun phrase, and its certainty."""
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
        if self.text.before(number) == "comma":
            return self.subject, not self.inner or (tag == "VBG" and far and not near)
        if tied and tag == "VBN" and far and self.draft.garments(self.last):
            return self.subject, False  # "a man with glasses seated on a bench"
        if tied and unit.names[0] in lists.DEEDS_OF_THINGS and not near:
            return self.last, False  # "people on a hill with a kite flying above"
        if tag == "VBG" and not near and not far and self._moves_off(unit):
            return self.subject, False
        if tag == "VBG" and far and not near:
            aboard = self.context is not None and self.context.names[-1] in ("in", "on")
            moves = (
                any(self.draft.nodes[i].head in lists.VEHICLES for i in self.last) and not aboard
            )
            return self.subject, not (tied or gerund or moves)
        return self.last, tag == "VBG" and near and not far and not gerund

    def _moves_off(self, unit: Unit) -> bool:
        """Return whether a participle after a place or content describes the thing before it: "a
        train on a track pulling into a station", "a plate with food sitting on a table"."""
        if self.context is None or list(self.context.sources) != self.subject:
            return False
        verb = unit.names[0]
        if self.context.names[-1] == "with" or self.context.names == ("full", "of"):
            room = self._scenery(self.subject, lists.HOLDING_PLACES)
            return verb in lists.RESTING_VERBS and not room
        return self._scenery(self.last) and verb in lists.MOTION_VERBS and verb != "run"
