"""Edits of sub-graphs (MosaiCLIP): their vocabulary, conditions and results.

f_obj replaces an attribute of a single object. f_rel swaps the objects of a relation, replaces one,
replaces the relation, or joins a random object. f_attr swaps the attributes of two related objects,
or replaces one. Each negative has one edit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from compoclip.captions.clip_text import token_key
from compoclip.captions.subgraphs import SubGraph, phrase, pieces_of, relation_words
from compoclip.captions.tagger import inflect, lemma_of
from compoclip.captions.types import GraphAttribute, GraphObject, GraphRelation, Span
from compoclip.errors import CompoclipError
from compoclip.files import read_json
from compoclip.rewrites.attested import act, attested, is_solid, kind_of, stays_still, tie
from compoclip.rewrites.base import Edit, Refused, Rewritten
from compoclip.rewrites.driver import NO_CANDIDATE, UNATTESTED, Draw, Round, first_fluent
from compoclip.rewrites.edit import MAX_DRAWS, RULES, text_refusal
from compoclip.rewrites.exclusion import (
    ANY_THING,
    MAY_HOLD,
    contrast,
    excluded,
    exclusive,
    families,
    fits,
    head_noun,
    is_living,
    modifier,
    related,
    same_thing,
)
from compoclip.rewrites.legality import (
    SYMMETRIC,
    attribute_refusal,
    implied,
    noun_refusal,
    restated,
)
from compoclip.rewrites.reading import Reading
from compoclip.rewrites.relations import (
    RELATIONS,
    as_link,
    is_symmetric,
    relation_refusal,
    sense_of,
)
from compoclip.rewrites.slots import preposition
from compoclip.typed import read_fields

# --- The words that negatives take: objects, attributes and relations. ---
#
# MosaiCLIP's lists N, A, R come from Visual Genome and were not published. A list of our own is in
# data/graph_vocabulary.json; `scripts/build_graph_vocabulary.py` makes one from scene graphs.

VOCABULARY_FORMAT = "compoclip-graph-vocabulary-1"
WORD_KINDS = ("objects", "attributes", "relations")
_VOCABULARY = dict.fromkeys(("format", "source", "licence", "built", *WORD_KINDS), Any)
_REMEDY = "make one with scripts/build_graph_vocabulary.py"


@dataclass(frozen=True, eq=False)
class GraphVocabulary:
    """The words of graph negatives, each once: MosaiCLIP's lists N (nouns), A (adjectives and
    participles) and R (prepositions and verbs)."""

    objects: tuple[str, ...]
    attributes: tuple[str, ...]
    relations: tuple[str, ...]


@lru_cache(maxsize=1)
def default_vocabulary() -> GraphVocabulary:
    """The shipped vocabulary, read once."""
    return load_vocabulary(Path(__file__).with_name("data") / "graph_vocabulary.json")


def load_vocabulary(path: Path) -> GraphVocabulary:
    """Read a vocabulary file.

    Args:
        path: JSON, see `rewrites/data/README.md`.

    Raises:
        CompoclipError: When the file is not a vocabulary or a list is empty.
    """
    data = read_json(path, absent=_REMEDY, damaged=_REMEDY)
    if not isinstance(data, dict) or data.get("format") != VOCABULARY_FORMAT:
        raise CompoclipError(f"{path}: not a graph vocabulary ({VOCABULARY_FORMAT}); {_REMEDY}")
    read_fields(data, _VOCABULARY, str(path), _REMEDY, others=False)
    lists: dict[str, tuple[str, ...]] = {}
    for kind in WORD_KINDS:
        words = data.get(kind)
        listed = list(words) if isinstance(words, list | dict) else []
        if not listed or not all(isinstance(word, str) and word.strip() for word in listed):
            raise CompoclipError(f"{path}: {kind} must be a list of words; {_REMEDY}")
        plain = (" ".join(word.lower().replace("_", " ").split()) for word in listed)
        lists[kind] = tuple(dict.fromkeys(plain))
    return GraphVocabulary(**lists)


# --- Which words of a graph negative differ from its positive, and what they stand for. ---


def edits_between(positive: SubGraph, negative: SubGraph) -> tuple[Edit, ...]:
    """The changed pieces: their range in the caption, and in the text of the negative.

    Pieces are attributes, nouns and relations. Exchanged ones are listed where they are now, with
    the range of what stood there; attributes or objects that were added have an empty range.
    """
    # At the same place in both, in the order of the text.
    runs: list[tuple[list[tuple[str, Span]], list[tuple[str, Span]]]] = []
    for index in range(len(negative.objects)):
        links, said, noun = pieces_of(negative, index)
        if index >= len(positive.objects):
            runs.append(([], [*links, *said, *noun]))
            continue
        was, before, thing = pieces_of(positive, index)
        runs += [([a], [b]) for a, b in zip(was, links)]
        if len(before) == len(said):
            runs += [([a], [b]) for a, b in zip(before, said)]
        else:
            start = positive.objects[index].span.start
            runs.append((before or [("", Span(start, start))], said))
        runs.append((thing, noun))
    edits: list[Edit] = []
    at = 0
    for old, now in runs:
        text = " ".join(name for name, _ in now)
        if [name for name, _ in old] != [name for name, _ in now]:
            spans = [span for _, span in old or now]
            start, end = min(span.start for span in spans), max(span.end for span in spans)
            edits.append(Edit(start, end, at, at + len(text)))
        at += len(text) + bool(text)
    return tuple(edits)


# --- The graph transforms of MosaiCLIP: where a sub-graph can be edited, and what comes of it. ---

OBJ, REL, ATTR = "graph-obj", "graph-rel", "graph-attr"
CATEGORIES = (OBJ, REL, ATTR)
SWAP_OBJECTS, SWAP_ATTRIBUTES = "exchange-objects", "exchange-attributes"
NEW_OBJECT, NEW_RELATION, NEW_ATTRIBUTE = "replace-object", "replace-relation", "replace-attribute"
JOIN = "join-object"

SAID = "said-by-caption"
_NOUN_DRAWS = 40
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
    """Every edit of a sub-graph, as the paper orders them: object, relation, attribute."""
    objects = positive.objects
    if len(objects) > 1:
        yield Slot(REL, SWAP_OBJECTS, positive)
        yield Slot(REL, NEW_OBJECT, positive, 0)
        yield Slot(REL, NEW_OBJECT, positive, 1)
        yield Slot(REL, NEW_RELATION, positive)
        yield Slot(REL, JOIN, positive)
        if all(node.attributes for node in objects):
            yield Slot(ATTR, SWAP_ATTRIBUTES, positive)
    category = ATTR if len(objects) > 1 else OBJ
    for index, node in enumerate(objects):
        for place in range(len(node.attributes)):
            yield Slot(category, NEW_ATTRIBUTE, positive, index, place)


@dataclass(frozen=True)
class Transform:
    """Makes negatives of one caption's slots.

    valid: refuse what may be true (docs/decisions.md, "MosaiCLIP's graphs"); else anything goes
    that CLIP can tell from its positive, as in the paper.
    """

    reading: Reading
    vocabulary: GraphVocabulary
    valid: bool = True

    def draw(self, slot: Slot, rng: random.Random, min_level: int = 1) -> Rewritten | Refused:
        """One negative, its words drawn uniformly, or why none of 10 draws gave one.

        min_level: the lowest level of `attested` that is taken.
        """
        lists = self.lists(slot)
        if not all(lists):
            return Refused(NO_CANDIDATE)
        # Of a long list few words fit, and asking whether one does takes little.
        draws = range(_NOUN_DRAWS if slot.rule == NEW_OBJECT else MAX_DRAWS if lists else 1)
        level_of = self._levels(slot, min_level)
        choice: Choice = ()
        unattested: list[Choice] = []

        def candidate_draws() -> Iterator[Draw | Round]:
            nonlocal choice
            yield Round(min_level, len(draws))
            for _ in draws:
                choice = tuple(rng.choice(words) for words in lists)
                level = level_of(choice)
                if level < min_level:
                    unattested.append(choice)
                else:
                    yield level, partial(self.make, slot, choice)

        result = first_fluent(candidate_draws(), NO_CANDIDATE)
        if isinstance(result, Rewritten):
            return result
        # Whether words may be exchanged at all takes longest to say, and is asked last.
        if any(self._refusal(slot, skipped) is None for skipped in unattested):
            return Refused(UNATTESTED)
        last = self.make(slot, choice)  # refused, as all are
        return last if isinstance(last, Refused) else result

    def _levels(self, slot: Slot, min_level: int) -> Callable[[Choice], int]:
        """The function that says how well the words of a negative go together."""
        if not self.valid:
            return lambda choice: 2
        rule, positive = slot.rule, slot.positive
        names = tuple(self.reading.names[node] for node in positive.nodes)
        links = {relation_words(relation) for relation in positive.relations}
        if rule in (NEW_OBJECT, SWAP_OBJECTS) and links & {"of", "has", "have", "having"}:
            return lambda choice: 0  # "a plate of sheep"; a kitchen that has pots may have food
        said = _said_together(positive, names)
        # Of the caption's own words that stay, the counts may know nothing.
        stay = [name for i, name in enumerate(names) if rule != NEW_OBJECT or i != slot.node]
        nouns_known = rule == JOIN or all(attested().knows(head_noun(name)) for name in stay)
        # A dog chases a cat as a cat chases a dog.
        alike = rule == SWAP_OBJECTS and len({kind_of(head_noun(name)) for name in names}) == 1
        placeable = rule == NEW_RELATION and is_solid(names[1])

        def level_of(choice: Choice) -> int:
            fair = not nouns_known or alike or (placeable and sense_of(choice[0]).placed)
            floor, level = 1 if fair else -1, 2
            negative, lemmas = self._edited(slot, choice)
            for triple in _said_together(negative, lemmas):
                if triple not in said:
                    level = min(level, phrase_level(*triple))
                    if level < min_level or level <= floor:
                        break
            level = max(level, floor)
            if rule == JOIN:
                return level if level == 2 else 0
            if rule == NEW_ATTRIBUTE and not level:
                old = positive.objects[slot.node].attributes[slot.attribute].name.lower()
                kin = bool(families(old, "ADJ") & families(choice[0], "ADJ") & ANY_THING)
                natural = attested().has_other_colours(choice[0], head_noun(lemmas[slot.node]))
                return int(kin and not natural)
            return level

        return level_of

    def lists(self, slot: Slot) -> tuple[Choice, ...]:
        """The words to draw from, a list for each word that the edit needs."""
        words, valid, positive = self.vocabulary, self.valid, slot.positive
        if slot.rule == NEW_OBJECT:
            return (words.objects,)
        if slot.rule == NEW_RELATION:
            old = relation_words(positive.relations[0])
            return (relation_candidates(words, old) if valid else words.relations,)
        if slot.rule == JOIN:
            vague = RELATIONS["true everywhere"] if valid else ()
            relations = (
                relation
                for relation in words.relations
                if sense_of(relation).preposition not in vague
            )
            return tuple(relations), words.attributes, words.objects
        if slot.rule != NEW_ATTRIBUTE:
            return ()
        if not valid:
            return (words.attributes,)
        if "fashioned" in self.reading.lows:
            return ((),)
        attribute = positive.objects[slot.node].attributes[slot.attribute]
        head = head_noun(self.reading.names[positive.nodes[slot.node]])
        tag = self.reading.tag(attribute.span) or "JJ"
        return (attribute_candidates(words, attribute.name, tag, head),)

    def make(self, slot: Slot, choice: Choice) -> Rewritten | Refused:
        """The negative with the given words, or the rule that it breaks."""
        if self.valid and (refusal := self._refusal(slot, choice)) is not None:
            return Refused(refusal)
        negative, lemmas = self._edited(slot, choice)
        text = phrase(negative)
        if refusal := text_refusal(text, phrase(slot.positive), self.reading.caption):
            return Refused(refusal)
        if self.valid and (
            token_key(text) in self.reading.said or implied(negative, lemmas, self.reading)
        ):
            return Refused(SAID)
        edits = edits_between(slot.positive, negative)
        return Rewritten(text, slot.category, False, slot.rule, edits)

    def _refusal(self, slot: Slot, choice: Choice) -> str | None:
        reading, positive = self.reading, slot.positive
        node = positive.nodes[slot.node]
        if slot.rule == NEW_ATTRIBUTE:
            return attribute_refusal(reading, node, choice[0])
        if slot.rule == JOIN:
            return noun_refusal(reading, choice[2])
        if slot.rule == NEW_OBJECT:
            said = head_noun(reading.names[node])
            kinds = {kind_of(choice[0]), kind_of(said)}
            plain = len(kinds) > 1 or not positive.objects[slot.node].attributes
            links = {relation_words(relation) for relation in positive.relations}
            # "a man in a field" may be in an apron as well, and in a hat
            dressed = "clothing" in kinds and plain and links & {"in", "with"}
            if dressed or (said == "water" and "waters" in kinds):
                return MAY_HOLD
            plural = reading.plural[node]
            return noun_refusal(reading, choice[0], reading.names[node], plural=plural)
        if slot.rule == NEW_RELATION:
            old, new = sense_of(relation_words(positive.relations[0])), sense_of(choice[0])
            target = head_noun(reading.names[positive.nodes[1]])
            watches = new.verb == "watch" and old.verb == "play"
            if watches or (new.verb == "wear" and target in RULES["worn on the feet"]):
                return MAY_HOLD  # who plays a video game watches it, who is on skis wears them
        ends = (positive.nodes[0], positive.nodes[1])
        mine, theirs = ([a.name for a in node.attributes] for node in positive.objects)
        symmetric = is_symmetric(relation_words(positive.relations[0]).split())
        swapped = slot.rule == SWAP_ATTRIBUTES
        if slot.rule == SWAP_OBJECTS and symmetric:
            return SYMMETRIC
        if swapped and symmetric and same_thing(*(reading.names[end] for end in ends)):
            return SYMMETRIC
        if swapped and (refusal := contrast(mine, theirs)) is not None:
            return refusal
        return restated(reading, ends, (mine, theirs))

    def _edited(self, slot: Slot, choice: Choice) -> tuple[SubGraph, tuple[str, ...]]:
        """The negative, and the lemmas of its objects."""
        positive, reading = slot.positive, self.reading
        nodes, lemmas = positive.nodes, tuple(reading.names[node] for node in positive.nodes)
        objects, relations = list(positive.objects), positive.relations
        node = objects[slot.node]
        if slot.rule == SWAP_OBJECTS:
            relation, (old, new) = relations[0], (reading.plural[node] for node in nodes)
            if old != new and reading.tag(relation.span) in ("VBZ", "VBP"):
                # A finite verb takes the number of its new subject.
                lemma, (_, *rest) = relation.name.split()[0], relation_words(relation).split()
                words = [lemma if new else inflect(lemma, "VBZ"), *rest]
                relation = replace(relation, words=" ".join(words))
            objects, relations = objects[::-1], (relation,)
            nodes, lemmas = nodes[::-1], lemmas[::-1]
        elif slot.rule == SWAP_ATTRIBUTES:
            pair = (objects[1].attributes, objects[0].attributes)
            objects = [replace(node, attributes=a) for node, a in zip(objects, pair)]
        elif slot.rule == NEW_ATTRIBUTE:
            attributes = list(node.attributes)
            attributes[slot.attribute] = replace(attributes[slot.attribute], name=choice[0])
            objects[slot.node] = replace(node, attributes=tuple(attributes))
        elif slot.rule == NEW_OBJECT:
            plural = reading.plural[nodes[slot.node]]
            name = inflect(choice[0], "NNS") if plural else choice[0]
            objects[slot.node] = replace(node, name=name)
            lemmas = (*lemmas[: slot.node], choice[0], *lemmas[slot.node + 1 :])
        elif slot.rule == NEW_RELATION:
            relations = (replace(relations[0], words=as_link(choice[0])),)
        else:  # a relation to a further object of one attribute
            name, count = choice[0], len(objects)
            end = Span(objects[-1].span.end, objects[-1].span.end)
            link = GraphRelation(count - 1, name, count, end, words=as_link(name))
            objects.append(GraphObject(choice[2], end, (GraphAttribute(choice[1], end),)))
            relations, nodes, lemmas = (*relations, link), (*nodes, -1), (*lemmas, choice[2])
        return SubGraph(tuple(objects), relations, nodes), lemmas


def _said_together(graph: SubGraph, lemmas: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return the pairs of a sub-graph: (noun, relation, noun) and ("", attribute, noun)."""
    attribute_triples = [
        ("", a.name.lower(), lemma) for o, lemma in zip(graph.objects, lemmas) for a in o.attributes
    ]
    links = zip(lemmas, graph.relations, lemmas[1:])
    return attribute_triples + [
        (left, relation_words(link).lower(), right) for left, link, right in links
    ]


@lru_cache(maxsize=1 << 16)
def phrase_level(subject: str, words: str, target: str) -> int:
    """The level of an attribute (no subject) or a relation among the counts of captions."""
    counts, mine, other = attested(), head_noun(subject), head_noun(target)
    if not subject:
        return counts.level("mod", words.rpartition(" ")[2], other)
    verb, place = sense_of(words)
    place = preposition(place) if place else ""
    levels = []
    if verb:
        done = max(counts.level(kind, mine, verb) for kind in ("subj", "done"))
        levels.append(done if done == 2 or is_living(mine) or stays_still(verb) else 0)
        levels.append(counts.graded(act(mine, verb, place, other)))
        if not place:
            levels.append(counts.level("obj", verb, other) - 1)  # word by word
    if place:
        governor, part = (verb, "VERB") if verb else (mine, "NOUN")
        levels.append(counts.level("vp" if verb else "np", governor, place))
        levels.append(counts.level("pn", place, other))
        levels.append(counts.graded(tie(governor, part, place, other)))
    return min(levels)


@lru_cache(maxsize=4096)
def relation_candidates(vocabulary: GraphVocabulary, relation: str) -> tuple[str, ...]:
    """The relations of the vocabulary that cannot hold where this one does."""
    return tuple(w for w in vocabulary.relations if relation_refusal(relation, w) is None)


@lru_cache(maxsize=16384)
def attribute_candidates(
    vocabulary: GraphVocabulary, attribute: str, tag: str, head: str
) -> tuple[str, ...]:
    """The attributes of the vocabulary that deny this one, of a Penn tag, of an object `head`.

    Another colour for a colour, another size for a size, another posture for "sitting", else
    opposites and adjectives of the same kind by WordNet. Empty when none is known.
    """
    lemma = attribute.lower().rpartition(" ")[2]
    if lemma in RULES["fixed adjectives"]:
        return ()
    contrasts = {word for word, _ in modifier(lemma, head)}
    doing = exclusive(lemma_of(lemma, "VERB", "VBG"), "VERB") if tag == "VBG" else ()

    def denies(word: str) -> bool:
        if families(lemma, "ADJ") & families(word, "ADJ"):
            return excluded(lemma, word) and fits(lemma, word, head)
        acts = word.endswith("ing") and lemma_of(word, "VERB", "VBG") in doing
        return word in contrasts or acts

    return tuple(w for w in vocabulary.attributes if denies(w) and not related(lemma, w, "ADJ"))
