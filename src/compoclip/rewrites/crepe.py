"""Foils in the manner of CREPE (Ma et al., CVPR 2023): atom, swap and negate (METHODS 17.6).

An atom is an object, an attribute or a relation of the caption. The type is drawn first, uniformly
among those that give a foil, so that rare types are not crowded out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.elements import elements, enough_elements
from compoclip.rewrites.negclip import NO_PAIR, Pair, candidates, swapped
from compoclip.rewrites.replace import NO_CANDIDATE, TOO_FEW, drawn_candidate, replaced
from compoclip.rewrites.structure import Structure, structure_of
from compoclip.rewrites.validity import EMPTY, MAX_DRAWS

_TYPES = {"entity": "object", "modifier": "attribute", "relation": "relation"}
_SWAPS = {
    "noun": "object",
    "plural-noun": "object",
    "adjective": "attribute",
    "verb": "relation",
}


@dataclass(frozen=True)
class CrepeAtom:
    """One object, attribute or relation gives way to another of its type that excludes it."""

    name: str = "crepe-atom"
    version: str = "2"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn foil, or `Refused`: "too-few-elements", "no-candidate" or a rule."""
        if not caption.tokens:
            return Refused(EMPTY)
        structure = structure_of(caption)
        if not enough_elements(structure):
            return Refused(TOO_FEW)
        atoms = elements(structure)
        kinds = [kind for kind in _TYPES if any(atom.kind == kind for atom in atoms)]
        reason = NO_CANDIDATE
        for _ in range(MAX_DRAWS if kinds else 0):
            kind = rng.choice(kinds)
            atom = rng.choice([atom for atom in atoms if atom.kind == kind])
            word, rule = drawn_candidate(atom, rng), f"atom:{_TYPES[kind]}"
            result = replaced(structure, atom, word, self.name, rule)
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
        return Refused(reason)


@dataclass(frozen=True)
class CrepeSwap:
    """Two objects, two attributes or two relations change places."""

    name: str = "crepe-swap"
    version: str = "2"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn foil, or `Refused`: "no-legal-pair", "empty-caption" or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        pairs = [
            Pair(_SWAPS[pair.group], pair.a, pair.b)
            for pair in candidates(caption)
            if pair.group in _SWAPS
        ]
        pairs += _contradicting_relations(structure_of(caption))
        reason = NO_PAIR
        for _ in range(MAX_DRAWS):
            if not pairs:
                break
            group = rng.choice(list(dict.fromkeys(pair.group for pair in pairs)))
            pair = rng.choice([pair for pair in pairs if pair.group == group])
            result = swapped(caption, pair, self.name)
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
            pairs.remove(pair)
        return Refused(reason)


def _contradicting_relations(s: Structure) -> Iterator[Pair]:
    """Pairs of prepositions that exclude each other: only their exchange denies something."""
    places = [e for e in elements(s) if e.pos == "ADP"]
    words = [" ".join(t.text.lower() for t in s.caption.tokens[e.first : e.stop]) for e in places]
    for (a, said), (b, other) in combinations(zip(places, words), 2):
        if other in dict(a.candidates) or said in dict(b.candidates):
            yield Pair("relation", (a.first, a.stop), (b.first, b.stop))
