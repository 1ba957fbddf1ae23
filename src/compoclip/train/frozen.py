"""Features of a frozen image tower, encoded once for each image that is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from compoclip.data.sample import Batch
from compoclip.losses.contract import Features
from compoclip.models.work import FeatureWork, Outputs, Work, joined

# Fewer rows than this may take another route through the arithmetic libraries, and round otherwise.
_LEAST = 8


class Encoder(Protocol):
    """What is needed of a dual encoder (models.DualEncoder)."""

    def work(
        self, pixels: Tensor, ids: Tensor, local: bool = False, micro_batch: int = 0
    ) -> FeatureWork: ...


class FrozenImages:
    """Remembers what a frozen image tower made of an image, by the image's pixels.

    An image whose pixels are new, by a crop or another partner in a composite, is encoded as ever:
    nothing has to be known of how images come about. Features are kept in memory on the model's
    device, up to `most` bytes; what comes later is encoded every time.

    asked, found: images that were wanted so far, and those of them that were remembered. bytes: of
    all features kept.
    """

    def __init__(self, most: int = 4 << 30) -> None:
        self._most = most
        self._kept: dict[bytes, Outputs] = {}
        self.bytes = self.asked = self.found = 0

    def work(
        self,
        encoder: Encoder,
        batch: Batch,
        pixels: Tensor,
        ids: Tensor,
        local: bool,
        micro_batch: int,
    ) -> FeatureWork:
        """`encoder.work(pixels, ids, local, micro_batch)` that encodes new images only.

        pixels: those of the batch, normalised. The image tower must be frozen.
        """
        keys = _keys(batch, local)
        known = {key: self._kept[key] for key in keys if key in self._kept}
        rows = [i for i, key in enumerate(keys) if key not in known]
        self.asked += len(keys)
        self.found += len(keys) - len(rows)
        if rows:  # some that are known beside few that are not, see _LEAST
            rows += [i for i, key in enumerate(keys) if key in known][: max(0, _LEAST - len(rows))]
        work = encoder.work(pixels[rows], ids, local, micro_batch)

        def join(images: Sequence[Outputs], texts: Sequence[Outputs]) -> Features:
            found = dict(known)
            if images:
                encoded = [joined(each) for each in zip(*images)]
                for at, row in enumerate(rows):
                    if keys[row] not in found:
                        found[keys[row]] = self._keep(keys[row], [each[at] for each in encoded])
            whole = tuple(torch.stack(each) for each in zip(*(found[key] for key in keys)))
            return work.join([whole], texts)

        image = work.image if rows else Work((), work.image.join, learns=False)
        return FeatureWork(image, work.text, join)

    def _keep(self, key: bytes, features: Sequence[Tensor]) -> Outputs:
        """Own copies of an image's features, kept if there is room."""
        own = tuple(each.detach().clone() for each in features)
        size = sum(each.numel() * each.element_size() for each in own)
        if self.bytes + size <= self._most:
            self._kept[key] = own
            self.bytes += size
        return own


def _keys(batch: Batch, local: bool) -> list[bytes]:
    """A hash of everything the features of each image depend on."""
    setting = repr((batch.mean, batch.std, local)).encode()
    return [
        hashlib.blake2b(image.numpy().tobytes() + setting, digest_size=16).digest()
        for image in batch.pixels
    ]
