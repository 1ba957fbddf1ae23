"""Encoded images and texts, found by what they show or say; cosines between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from compoclip.benchmarks.case import ImageRef
from compoclip.evaluation.outcomes import Indices, Scores

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
class Features:
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
