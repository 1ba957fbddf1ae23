"""Whether a word may replace another in a sub-graph, as far as the caption tells.

Rule 5 of docs/decisions.md, and two more that keep false negatives out: what may
well be true besides the original is refused ("a red cup" may also be a small one, a man a skier;
with a man on the bench his shirt is, too), and so is what the caption says elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from compoclip.captions.lexicon import lexicon
from compoclip.captions.subgraphs import (
    SubGraph,
    decompose,
    phrase,
    pieces,
    relation_words,
    tokens_in,
    worded,
)
from compoclip.captions.tagger import lemma_of
from compoclip.captions.tagwords import PREPOSITIONS, is_symmetric, preposition_synonyms
from compoclip.captions.types import Caption, SceneGraph, Span, Token, word_set
from compoclip.rewrites.base import token_key
from compoclip.rewrites.edit import inflect
from compoclip.rewrites.elements import FIXED_ADJECTIVES, fits, modifier
from compoclip.rewrites.exchange import (
    CONTRADICTIONS,
    RELATED,
    UNIVERSAL,
    exclusive,
    families,
    may_coincide,
    not_things,
    related,
)
from compoclip.rewrites.graph_vocabulary import GraphVocabulary
from compoclip.rewrites.structure import unasserted

# --- Which relation of a scene graph cannot hold where another one does. ---
#
# A relation drawn at random is often true as well: who sits on a bench is on it and near it, who
# rides a horse is on it, who holds an umbrella may be under it. So a relation that may hold besides
# the original is refused (docs/decisions.md, rule 5, for relations); doubtful ones are, too.

MAY_HOLD = "may-hold-as-well"

_PREPOSITIONS = frozenset({*PREPOSITIONS, *CONTRADICTIONS, "of", "for", "like", "as", "about"})
_LONGEST = max(len(p.split()) for p in _PREPOSITIONS)
# They say that two things have to do with each other, and hardly how.
_VAGUE = word_set(
    "near by at with of along alongside beside around against from for to about like as past among "
    "amongst amid across toward towards between through within via over"
) | {"next to", "close to", "adjacent to", "along with", "together with", "in between"}
_PLACED = word_set(
    "be sit stand lie lay kneel crouch squat lean rest hang park place locate situate position "
    "perch pose sleep float mount seat set stay wait display attach"
)
_LOOSE = word_set(
    "have contain include feature show use touch see look watch face enjoy visit approach admire "
    "do get make take keep want like love own cover surround fill attach work play"
)
# Actions that well go together, so that one does not deny the other.
_TOGETHER = (
    word_set(
        "hold carry grab use swing read eat drink fly throw toss hit pull push walk cut slice lift "
        "catch feed wash clean pet lead wave open paint write brush cook serve kick bounce"
    ),
    word_set("ride drive steer pull race jump lead mount climb board tow park hold use"),
    word_set("chase follow watch face pass"),
    word_set("cut slice cook eat bake serve make prepare fry"),
)
# What something that is on, in, ... the other thing may be doing to it.
_DONE_THERE = {
    preposition: verbs
    for names, verbs in (
        (
            ("on", "on top of", "atop", "upon"),
            word_set("ride climb cover paint drive walk cross race board clean wash hold carry"),
        ),
        (
            ("in", "inside", "inside of", "within", "into"),
            word_set(
                "wear ride drive cross swim enter paint clean wash steer fly climb hold carry"
            ),
        ),
        (
            ("under", "beneath", "underneath", "below"),
            word_set("hold carry wear lift support climb"),
        ),
        (("behind", "in back of"), word_set("push chase follow hold carry drive steer cook")),
        (("in front of", "ahead of"), word_set("pull lead paint wash clean wear read")),
        (("above",), word_set("cross fly climb jump throw")),
        (("outside", "outside of"), word_set("paint clean wash leave")),
    )
    for preposition in names
}


# Placings that hold between most things of a picture, so that they seldom make a caption false.
_GRAPH_RELATIONS_EVERYWHERE = frozenset(
    ("outside", "outside of", "far from", "away from", "apart from", "without")
)


@dataclass(frozen=True, slots=True)
class RelationSense:
    """A relation as verb lemma and preposition; either may be empty."""

    verb: str
    preposition: str

    @property
    def placed(self) -> bool:
        """Whether it says where something is, and not what it does."""
        return bool(self.preposition) and (not self.verb or self.verb in _PLACED)


@lru_cache(maxsize=16384)
def sense_of(relation: str) -> RelationSense:
    """ "sitting on" and "sit on" -> sit, on; "to the left of" -> "", "to the left of"."""
    words = relation.lower().split()
    for size in range(min(_LONGEST, len(words)), 0, -1):
        preposition = " ".join(words[-size:])
        if preposition in _PREPOSITIONS:
            words = words[:-size]
            break
    else:
        preposition = ""
    return RelationSense(lemma_of(words[0], "VERB", "VBG") if words else "", preposition)


def says_little(relation: str) -> bool:
    """Whether the relation holds of almost any two things, such as "outside"."""
    return sense_of(relation).preposition in _GRAPH_RELATIONS_EVERYWHERE


@lru_cache(maxsize=65536)
def relation_refusal(old: str, new: str) -> str | None:
    """Why `new` may still be true of two things that `old` holds between, or None: it cannot."""
    a, b = sense_of(old), sense_of(new)
    if a == b:
        return RELATED
    if _contradicts(a, b):
        return None
    if a.placed and b.placed:
        same = a.preposition == b.preposition or b.preposition in preposition_synonyms(
            a.preposition
        )
        return RELATED if same else MAY_HOLD
    if b.placed or not b.verb or b.verb in _LOOSE or {a.preposition, b.preposition} & _VAGUE:
        return MAY_HOLD
    if a.placed:
        known = _DONE_THERE.get(a.preposition)
        return MAY_HOLD if known is None or b.verb in known else None
    if a.verb in _LOOSE or any({a.verb, b.verb} <= group for group in _TOGETHER):
        return MAY_HOLD
    if related(a.verb, b.verb, "VERB") or may_coincide(a.verb, b.verb, "VERB"):
        return RELATED
    return None


@lru_cache(maxsize=4096)
def relation_candidates(vocabulary: GraphVocabulary, relation: str) -> tuple[str, ...]:
    """The relations of the vocabulary that cannot hold where this one does."""
    return tuple(w for w in vocabulary.relations if relation_refusal(relation, w) is None)


def _contradicts(a: RelationSense, b: RelationSense) -> bool:
    if a.preposition and b.preposition in CONTRADICTIONS.get(a.preposition, ()):
        return a.verb == b.verb or b.placed
    return a.preposition == b.preposition and b.verb in exclusive(a.verb, "VERB")


@lru_cache(maxsize=4096)
def as_link(relation: str) -> str:
    """A relation of a vocabulary as it reads between two nouns: "sit on" -> "sitting on"."""
    first, space, rest = relation.partition(" ")
    is_preposition = any(p.split()[0] == first for p in _PREPOSITIONS)
    if is_preposition or first in ("have", "has") or first.endswith(("ing", "ed")):
        return relation.replace("have", "has", 1) if first == "have" else relation
    if lemma_of(first, "VERB", "VBG") != first:
        return relation
    return inflect(first, "VBG") + space + rest


# --- A caption's scene graph with what the rewrites of it need to know. ---

_PLURAL_TAGS = frozenset(("NNS", "NNPS"))


@dataclass(frozen=True)
class GraphReading:
    """The graph of a caption in the caption's words.

    subgraphs: all of them, those that the caption does not assert included. said: the token keys
    of their texts and of the caption. lemmas, plural: of each object. links: the words of all
    relations from one object to another. words: every word of the caption as written and as lemma,
    in lower case. doubtful: the tokens that the caption does not assert ("not", "or", "might").
    """

    caption: Caption
    graph: SceneGraph
    subgraphs: tuple[SubGraph, ...]
    said: frozenset[tuple[str, ...]]
    lemmas: tuple[str, ...]
    plural: tuple[bool, ...]
    links: Mapping[tuple[int, int], Sequence[str]]
    words: frozenset[str]
    doubtful: tuple[Span, ...]

    def holds(self, word: str) -> bool:
        """Whether the word or phrase occurs in the caption, in the singular or the plural."""
        low = word.lower()
        if " " in low:
            return f" {low} " in f" {self.caption.text.lower()} " or low in self.lemmas
        return low in self.words or lemma_of(low, "NOUN", "NNS") in self.words

    def asserts(self, subgraph: SubGraph) -> bool:
        """Whether the caption claims every part of the sub-graph."""
        return not any(
            span.start < doubt.end and doubt.start < span.end
            for _, span in pieces(subgraph)
            for doubt in self.doubtful
        )

    def tag(self, span: Span) -> str:
        """Penn tag of the first token in the span, "" when there is none."""
        tokens = tokens_in(self.caption, span)
        return tokens[0].tag if tokens else ""


def read_graph(caption: Caption) -> GraphReading | None:
    """The reading of a caption; None when it was not parsed into a graph."""
    if caption.graph is None:
        return None
    tokens = caption.tokens
    doubts = sorted(unasserted(tokens))
    last = [_last(tokens_in(caption, node.span)) for node in caption.graph.objects]
    graph = worded(caption)
    subgraphs = decompose(graph)
    links: dict[tuple[int, int], list[str]] = {}
    for relation in graph.relations:
        ends = (relation.subject, relation.object)
        links.setdefault(ends, []).append(relation_words(relation))
    return GraphReading(
        caption,
        graph,
        subgraphs,
        frozenset(map(token_key, (caption.text, *map(phrase, subgraphs)))),
        tuple(node.name.lower() for node in caption.graph.objects),
        tuple(token is not None and token.tag in _PLURAL_TAGS for token in last),
        links,
        frozenset(w.lower() for t in tokens for w in (t.text, t.lemma)),
        tuple(Span(tokens[i].start, tokens[i].end) for i in doubts),
    )


def _last(tokens: tuple[Token, ...]) -> Token | None:
    return tokens[-1] if tokens else None


# --- Whether a word may replace another in a sub-graph, as far as the caption tells. ---

OCCURS = "occurs-in-caption"
NO_THING = "names-no-thing"

_PERSON, _GROUP, _BODY = 18, 14, 8
_PEOPLE = word_set("people occupations athletes")
_ANYONE = word_set("person people human individual someone")
_LIVING = _PEOPLE | {"animals"}
# There is some in most pictures, named or not.
_EVERYWHERE = word_set("sky cloud ground grass floor wall ceiling shadow background air light tree")
_PARTS = (
    (
        _PEOPLE,
        frozenset({"clothing", "body parts"}),
        word_set("hair beard mustache shirt skin"),
    ),
    (
        frozenset({"animals"}),
        frozenset({"body parts"}),
        word_set("fur feather wing beak hoof horn saddle collar leash"),
    ),
    (
        frozenset({"vehicles"}),
        frozenset({"house parts"}),
        word_set(
            "wheel tire windshield headlight bumper engine seat mirror pedal handlebar wing"
            " propeller driver passenger rider sail saddle"
        )
        | {"license plate", "steering wheel"},
    ),
    (
        frozenset({"buildings", "rooms"}),
        frozenset({"house parts", "furniture", "fixtures"}),
        word_set("staircase balcony brick shutter awning floor wall"),
    ),
    (
        frozenset({"plants"}),
        frozenset[str](),
        word_set("leaf branch trunk stem flower petal root"),
    ),
    (frozenset({"furniture"}), frozenset[str](), word_set("leg cushion drawer door")),
)


def object_refusal(reading: GraphReading, node: int, word: str) -> str | None:
    """Why an object may not be replaced by `word`, or None.

    node: its index in the caption's graph; -1 when the word is a further object.
    """
    head = _head(word)
    if head in not_things() or word in not_things():
        return NO_THING
    if reading.holds(word):
        return OCCURS
    if any(same_thing(lemma, word) for lemma in reading.lemmas):
        return RELATED
    if head in _EVERYWHERE:
        return MAY_HOLD
    owners = reading.lemmas if node < 0 else (reading.lemmas[node],)
    if node >= 0 and _both_people(owners[0], word):
        return MAY_HOLD
    if any(_is_part(owner, word) or _is_part(word, owner) for owner in owners):
        return MAY_HOLD
    return None


def attribute_refusal(reading: GraphReading, node: int, word: str) -> str | None:
    """Why an attribute of an object may not be replaced by a word of `attribute_candidates`.

    Also when another object of that kind may have the new attribute: "a red ball near a ball".
    """
    if reading.holds(word):
        return OCCURS
    objects = reading.graph.objects
    if any(related(a.name, word, "ADJ") for a in objects[node].attributes):
        return RELATED
    for other, lemma in enumerate(reading.lemmas):
        if other != node and same_thing(reading.lemmas[node], lemma):
            said = [a.name.lower() for a in objects[other].attributes]
            if not any(_excluded(a, word) or word in exclusive(a, "ADJ") for a in said):
                return MAY_HOLD
    return None


@lru_cache(maxsize=16384)
def attribute_candidates(
    vocabulary: GraphVocabulary, attribute: str, tag: str, head: str
) -> tuple[str, ...]:
    """The attributes of the vocabulary that deny this one of an object named `head`.

    Another colour for a colour, another size for a size, another posture for "sitting", else
    opposites and adjectives of the same kind by WordNet. tag: Penn tag of the attribute. Empty when
    none is known.
    """
    lemma = attribute.lower().rpartition(" ")[2]
    if lemma in FIXED_ADJECTIVES:
        return ()
    contrasts = {word for word, _ in modifier(lemma, tag, head)}
    doing = exclusive(lemma_of(lemma, "VERB", "VBG"), "VERB") if tag == "VBG" else ()

    def denies(word: str) -> bool:
        if families(lemma, "ADJ") & families(word, "ADJ"):
            return _excluded(lemma, word) and fits(lemma, word, head)
        acts = word.endswith("ing") and lemma_of(word, "VERB", "VBG") in doing
        return word in contrasts or acts

    return tuple(w for w in vocabulary.attributes if denies(w) and not related(lemma, w, "ADJ"))


def _excluded(a: str, b: str) -> bool:
    """Whether both stand in one family of the lists, never in one cell of it, and neither says more
    that the other does not deny: "golden" is a material, but also a colour; "dark" a colour, but
    also how light a colour is.
    """
    mine, theirs = families(a, "ADJ"), families(b, "ADJ")
    if not mine & theirs or may_coincide(a, b, "ADJ") or may_coincide(b, "medium", "ADJ"):
        return False
    if mine & theirs <= UNIVERSAL and (mine ^ theirs) - UNIVERSAL:
        return False
    return "colour" in mine or not (theirs - mine) & UNIVERSAL


@lru_cache(maxsize=65536)
def same_thing(a: str, b: str) -> bool:
    """Whether two nouns, by their names or their heads, may name the same kind of thing."""
    return any(
        related(x, y, "NOUN")
        for x in dict.fromkeys((a, _head(a)))
        for y in dict.fromkeys((b, _head(b), _singular(b)))
    )


def implied(negative: SubGraph, lemmas: tuple[str, ...], reading: GraphReading) -> bool:
    """Whether the caption's graph says what the negative says.

    lemmas: those of the negative's objects. The caption's objects may be named otherwise (a
    synonym or a more special word) and have more attributes; symmetric relations count both ways.
    """
    graph = reading.graph
    options = [
        [
            place
            for place, said in enumerate(graph.objects)
            if same_thing(reading.lemmas[place], lemma)
            and all(
                any(related(own.name, a.name, "ADJ") for own in said.attributes)
                for a in node.attributes
            )
        ]
        for lemma, node in zip(lemmas, negative.objects)
    ]

    def found(chosen: tuple[int, ...]) -> bool:
        """Whether objects behind those chosen can be chosen so that all relations are said."""
        at = len(chosen)
        if at == len(options):
            return True
        link = relation_words(negative.relations[at - 1]) if at else ""
        return any(
            place not in chosen
            and (at == 0 or _says(reading, chosen[-1], link, place))
            and found((*chosen, place))
            for place in options[at]
        )

    return found(())


def _says(reading: GraphReading, subject: int, words: str, target: int) -> bool:
    said = list(reading.links.get((subject, target), ()))
    if is_symmetric(words.split()):
        said += reading.links.get((target, subject), ())
    wanted = sense_of(words)
    return any(sense_of(each) == wanted for each in said)


@lru_cache(maxsize=65536)
def _both_people(a: str, b: str) -> bool:
    """Whether both name people who may be the same ones: "man", "skier", but not "man", "woman"."""
    heads = _head(a), _head(b)
    if heads[1] in exclusive(heads[0], "NOUN"):
        return False
    return all(map(_is_person, heads))


def _is_person(head: str) -> bool:
    return (
        head in _ANYONE
        or bool(families(head, "NOUN") & _PEOPLE)
        or bool(lexicon().fields(head, "NOUN") & {_PERSON, _GROUP})
    )


@lru_cache(maxsize=65536)
def _is_part(whole: str, part: str) -> bool:
    """Whether a thing of this name has, wears or is seen with the other."""
    names, head = families(_head(whole), "NOUN"), _head(part)
    if _is_person(_head(whole)):
        names |= _PEOPLE
    if names & _LIVING and lexicon().fields(head, "NOUN") == {_BODY}:
        return True
    of_part = families(head, "NOUN")
    return any(
        names & wholes and (of_part & kinds or part in words or head in words)
        for wholes, kinds, words in _PARTS
    )


def _head(noun: str) -> str:
    return noun.rpartition(" ")[2]


def _singular(noun: str) -> str:
    rest, space, last = noun.rpartition(" ")
    return rest + space + lemma_of(last, "NOUN", "NNS")
