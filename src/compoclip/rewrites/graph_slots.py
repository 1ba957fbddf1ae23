"""The graph transforms of MosaiCLIP: where a sub-graph can be edited, and what comes of it.

f_obj replaces an attribute of an object that stands alone. f_rel exchanges the objects of a
relation, replaces one, replaces the relation, or joins a random object. f_attr exchanges the
attributes of two related objects, or replaces one (METHODS 5.4). One edit a negative.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from compoclip.captions.prepositions import is_symmetric
from compoclip.captions.subgraphs import SubGraph, phrase, relation_words
from compoclip.captions.types import GraphAttribute, GraphObject, GraphRelation, Span
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.exchange import INDEPENDENT, RELATED, SYMMETRIC, independent, related
from compoclip.rewrites.graph_edits import edits_between
from compoclip.rewrites.graph_reading import Reading
from compoclip.rewrites.graph_relations import (
    MAY_HOLD,
    as_link,
    relation_candidates,
    says_little,
)
from compoclip.rewrites.graph_validity import (
    attribute_candidates,
    attribute_refusal,
    implied,
    object_refusal,
    same_thing,
)
from compoclip.rewrites.graph_vocabulary import GraphVocabulary
from compoclip.rewrites.inflect import MASS_NOUNS, inflect
from compoclip.rewrites.tokenkey import fits_context, same_to_clip, token_key
from compoclip.rewrites.validity import (
    DOUBLED,
    MAX_DRAWS,
    SAME_TOKENS,
    TOO_LONG,
    doubles_a_word,
)

OBJ, REL, ATTR = "graph-obj", "graph-rel", "graph-attr"
CATEGORIES = (OBJ, REL, ATTR)
SWAP_OBJECTS, SWAP_ATTRIBUTES = "exchange-objects", "exchange-attributes"
NEW_OBJECT, NEW_RELATION, NEW_ATTRIBUTE = "replace-object", "replace-relation", "replace-attribute"
JOIN = "join-object"

NO_CANDIDATE = "no-candidate"
SAID = "said-by-caption"
NO_PLURAL = "has-no-plural"
Choice = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """One edit of one sub-graph: the pair (positive, negative) but for the words to be drawn.

    node, attribute: which object of the sub-graph, and which of its attributes, is replaced.
    """

    category: str
    rule: str
    positive: SubGraph
    node: int = 0
    attribute: int = 0


def slots_of(positive: SubGraph) -> Iterator[Slot]:
    """Every edit of a sub-graph, in the order of METHODS 5.4."""
    if len(positive.objects) == 1:
        for place in range(len(positive.objects[0].attributes)):
            yield Slot(OBJ, NEW_ATTRIBUTE, positive, 0, place)
        return
    yield Slot(REL, SWAP_OBJECTS, positive)
    yield Slot(REL, NEW_OBJECT, positive, 0)
    yield Slot(REL, NEW_OBJECT, positive, 1)
    yield Slot(REL, NEW_RELATION, positive)
    yield Slot(REL, JOIN, positive)
    if all(node.attributes for node in positive.objects):
        yield Slot(ATTR, SWAP_ATTRIBUTES, positive)
    for index, node in enumerate(positive.objects):
        for place in range(len(node.attributes)):
            yield Slot(ATTR, NEW_ATTRIBUTE, positive, index, place)


@dataclass(frozen=True)
class Transform:
    """Makes negatives of one caption's slots.

    valid: refuse what may be true ([D-mosaic-filter]); else anything goes that CLIP can tell from
    its positive, as in the paper.
    """

    reading: Reading
    vocabulary: GraphVocabulary
    valid: bool = True

    def draw(self, slot: Slot, rng: random.Random) -> Rewritten | Refused:
        """One negative, its words drawn uniformly, or why none of 10 draws gave one."""
        lists = self.lists(slot)
        if not all(lists):
            return Refused(NO_CANDIDATE)
        result: Rewritten | Refused = Refused(NO_CANDIDATE)
        for _ in range(MAX_DRAWS if lists else 1):
            result = self.make(slot, tuple(rng.choice(words) for words in lists))
            if isinstance(result, Rewritten):
                break
        return result

    def all(self, slot: Slot) -> Iterator[Rewritten]:
        """Every valid negative of a slot."""
        for choice in product(*self.lists(slot)):
            result = self.make(slot, choice)
            if isinstance(result, Rewritten):
                yield result

    def lists(self, slot: Slot) -> tuple[Choice, ...]:
        """The words to draw from, a list for each word that the edit needs."""
        words = self.vocabulary
        if slot.rule == NEW_OBJECT:
            return (words.objects,)
        if slot.rule == NEW_RELATION:
            old = relation_words(slot.positive.relations[0])
            return (relation_candidates(words, old) if self.valid else words.relations,)
        if slot.rule == JOIN:
            relations = words.relations
            if self.valid:
                relations = tuple(each for each in relations if not says_little(each))
            return relations, words.attributes, words.objects
        if slot.rule == NEW_ATTRIBUTE:
            return (self._attributes(slot),)
        return ()

    def _attributes(self, slot: Slot) -> Choice:
        if not self.valid:
            return self.vocabulary.attributes
        attribute = slot.positive.objects[slot.node].attributes[slot.attribute]
        head = self.reading.lemmas[slot.positive.nodes[slot.node]].rpartition(" ")[2]
        tag = self.reading.tag(attribute.span) or "JJ"
        return attribute_candidates(self.vocabulary, attribute.name, tag, head)

    def make(self, slot: Slot, choice: Choice) -> Rewritten | Refused:
        """The negative with the given words, or the rule that it breaks."""
        refusal = self._refusal(slot, choice) if self.valid else None
        if refusal is not None:
            return Refused(refusal)
        negative, lemmas = self._edited(slot, choice)
        text = phrase(negative)
        if same_to_clip(text, phrase(slot.positive)):
            return Refused(SAME_TOKENS)
        if doubles_a_word(text, self.reading.caption):
            return Refused(DOUBLED)
        if not fits_context(text):
            return Refused(TOO_LONG)
        if self.valid and (
            token_key(text) in self.reading.said or implied(negative, lemmas, self.reading)
        ):
            return Refused(SAID)
        edits = edits_between(slot.positive, negative)
        return Rewritten(text, slot.category, False, slot.rule, edits)

    def _refusal(self, slot: Slot, choice: Choice) -> str | None:
        reading, positive = self.reading, slot.positive
        if slot.rule == NEW_ATTRIBUTE:
            return attribute_refusal(reading, positive.nodes[slot.node], choice[0])
        if slot.rule == NEW_OBJECT:
            node = positive.nodes[slot.node]
            if reading.plural[node] and choice[0] in MASS_NOUNS:
                return NO_PLURAL
            return object_refusal(reading, node, choice[0])
        if slot.rule == NEW_RELATION:
            return self._restated(positive)
        if slot.rule == JOIN:
            return object_refusal(reading, -1, choice[2])
        if slot.rule == SWAP_OBJECTS:
            return self._swap_refusal(positive)
        return self._attribute_swap_refusal(positive)

    def _alike(self, positive: SubGraph) -> bool:
        return same_thing(*(self.reading.lemmas[node] for node in positive.nodes))

    def _restated(self, positive: SubGraph) -> str | None:
        """Why it may not matter which object is which, or None.

        "A ball above a ball" says what "a ball below a ball" does, unless the balls differ in an
        attribute. With a third ball in the caption, either may be true of that one.
        """
        if self._alike(positive) and _contrast(positive) is not None:
            return RELATED
        for other, lemma in enumerate(self.reading.lemmas):
            if other not in positive.nodes and any(
                same_thing(lemma, self.reading.lemmas[node]) for node in positive.nodes
            ):
                return MAY_HOLD
        return None

    def _swap_refusal(self, positive: SubGraph) -> str | None:
        if is_symmetric(relation_words(positive.relations[0]).split()):
            return SYMMETRIC
        return self._restated(positive)

    def _attribute_swap_refusal(self, positive: SubGraph) -> str | None:
        if self._alike(positive) and is_symmetric(relation_words(positive.relations[0]).split()):
            return SYMMETRIC
        return _contrast(positive) or self._restated(positive)

    def _edited(self, slot: Slot, choice: Choice) -> tuple[SubGraph, tuple[str, ...]]:
        """The negative, and the lemmas of its objects."""
        positive = slot.positive
        lemmas = tuple(self.reading.lemmas[node] for node in positive.nodes)
        objects, relations = list(positive.objects), positive.relations
        if slot.rule == SWAP_OBJECTS:
            objects.reverse()
            relations = (self._agreeing(relations[0], positive.nodes),)
            return SubGraph(tuple(objects), relations, positive.nodes[::-1]), lemmas[::-1]
        if slot.rule == SWAP_ATTRIBUTES:
            pair = (objects[0].attributes, objects[1].attributes)
            objects = [replace(o, attributes=a) for o, a in zip(objects, pair[::-1])]
        elif slot.rule == NEW_ATTRIBUTE:
            node = objects[slot.node]
            attributes = list(node.attributes)
            attributes[slot.attribute] = replace(attributes[slot.attribute], name=choice[0])
            objects[slot.node] = replace(node, attributes=tuple(attributes))
        elif slot.rule == NEW_OBJECT:
            plural = self.reading.plural[positive.nodes[slot.node]]
            name = inflect(choice[0], "NNS") if plural else choice[0]
            objects[slot.node] = replace(objects[slot.node], name=name)
            lemmas = (*lemmas[: slot.node], choice[0], *lemmas[slot.node + 1 :])
        elif slot.rule == NEW_RELATION:
            relations = (replace(relations[0], words=as_link(choice[0])),)
        else:
            return _joined(positive, choice), (*lemmas, choice[2])
        return SubGraph(tuple(objects), relations, positive.nodes), lemmas

    def _agreeing(self, relation: GraphRelation, nodes: tuple[int, ...]) -> GraphRelation:
        """The relation of exchanged objects: a finite verb takes the number of its new subject."""
        old, new = (self.reading.plural[node] for node in nodes)
        if old == new or self.reading.tag(relation.span) not in ("VBZ", "VBP"):
            return relation
        lemma = relation.name.split()[0]
        words = relation_words(relation).split()
        words[0] = lemma if new else inflect(lemma, "VBZ")
        return replace(relation, words=" ".join(words))


def _contrast(positive: SubGraph) -> str | None:
    """None when some attribute of the one object may deny one of the other, else why none does."""
    pairs = product(*([a.name for a in node.attributes] for node in positive.objects))
    apart = [pair for pair in pairs if not related(*pair, "ADJ")]
    if not apart:
        return RELATED
    return INDEPENDENT if all(independent(*pair) for pair in apart) else None


def _joined(positive: SubGraph, choice: Choice) -> SubGraph:
    """The sub-graph with a relation to a further object of one attribute ([D-mosaic-join])."""
    end = Span(positive.objects[-1].span.end, positive.objects[-1].span.end)
    further = GraphObject(choice[2], end, (GraphAttribute(choice[1], end),))
    link = GraphRelation(len(positive.objects) - 1, choice[0], len(positive.objects), end)
    link = replace(link, words=as_link(choice[0]))
    return SubGraph(
        (*positive.objects, further), (*positive.relations, link), (*positive.nodes, -1)
    )
