"""One image with its captions, and what can be asked of any collection of them."""

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
from compoclip.errors import UsageError

NEGATIVES, NEIGHBOURS, NEGATIVE_IMAGE, GROUP = "negatives", "neighbours", "negative_image", "group"
POSITIVES = "positives"


@dataclass(frozen=True, slots=True)
class Sample:
    """One image with its captions, as every source yields it.

    Args:
        id: Unique in its source, and stable.
        image: A file, or the encoded bytes.
        captions: At least one; the first is the main one.
        negatives: Hard-negative captions that came with the data (NegCLIP TSV), possibly none.
        neighbours: Indices, in the source, of the samples with similar images that the data names.
        negative_image: The image of the (first) negative caption, where the data has one.
        group: What variations of one object share, "" for an ordinary pair.
        positives: Captions in other words that came with the data, possibly none.
        score: How good a variation is, where the data says so.
        image_score: How good its image is.
        key: Seeds what is drawn for the sample in place of its id, where that is not enough: in a
            mixture of data sets, and when it is shown again in one epoch.
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

    A source of one's own has a length, samples by index and a description; whatever else is asked
    of one is answered here from the samples, which reads their images too. Those that know better
    answer from what they hold.

    left_out: how many captions and samples the reader left out, by reason. mix: how a mixture of
    data sets is drawn; an epoch of all others goes through every sample once. upright: whether
    images are turned as their EXIF orientation says, which those of published data sets are not.
    """

    left_out: Mapping[str, int] = MappingProxyType({})
    mix: WeightedMix | None = None
    upright: bool = True

    @property
    def orientation(self) -> Literal["upright", "stored"]:
        """`upright` as a record states it."""
        return "upright" if self.upright else "stored"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Sample: ...

    @abstractmethod
    def describe(self) -> str:
        """Where the samples come from, for logs and results."""

    def bare(self, index: int) -> Sample:
        """The sample; images that do not lie in a file of their own may be no bytes at all."""
        return self[index]

    def column(self, name: str) -> Iterable[Any]:
        """A field of every sample, in order."""
        return (getattr(self.bare(index), name) for index in range(len(self)))

    def captions(self) -> Iterable[str]:
        """All captions, in order."""
        return (caption for captions in self.column("captions") for caption in captions)

    def brings(self) -> frozenset[str]:
        """Which of "negatives", "neighbours", "negative_image", "group", "positives" any has."""
        names = (NEGATIVES, NEIGHBOURS, NEGATIVE_IMAGE, GROUP, POSITIVES)
        return frozenset(name for name in names if any(self.column(name)))

    def require(self, name: str, needed: str) -> None:
        """Raise UsageError, which says what is needed, unless any sample has a field of a name."""
        if name not in self.brings():
            raise UsageError(f"{self.describe()}: brings no {needed}")

    def fingerprint(self) -> Fingerprint:
        """Return what the samples hold: a checksum per row of every column, and of the name, size
        and modification time of every image, or of its bytes where it lies in no file."""
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
