"""Encoding a batch in pieces: what one call computes, cut so that memory can be bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from compoclip.losses.contract import Features

Outputs = tuple[Tensor, ...]
Piece = Callable[[], Outputs]
Around = Callable[[Piece], Outputs]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Work(Generic[T_co]):
    """A tower's part of a batch, not computed yet.

    pieces: each encodes some of the rows, whenever it is called; calling them all in order is the
    whole. join: makes the tower's features of what the pieces gave, in the same order. learns:
    whether outputs carry a gradient to parameters, under grad mode.
    """

    pieces: tuple[Piece, ...]
    join: Callable[[Sequence[Outputs]], T_co]
    learns: bool = True

    def all(self) -> T_co:
        """The features, all pieces computed."""
        return self.join([piece() for piece in self.pieces])

    def within(self, around: Around, learns: bool) -> Work[T_co]:
        """The same work with every piece computed through `around`."""

        def wrapped(piece: Piece) -> Piece:
            return lambda: around(piece)

        return Work(tuple(map(wrapped, self.pieces)), self.join, learns)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@dataclass(frozen=True)
class FeatureWork:
    """Both towers' parts of a batch. Every piece of `image` and `text` gives tensors; `join` makes
    of the pieces of both all that a loss may see."""

    image: Work[object]
    text: Work[object]
    join: Callable[[Sequence[Outputs], Sequence[Outputs]], Features]

    @property
    def whole(self) -> bool:
        """Whether no part is in several pieces."""
        return max(len(self.image.pieces), len(self.text.pieces)) <= 1

    def all(self) -> Features:
        """The features, all pieces computed."""
        return self.join(*([piece() for piece in each.pieces] for each in (self.image, self.text)))
