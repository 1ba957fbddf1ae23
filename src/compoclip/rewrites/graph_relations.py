"""Which relation of a scene graph cannot hold where another one does.

A relation drawn at random is often true as well: who sits on a bench is on it and near it, who
rides a horse is on it, who holds an umbrella may be under it. So a relation that may hold besides
the original is refused (METHODS 17.1, rule 5, for relations); doubtful ones are, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from compoclip.captions.lemmas import lemma_of
from compoclip.captions.prepositions import PREPOSITIONS, preposition_synonyms
from compoclip.captions.words import word_set
from compoclip.rewrites.categories import exclusive, may_coincide
from compoclip.rewrites.exchange import RELATED, related
from compoclip.rewrites.graph_vocabulary import GraphVocabulary
from compoclip.rewrites.inflect import inflect
from compoclip.rewrites.relations import CONTRADICTIONS

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
_EVERYWHERE = frozenset(("outside", "outside of", "far from", "away from", "apart from", "without"))


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
    return sense_of(relation).preposition in _EVERYWHERE


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
