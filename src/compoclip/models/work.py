"""Encoding a batch in micro-batches: what one call computes, cut so that memory can be bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from compoclip.losses.contract import Features, HeadPlan

if TYPE_CHECKING:
    from compoclip.models.dual_encoder import DualEncoder
    from compoclip.models.text_plan import TextInputs

Outputs = tuple[Tensor, ...]
MicroBatch = Callable[[], Outputs]  # encodes some of the rows of a tower, whenever it is called
Around = Callable[[MicroBatch], Outputs]
KeptAt = Literal["", "trunk", "tower"]
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
        return Work(tuple(partial(around, each) for each in self.micro_batches), self.join, learns)


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
            *([encode() for encode in each.micro_batches] for each in (self.image, self.text))
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
            shown = None if image is None else image.join(images[first:])
            return add(features, shown, text.join(texts[second:]))

        def both(one: Work[object], other: Work[object] | None) -> Work[object]:
            if other is None:
                return one
            every = (*one.micro_batches, *other.micro_batches)
            return Work(every, tuple, one.learns or other.learns)

        once = all(len(each.micro_batches) <= 1 for each in (image, text) if each is not None)
        return FeatureWork(
            both(self.image, image), both(self.text, text), join, self.whole and once
        )


# --- What a method may bring: a further pass of a batch through the towers. ---


@dataclass(frozen=True)
class PassInputs:
    """The inputs of a further pass of a batch.

    Attributes:
        encoder: The towers.
        pixels: (B, 3, H, W), on the encoder's device.
        texts: The inputs of the text tower; `again` is what workers prepared for the pass.
        plan: The texts of the method, as a plan.
        block: The texts of the batch.
        local: Whether losses read patches and tokens.
        micro_batch: See `DualEncoder.work`.
    """

    encoder: DualEncoder
    pixels: Tensor
    texts: TextInputs
    plan: Any
    block: Any
    local: bool
    micro_batch: int


class ExtraPass(Protocol):
    """A module, among the heads of an encoder, that adds a pass to the work of a batch."""

    def extend(self, work: FeatureWork, given: PassInputs) -> FeatureWork:
        """Return the work with the pass added (`FeatureWork.further`)."""
        ...


class PassPlan(HeadPlan):
    """A loss term's plan for a further pass; `build` makes an `ExtraPass`.

    Attributes:
        name: Of the module among the heads.
        needs: The field of the method's texts that says what the pass is given.
    """

    name: ClassVar[str]
    needs: ClassVar[str]

    def require(self, texts: Any, encoder: DualEncoder) -> None:
        """Raise CompoclipError when an encoder cannot make the pass of such texts."""

    def changes_images(self, texts: Any) -> str:
        """Return what to do without when images may not change, as no cache of features holds the
        changed ones; "" for a pass that leaves them as they are."""
        return ""
