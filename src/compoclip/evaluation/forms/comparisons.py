"""Metrics as comparisons between the scores of an item: all else follows from them.

    Comparisons("a>b d>c")              a is above b, and d above c
    Comparisons("a>>c c>>b | b>>c c>>a")  one or the other

a, b, ... are the scores of an item by their place. A tie of `a>b` is right where the first
candidate wins, and wrong otherwise; a tie of `a>>b` is always wrong. What a tie broken at random
reaches, and chance, are shares of the orders of the scores.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, permutations

import numpy as np

from compoclip.evaluation.items import Flags, Outcomes, Scores, Values


@dataclass(frozen=True)
class Comparisons:
    """Which comparisons between the scores of an item have to hold.

    Args:
        text: As the module writes it.
    """

    text: str

    @cached_property
    def ways(self) -> tuple[tuple[tuple[int, int, bool], ...], ...]:
        """Every alternative: (place of the higher score, of the lower one, whether strict)."""
        place = string.ascii_letters.index
        return tuple(
            tuple((place(pair[0]), place(pair[-1]), ">>" in pair) for pair in way.split())
            for way in self.text.split("|")
        )

    def hold(self, scores: Scores, loose: bool = False) -> Flags:
        """Return for each row of scores whether the comparisons hold.

        Args:
            scores: (n, K).
            loose: A tie is right, but for comparisons that are strict.
        """
        ways = [
            np.logical_and.reduce(
                [
                    scores[:, a] >= scores[:, b]
                    if loose and not strict
                    else scores[:, a] > scores[:, b]
                    for a, b, strict in way
                ]
            )
            for way in self.ways
        ]
        found: Flags = np.logical_or.reduce(ways)
        return found

    def outcomes(self, scores: Scores, first: Flags) -> Outcomes:
        """Return the outcomes of n items.

        Args:
            scores: (n, K).
            first: (n,), True where a tie goes to the candidate that comes first.
        """
        count = scores.shape[1]
        strict = self.hold(scores)
        below = (scores[:, :, None] > scores[:, None, :]).sum(axis=2)  # ranks, equal for ties
        codes, place = np.unique(below @ (count ** np.arange(count)), return_inverse=True)
        ranks = [tuple(int(code) // count**k % count for k in range(count)) for code in codes]
        shares = np.array([_share(self, each) for each in ranks])
        return Outcomes(
            used=np.where(first, self.hold(scores, loose=True), strict).astype(np.float64),
            strict=strict.astype(np.float64),
            fractional=shares[place.reshape(-1)],
            chance=np.full(len(scores), _share(self, (0,) * count)),
        )


@lru_cache(maxsize=1 << 12)
def _share(metric: Comparisons, ranks: tuple[int, ...]) -> float:
    """The share of the orders of scores of these ranks in which the comparisons hold."""
    orders = [
        np.argsort(order)
        for order in permutations(range(len(ranks)))
        if all(ranks[a] <= ranks[b] for a, b in pairwise(order))
    ]
    held: Values = metric.hold(np.array(orders)).astype(np.float64)
    return float(held.sum() / len(orders))
