"""Units (CS-CLIP) and noun phrases (C2LIP) of a caption.

A unit is a short text that the caption entails, an entity ("black cat", or two: "black cat and red
mat") or a relation ("cat on mat"), with a foil: the text with one edit that makes it false.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from compoclip.captions.clip_text import fits_context, same_to_clip, token_key
from compoclip.captions.subgraphs import SubGraph, phrase, relation_words
from compoclip.captions.types import NOUNS, Caption
from compoclip.rewrites.base import Edit, Refused, Rewritten
from compoclip.rewrites.driver import NO_CANDIDATE, SampledRewrite, first_fluent
from compoclip.rewrites.edit import MAX_DRAWS, TOO_LONG
from compoclip.rewrites.exclusion import NOT_THINGS, RELATED, entity, head_noun, same_thing
from compoclip.rewrites.graph_edits import (
    NEW_ATTRIBUTE,
    NEW_OBJECT,
    NEW_RELATION,
    OBJ,
    REL,
    SAID,
    SWAP_OBJECTS,
    Slot,
    Transform,
    default_vocabulary,
)
from compoclip.rewrites.mosaic import NO_GRAPH, TAKEN, usable_subgraphs
from compoclip.rewrites.reading import Reading, read

UNIT, UNIT_FOIL, NOUN_PHRASE = "unit", "unit-foil", "noun-phrase"
ENTITY, PAIR, RELATION = "entity", "pair", "relation"
NO_UNIT = "no-unit"
NO_PHRASE = "no-noun-phrase"
NAMED = "named-by-a-caption"
_TRIES = 3  # foils of a part

# --- Units, whoever found them: the caption's graph, or a file. ---


class UnitPart(Protocol):
    """An entity or a relation, of which units are made: how it reads, and what it is about."""

    @property
    def text(self) -> str: ...

    @property
    def name(self) -> str: ...

    def foil(self, rng: random.Random) -> Rewritten | Refused:
        """One text like it that is false, or why there is none."""
        ...


@dataclass(frozen=True)
class UnitDraw:
    """Units of one caption, each different to CLIP from the others and from the caption.

    Attributes:
        units: Pairs of a unit and its foil.
        refused: How often nothing came of a part, by reason.
    """

    units: tuple[tuple[Rewritten, Rewritten], ...]
    refused: Counter[str] = field(default_factory=Counter)


def draw_units(
    entities: Sequence[UnitPart],
    relations: Sequence[UnitPart],
    rng: random.Random,
    slots: int = 2,
    relation_share: float = 1.0,
    pair_share: float = 0.5,
    taken: frozenset[tuple[str, ...]] = frozenset(),
    named: frozenset[str] = frozenset(),
) -> UnitDraw:
    """Sample up to `slots` units with foils, without replacement (CS-CLIP, arXiv 2602.23906).

    A slot tries a relation first, with probability `relation_share`, then an entity; with
    probability `pair_share` another true entity joins it, in random order and unchanged in the
    foil. A slot without candidates stays empty.

    Args:
        entities: The entities of a caption.
        relations: Its relations.
        rng: Source of all randomness.
        slots: Most units.
        relation_share: Probability that a slot tries the relations.
        pair_share: Probability that an entity comes with another one.
        taken: Token keys that no unit may have.
        named: Words of all captions of the image. They may name things in it, so no foil uses them.
    """
    left = [rng.sample(entities, len(entities)), rng.sample(relations, len(relations))]
    units: list[tuple[Rewritten, Rewritten]] = []
    used_keys, refused = set(taken), Counter[str]()

    def one(kind: int, others: Sequence[UnitPart]) -> bool:
        """Add a unit of the relations or entities that are left, if there is one."""
        while left[kind]:
            unit = _unit(left[kind].pop(), others, (ENTITY, RELATION)[kind], rng, named)
            keys = set() if isinstance(unit, Refused) else {token_key(t.text) for t in unit}
            if isinstance(unit, Refused) or keys & used_keys:
                refused[unit.reason if isinstance(unit, Refused) else TAKEN] += 1
                continue
            used_keys.update(keys)
            units.append(unit)
            return True
        return False

    for _ in range(slots):
        others = entities if rng.random() < pair_share else ()
        if not (rng.random() < relation_share and one(1, ())):
            one(0, others)
    if len(units) < slots:
        refused[NO_UNIT] += slots - len(units)
    return UnitDraw(tuple(units), refused)


def _unit(
    part: UnitPart, others: Sequence[UnitPart], rule: str, rng: random.Random, named: frozenset[str]
) -> tuple[Rewritten, Rewritten] | Refused:
    """A part as a unit, beside one of the others if there is one of another thing."""

    def absent() -> Rewritten | Refused:
        """A foil, unless it puts a thing that the image has instead of another."""
        foil = part.foil(rng)
        if not isinstance(foil, Rewritten) or foil.rule != NEW_OBJECT:
            return foil
        new = set(token_key(foil.text)) - set(token_key(part.text))
        return foil if named.isdisjoint(new) else Refused(NAMED)

    foil = _first([absent] * _TRIES)
    if isinstance(foil, Refused):
        return foil
    text = part.text
    strange = [other for other in others if not same_thing(other.name, part.name)]
    if strange:
        rule, other = PAIR, rng.choice(strange).text
        order, by = "{0} and {1}", 0
        if rng.random() >= 0.5:
            order, by = "{1} and {0}", len(f"{other} and ")
        edits = tuple(
            replace(edit, new_start=edit.new_start + by, new_end=edit.new_end + by)
            for edit in foil.edits
        )
        text = order.format(text, other)
        foil = replace(foil, text=order.format(foil.text, other), edits=edits)
    if not (fits_context(text) and fits_context(foil.text)):
        return Refused(TOO_LONG)
    return Rewritten(text, UNIT, True, rule, ()), replace(foil, rewrite=UNIT_FOIL)


# --- The units of a caption's scene graph. ---

_Attempt = Callable[[], Rewritten | Refused]


def _first(attempts: Sequence[_Attempt]) -> Rewritten | Refused:
    return first_fluent(((2, attempt) for attempt in attempts), NO_CANDIDATE)


@dataclass(frozen=True)
class GraphPart:
    """A part of a scene graph; foils obey the rules of graph negatives."""

    reading: Reading
    graph: SubGraph

    @property
    def text(self) -> str:
        """See `UnitPart`."""
        return phrase(self.graph)

    @property
    def name(self) -> str:
        """The lemma of its (first) thing."""
        return self.reading.names[self.graph.nodes[0]]

    def foil(self, rng: random.Random) -> Rewritten | Refused:
        """A foil of one kind, drawn uniformly: the others are tried where it has none.

        Of an entity: another thing (of its kind, if one is known), or another attribute. Of a
        relation: things exchanged, another relation that excludes it or its negation, another
        subject, another object.
        """
        transform = Transform(self.reading, default_vocabulary())
        if self.graph.relations:
            rules = ((SWAP_OBJECTS, 0), (NEW_RELATION, 0), (NEW_OBJECT, 0), (NEW_OBJECT, 1))
            slots = [Slot(REL, rule, self.graph, node) for rule, node in rules]
        else:
            slots = [Slot(REL, NEW_OBJECT, self.graph)]
            if attributes := len(self.graph.objects[0].attributes):
                slots.append(Slot(OBJ, NEW_ATTRIBUTE, self.graph, 0, rng.randrange(attributes)))
        kinds: list[_Attempt] = []
        for slot in slots:
            ways: list[_Attempt] = [partial(transform.draw, slot, rng)]
            if slot.rule == NEW_OBJECT:
                ways.insert(0, partial(self._akin, transform, slot, rng))
            if slot.rule == NEW_RELATION:
                ways = rng.sample([*ways, self._negated], 2)
            kinds.append(partial(_first, ways))
        return _first(rng.sample(kinds, len(kinds)))

    def _akin(self, transform: Transform, slot: Slot, rng: random.Random) -> Rewritten | Refused:
        """Another thing of the same kind (as `replace` has it): a foil is to be a near miss."""
        node = self.graph.nodes[slot.node]
        name, plural = self.reading.names[node], self.reading.plural[node]
        options = entity(name, single=not plural, plural=plural)
        if not options:
            return Refused(NO_CANDIDATE)
        words, weights = zip(*options)
        draws = dict.fromkeys(rng.choices(words, weights, k=MAX_DRAWS))
        return _first([partial(transform.make, slot, (word,)) for word in draws])

    def _negated(self) -> Rewritten | Refused:
        """ "cat not on mat" of "cat on mat", "cat does not sit on mat" of "cat sits on mat"."""
        relation, (subject, target) = self.graph.relations[0], self.graph.objects
        if same_thing(*(self.reading.names[node] for node in self.graph.nodes)):
            return Refused(RELATED)  # it may hold of the other one
        does = {"VBZ": "does", "VBP": "do"}.get(self.reading.tag(relation.span))
        denied = f"{does} not {relation.name}" if does else f"not {relation_words(relation)}"
        before, behind = (phrase(SubGraph((node,), ())) for node in (subject, target))
        text = f"{before} {denied} {behind}"
        if token_key(text) in self.reading.said:
            return Refused(SAID)
        start = len(before) + 1
        edits = (Edit(relation.span.start, relation.span.end, start, start + len(denied)),)
        return Rewritten(text, UNIT_FOIL, False, "negate-relation", edits)


def graph_parts(caption: Caption) -> tuple[tuple[GraphPart, ...], tuple[GraphPart, ...]]:
    """Return the entities and the relations that a caption asserts.

    Entities have all their attributes, relations the attributes of both things. Negated or
    ambiguous parts, invisible things and the whole caption are left out.

    Args:
        caption: A parsed caption.

    Returns:
        Entities and relations, in the order of the caption; () without a graph.
    """
    reading = read(caption)

    def is_thing(graph: SubGraph) -> bool:
        """Return whether all it names are things that a photo can show or not."""
        return all(head_noun(node.name) not in NOT_THINGS for node in graph.objects)

    alone = [SubGraph((node,), (), (i,)) for i, node in enumerate(reading.graph.objects)]
    entities = [
        entity
        for entity in alone
        if entity.sure
        and reading.asserts(entity)
        and is_thing(entity)
        and not same_to_clip(phrase(entity), reading.caption.text)
    ]
    relations: dict[tuple[object, ...], SubGraph] = {}
    for subgraph in usable_subgraphs(reading)[0]:  # with attributes first, then bare
        if subgraph.relations and is_thing(subgraph):
            relations.setdefault((subgraph.nodes, relation_words(subgraph.relations[0])), subgraph)
    return (
        tuple(GraphPart(reading, entity) for entity in entities),
        tuple(GraphPart(reading, relation) for relation in relations.values()),
    )


def _one(s: Reading, rng: random.Random, foil: bool) -> Iterator[Rewritten | Refused]:
    """One unit of a caption, or its foil, sampled as the first slot of CS-CLIP is."""
    if s.caption.graph is None:
        yield Refused(NO_GRAPH)
        return
    taken = frozenset((token_key(s.caption.text),))
    draw = draw_units(*graph_parts(s.caption), rng, slots=1, taken=taken)
    yield from (unit[foil] for unit in draw.units)
    yield from (Refused(reason) for reason, _ in draw.refused.most_common(1))


GRAPH_UNIT = SampledRewrite(UNIT, "2", True, NO_UNIT, partial(_one, foil=False))
GRAPH_UNIT_FOIL = SampledRewrite(UNIT_FOIL, "2", False, NO_UNIT, partial(_one, foil=True))


# --- Noun phrases. ---


def noun_phrases(caption: Caption) -> tuple[str, ...]:
    """Return the noun phrases that a caption asserts, with articles, each once to CLIP.

    Left out are pronouns, negated or only possible things ("no dog", "a cat or a dog"), the caption
    itself, and words about the picture or a place in it ("the left side").

    Args:
        caption: With chunks.
    """
    reading, tokens = read(caption), caption.tokens
    phrases = {token_key(caption.text): ""}
    for first, stop, head in ((c.first, c.stop, c.head) for c in caption.chunks):
        text = caption.text[tokens[first].start : tokens[stop - 1].end]
        named = tokens[head].pos in NOUNS and reading.lemmas[head] not in NOT_THINGS
        if named and reading.asserted(head) and fits_context(text):
            phrases.setdefault(token_key(text), text)
    return tuple(phrases.values())[1:]


def _phrase(s: Reading, rng: random.Random) -> Iterator[Rewritten]:
    """One noun phrase of the caption, sampled uniformly: entailed by it, and saying less."""
    if phrases := noun_phrases(s.caption):
        yield Rewritten(rng.choice(phrases), NOUN_PHRASE, True, "chunk", ())


CAPTION_PHRASE = SampledRewrite(NOUN_PHRASE, "1", True, NO_PHRASE, _phrase)
