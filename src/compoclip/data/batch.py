"""A batch: pixels, and all texts of its images as one flat ragged list and as token ids.

A training step needs integers only: token ids in the order of the text tower, the image of each
text, and the indices that losses read. A worker computes them into one buffer; the main process
copies the buffer and takes views of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compoclip.captions.clip_text import token_key
from compoclip.data.drawing import PlanCounts
from compoclip.data.masks import Mask
from compoclip.data.transform import normalised
from compoclip.losses.contract import HostLayout, IndexRequest, Layout, Role
from compoclip.models.text_plan import TextInputs
from compoclip.models.work import CachedAt


def _numbered(items: Iterable[Hashable]) -> NDArray[np.int64]:
    """Number items from 0 in order of appearance; equal items have equal numbers."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(item, len(numbers)) for item in items], np.int64)


def item_keys(items: Iterable[str | bytes]) -> NDArray[np.int64]:
    """Hash items to 8 bytes; the numbers are the same in all processes."""
    named = (item.encode() if isinstance(item, str) else item for item in items)
    digests = b"".join(blake2b(name, digest_size=8).digest() for name in named)
    return np.frombuffer(digests, np.int64)


@dataclass(frozen=True)
class Numbers:
    """The texts of a batch as numbers: arrays of integers and of truth values in one buffer.

    values: the buffer, int32. slots: shape of each array, and whether it has truth values. texts,
    layout: inputs of the text tower and the layout, with the number of a slot for every array.
    answers: slots of the indices that losses request from the layout. truncated: number of texts
    that the tokenizer cuts.
    """

    values: Tensor
    slots: tuple[tuple[tuple[int, ...], bool], ...]
    texts: TextInputs
    layout: HostLayout
    answers: Mapping[IndexRequest, tuple[int, ...]]
    truncated: int

    def on(self, device: torch.device) -> tuple[TextInputs, Layout]:
        """Return the text tower's inputs and the layout on the device of the step."""
        parts = self.parts(self.values.to(device, non_blocking=True).long())
        views: Any = [part.bool() if truth else part for part, (_, truth) in zip(parts, self.slots)]
        texts = self.texts.mapped(views.__getitem__)
        layout = self.layout.layout(views.__getitem__)
        layout.host = self.host
        for request, slots in self.answers.items():
            layout.answers[request] = tuple(views[slot] for slot in slots)
        return texts, layout

    def parts(self, values: Tensor) -> list[Tensor]:
        """Return views of `values`, which is the buffer or a copy, in the shapes of the slots."""
        flat = torch.split(values, [int(np.prod(shape)) for shape, _ in self.slots])
        return [part.view(shape) for part, (shape, _) in zip(flat, self.slots)]

    @property
    def host(self) -> HostLayout:
        """Return the layout on the host."""
        parts: Any = self.parts(self.values)
        return self.layout.mapped(lambda slot: parts[slot].numpy())

    def lengths(self, request: IndexRequest) -> list[int]:
        """Return the lengths of the arrays of a request. Raises ValueError without an answer."""
        if request in self.answers:
            return [self.slots[slot][0][0] for slot in self.answers[request]]
        return [len(array) for array in self.host.answer(request)]


@dataclass(frozen=True)
class Batch:
    """B images, and all T texts of them as one ragged list: no padding, no placeholder negatives.

    Args:
        pixels: (B, 3, H, W) uint8; (B, 1 + P, C) cached features if `cached_at` is set.
        texts: T strings.
        owner: T image indices in [0, B).
        role: T roles.
        rewrite: T kinds of text: the name of the rewrite that made it; "" for captions.
        ids: Ids of the sampled items; further images, such as neighbours, come after theirs.
        photos: B names, equal where two images are the same photo; () if unknown.
        pair: B numbers: for a generated negative image the index of its row's image, -1 for all
            others; () is -1 for all.
        targets: B texts for heads to write, "" for no text; () is "" for all.
        masks: Masks of each of the B images and its first caption for a second pass; () for no
            second pass.
        skipped: Ids of samples left out of this batch because they could not be read.
        kind: "single" or "composed", for methods whose steps differ.
        mean: Mean per channel for the normalisation of pixels in [0, 1].
        std: Standard deviation per channel.
        cached_at: Place in the tower at which cached features were taken; "" for pixels.
        numbers: The packed integers of the texts, if they have been made.
        counts: Counts of texts made and refused by the caption plan.
        bad: Id and reason of images that cannot be read.
        unforeseen: Collects index requests of losses that `numbers` lacks.
    """

    pixels: Tensor
    texts: tuple[str, ...]
    owner: tuple[int, ...]
    role: tuple[Role, ...]
    rewrite: tuple[str, ...]
    ids: tuple[str, ...] = ()
    photos: tuple[str, ...] = ()
    pair: tuple[int, ...] = ()
    targets: tuple[str, ...] = ()
    masks: tuple[Mask, ...] = ()
    skipped: tuple[str, ...] = ()
    kind: str = "single"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    cached_at: CachedAt = ""
    numbers: Numbers | None = None
    counts: PlanCounts = field(default_factory=PlanCounts)
    bad: tuple[tuple[str, str], ...] = ()
    unforeseen: set[IndexRequest] = field(default_factory=set, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len({len(self.texts), len(self.owner), len(self.role), len(self.rewrite)}) != 1:
            raise ValueError("texts, owner, role and rewrite must have the same length")
        of_images = (self.photos, self.pair, self.targets, self.masks)
        if any(len(names) not in (0, self.images) for names in of_images):
            raise ValueError("photos, pair, targets and masks must name every image, or none")

    @property
    def images(self) -> int:
        """Return B."""
        return len(self.pixels)

    def on_host(self, ids: NDArray[np.int32] | None = None) -> HostLayout:
        """Return the host's view of the texts for losses, with kinds in the order of the texts.

        ids: (T, context) token ids. With them, texts are equal if their ids are; without, if CLIP's
        tokenizer gives both the same ids. Raises ValueError for an owner that is no image.
        """
        kinds = tuple(dict.fromkeys(filter(None, self.rewrite)))
        place = {"": -1, **{name: i for i, name in enumerate(kinds)}}
        texts: list[str] | list[bytes] = ["\0".join(token_key(text)) for text in self.texts]
        if ids is not None:
            texts = [row.tobytes() for row in ids]
        owner, pair = np.array(self.owner, np.int64), np.array(self.pair, np.int64)
        if ((owner < 0) | (owner >= self.images)).any():
            raise ValueError(f"owner must lie in [0, {self.images})")
        return HostLayout(
            owner=owner,
            role=np.array(self.role, np.int64),
            rewrite=np.array([place[name] for name in self.rewrite], np.int64),
            images=self.images,
            kinds=kinds,
            text_id=_numbered(texts),
            image_id=_numbered(self.photos) if self.photos else None,
            side=(pair >= 0).astype(np.int64) if self.pair else None,
            pair=np.where(pair >= 0, pair, np.arange(len(pair))) if self.pair else None,
            keys=(item_keys(texts), item_keys(self.photos) if self.photos else None),
        )

    def layout(self, device: torch.device | str = "cpu", ids: Tensor | None = None) -> Layout:
        """Return the layout's tensors on a device; `ids` as for `on_host`, as a CPU tensor."""
        host = self.on_host(None if ids is None else ids.numpy())
        return host.layout(lambda array: torch.from_numpy(array).to(device))

    def normalised(self, device: torch.device) -> Tensor:
        """Return (B, 3, H, W) float32 on `device`: bytes are copied and normalised there.

        Cached features are returned unchanged.
        """
        pixels = self.pixels.to(device, non_blocking=True)
        if self.cached_at:
            return pixels
        return normalised(pixels, self.mean, self.std)

    def pin_memory(self) -> Batch:
        """Return a copy in page-locked memory, for copies to a CUDA device."""
        numbers = self.numbers
        if numbers is not None:
            numbers = replace(numbers, values=numbers.values.pin_memory())
        return replace(self, pixels=self.pixels.pin_memory(), numbers=numbers)
