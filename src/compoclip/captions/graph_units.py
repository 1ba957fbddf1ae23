"""A tagged caption cut into the pieces that scene graphs are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from compoclip.captions.chunks import reciprocal
from compoclip.captions.lists import CONTRACTED_NOT, NUMBERS, PHRASAL, WORDS
from compoclip.captions.tagger import inflect
from compoclip.captions.types import (
    NOUNS,
    PLURALS,
    Caption,
    Chunk,
    GraphAttribute,
    GraphObject,
    GraphRelation,
    RelationKind,
    SceneGraph,
    Span,
    Token,
)

UnitKind = Literal[
    "noun", "each other", "verb", "be", "preposition", "adjective",
    "and", "comma", "relative", "while", "stop",
]  # fmt: skip
_JOINTS: Mapping[str, UnitKind] = {
    "CC": "and", "WDT": "relative", "WP": "relative", "WP$": "relative", "WRB": "relative",
    ",": "comma", ".": "stop", ":": "stop",
}  # fmt: skip
_PRONOUNS = WORDS.keys_of("pronouns")


@dataclass(frozen=True, slots=True)
class Unit:
    """Tokens `first` to `stop` of a caption that act as one: a noun phrase, a verb with its
    auxiliaries, a form of "be", a preposition of one or more words, an adjective, a joint.

    `head` is the token that decides (main verb, head noun). `names` are the lemmas that name a
    relation, `words` the same as written. `negated`: "is not", "no dog", "without".
    """

    kind: UnitKind
    first: int
    stop: int
    head: int
    names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    negated: bool = False


def units(caption: Caption) -> list[Unit]:
    """Return the units of a caption in order, without adverbs and "there"."""
    tokens = caption.tokens
    starts = {chunk.first: chunk for chunk in caption.chunks}
    ordered: list[Unit] = []
    at = 0
    while at < len(tokens):
        if tokens[at].tag == "CD" and at + 1 < len(tokens) and tokens[at + 1].low == "of":
            at += 2  # "on one of the couches"
            continue
        unit = _unit(tokens, starts, at)
        if unit is None:
            at += 1
        else:
            ordered.append(unit)
            at = unit.stop
    return ordered


def _unit(tokens: Sequence[Token], starts: dict[int, Chunk], at: int) -> Unit | None:
    token = tokens[at]
    if token.low == "that" and at and tokens[at - 1].pos == "NOUN":
        return Unit("relative", at, at + 1, at)
    if reciprocal(tokens, at):
        return Unit("each other", at, at + 2, at + 1)
    if names := _preposition(tokens, at):
        stop = at + names[1]
        words = tuple(t.low for t in tokens[at:stop])
        negated = words[0] in WORDS["negations"]
        return Unit("preposition", at, stop, at, names[0], words, negated)
    if chunk := starts.get(at):
        return Unit("noun", at, chunk.stop, chunk.head, negated=token.lemma in WORDS["negations"])
    follower = tokens[at + 1].pos if at + 1 < len(tokens) else ""
    if token.pos in ("VERB", "AUX") or (token.tag == "TO" and follower == "VERB"):
        return _verb(tokens, at)
    if token.pos == "ADJ" or token.tag == "CD" or _whereabouts(token):
        return Unit("adjective", at, at + 1, at)
    kind: UnitKind | None = "and" if token.text == "&" else _JOINTS.get(token.tag)
    if kind is None and token.pos == "SCONJ":
        kind = "while"
    return Unit(kind, at, at + 1, at) if kind else None


def _whereabouts(token: Token) -> bool:
    """Return whether it is an adverb of place: "outside"."""
    return token.pos == "ADV" and token.low in WORDS["whereabouts"]


def _preposition(tokens: Sequence[Token], at: int) -> tuple[tuple[str, ...], int] | None:
    """The words and the size of "in front of", "on the left side of", "on"; None without one."""
    low = tokens[at].low
    if low in PHRASAL.sizes:
        lows = tuple(token.low for token in tokens[at : at + PHRASAL.sizes[low][0]])
        if size := PHRASAL.size_at(lows, 0):
            return lows[:size], size
    if low == "full" and at + 1 < len(tokens) and tokens[at + 1].low == "of":
        return ("full", "of"), 2
    if tokens[at].pos != "ADP":
        return None
    stop = at + 1
    while stop < len(tokens) and (
        tokens[stop].pos in ("DET", "ADJ") or tokens[stop].low in ("left", "right")
    ):
        stop += 1
    # "at the left of": the last modifier may be the place itself
    for place in (stop, stop - 1):
        if place + 1 < len(tokens) and place > at and low != "of":
            name = tokens[place].low
            if name in WORDS["named places"] and tokens[place + 1].low == "of":
                inner = (t.low for t in tokens[at + 1 : place] if t.pos != "DET")
                return (low, *inner, name, "of"), place + 2 - at
    return (low,), 1


def _verb(tokens: Sequence[Token], at: int) -> Unit:
    """A verb with the auxiliaries, negations and adverbs around it; "be" when it has no verb."""
    main, negated = -1, False
    stop = here = at
    while here < len(tokens):
        token = tokens[here]
        negated = negated or token.lemma in WORDS["negations"]
        negated = negated or token.low.endswith(CONTRACTED_NOT)
        if token.pos == "VERB":
            # "going skiing", "trying to hit"
            starting = main >= 0 and tokens[main].lemma in ("go", "begin", "start")
            purpose = any(t.tag == "TO" for t in tokens[main + 1 : here])
            if main >= 0 and not (purpose or starting):
                break
            main, stop = here, here + 1
        elif token.pos == "AUX" and main < 0:
            stop = here + 1
        elif token.pos not in ("ADV", "PART"):
            break
        here += 1
    if main < 0:
        return Unit("be", at, stop, stop - 1, negated=negated)
    particles: list[str] = []
    while stop < len(tokens) and tokens[stop].tag == "RP":
        particles.append(tokens[stop].low)
        stop += 1
    while stop < len(tokens) and tokens[stop].pos == "ADV":
        stop += 1
    names, words = (tokens[main].lemma, *particles), (tokens[main].low, *particles)
    return Unit("verb", at, stop, main, names, words, negated)


# --- Objects of a scene graph from noun phrases. ---


@dataclass(slots=True)
class Node:
    """An object while the graph is being built.

    `head` is the lemma of its head noun; `definite`: it was named as known already ("the dog").
    """

    name: str
    span: Span
    head: str
    plural: bool = False
    definite: bool = False
    attributes: list[GraphAttribute] = field(default_factory=list)

    def finished(self) -> GraphObject:
        """Return the object with its attributes in caption order, each once."""
        unique: dict[str, GraphAttribute] = {}
        for attribute in sorted(self.attributes, key=lambda a: a.span.start):
            unique.setdefault(attribute.name, attribute)
        return GraphObject(self.name, self.span, tuple(unique.values()))


def parts(tokens: Sequence[Token], first: int, stop: int) -> list[tuple[int, int, int]]:
    """Return the objects in a noun phrase, in order: (first token, token after the last, tie).

    The last is the phrase's own object. The tie is the token between an object and the next, "'s"
    or the participle of "snow covered ground"; -1 for none. "Man hand" holds two objects as well.
    """
    spans = []
    for at in range(first, stop):
        token, before = tokens[at], tokens[at - 1]
        inner = at > first
        noun_before = inner and before.pos in NOUNS and before.lemma not in WORDS["colours"]
        # but "half eaten", and "shaped" of "heart shaped"
        paired = inner and f"{before.low} {token.low}" in WORDS["paired qualities"]
        deed = token.tag == "VBN" and not paired and token.low not in WORDS["quality nouns"]
        body = token.lemma in WORDS["body parts"] and before.lemma in WORDS["alive"]
        if token.tag == "POS" or (deed and noun_before and at + 1 < stop):
            spans.append((first, at, at))
            first = at + 1
        elif noun_before and body:
            spans.append((first, at, at))
            first = at
    return [*spans, (first, stop, -1)]


def noun_node(tokens: Sequence[Token], first: int, stop: int) -> Node | None:
    """Return the object of a noun phrase with its attributes; None without a noun."""
    start = stop - 1
    if start < first or tokens[start].pos not in NOUNS:
        return None
    head = tokens[start]
    while start > first and _belongs(tokens, start):
        start -= 1
    words = [t.low for t in tokens[start : stop - 1] if t.low not in WORDS["quality nouns"]]
    return Node(
        " ".join([*words, head.lemma]),
        Span(tokens[start].start, head.end),
        head.lemma,
        head.tag in PLURALS,
        tokens[first].low in ("the", "this", "that", "these", "those"),
        attributes(tokens, first, start),
    )


def _belongs(tokens: Sequence[Token], start: int) -> bool:
    """Return whether the word before `start` is a part of the object's name."""
    before, low, name = tokens[start - 1], tokens[start - 1].low, tokens[start]
    if f"{low} {name.low}" in WORDS["collocations"]:
        return True
    if (
        # "stainless steel sink"
        (start > 1 and f"{tokens[start - 2].low} {low}" in WORDS["paired qualities"])
        # "a couple kids"
        or (low == "couple" and name.tag == "NNS")
        # "sleeping man", but "sleeping bag"
        or (low in WORDS["compounds in -ing"] and name.lemma in WORDS["alive"])
    ):
        return False
    return before.pos in NOUNS and low not in WORDS["materials"]


def attributes(tokens: Sequence[Token], first: int, stop: int) -> list[GraphAttribute]:
    """Return the attributes among the modifiers `first` to `stop`."""
    qualities: list[GraphAttribute] = []
    at = first
    while at < stop:
        token, begin = tokens[at], at
        while at + 1 < stop and _modifies_next(tokens[at], tokens[at + 1]):
            at += 1
        name = " ".join(t.low for t in tokens[begin : at + 1])
        span = Span(token.start, tokens[at].end)
        quality = token.pos in ("ADJ", "NOUN", "PROPN") or token.tag in ("VBN", "VBG")
        if at > begin:
            qualities.append(GraphAttribute(name, span))
        elif token.tag == "CD" or name in NUMBERS:
            if name not in ("one", "1"):
                qualities.append(GraphAttribute(name, span, "number"))
        elif _whereabouts(token):  # no short text is made of it: "outside man"
            qualities.append(GraphAttribute(name, span, "action"))
        elif quality and name not in WORDS["not attributes"]:
            qualities.append(GraphAttribute(name, span))
        at += 1
    return qualities


def _modifies_next(token: Token, after: Token) -> bool:
    """ "dark" of "dark blue", "partly" of "partly cloudy"."""
    if token.pos == "ADV":
        return after.pos == "ADJ" or after.tag in ("VBN", "VBG")
    if f"{token.low} {after.low}" in WORDS["paired qualities"]:
        return True
    coloured = after.low in WORDS["materials"] or after.low in WORDS["quality nouns"]
    return token.low in WORDS["shades"] and coloured


# --- A scene graph while it is being built: objects, relations, and what pronouns stand for. ---


@dataclass(frozen=True, slots=True)
class PendingLink:
    """A relation that waits for its object.

    `direct`: a verb and its object. `negated`: neither object nor relation exist. `doubted`: the
    sources for which it is uncertain.
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
    _link_keys: set[tuple[int, str, int]] = field(default_factory=set)

    def graph(self) -> SceneGraph:
        """Return the finished graph."""
        return SceneGraph(tuple(n.finished() for n in self.nodes), tuple(self.relations))

    def any_in(self, name: str, indexes: Iterable[int]) -> bool:
        """Return whether the head of one of the objects is in the list of this name."""
        return any(self.nodes[i].head in WORDS[name] for i in indexes)

    def all_in(self, name: str, indexes: Iterable[int]) -> bool:
        """Return whether the heads of all of the objects are in the list of this name."""
        return all(self.nodes[i].head in WORDS[name] for i in indexes)

    def animate(self, indexes: Iterable[int]) -> bool:
        """Return whether a person or an animal is among the objects."""
        return self.any_in("alive", indexes)

    def garments(self, indexes: Iterable[int]) -> bool:
        """Return whether all of the objects are clothes."""
        return self.all_in("clothes", indexes)

    def add_objects(
        self, first: int, stop: int, taken: Sequence[int] = (), near: Sequence[int] = ()
    ) -> int | None:
        """Add the objects of the noun phrase `first` to `stop`, possessors first."""
        self.ambiguous = False
        before: int | None = None
        tied = -1
        index: int | None = None
        for start, end, tie in parts(self.tokens, first, stop):
            index = self._object(start, end, taken, near)
            if before is not None and index is not None:
                # Possessor and thing, or doer and thing.
                token = self.tokens[tied]
                span, words = token.span, (token.low,)
                if token.tag == "VBN":
                    link = PendingLink([before], (token.lemma,), words, span, "verb")
                    self.close(link, [index])
                else:
                    link = PendingLink([index], ("of",), ("of",), span, "possession")
                    self.close(link, [before])
            before, tied = index, tie
        return index

    def _object(
        self, first: int, stop: int, taken: Sequence[int], near: Sequence[int]
    ) -> int | None:
        if stop > first and self.tokens[stop - 1].pos == "PRON":
            return self._referent(self.tokens[stop - 1], taken, near)
        node = noun_node(self.tokens, first, stop)
        if node is None:
            return None
        if node.definite and not node.attributes:
            for index, earlier in enumerate(self.nodes):
                if earlier.name == node.name and not earlier.definite and index not in taken:
                    return index  # "a dog ... the dog"
        return self._added(node)

    def _added(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _referent(self, token: Token, taken: Sequence[int], near: Sequence[int]) -> int | None:
        """The referent of a pronoun: an earlier object, or a new person."""
        low = token.low
        if taken and low in ("he", "she", "they", "i"):
            return None  # "in he mirror": no object, but a slip
        free = [(i, node) for i, node in enumerate(self.nodes) if i not in taken]
        referents: list[int] = []
        if low in ("it", "itself", "they", "them", "themselves"):
            plural = low.startswith("t")
            referents = [
                index
                for index, node in free
                if node.plural == plural and (plural or node.head not in WORDS["people"])
            ]
        name = _PRONOUNS.get(low)
        if not referents and name is not None:
            near = ()
            referents = [
                index
                for index, node in free
                if node.head in WORDS["people"] and (node.plural or name != "people")
            ]
        if referents:
            self.ambiguous = len(referents) > 1
            return next((index for index in referents if index in near), referents[0])
        return None if name is None else self._added(Node(name, token.span, name, name == "people"))

    def act(self, head: int, doers: Iterable[int], doubted: frozenset[int] = frozenset()) -> None:
        """Add the verb `head`, which has no object, as an attribute of the doers."""
        token = self.tokens[head]
        name = token.low if token.tag in ("VBN", "VBG") else inflect(token.lemma, "VBG")
        for index in doers:
            attribute = GraphAttribute(name, token.span, "action", index not in doubted)
            self.nodes[index].attributes.append(attribute)

    def close_mutual(self, link: PendingLink) -> None:
        """Add the relation of sources with "each other": of each with the next, or of a plural with
        itself ("two zebras next to each other")."""
        for one, other in list(zip(link.sources, link.sources[1:])) or zip(*[link.sources] * 2):
            self._relate(link, one, other, one != other and other not in link.doubted)

    def close(self, link: PendingLink, targets: Sequence[int], sure: bool = True) -> None:
        """Add the relation between each of its sources and each target, once."""
        name = " ".join(link.names)
        for source, target in product(link.sources, targets):
            key = (source, name, target)
            if source != target and key not in self._link_keys:
                self._link_keys.add(key)
                self._relate(link, source, target, sure)

    def _relate(self, link: PendingLink, source: int, target: int, sure: bool) -> None:
        name, words = " ".join(link.names), " ".join(link.words)
        sure = sure and source not in link.doubted
        relation = GraphRelation(source, name, target, link.span, words, link.kind, sure)
        self.relations.append(relation)
