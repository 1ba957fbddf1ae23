"""Encoding a batch in micro-batches: what one call computes, cut so that memory can be bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from compoclip.losses.contract import Features

Outputs = tuple[Tensor, ...]
MicroBatch = Callable[[], Outputs]  # encodes some of the rows of a tower, whenever it is called
Around = Callable[[MicroBatch], Outputs]
CachedAt = Literal["", "trunk", "tower"]
"""Input of an image tower: pixels, or features cached before or after its last projection."""
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
        """Return the features, all micro-batches encoded."""
        return self.join([encode() for encode in self.micro_batches])

    def within(self, around: Around, learns: bool) -> Work[T_co]:
        """Return the same work with every micro-batch encoded through `around`."""
        return Work(
            tuple(partial(around, encode) for encode in self.micro_batches), self.join, learns
        )


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of all parts; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@dataclass(frozen=True)
class FeatureWork:
    """Both towers' parts of a batch. `join` combines the tensors of all micro-batches into
    what a loss may read. whole: whether no pass is split into micro-batches."""

    image: Work[object]
    text: Work[object]
    join: Callable[[Sequence[Outputs], Sequence[Outputs]], Features]
    whole: bool

    def all(self) -> Features:
        """Return the features, all micro-batches encoded."""
        return self.join(
            *([encode() for encode in tower.micro_batches] for tower in (self.image, self.text))
        )

    def further(
        self,
        image: Work[Any] | None,
        text: Work[Any],
        add: Callable[[Features, Any, Any], Features],
    ) -> FeatureWork:
        """Return this work with one more pass through both towers, or the text tower alone.

        add: from the features, and those of images (None without) and texts of the further pass.
        """
        first, second = len(self.image.micro_batches), len(self.text.micro_batches)

        def join(images: Sequence[Outputs], texts: Sequence[Outputs]) -> Features:
            features = self.join(images[:first], texts[:second])
            image_features = None if image is None else image.join(images[first:])
            return add(features, image_features, text.join(texts[second:]))

        def both(one: Work[object], other: Work[object] | None) -> Work[object]:
            if other is None:
                return one
            every = (*one.micro_batches, *other.micro_batches)
            return Work(every, tuple, one.learns or other.learns)

        once = all(len(tower.micro_batches) <= 1 for tower in (image, text) if tower is not None)
        return FeatureWork(
            both(self.image, image), both(self.text, text), join, self.whole and once
        )
