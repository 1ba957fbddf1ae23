"""Scored items of one benchmark as columns: what the parquet file beside each result holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compoclip.benchmarks.case import ImageRef

# --- From scores to right or wrong, with ties counted three ways. Pure numpy. ---
#
# Every function takes the scores of n cases and a boolean `first` (n,): True where the official
# policy is "first" (argmax of the stored order), False where it is "strict" (a tie is wrong).

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
    group: both. Chance 1/4, 1/4, 1/6.
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
    s1 < s2 (1/3). Hard Positives; see also `triple_bucket`.
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


# --- Scored items of one benchmark as columns: what the parquet file beside each result holds. ---

POSITIVE_SCORE = "positive_score"
COLUMNS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "item": pa.string(),
        "form": pa.string(),
        "subtask": pa.string(),
        "labels": pa.map_(pa.string(), pa.string()),
        "truth": pa.int32(),
        "images": pa.list_(pa.string()),
        "texts": pa.list_(pa.string()),
        "scores": pa.list_(pa.float32()),
        "cluster": pa.string(),
        POSITIVE_SCORE: pa.float64(),
        "tie": pa.bool_(),
    }
)
"""The columns that every table of items has; only `POSITIVE_SCORE` may be null."""
POLICIES = ("used", "strict", "fractional")
"""Each metric has a column of numbers for each of them, "used.accuracy"; null where it does not
apply."""
MAIN = "main"
"""What rules call each item's own main metric, the first of its form that applies."""


@dataclass(frozen=True)
class Items:
    """n scored items (cases, retrieval queries or classified images), one list entry each.

    truth: index of the right candidate. images: keys (`case.image_key`). scores: cosines; for
    GROUP in the order s(0,0) s(0,1) s(1,0) s(1,1) with s(image, text), for TEXT_ONLY s(P1,P2)
    s(P1,N) s(P2,N); for retrieval and classification the right candidate, then its best rival; for
    classification by a curve ("auc", "ap11") the log odds that are ranked instead.
    clusters: items with the same value share a photo and are not independent.
    positive: mean cosine of the matching pairs, nan where none matches. extra: further columns,
    e.g. "rank".
    """

    ids: list[str]
    forms: list[str]
    subtasks: list[str]
    labels: list[Mapping[str, str]]
    truth: list[int]
    images: list[tuple[str, ...]]
    texts: list[tuple[str, ...]]
    scores: list[Sequence[float]]
    clusters: list[str]
    positive: Values
    outcomes: dict[str, Outcomes]
    extra: dict[str, list[int] | list[float] | list[str | None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def to_arrow(self) -> pa.Table:
        """The parquet layout: `COLUMNS`, three a metric (`POLICIES`), and `extra`."""
        values = {
            "item": self.ids,
            "form": self.forms,
            "subtask": self.subtasks,
            "labels": [list(each.items()) for each in self.labels],
            "truth": self.truth,
            "images": self.images,
            "texts": self.texts,
            "scores": self.scores,
            "cluster": self.clusters,
            POSITIVE_SCORE: [None if np.isnan(each) else each for each in self.positive],
            "tie": self.tied(),
        }
        columns = {name: pa.array(values[name], kind) for name, kind in COLUMNS.items()}
        for metric, outcomes in self.outcomes.items():
            for policy in POLICIES:
                each: Values = getattr(outcomes, policy)
                columns[f"{policy}.{metric}"] = pa.array(each, pa.float64(), mask=np.isnan(each))
        for name, extra in self.extra.items():
            columns[name] = pa.array(extra)
        return pa.table(columns)

    def tied(self) -> list[bool]:
        """Whether any metric of the item hangs on equal scores."""
        flags = np.zeros(len(self), dtype=bool)
        for outcomes in self.outcomes.values():
            flags |= outcomes.tied
        return [bool(flag) for flag in flags]


# --- Encoded images and texts, found by what they show or say; cosines between them. ---

PAIRS_AT_ONCE = 8192


@dataclass(frozen=True)
class Matches:
    """What a matching head says of pairs. keys: (n,) ascending, image row * texts + text row.
    values: (n,) float32. texts: number of distinct texts."""

    keys: Indices
    values: Scores
    texts: int

    def of(self, images: Indices, texts: Indices) -> Scores:
        """Scores of the pairs of rows, same shape; every pair must be there."""
        found: Scores = self.values[np.searchsorted(self.keys, images * self.texts + texts)]
        return found


@dataclass(frozen=True)
class EncodedFeatures:
    """Unit-length float32 features of the distinct images (N, D) and token sequences (M, D).

    image_rows, text_rows: where each image and each text stands; texts with the same tokens share
    a row, so that their scores are bit-equal. bad: images that could not be used -> why.
    truncated: texts longer than the model's context. matches: the scores of pairs, where a matching
    head and not the cosine gives them.
    """

    images: Scores
    image_rows: Mapping[ImageRef, int]
    texts: Scores
    text_rows: Mapping[str, int]
    bad: Mapping[ImageRef, str]
    truncated: frozenset[str]
    matches: Matches | None = None

    def image_index(self, refs: Iterable[ImageRef]) -> Indices:
        """Rows of `images`."""
        return np.fromiter((self.image_rows[ref] for ref in refs), dtype=np.int64)

    def scores(self, images: Indices, texts: Indices) -> Scores:
        """Scores of the pairs (images[k], texts[k]) of rows, same shape, float32."""
        if self.matches is not None:
            return self.matches.of(images, texts)
        return cosines(self.images, images, self.texts, texts)

    def text_index(self, texts: Iterable[str]) -> Indices:
        """Rows of `texts`."""
        return np.fromiter((self.text_rows[text] for text in texts), dtype=np.int64)


def cosines(left: Scores, rows: Indices, right: Scores, columns: Indices) -> Scores:
    """Scores of the pairs (rows[k], columns[k]), same shape as `rows`, float32.

    Summed pair by pair in a fixed order, so equal features give bit-equal scores wherever the pair
    stands; a matrix product promises that only up to rounding.
    """
    flat_rows, flat_columns = rows.reshape(-1), columns.reshape(-1)
    out = np.empty(len(flat_rows), dtype=np.float32)
    for start in range(0, len(out), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        product = left[flat_rows[part]] * right[flat_columns[part]]
        out[part] = product.sum(axis=1, dtype=np.float32)
    return out.reshape(rows.shape)


def merge_equal(features: Scores) -> tuple[Scores, Indices]:
    """Bit-equal rows made one: (distinct rows, index of each row among them).

    A matrix product may round equal columns differently; with merged columns ties stay exact.
    """
    seen: dict[bytes, int] = {}
    index = np.empty(len(features), dtype=np.int64)
    keep: list[int] = []
    for row, feature in enumerate(features):
        place = seen.setdefault(feature.tobytes(), len(seen))
        if place == len(keep):
            keep.append(row)
        index[row] = place
    return features[keep], index
