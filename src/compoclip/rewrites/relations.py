"""Relations of a caption: prepositions, verbs of position, and verbs with an object.

A relation drawn at random is often true besides the caption's: who sits on a bench is on it and
near it, who rides a horse is on it, who holds an umbrella may be under it. Only a relation that
cannot hold besides the original makes a negative (docs/decisions.md, rules 4 and 5); doubtful ones
are refused. The words are in data/relations.txt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from compoclip.captions.lists import PhraseTable, word_lists
from compoclip.captions.tagger import lemma_of
from compoclip.rewrites.edit import inflect
from compoclip.rewrites.exclusion import MAY_HOLD, RELATED, exclusive, may_coincide, related

_LISTS = word_lists(__file__, "relations")  # which says what each list is for

# --- Prepositions: how usual each is, which mean nearly the same, which are symmetric. ---

#: How often each preposition stands in 25,000 picture descriptions; phrases separated by blanks.
PREPOSITIONS: Mapping[str, int] = {
    word: int(count) for word, count in _LISTS.keys("frequency").items()
}
_NEAR_SYNONYMS = _LISTS.groups("near synonyms")
_VAGUE_AND_PRECISE = tuple(
    tuple(tuple(word.strip() for word in side.split(",")) for side in row.split("|"))
    for row in _LISTS.rows("vague and precise")
)
SYMMETRIC_RELATIONS = _LISTS.words("symmetric")
_PASSIVE_PREPOSITIONS = _LISTS.words("passive prepositions")
_PLACED_PARTICIPLES = _LISTS.words("placed participles")
_IRREGULAR_PARTICIPLES = _LISTS.words("irregular participles")
_FILLERS = _LISTS.words("fillers")


def preposition_synonyms(preposition: str) -> frozenset[str]:
    """Prepositions that may describe the same scene as this one; never contains the word itself."""
    low = " ".join(preposition.lower().split())
    found: set[str] = set()
    for group in _NEAR_SYNONYMS:
        if low in group:
            found.update(group)
    for vague, precise in _VAGUE_AND_PRECISE:
        if low in vague:
            found.update(precise)
        if low in precise:
            found.update(vague)
    return frozenset(found - {low})


def is_symmetric(words: Sequence[str]) -> bool:
    """Return whether a relation, given word by word, stays true when its sides are exchanged.

    Knows `SYMMETRIC_RELATIONS`, their verbs in every form ("hugs", "is hugging"), and a verb before
    a symmetric preposition ("standing next to", "parked near", "sits right beside"), but no passive
    ("pulled by", "topped with", "surrounded by"). Letter case and auxiliaries are ignored.
    """
    low = [part for word in words for part in word.lower().split()]
    while low and low[0] in _FILLERS:
        low = low[1:]
    if not low:
        return False
    if " ".join(low) in SYMMETRIC_RELATIONS or (len(low) == 1 and low[0] in _SYMMETRIC_VERB_FORMS):
        return True
    stem = re.sub("(ing|ed|s)$", "", low[0]).removesuffix("e")  # talks, talked, talking: a guess
    if " ".join([f"{stem}ing", *low[1:]]) in SYMMETRIC_RELATIONS:
        return True
    for size in (3, 2, 1):
        tail = " ".join(low[-size:])
        before = [word for word in low[:-size] if word not in _FILLERS and not word.endswith("ly")]
        if tail in SYMMETRIC_RELATIONS and len(before) <= 1:
            if not before or before[0] in _PLACED_PARTICIPLES or tail not in _PASSIVE_PREPOSITIONS:
                return True
            passive = before[0].endswith(("ed", "en", "wn"))
            return not (passive or before[0] in _IRREGULAR_PARTICIPLES)
    return False


def _forms(verb: str) -> tuple[str, ...]:
    if verb == "meet":
        return ("meet", "meets", "met", "meeting")
    if verb.endswith("e"):
        return (verb, verb + "s", verb + "d", verb[:-1] + "ing")
    stem = verb + "g" if verb == "hug" else verb
    return (verb, verb + ("es" if verb.endswith(("ss", "ch")) else "s"), stem + "ed", stem + "ing")


_SYMMETRIC_VERB_FORMS = frozenset(
    form for verb in _LISTS.words("symmetric verbs") for form in _forms(verb)
)


# --- Phrasal prepositions in the words of a caption. ---


_PHRASAL = PhraseTable(p for p in {*PREPOSITIONS, *_LISTS.words("phrases")} if " " in p)
_LONGEST = max(sizes[0] for sizes in _PHRASAL.sizes.values())


def phrases(lows: tuple[str, ...]) -> list[tuple[int, int]]:
    """Spans of phrasal prepositions such as "in front of" among lower-case words."""
    return _PHRASAL.spans(lows)


def preposition_size(words: list[str]) -> int:
    """How many of the last words are one preposition."""
    for size in range(min(_LONGEST, len(words)), 1, -1):
        if words[-size:] in _PHRASAL:
            return size
    return 1


# --- Which preposition contradicts which: the only safe replacements. ---

CONTRADICTIONS: Mapping[str, tuple[str, ...]] = _LISTS.table("contradictions")


@lru_cache(maxsize=4096)
def contradicting(preposition: str) -> tuple[tuple[str, int], ...]:
    """(replacement, weight) pairs that contradict the preposition; weight is its usual frequency.

    Empty when the preposition states nothing that another one could contradict ("of", "at").
    """
    same = preposition_synonyms(preposition)
    return tuple(
        (word, max(PREPOSITIONS.get(word, 1), 1))
        for word in CONTRADICTIONS.get(preposition, ())
        if word not in same
    )


#: All prepositions that can be contradicted.
KNOWN_PHRASES = PhraseTable(CONTRADICTIONS)


# --- Which relation of a scene graph cannot hold where another one does. ---

_ENDINGS = frozenset({*PREPOSITIONS, *CONTRADICTIONS, *_LISTS.words("more prepositions")})
_LONGEST_ENDING = max(len(p.split()) for p in _ENDINGS)
SAYING_LITTLE = _LISTS.words("saying little")
#: Prepositions that hold of almost any two things, such as "outside".
TRUE_EVERYWHERE = _LISTS.words("true everywhere")
PLACING_VERBS = _LISTS.words("placing verbs")
_LOOSE_VERBS = _LISTS.words("loose verbs")
_GOING_TOGETHER = tuple(map(frozenset, _LISTS.groups("going together")))
_DONE_THERE = _LISTS.table("done there")


@dataclass(frozen=True, slots=True)
class RelationSense:
    """A relation as verb lemma and preposition; either may be empty."""

    verb: str
    preposition: str

    @property
    def placed(self) -> bool:
        """Return whether it says where something is, and not what it does."""
        return bool(self.preposition) and (not self.verb or self.verb in PLACING_VERBS)


@lru_cache(maxsize=16384)
def sense_of(relation: str) -> RelationSense:
    """ "sitting on" and "sit on" -> sit, on; "to the left of" -> "", "to the left of"."""
    words = relation.lower().split()
    for size in range(min(_LONGEST_ENDING, len(words)), 0, -1):
        preposition = " ".join(words[-size:])
        if preposition in _ENDINGS:
            words = words[:-size]
            break
    else:
        preposition = ""
    return RelationSense(lemma_of(words[0], "VERB", "VBG") if words else "", preposition)


@lru_cache(maxsize=65536)
def relation_refusal(old: str, new: str) -> str | None:
    """Why `new` may still be true of two things that `old` holds between, or None: it cannot."""
    a, b = sense_of(old), sense_of(new)
    if a == b:
        return RELATED
    if a.preposition and b.preposition in CONTRADICTIONS.get(a.preposition, ()):
        contradicts = a.verb == b.verb or b.placed
    else:
        contradicts = a.preposition == b.preposition and b.verb in exclusive(a.verb, "VERB")
    if contradicts:
        return None
    if a.placed and b.placed:
        same = a.preposition == b.preposition or b.preposition in preposition_synonyms(
            a.preposition
        )
        return RELATED if same else MAY_HOLD
    if (
        b.placed
        or not b.verb
        or b.verb in _LOOSE_VERBS
        or {a.preposition, b.preposition} & SAYING_LITTLE
    ):
        return MAY_HOLD
    if a.placed:
        known = _DONE_THERE.get(a.preposition)
        return MAY_HOLD if known is None or b.verb in known else None
    if a.verb in _LOOSE_VERBS or any({a.verb, b.verb} <= group for group in _GOING_TOGETHER):
        return MAY_HOLD
    if related(a.verb, b.verb, "VERB") or may_coincide(a.verb, b.verb, "VERB"):
        return RELATED
    return None


@lru_cache(maxsize=4096)
def as_link(relation: str) -> str:
    """A relation of a vocabulary as it reads between two nouns: "sit on" -> "sitting on"."""
    first, space, rest = relation.partition(" ")
    is_preposition = any(p.split()[0] == first for p in _ENDINGS)
    if is_preposition or first in ("have", "has") or first.endswith(("ing", "ed")):
        return relation.replace("have", "has", 1) if first == "have" else relation
    if lemma_of(first, "VERB", "VBG") != first:
        return relation
    return inflect(first, "VBG") + space + rest
