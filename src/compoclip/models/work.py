"""Encoding a batch in micro-batches: what one call computes, cut so that memory can be bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
MicroBatch = Callable[[], Outputs]  # encodes some of the rows of a tower, whenever it is called
Around = Callable[[MicroBatch], Outputs]
CachedAt = Literal["", "trunk", "tower"]
"""Input of an image tower: pixels, or features cached before or after its last projection."""
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Work(Generic[T_co]):
    """Features of a batch that are not computed yet, of one tower or of both.

    micro_batches: calling them all in order encodes the whole. join: makes the features of what
    they gave, in the same order. learns: whether the outputs of each carry a gradient to
    parameters, under grad mode. passes: number of passes through a tower, of at least one
    micro-batch each.
    """

    micro_batches: tuple[MicroBatch, ...]
    join: Callable[[Sequence[Outputs]], T_co]
    learns: tuple[bool, ...]
    passes: int = 1

    @property
    def whole(self) -> bool:
        """Return whether no pass is split into micro-batches."""
        return len(self.micro_batches) == self.passes

    def all(self) -> T_co:
        """Return the features, all micro-batches encoded."""
        return self.join([encode() for encode in self.micro_batches])

    def within(self, around: Around, learns: bool) -> Work[T_co]:
        """Return the same work with every micro-batch encoded through `around`."""
        encodes = tuple(partial(around, encode) for encode in self.micro_batches)
        return replace(self, micro_batches=encodes, learns=tuple(learns for _ in encodes))


def together(join: Callable[..., T_co], *works: Work[Any]) -> Work[T_co]:
    """Return several passes as one work. join: makes its features of those of each pass."""
    sizes = [len(work.micro_batches) for work in works]
    stops = list(accumulate(sizes))

    def features(outputs: Sequence[Outputs]) -> T_co:
        parts = [outputs[stop - size : stop] for size, stop in zip(sizes, stops)]
        return join(*(work.join(part) for work, part in zip(works, parts)))

    return Work(
        tuple(encode for work in works for encode in work.micro_batches),
        features,
        tuple(learns for work in works for learns in work.learns),
        sum(work.passes for work in works),
    )


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of all parts; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
