"""Features of images of the whole data, for losses that look beyond the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from compoclip.data.batch import item_keys
from compoclip.data.cached import CachedFeatures
from compoclip.losses.contract import Features, normalise
from compoclip.models.dual_encoder import DualEncoder

_MOST_IMAGES = 16_384
"""With more, comparing a batch with all of them would cost as much as encoding its texts."""
_AT_ONCE = 1024


@dataclass(frozen=True)
class ImageBank:
    """Images as a frozen tower sees them.

    features: (N, D), unit length. keys: (2 N,), see `Features.bank_keys`.
    """

    features: Tensor
    keys: Tensor

    def add_to(self, features: Features) -> Features:
        """Return the features of a batch with those of the bank."""
        return replace(features, bank=self.features, bank_keys=self.keys)


def image_bank(encoder: DualEncoder, cached: CachedFeatures) -> ImageBank:
    """Return the features of the photos of a source, of at most `_MOST_IMAGES` of them."""
    images = cached.some(_MOST_IMAGES)
    keys = torch.from_numpy(item_keys(images).view(np.int32).astype(np.int64)).to(encoder.device)
    with torch.no_grad():
        features = torch.cat([*_encoded(encoder, cached, [*images.values()])])
    return ImageBank(features, keys)


def _encoded(
    encoder: DualEncoder, cached: CachedFeatures, images: list[Tensor]
) -> Iterator[Tensor]:
    """Yield the features of images, some at a time, as those of a batch are computed."""
    for start in range(0, len(images), _AT_ONCE):
        rows = torch.stack(images[start : start + _AT_ONCE]).to(encoder.device)
        pooled = encoder.image_work(rows, cached_at=cached.at).all().pooled
        yield normalise(pooled.float())
