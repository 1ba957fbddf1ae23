"""Whether a word may replace another in a sub-graph, as far as the caption tells.

Rule 5 of METHODS 17.1 ([D-mosaic-filter]), and two more that keep false negatives out: what may
well be true besides the original is refused ("a red cup" may also be a small one, a man a skier;
with a man on the bench his shirt is, too), and so is what the caption says elsewhere.
"""

from __future__ import annotations

from functools import lru_cache

from compoclip.captions.lemmas import lemma_of
from compoclip.captions.lexicon import lexicon
from compoclip.captions.prepositions import is_symmetric
from compoclip.captions.subgraphs import SubGraph, relation_words
from compoclip.captions.words import word_set
from compoclip.rewrites.candidates import FIXED_ADJECTIVES, fits, modifier
from compoclip.rewrites.categories import UNIVERSAL, exclusive, families, may_coincide, not_things
from compoclip.rewrites.exchange import RELATED, related
from compoclip.rewrites.graph_reading import Reading
from compoclip.rewrites.graph_relations import MAY_HOLD, sense_of
from compoclip.rewrites.graph_vocabulary import GraphVocabulary

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


def object_refusal(reading: Reading, node: int, word: str) -> str | None:
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


def attribute_refusal(reading: Reading, node: int, word: str) -> str | None:
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


def implied(negative: SubGraph, lemmas: tuple[str, ...], reading: Reading) -> bool:
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


def _says(reading: Reading, subject: int, words: str, target: int) -> bool:
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
