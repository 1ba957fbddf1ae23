"""Exact search among vectors: floats, eight bits per number, or what another store holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from compoclip.errors import CompoclipError

Rows = NDArray[np.int64]
Matrix = NDArray[np.float32]
_ROUNDING = 0.01
_BLOCK, _SCORES = 1 << 16, 1 << 25  # vectors at once, and scores that are in memory


def are_unit(vectors: Matrix) -> bool:
    """Return whether all vectors are of unit length, but for the rounding to 16 bits."""
    return bool((np.abs(np.vecdot(vectors, vectors) - 1) < _ROUNDING).all())


def require_one_width(images: Matrix, texts: Matrix, model: str) -> None:
    """Raise CompoclipError for features of images and texts, (N, D) or (0, 0), of other widths."""
    widths = images.shape[1], texts.shape[1]
    if 0 not in widths and widths[0] != widths[1]:
        raise CompoclipError(
            f"{model}: features of images have {widths[0]} dimensions and features of texts have "
            f"{widths[1]}, so they cannot be compared; correct the model"
        )


class StoredVectors(Protocol):
    """(N, D) vectors that are no float32 array in memory, and become one where they are read."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return N and D."""
        ...

    def __len__(self) -> int:
        """Return N."""
        ...

    def __getitem__(self, rows: slice | Sequence[int], /) -> Matrix:
        """Return the vectors in some rows."""
        ...

    def nearest(self, queries: Matrix, top: int) -> tuple[Rows, Matrix]:
        """Return what the function `nearest` returns of the vectors."""
        ...


def nearest(
    features: Matrix | StoredVectors,
    queries: Matrix,
    top: int,
    photos: tuple[Rows, Rows] | None = None,
) -> tuple[Rows, Matrix]:
    """Find the vectors with the highest dot products, exactly, block by block.

    Return (Q, K) rows and their scores, K = min(top, N), the highest first; of equal ones the
    first.

    Args:
        features: (N, D).
        queries: (Q, D), Q > 0.
        top: Number of results per query.
        photos: Numbers of the photos of vectors and queries, for an array. The scores of a query
            with vectors of its own photo, and of photo -1, are minus infinity.
    """
    if not isinstance(features, np.ndarray):
        return features.nearest(queries, top)

    def scores_of(rows: slice) -> Matrix:
        products = _products(features[rows], queries)
        if photos is not None:
            number = photos[0][rows]
            products[(number == photos[1][:, None]) | (number == -1)] = -np.inf
        return products

    return _highest(scores_of, len(features), len(queries), top)


def _products(vectors: Matrix, queries: Matrix) -> Matrix:
    """Return (Q, N) dot products of (N, D) vectors with (Q, D) queries."""
    # One query: a product per row reads memory faster than the product of a matrix and a vector.
    one = len(queries) == 1
    products: Matrix = np.vecdot(vectors, queries[0])[None] if one else queries @ vectors.T
    return products


def _at_once(queries: int) -> int:
    """The number of vectors whose scores are in memory at once."""
    return max(1024, min(_BLOCK, _SCORES // queries))


def _highest(
    scores_of: Callable[[slice], Matrix], vectors: int, queries: int, top: int
) -> tuple[Rows, Matrix]:
    """Return the rows of the highest scores and these scores, as `nearest` does.

    scores_of: returns the (Q, B) scores of a block of B of the N vectors.
    """
    rows, scores = np.zeros((queries, 0), np.int64), np.zeros((queries, 0), np.float32)
    for block in _slices(0, vectors, _at_once(queries)):
        start, products = block.start, scores_of(block)
        best = np.stack([_best(row, top) for row in products])
        rows = np.concatenate([rows, best + start], axis=1)
        scores = np.concatenate([scores, np.take_along_axis(products, best, 1)], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
    return rows, scores


def _best(scores: Matrix, top: int) -> Rows:
    """Return the rows of the highest scores, ascending; of equal ones the first."""
    if len(scores) <= top:
        return np.arange(len(scores))
    threshold = np.partition(scores, -top)[-top]
    above, equal = np.flatnonzero(scores > threshold), np.flatnonzero(scores == threshold)
    return np.sort(np.concatenate([above, equal[: top - len(above)]]))


# --- Vectors in eight bits per number. ---

_LARGEST = 127  # of a code
_FLOATS = 1 << 8  # vectors that are floats at once: they stay in the processor's cache


@dataclass(frozen=True)
class Quantised:
    """(N, D) vectors of unit length as whole numbers from -127 to 127.

    The codes of a vector are its numbers, scaled so that the largest becomes 127, and rounded. The
    vector that they stand for is the codes divided by their length, so no scale is stored, and
    vectors that are coded again get the same codes. The floats are not kept.

    Args:
        codes: (N, D) int8.
    """

    codes: NDArray[np.int8]

    @classmethod
    def of(cls, vectors: Matrix) -> Quantised:
        """Return the codes of vectors."""
        largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), np.float32(1e-30))
        return cls(np.rint(vectors * (_LARGEST / largest)).astype(np.int8))

    @cached_property
    def _scales(self) -> Matrix:
        """One over the length of the codes of each vector."""
        lengths = np.empty(len(self), np.float32)
        for rows in _slices(0, len(self), _FLOATS):
            vectors = self.codes[rows].astype(np.float32)
            lengths[rows] = np.sqrt(np.vecdot(vectors, vectors))
        scales: Matrix = np.reciprocal(np.maximum(lengths, 1), dtype=np.float32)
        return scales

    @property
    def shape(self) -> tuple[int, int]:
        """Return N and D."""
        number, size = self.codes.shape
        return number, size

    def __len__(self) -> int:
        """Return N."""
        return len(self.codes)

    def __getitem__(self, rows: slice | Sequence[int], /) -> Matrix:
        """Return the vectors in some rows, as floats."""
        vectors: Matrix = self.codes[rows].astype(np.float32)
        return vectors * self._scales[rows][:, None]

    def nearest(self, queries: Matrix, top: int) -> tuple[Rows, Matrix]:
        """Return the rows with the highest dot products and these, as the function `nearest`."""

        def scores_of(block: slice) -> Matrix:
            scores = np.empty((len(queries), block.stop - block.start), np.float32)
            for rows in _slices(block.start, block.stop, _FLOATS):
                vectors = self.codes[rows].astype(np.float32)
                place = slice(rows.start - block.start, rows.stop - block.start)
                scores[:, place] = _products(vectors, queries)
            return scores * self._scales[block]

        return _highest(scores_of, len(self), len(queries), top)


def _slices(start: int, stop: int, size: int) -> Iterator[slice]:
    """The rows from `start` to `stop`, in parts of a size."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
