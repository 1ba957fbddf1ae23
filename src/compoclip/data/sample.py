"""One image with its captions, as every source yields it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from compoclip.data.textblock import TextBlock
from compoclip.data.transform import normalised


@dataclass(frozen=True, slots=True)
class Sample:
    """`id` is unique in its source and stable; `image` is a file or the encoded bytes.

    negatives: hard-negative captions that came with the data (NegCLIP TSV), possibly empty.
    neighbours: indices, in the source, of the samples with similar images that the data names.
    negative_image: the image of the (first) negative caption, where the data has one.
    group: what variations of one object share, "" for an ordinary pair.
    """

    id: str
    image: Path | bytes
    captions: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    neighbours: tuple[int, ...] = ()
    negative_image: Path | bytes | None = None
    group: str = ""


class Source(Protocol):
    """A random-access collection of samples, so that any order can be replayed exactly."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def describe(self) -> str:
        """Where the samples come from, for logs and results."""
        ...


@dataclass(frozen=True)
class Batch:
    """What the training loop receives: pixels (B, 3, H, W) uint8 and the texts that go with them.

    ids: of the samples drawn; there may be more images, such as neighbours, after theirs.
    skipped: ids of samples left out of this batch because they could not be read.
    kind: "single" or "composed", for methods whose steps differ. mean, std: what the pixels are to
    be normalised by, of values in [0, 1].
    """

    pixels: torch.Tensor
    block: TextBlock
    ids: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    kind: str = "single"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def normalised(self, device: torch.device) -> torch.Tensor:
        """(B, 3, H, W) float32 on `device`: bytes travel, numbers are made of them there."""
        return normalised(self.pixels.to(device, non_blocking=True), self.mean, self.std)
