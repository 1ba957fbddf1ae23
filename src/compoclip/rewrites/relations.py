"""Which relation contradicts which: the only safe replacements of a preposition.

Another preposition often keeps a caption true: what is on a table is also near it, what is above a
box may be left of it as well. So each preposition lists the ones that cannot hold together with it
(METHODS 17.3, preposition list; rule 5 for relations). Vague prepositions (near, by, at, with)
never replace one of contact, containment or direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from compoclip.captions.prepositions import PREPOSITIONS, preposition_synonyms

# "originals: replacements", phrases separated by commas.
_RULES = """
on, upon, atop, on top of, on the top of: under, beneath, underneath, below
over, above: under, below, beneath, underneath
higher than: lower than
lower than: higher than
under, below, beneath, underneath: above, over, on top of
in, inside, inside of, within: outside, outside of, behind
outside, outside of: inside, within
into: out of
out of: into
onto: off of
off, off of: onto
behind, in back of, partly hidden by, to the rear of: in front of
in front of, ahead of: behind
left of: right of
right of: left of
to the left of: to the right of
to the right of: to the left of
on the left of: on the right of
on the right of: on the left of
on the left side of: on the right side of
on the right side of: on the left side of
to the left: to the right
to the right: to the left
on the left: on the right
on the right: on the left
on the front of: on the back of
on the back of: on the front of
at the front of: at the back of
at the back of: at the front of
at the top of: at the bottom of
at the bottom of: at the top of
near, next to, beside, close to, adjacent to, alongside: far from, away from
far from, away from: next to, close to, near
against: far from, away from
around: inside
with, along with, together with: without
full of: without
toward, towards: away from
between, in between, among, amongst: far from, away from
in the middle of, in the center of, in the centre of: outside, at the edge of
at the edge of, on the edge of: in the middle of
surrounded by: far from
"""


def _parse(rules: str) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for line in rules.strip().splitlines():
        originals, replacements = line.split(":")
        for original in originals.split(","):
            table[original.strip()] = tuple(r.strip() for r in replacements.split(","))
    return table


CONTRADICTIONS: Mapping[str, tuple[str, ...]] = _parse(_RULES)


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


#: Token sequences of all prepositions that can be contradicted, longest first.
KNOWN_PHRASES: tuple[tuple[str, ...], ...] = tuple(
    sorted((tuple(p.split()) for p in CONTRADICTIONS), key=lambda words: (-len(words), words))
)
