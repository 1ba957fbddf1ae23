"""From scores to right or wrong, with ties counted three ways (BENCHMARKS 0.2). Pure numpy.

Every function takes the scores of n cases and a boolean `first` (n,): True where the official
policy is "first" (argmax of the stored order), False where it is "strict" (a tie is wrong).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Scores: TypeAlias = npt.NDArray[np.float32]
Values: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Outcomes:
    """One metric on n cases, each array (n,) in [0, 1].

    used: outcome under the official policy. strict: a tie is wrong. fractional: probability of
    being right when equal scores are put in random order. chance: what is reached without looking:
    the probability of being right for scores that are all drawn at random, or under a threshold
    for the better constant answer, which beats them. nan: the metric does not apply to the case.
    """

    used: Values
    strict: Values
    fractional: Values
    chance: Values

    @property
    def tied(self) -> Flags:
        """Cases whose outcome hangs on equal scores (n,)."""
        flags: Flags = (self.fractional != self.strict) & ~np.isnan(self.strict)
        return flags

    def take(self, index: Indices) -> Outcomes:
        """The cases at `index`, in that order."""
        return Outcomes(*(getattr(self, f.name)[index] for f in fields(self)))

    def scatter(self, index: Indices, n: int) -> Outcomes:
        """n cases: these at the positions `index`, nan elsewhere."""

        def spread(values: Values) -> Values:
            out = np.full(n, np.nan)
            out[index] = values
            return out

        return Outcomes(*(spread(getattr(self, f.name)) for f in fields(self)))


def _outcomes(
    strict: Flags, loose: Flags, fractional: Values, first: Flags, chance: float
) -> Outcomes:
    """Assemble; `loose` is the outcome under the policy "first"."""
    return Outcomes(
        used=np.where(first, loose, strict).astype(np.float64),
        strict=strict.astype(np.float64),
        fractional=fractional.astype(np.float64),
        chance=np.full(len(strict), chance),
    )


def choice(scores: Scores, truth: Indices, first: Flags) -> Outcomes:
    """The right one of K candidates scores best. scores (n, K), truth (n,); chance 1/K."""
    rows = np.arange(len(scores))
    best = scores.max(axis=1)
    tied = (scores == best[:, None]).sum(axis=1)
    top = scores[rows, truth] == best
    strict = top & (tied == 1)
    return _outcomes(
        strict, scores.argmax(axis=1) == truth, top / tied, first, 1.0 / scores.shape[1]
    )


def group(scores: Scores, first: Flags) -> dict[str, Outcomes]:
    """Winoground's three scores. scores (n, 2, 2): [case, image i, text t], image i matches text i.

    text: s(0,0) > s(0,1) and s(1,1) > s(1,0). image: s(0,0) > s(1,0) and s(1,1) > s(0,1).
    group: both. Chance 1/4, 1/4, 1/6 (BENCHMARKS 2.11).
    """
    a, b, c, d = scores[:, 0, 0], scores[:, 0, 1], scores[:, 1, 0], scores[:, 1, 1]
    # argmax breaks a tie in favour of index 0, which is right for item 0 and wrong for item 1
    text_loose, image_loose = (a >= b) & (d > c), (a >= c) & (d > b)
    text, image = (a > b) & (d > c), (a > c) & (d > b)
    return {
        "group": _outcomes(
            text & image, text_loose & image_loose, _all_above((a, d), (b, c)), first, 1 / 6
        ),
        "text": _outcomes(
            text, text_loose, _all_above((a,), (b,)) * _all_above((d,), (c,)), first, 1 / 4
        ),
        "image": _outcomes(
            image, image_loose, _all_above((a,), (c,)) * _all_above((d,), (b,)), first, 1 / 4
        ),
    }


def triple(scores: Scores, first: Flags) -> dict[str, Outcomes]:
    """One image, two positive texts, one negative. scores (n, 3) in that order.

    original: s0 > s2 (chance 1/2). second: s1 > s2 (1/2). augmented: both, the ITT of
    SugarCrepe++ (1/3). brittleness: s2 strictly between s0 and s1 (1/3). both_below: s0 < s2 and
    s1 < s2 (1/3). Hard Positives, BENCHMARKS 2.13; see also `triple_bucket`.
    """
    p, q, n = scores[:, 0], scores[:, 1], scores[:, 2]
    never = np.zeros(len(scores), dtype=bool)
    above, below = _all_above((p, q), (n,)), _all_above((n,), (p, q))
    brittle = ((p > n) & (n > q)) | ((q > n) & (n > p))
    under = (p < n) & (q < n)
    return {
        "augmented": _outcomes((p > n) & (q > n), (p >= n) & (q >= n), above, first, 1 / 3),
        "original": _outcomes(p > n, p >= n, _all_above((p,), (n,)), first, 1 / 2),
        "second": _outcomes(q > n, q >= n, _all_above((q,), (n,)), first, 1 / 2),
        # not accuracies: the definition is strict whatever the policy
        "brittleness": _outcomes(brittle, brittle, 1.0 - above - below, never, 1 / 3),
        "both_below": _outcomes(under, under, below, never, 1 / 3),
    }


BUCKETS = ("both above", "only first above", "only second above", "both below", "tie")


def triple_bucket(scores: Scores) -> Indices:
    """Index into BUCKETS (n,) for scores (n, 3): the five buckets partition the cases."""
    p, q, n = scores[:, 0], scores[:, 1], scores[:, 2]
    tests = [(p > n) & (q > n), (p > n) & (q < n), (p < n) & (q > n), (p < n) & (q < n)]
    return np.select(tests, list(range(4)), default=4).astype(np.int64)


def text_only(scores: Scores, first: Flags) -> dict[str, Outcomes]:
    """SugarCrepe++ without the image. scores (n, 3): s(P1,P2), s(P1,N), s(P2,N).

    original: s(P1,P2) > s(P1,N). second: s(P1,P2) > s(P2,N). augmented: both (TOT).
    """
    own, one, two = scores[:, 0], scores[:, 1], scores[:, 2]
    return {
        "augmented": _outcomes(
            (own > one) & (own > two),
            (own >= one) & (own >= two),
            _all_above((own,), (one, two)),
            first,
            1 / 3,
        ),
        "original": _outcomes(own > one, own >= one, _all_above((own,), (one,)), first, 1 / 2),
        "second": _outcomes(own > two, own >= two, _all_above((own,), (two,)), first, 1 / 2),
    }


def _all_above(upper: tuple[Scores, ...], lower: tuple[Scores, ...]) -> Values:
    """Probability that all of `upper` exceed all of `lower` when ties are broken at random.

    With a of `upper` and b of `lower` tied at the border, the a must come out first: a! b! / (a+b)!
    of the orders. Without a border tie it is 1 or 0.
    """
    floor, ceiling = np.minimum.reduce(upper), np.maximum.reduce(lower)
    a = sum((u == floor).astype(np.int64) for u in upper)
    b = sum((v == ceiling).astype(np.int64) for v in lower)
    orders = np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 6.0]])  # (a+b)! / (a! b!)
    at_border: Values = 1.0 / orders[a, b]
    return np.where(floor > ceiling, 1.0, np.where(floor == ceiling, at_border, 0.0))
