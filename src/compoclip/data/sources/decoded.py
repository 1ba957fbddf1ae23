"""Any source with its images decoded once, kept as pixels that a device crops and resizes.

The cache is a pack (`compoclip.data.pack`) whose images are stored as pixels: made by as many
processes as there are, shard by shard, each whole or not there, so that an interrupted one goes on.
What is read from it are images alone; ids, captions and order stay those of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from compoclip.console import counted, note, track
from compoclip.data.decode import Picture, mirrored
from compoclip.data.fingerprint import Fingerprint
from compoclip.data.pack import PackSpec, PackSummary, PackTask, Request, Run, pack, shard_paths
from compoclip.data.sources import Sample, Source
from compoclip.data.sources.shards import ROWS, load_index, read_at
from compoclip.errors import CompoclipError
from compoclip.models.preprocess import Preprocess

OPTION = "--decoded-cache"
_SHAPE = 4 / 3  # of most photos, to say how large a cache will be


def decoded_spec(preprocess: Preprocess) -> PackSpec:
    """How images are stored for a model: 256 pixels on the shorter side where it sees 224.

    Random crops keep 90 % of the area or more, of which little is then enlarged.
    """
    return PackSpec(-(-max(preprocess.size) * 8 // 7), decoded=True)


def make_decoded(
    request: Request, images: int, folder: Path, spec: PackSpec, run: Run = map, bad: int = 0
) -> None:
    """Decode all images of a source into a folder, unless they are there.

    Args:
        request: The source.
        images: Of the source.
        folder: Of the cache; made if need be.
        spec: How they are stored; larger images are scaled down (bicubic), others stay.
        run: Does the shards, as for `pack`.
        bad: Images that may be unreadable.

    Raises:
        UsageError: When the folder holds something else, or the images of other data.
        CompoclipError: For more than `bad` unreadable images, for a full disk, and when another
            process is making the cache. What is finished stays, and is not made again.
    """
    size = images * spec.size**2 * _SHAPE * 3 / 1e6
    what = f"decoding {counted(images, 'image')} once into {folder}: up to about {size:,.0f} MB"

    def announced(
        work: Callable[[PackTask], PackSummary], todo: Sequence[PackTask]
    ) -> Iterator[PackSummary]:
        note(what)
        yield from run(work, todo)

    made = pack(request, folder, spec, announced, bad, OPTION)
    for reason in made.bad.values():
        note(f"not in {folder}: {reason}")


class DecodedImages(Source):
    """The samples of a source with the images of a cache, which `make_decoded` has made.

    An image that could not be decoded is the source's own, so that whoever reads it says why.
    """

    decoded = True

    def __init__(self, source: Source, folder: Path, spec: PackSpec) -> None:
        """Find every image in the cache.

        Args:
            source: The samples.
            folder: Of the cache.
            spec: How it was made.

        Raises:
            CompoclipError: When shards are missing or damaged.
        """
        self._source, self._side = source, spec.size
        self._shards = shard_paths(folder, len(source), spec)
        self.left_out, self.mix, self.upright = source.left_out, source.mix, source.upright
        # Of each sample: the shard, offset and size of its image, and of its negative image, and
        # whether that is mirrored (the image itself where there is no other).
        self._places = np.zeros((len(source), 6), np.int64)
        first = 0
        for number, shard in enumerate(track(self._shards, "opening the cache", unit="shards")):
            try:
                table, _ = load_index(shard, None)
            except CompoclipError as error:
                raise _damaged(folder, str(error)) from error
            rows = table.column("row").to_numpy() + first
            first += int(table.schema.metadata[ROWS])
            if first > len(source):
                break
            self._places[rows, 0] = number
            for column, name in enumerate(_PLACES, 1):
                self._places[rows, column] = table.column(name).to_numpy(zero_copy_only=False)
        if first != len(source):
            raise _damaged(folder, f"{first} images of {len(source)}")

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number, offset, size, negative_offset, negative_size, mirror = self._places[index].tolist()
        sample = self._source.bare(index)
        has_negative = negative_size or mirror
        lacking = not size or (sample.negative_image is not None and not has_negative)
        if lacking:
            sample = self._source[index]
        if not size:
            return sample
        shard = self._shards[number]
        image = read_at(shard, offset, size)
        if not has_negative:
            return replace(sample, image=image)
        negative: Picture = image
        if negative_size:
            negative = read_at(shard, negative_offset, negative_size)
        negative = mirrored(negative) if mirror else negative
        return replace(sample, image=image, negative_image=negative)

    def bare(self, index: int) -> Sample:
        """The sample of the source without its images."""
        return self._source.bare(index)

    def ids(self) -> list[str]:
        """The id of every sample, in order."""
        return self._source.ids()

    def caption_lists(self) -> Iterable[tuple[str, ...]]:
        """The captions of each sample, in order."""
        return self._source.caption_lists()

    def captions(self) -> Iterable[str]:
        """All captions, in order."""
        return self._source.captions()

    def brings(self) -> frozenset[str]:
        """The columns of the source."""
        return self._source.brings()

    def groups(self) -> tuple[list[str], list[float | None]]:
        """The group of every sample ("" for none), and its score, if any."""
        return self._source.groups()

    def image_scores(self) -> list[float | None]:
        """The score of every sample's image, if any."""
        return self._source.image_scores()

    def fingerprint(self) -> Fingerprint:
        """What the samples of the source hold."""
        return self._source.fingerprint()

    def describe(self) -> str:
        """Where the samples come from, and that their images are others: it tells runs apart."""
        return f"{self._source.describe()}, decoded at {self._side} pixels"


_PLACES = ("offset", "size", "negative_offset", "negative_size", "mirror")


def _damaged(folder: Path, reason: str) -> CompoclipError:
    return CompoclipError(f"{folder}: damaged ({reason}); delete the folder, it is made again")
