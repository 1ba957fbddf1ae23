"""Encoding a batch in micro-batches: what one call computes, cut so that memory can be bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from compoclip.losses.contract import Features

Outputs = tuple[Tensor, ...]
MicroBatch = Callable[[], Outputs]  # encodes some of the rows of a tower, whenever it is called
Around = Callable[[MicroBatch], Outputs]
KeptAt = Literal["", "trunk", "tower"]
"""What an image tower is given: pixels, or features that were kept of them, before its last
projection or after it."""
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Work(Generic[T_co]):
    """A tower's part of a batch, not computed yet.

    micro_batches: calling them all in order encodes the whole. join: makes the tower's features of
    what they gave, in the same order. learns:
    whether outputs carry a gradient to parameters, under grad mode.
    """

    micro_batches: tuple[MicroBatch, ...]
    join: Callable[[Sequence[Outputs]], T_co]
    learns: bool = True

    def all(self) -> T_co:
        """The features, all micro-batches encoded."""
        return self.join([encode() for encode in self.micro_batches])

    def within(self, around: Around, learns: bool) -> Work[T_co]:
        """The same work with every micro-batch encoded through `around`."""

        def wrapped(micro_batch: MicroBatch) -> MicroBatch:
            return lambda: around(micro_batch)

        return Work(tuple(map(wrapped, self.micro_batches)), self.join, learns)

    def then(self, other: Work[T_co] | None) -> Work[object]:
        """The micro-batches of this work, then those of another of the same tower."""
        if other is None:
            return self
        several = (*self.micro_batches, *other.micro_batches)
        return Work(several, tuple, self.learns or other.learns)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@dataclass(frozen=True)
class FeatureWork:
    """Both towers' parts of a batch. Every micro-batch of `image` and `text` gives tensors; `join`
    makes of those of both all that a loss may see. passes: what they consist of where images or
    texts go through their tower twice."""

    image: Work[object]
    text: Work[object]
    join: Callable[[Sequence[Outputs], Sequence[Outputs]], Features]
    passes: tuple[Work[object], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether no pass through a tower is in several micro-batches."""
        return all(len(each.micro_batches) <= 1 for each in self.passes or (self.image, self.text))

    def all(self) -> Features:
        """The features, all micro-batches encoded."""
        return self.join(
            *([encode() for encode in each.micro_batches] for each in (self.image, self.text))
        )
