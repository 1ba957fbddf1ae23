"""What a loss may see: features and batch layout, and nothing of text, files or configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


class Role(IntEnum):
    """Why a text accompanies its image."""

    CAPTION = 0
    POSITIVE = 1
    NEGATIVE = 2


@dataclass(frozen=True)
class Layout:
    """How the T texts of a batch belong to its B images.

    Args:
        owner: (T,) int64, index of the image a text belongs to; one owner's texts need not be
            adjacent.
        role: (T,) int64, a `Role`.
        rewrite: (T,) int64, the kind of a text as an index into `kinds`; -1 for captions.
        images: B, all images of the batch, also those that a method adds (neighbours, negative
            images).
        kinds: The names of the kinds of text, by which losses ask for them (`kind`).
        text_id: (T,) int64, equal exactly where two texts are equal after tokenisation, or None.
        image_id: (B,) int64, equal exactly where two images are the same photo, or None.
        side: (B,) int64, 0 for the images of the data, 1 for the generated negative image that a
            row brought along (TripletCLIP), or None. Neighbours of NegCLIP are ordinary images.
        pair: (B,) int64, for an image of side 1 the index of the image of side 0 that brought it
            along, for one of side 0 its own index, or None when every image is of side 0.
    """

    owner: Tensor
    role: Tensor
    rewrite: Tensor
    images: int
    kinds: tuple[str, ...] = ()
    text_id: Tensor | None = None
    image_id: Tensor | None = None
    side: Tensor | None = None
    pair: Tensor | None = None

    def kind(self, *names: str) -> Tensor:
        """(T,) bool, the texts of these kinds: none for a name that no text of the batch has."""
        wanted = [place for place, name in enumerate(self.kinds) if name in names]
        return torch.isin(self.rewrite, self.rewrite.new_tensor(wanted))


@dataclass(frozen=True)
class Features:
    """What the encoder returns for a batch; all a loss may see.

    Args:
        image: (B, D) float32, unit length.
        text: (T, D) float32, unit length.
        logit_scale: Scalar, already exponentiated (s = exp(parameter)).
        patches: (B, P, D) projected image tokens without class token, not normalised, or None.
        tokens: (T, L, D) projected text tokens, not normalised, or None.
        token_mask: (T, L) bool, True for positions 1..EOT (start token and padding excluded), or
            None.
    """

    image: Tensor
    text: Tensor
    logit_scale: Tensor
    patches: Tensor | None = None
    tokens: Tensor | None = None
    token_mask: Tensor | None = None


class Loss(Protocol):
    """A pure function of features and layout that returns a scalar float32 tensor.

    Masks mean minus infinity. Defined (zero, with gradient) when the batch holds no negative.
    """

    def __call__(self, features: Features, layout: Layout) -> Tensor: ...


@runtime_checkable
class StatefulLoss(Loss, Protocol):
    """A loss that remembers numbers from one optimiser step to the next.

    Called exactly once a step, with the features of the whole batch. Its state belongs to the
    training state: a run that is resumed with it goes on as if nothing had happened.
    """

    def state_dict(self) -> dict[str, float]:
        """The numbers to keep, by name; finite, and equal after a round trip through JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from `state`; the empty mapping stands for the start of a run."""
        ...


# --- Losses are computed in at least float32, whatever the encoder's precision. ---


def at_least_float32(x: Tensor) -> Tensor:
    """`x` as float32; float64 stays float64 (so that gradients can be checked in it)."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@contextmanager
def full_precision(features: Features) -> Iterator[Features]:
    """The features in at least float32, inside a block where autocast is off.

    Autocast would otherwise turn the matrix products of a loss back into half precision: at
    s = 100 a bfloat16 logit is off by up to 0.25.
    """
    with torch.autocast(device_type=features.image.device.type, enabled=False):
        yield replace(
            features,
            image=at_least_float32(features.image),
            text=at_least_float32(features.text),
            logit_scale=at_least_float32(features.logit_scale),
            patches=None if features.patches is None else at_least_float32(features.patches),
            tokens=None if features.tokens is None else at_least_float32(features.tokens),
        )


def normalise(x: Tensor, eps: float = 1e-12) -> Tensor:
    """`x` divided by its length along the last dimension; vectors shorter than `eps` become zero.

    Unlike `torch.nn.functional.normalize` the gradient of such a vector is zero too, instead of
    1 / eps.
    """
    square = x.square().sum(-1, keepdim=True)
    tiny = square <= eps * eps
    return x * square.masked_fill(tiny, 1.0).rsqrt().masked_fill(tiny, 0.0)
