"""Hard positives by exchanging the two sides of an "and" (METHODS 6 and 17.7, [D-rw-and])."""

from __future__ import annotations

import random
from dataclasses import dataclass

from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.conjuncts import KINDS, Conjuncts, conjuncts
from compoclip.rewrites.edit import exchanged
from compoclip.rewrites.structure import structure_of
from compoclip.rewrites.validity import EMPTY, edited

NO_AND = "no-and"


@dataclass(frozen=True)
class AndSwap:
    """Exchanges the smallest like phrases around one "and"; applied twice it gives the caption.

    Adjectives with adjectives, verb phrases of one subject, noun phrases with their determiners and
    modifiers. Refused for clauses, unclear scope and lists of three or more. With several "and"
    that allow it, the first with the largest kind of phrase counts; nothing is drawn.
    """

    name: str = "and-swap"
    version: str = "2"
    keeps_meaning: bool = True

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn rewrite, or `Refused`: "no-and", why the phrases stay, or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        structure = structure_of(caption)
        places = [i for i, token in enumerate(caption.tokens) if token.text.lower() == "and"]
        reason = NO_AND
        found = [conjuncts(structure, at) for at in places]
        for joined in sorted(found, key=_size):
            if not isinstance(joined, Conjuncts):
                return Refused(joined)
            changes = exchanged(caption, joined.a, joined.b)
            rule = f"and:{joined.kind}"
            result = edited(caption, changes, rewrite=self.name, keeps_meaning=True, rule=rule)
            if isinstance(result, Rewritten):
                return result
            reason = result.reason
        return Refused(reason)


def _size(joined: Conjuncts | str) -> int:
    """Sorts the largest kind first and what is refused last."""
    return KINDS.index(joined.kind) if isinstance(joined, Conjuncts) else len(KINDS)
