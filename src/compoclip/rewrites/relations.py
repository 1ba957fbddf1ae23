"""Relations of a caption: prepositions, verbs of position, and verbs with an object.

A relation drawn at random is often true besides the caption's: who sits on a bench is on it and
near it, who rides a horse is on it, who holds an umbrella may be under it. Only a relation that
cannot hold besides the original makes a negative (docs/decisions.md, rules 4 and 5); doubtful ones
are refused. The words are in data/relations.txt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from compoclip.captions.lists import PhraseTable, word_lists
from compoclip.captions.tagger import inflect, lemma_of
from compoclip.rewrites.exclusion import MAY_HOLD, RELATED, exclusive, may_coincide, related

RELATIONS = word_lists(__file__, "relations")  # which says what each list is for

# --- Prepositions: how usual each is, which mean nearly the same, which are symmetric. ---

#: How often each preposition stands in 25,000 picture descriptions; phrases separated by blanks.
PREPOSITIONS: Mapping[str, int] = {
    word: int(count) for word, count in RELATIONS.keys_of("frequency").items()
}
#: Preposition -> those that contradict it: the only safe replacements.
CONTRADICTIONS: Mapping[str, tuple[str, ...]] = RELATIONS.table("contradictions")
_VAGUE_AND_PRECISE = tuple(
    (vague.split(", "), precise.split(", "))
    for vague, precise in RELATIONS.cells("vague and precise")
)


@lru_cache(maxsize=4096)
def preposition_synonyms(preposition: str) -> frozenset[str]:
    """Prepositions that may describe the same scene as this one; never contains the word itself."""
    low = " ".join(preposition.lower().split())
    synonyms = {
        word for group in RELATIONS.groups("near synonyms") if low in group for word in group
    }
    for vague, precise in _VAGUE_AND_PRECISE:
        synonyms.update(precise if low in vague else (), vague if low in precise else ())
    return frozenset(synonyms - {low})


@lru_cache(maxsize=4096)
def contradicting(preposition: str) -> tuple[tuple[str, int], ...]:
    """(replacement, usual frequency) pairs that contradict the preposition.

    Empty when the preposition states nothing that another one could contradict ("of", "at").
    """
    others = CONTRADICTIONS.get(preposition, ())
    same = preposition_synonyms(preposition)
    return tuple((w, max(PREPOSITIONS.get(w, 1), 1)) for w in others if w not in same)


@lru_cache(maxsize=1)
def _symmetric_verbs() -> frozenset[str]:
    """Return the symmetric verbs in every form."""
    tags = ("VB", "VBZ", "VBD", "VBN", "VBG")
    return frozenset(inflect(verb, tag) for verb in RELATIONS["symmetric verbs"] for tag in tags)


def is_symmetric(words: Sequence[str]) -> bool:
    """Return whether a relation, given word by word, stays true when its sides are exchanged.

    Knows the lists, their verbs in every form ("hugs", "is hugging"), and a verb before a symmetric
    preposition ("standing next to", "sits right beside"), but no passive ("pulled by").
    """
    symmetric, fillers = RELATIONS["symmetric"], RELATIONS["fillers"]
    low = [part for word in words for part in word.lower().split()]
    while low and low[0] in fillers:
        low = low[1:]
    if not low:
        return False
    if " ".join(low) in symmetric or (len(low) == 1 and low[0] in _symmetric_verbs()):
        return True
    stem = re.sub("(ing|ed|s)$", "", low[0]).removesuffix("e")  # talks, talked, talking: a guess
    if " ".join([f"{stem}ing", *low[1:]]) in symmetric:
        return True
    for size in (3, 2, 1):
        tail = " ".join(low[-size:])
        before = [word for word in low[:-size] if word not in fillers and not word.endswith("ly")]
        if tail in symmetric and len(before) <= 1:
            placed = not before or before[0] in RELATIONS["placed participles"]
            if placed or tail not in RELATIONS["passive prepositions"]:
                return True
            passive = before[0].endswith(("ed", "en", "wn"))
            return not (passive or before[0] in RELATIONS["irregular participles"])
    return False


# --- Phrasal prepositions in the words of a caption. ---

_PHRASAL = PhraseTable(p for p in {*PREPOSITIONS, *RELATIONS["phrases"]} if " " in p)
_LONGEST = max(sizes[0] for sizes in _PHRASAL.sizes.values())
#: All prepositions that can be contradicted.
KNOWN_PHRASES = PhraseTable(CONTRADICTIONS)


@lru_cache(maxsize=16)
def phrases(lows: tuple[str, ...]) -> Sequence[tuple[int, int]]:
    """Spans of phrasal prepositions such as "in front of" among lower-case words."""
    return _PHRASAL.spans(lows)


def preposition_size(words: list[str]) -> int:
    """How many of the last words are one preposition."""
    sizes = range(min(_LONGEST, len(words)), 1, -1)
    return next((size for size in sizes if words[-size:] in _PHRASAL), 1)


# --- Which relation of a scene graph cannot hold where another one does. ---

_ENDINGS = frozenset({*PREPOSITIONS, *CONTRADICTIONS, *RELATIONS["more prepositions"]})
_LONGEST_ENDING = max(len(p.split()) for p in _ENDINGS)
_DONE_THERE = RELATIONS.table("done there")


class RelationSense(NamedTuple):
    """A relation as verb lemma and preposition; either may be empty."""

    verb: str
    preposition: str

    @property
    def placed(self) -> bool:
        """Return whether it says where something is, and not what it does."""
        return bool(self.preposition) and (not self.verb or self.verb in RELATIONS["placing verbs"])


@lru_cache(maxsize=16384)
def sense_of(relation: str) -> RelationSense:
    """ "sitting on" and "sit on" -> sit, on; "to the left of" -> "", "to the left of"."""
    words = relation.lower().split()
    preposition = ""
    for size in range(min(_LONGEST_ENDING, len(words)), 0, -1):
        if " ".join(words[-size:]) in _ENDINGS:
            preposition, words = " ".join(words[-size:]), words[:-size]
            break
    return RelationSense(lemma_of(words[0], "VERB", "VBG") if words else "", preposition)


@lru_cache(maxsize=65536)
def relation_refusal(old: str, new: str) -> str | None:
    """Why `new` may still be true of two things that `old` holds between, or None: it cannot."""
    a, b = sense_of(old), sense_of(new)
    loose = RELATIONS["loose verbs"]
    if a == b:
        return RELATED
    if a.preposition and b.preposition in CONTRADICTIONS.get(a.preposition, ()):
        contradicts = a.verb == b.verb or b.placed
    else:
        contradicts = a.preposition == b.preposition and b.verb in exclusive(a.verb, "VERB")
    if contradicts:
        return None
    if a.placed and b.placed:
        same = {a.preposition, *preposition_synonyms(a.preposition)}
        return RELATED if b.preposition in same else MAY_HOLD
    if b.placed or not b.verb or b.verb in loose or {*a[1:], *b[1:]} & RELATIONS["saying little"]:
        return MAY_HOLD
    if a.placed:
        verbs = _DONE_THERE.get(a.preposition)
        return MAY_HOLD if verbs is None or b.verb in verbs else None
    together = any({a.verb, b.verb} <= {*group} for group in RELATIONS.groups("going together"))
    if a.verb in loose or together:
        return MAY_HOLD
    alike = related(a.verb, b.verb, "VERB") or may_coincide(a.verb, b.verb, "VERB")
    return RELATED if alike else None


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
