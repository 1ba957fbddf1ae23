"""A batch: pixels, and all texts that accompany them as one flat ragged list."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from compoclip.data.masks import Mask
from compoclip.data.transform import normalised
from compoclip.losses.contract import HostLayout, IndexRequest, Layout, Role
from compoclip.models.work import KeptAt
from compoclip.rewrites.base import token_key

if TYPE_CHECKING:
    from compoclip.data.prepared import Numbers


@dataclass(frozen=True)
class TextBlock:
    """T texts for B images: no padding, no placeholder negatives.

    Args:
        texts: T strings.
        owner: T image indices in [0, images).
        role: T roles.
        rewrite: T kinds of text: the name of the rewrite that made it; "" for captions.
        images: B.
        photos: B names, equal where two images are the same photo; () when not known.
        pair: B numbers: for a negative image that a row brought along the index of the row's own
            image, -1 for all others; () is -1 for all.
        targets: B texts that heads are to write, "" for none; () is none for all.
        masks: What a second pass hides of each of the B images and its first caption; () is that
            there is none.
    """

    texts: tuple[str, ...]
    owner: tuple[int, ...]
    role: tuple[Role, ...]
    rewrite: tuple[str, ...]
    images: int
    photos: tuple[str, ...] = ()
    pair: tuple[int, ...] = ()
    targets: tuple[str, ...] = ()
    masks: tuple[Mask, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.texts), len(self.owner), len(self.role), len(self.rewrite)}
        if len(lengths) != 1:
            raise ValueError("texts, owner, role and rewrite must have the same length")
        if any(not 0 <= owner < self.images for owner in self.owner):
            raise ValueError(f"owner must lie in [0, {self.images})")
        if any(
            len(each) not in (0, self.images)
            for each in (self.photos, self.pair, self.targets, self.masks)
        ):
            raise ValueError("photos, pair, targets and masks must name every image, or none")

    def on_host(self, ids: NDArray[np.int32] | None = None) -> HostLayout:
        """What a loss may see of the texts, on the host.

        Args:
            ids: (T, context) token ids. With them texts are the same when their ids are; without,
                when CLIP's tokenizer cannot tell them apart.

        Returns:
            The layout, with kinds in the order in which the block has them.
        """
        kinds = tuple(dict.fromkeys(filter(None, self.rewrite)))
        place = {"": -1, **{name: i for i, name in enumerate(kinds)}}
        texts: list[str] | list[bytes] = ["\0".join(token_key(text)) for text in self.texts]
        if ids is not None:
            texts = [row.tobytes() for row in ids]
        pair = np.array(self.pair, np.int64)
        return HostLayout(
            owner=np.array(self.owner, np.int64),
            role=np.array(self.role, np.int64),
            rewrite=np.array([place[name] for name in self.rewrite], np.int64),
            images=self.images,
            kinds=kinds,
            text_id=_numbered(texts),
            image_id=_numbered(self.photos) if self.photos else None,
            side=(pair >= 0).astype(np.int64) if self.pair else None,
            pair=np.where(pair >= 0, pair, np.arange(len(pair))) if self.pair else None,
            keys=(_keys(texts), _keys(self.photos) if self.photos else None),
        )

    def layout(
        self,
        device: torch.device | str = "cpu",
        ids: torch.Tensor | None = None,
    ) -> Layout:
        """The tensors a loss may see.

        Args:
            device: Where they are to lie.
            ids: As for `on_host`, as a tensor on the CPU.

        Returns:
            The layout, with kinds in the order in which the block has them.
        """
        host = self.on_host(None if ids is None else ids.numpy())
        return host.layout(lambda array: torch.from_numpy(array).to(device))


def _numbered(items: Iterable[Hashable]) -> NDArray[np.int64]:
    """Equal numbers for equal items, counted from 0 in order of appearance."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(item, len(seen)) for item in items], np.int64)


def _keys(items: Iterable[str | bytes]) -> NDArray[np.int64]:
    """Numbers that are equal in all processes exactly for equal items: hashes of 8 bytes."""
    named = (item.encode() if isinstance(item, str) else item for item in items)
    digests = b"".join(blake2b(name, digest_size=8).digest() for name in named)
    return np.frombuffer(digests, np.int64)


@dataclass(frozen=True)
class Batch:
    """What the training loop receives: images and the texts that go with them.

    Args:
        pixels: (B, 3, H, W) uint8; where `kept` says so, (B, 1 + P, C) features.
        block: The texts.
        ids: Of the samples drawn; there may be more images, such as neighbours, after theirs.
        skipped: Ids of samples left out of this batch because they could not be read.
        kind: "single" or "composed", for methods whose steps differ.
        mean: What the pixels are to be normalised by, for each channel, of values in [0, 1].
        std: The same.
        numbers: The texts as numbers, if they have been made.
        kept: Where features were taken that are in the place of pixels.
        unforeseen: Where the indices are noted that losses ask for and `numbers` lacks.
    """

    pixels: torch.Tensor
    block: TextBlock
    ids: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    kind: str = "single"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    numbers: Numbers | None = None
    kept: KeptAt = ""
    unforeseen: set[IndexRequest] = field(default_factory=set, compare=False, repr=False)

    def normalised(self, device: torch.device) -> torch.Tensor:
        """(B, 3, H, W) float32 on `device`: bytes travel, numbers are made of them there.

        Kept features are what they are.
        """
        pixels = self.pixels.to(device, non_blocking=True)
        if self.kept:
            return pixels
        return normalised(pixels, self.mean, self.std)

    def pin_memory(self) -> Batch:
        """The same in memory from which a CUDA device copies without the processor."""
        numbers = None if self.numbers is None else self.numbers.pin_memory()
        return replace(self, pixels=self.pixels.pin_memory(), numbers=numbers)
