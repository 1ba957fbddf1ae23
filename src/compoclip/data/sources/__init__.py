"""One image with its captions, and the interface of collections of them."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from compoclip.data.decode import Mirrored, Picture
from compoclip.data.fingerprint import COLUMNS, Fingerprint, checksums, file_stamp
from compoclip.data.sources.mixture import WeightedMix
from compoclip.errors import UsageError, require

NEGATIVES, NEIGHBOURS, NEGATIVE_IMAGE, GROUP = "negatives", "neighbours", "negative_image", "group"
POSITIVES = "positives"


@dataclass(frozen=True, slots=True)
class Sample:
    """One image with its captions.

    Args:
        id: Unique in its source, and stable.
        image: A file, or the encoded bytes.
        captions: At least one; the first is the main one.
        negatives: Hard-negative captions of the data (NegCLIP TSV), or ().
        neighbours: Indices in the source of samples with similar images, from the data.
        negative_image: Image of the (first) negative caption, if the data have it.
        group: Key shared by all variations of one object, "" for an ordinary pair.
        positives: Paraphrases of the data, or ().
        score: Quality of a variation, if the data have it.
        image_score: Quality of its image.
        key: Seeds the sample's texts and crop instead of its id, if that is not unique: in a
            mixture of data sets, and for a second use in one epoch.
    """

    id: str
    image: Path | bytes
    captions: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    neighbours: tuple[int, ...] = ()
    negative_image: Picture | None = None
    group: str = ""
    positives: tuple[str, ...] = ()
    score: float | None = None
    image_score: float | None = None
    key: str = ""

    @property
    def drawn_by(self) -> str:
        """Key that, with seed and epoch, seeds the sample's crop, caption and rewrites."""
        return self.key or self.id


class Source(ABC):
    """A random-access collection of samples, so that any order can be replayed exactly.

    A custom source has a length, samples by index and a description. The other methods have
    defaults that read every sample with its image; sources override them to be faster.

    left_out: numbers of captions and samples that the reader left out, by reason. mix: how a
    mixture of data sets is sampled; other data show every sample once per epoch. upright: whether
    images are rotated by their EXIF orientation; images of published data sets are not.
    """

    left_out: Mapping[str, int] = MappingProxyType({})
    mix: WeightedMix | None = None
    upright: bool = True

    @property
    def orientation(self) -> Literal["upright", "stored"]:
        """Return "upright" or "stored", for records."""
        return "upright" if self.upright else "stored"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Sample: ...

    @abstractmethod
    def describe(self) -> str:
        """Return the origin of the samples, for logs and results."""

    def bare(self, index: int) -> Sample:
        """Return the sample; an image without a file may be empty bytes."""
        return self[index]

    def column(self, name: str) -> Iterable[Any]:
        """Return a field of every sample, in order."""
        return (getattr(self.bare(index), name) for index in range(len(self)))

    def captions(self) -> Iterable[str]:
        """Return all captions, in order."""
        return (caption for captions in self.column("captions") for caption in captions)

    def brings(self) -> frozenset[str]:
        """Return which of negatives, neighbours, negative_image, group, positives exist."""
        names = (NEGATIVES, NEIGHBOURS, NEGATIVE_IMAGE, GROUP, POSITIVES)
        return frozenset(name for name in names if any(self.column(name)))

    def require(self, name: str, needed: str) -> None:
        """Raise UsageError with the need unless any sample has a field of this name."""
        require(name in self.brings(), self.describe(), f"brings no {needed}", UsageError)

    def fingerprint(self) -> Fingerprint:
        """Return a checksum per row of every column, and of the name, size and modification time
        of every image file, or of the bytes of an image without a file."""
        samples = [self.bare(index) for index in range(len(self))]
        columns = {name: [getattr(each, name) for each in samples] for name in ("id", *COLUMNS)}
        columns["images"] = [_stamp(each.image) for each in samples]
        columns["negative images"] = [_stamp(each.negative_image) for each in samples]
        return Fingerprint({}, checksums({"ids": columns.pop("id"), **columns}))


def _stamp(image: Picture | None) -> str:
    if isinstance(image, Mirrored):
        return f"{_stamp(image.image)} mirrored"
    if isinstance(image, Path):
        return f"{image} {file_stamp(str(image))}"
    return str(zlib.crc32(image)) if image else ""
