"""Words replaced by others, concrete ones more often.

Im et al., Concrete Jungle, arXiv 2604.13313 (2026): what a concrete word names is seen in the
image. Their negatives are written by a language model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from compoclip.errors import CompoclipError, require
from compoclip.rewrites.driver import NO_CANDIDATE, Proposal, Round, SampledRewrite
from compoclip.rewrites.edit import MAX_DRAWS
from compoclip.rewrites.reading import Reading
from compoclip.rewrites.replace import drawn_candidate, elements, fluent

KINDS = tuple(f"concrete-{level}" for level in range(1, 5))
"""The rules of the results: how concrete the replaced word is, in quarters."""
GUESSED = {"entity": 1.0, "modifier": 0.75, "relation": 0.5}
"""Concreteness by the kind of word, where no file has ratings: our guess, from no study."""
SOURCE = (
    "Brysbaert et al. (2014) rate 40,000 words: the supplement of "
    "doi.org/10.3758/s13428-013-0403-5, 2 MB, saved as CSV; its licence (CC BY-NC-ND) forbids to "
    "ship it"
)


def read_ratings(path: Path) -> dict[str, float]:
    """Return word -> concreteness from 0 to 1, of a CSV or tab-separated file with the columns Word
    and Conc.M, the mean rating from 1 to 5.

    Raises CompoclipError for an absent or malformed file.
    """
    from compoclip.tables import read_delimited

    ratings: dict[str, float] = {}
    for number, row in read_delimited(path):
        missing = ", ".join(name for name in ("Word", "Conc.M") if name not in row)
        require(not missing, path, f"has no column {missing}; {SOURCE}")
        try:
            rating = float(row["Conc.M"])
        except ValueError:
            rating = 0.0
        if not 1 <= rating <= 5:
            raise CompoclipError(
                f"{path}: row {number}: Conc.M {row['Conc.M']!r:.40} must be a rating from 1 to 5"
            )
        ratings[row["Word"].lower()] = (rating - 1) / 4
    require(ratings, path, f"holds no rating; {SOURCE}")
    return ratings


def concreteness(s: Reading, ratings: Mapping[str, float] | None) -> list[float]:
    """Return how concrete the word of each of `elements` is, 0 for one without a rating."""
    if ratings is None:
        return [GUESSED[element.kind] for element in elements(s)]
    heads = ((s.lemmas[e.stop - 1], s.lows[e.stop - 1]) for e in elements(s))
    return [ratings.get(lemma, ratings.get(low, 0.0)) for lemma, low in heads]


def concrete_rewrite(name: str, ratings: Mapping[str, float] | None) -> SampledRewrite:
    """Return the rewrite that replaces one word, each in proportion to how concrete it is.

    The rule of a result is one of `KINDS`. A word that the ratings lack is never replaced.

    Args:
        name: Of the rewrite.
        ratings: As `read_ratings` returns them; None for a guess by the kind of word.
    """
    return SampledRewrite(name, "1", False, NO_CANDIDATE, partial(_proposed, ratings=ratings))


def _proposed(
    s: Reading, rng: random.Random, ratings: Mapping[str, float] | None
) -> Iterator[Proposal]:
    concrete = dict(zip(elements(s), concreteness(s, ratings)))
    # Sorting by these keys draws without replacement, in proportion to the weights (Efraimidis and
    # Spirakis, 2006).
    keys = {element: rng.random() ** (1 / weight) for element, weight in concrete.items() if weight}
    for element in sorted(keys, key=keys.__getitem__, reverse=True):
        level = min(len(KINDS), 1 + int(concrete[element] * len(KINDS)))
        yield Round()
        for _ in range(MAX_DRAWS):
            word = drawn_candidate(element.candidates, rng)
            yield fluent(s, element, word, KINDS[level - 1])
