"""One image with its captions, and collections of them: rows of one Arrow table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compoclip.archives import read_at, whole_members
from compoclip.data.columns import SAMPLE_REASONS
from compoclip.data.decode import Picture, mirrored
from compoclip.data.fingerprint import COLUMNS, Fingerprint, checksums
from compoclip.data.sources.mixture import WeightedMix
from compoclip.errors import UsageError, require
from compoclip.files import file_stamp

NEGATIVES, NEIGHBOURS, NEGATIVE_IMAGE, GROUP = "negatives", "neighbours", "negative_image", "group"
POSITIVES, LABEL = "positives", "label"
NO_NEIGHBOUR = "similar image that the data has not"
SEVERAL = "\x1f"
"""Separates the labels of a photo that several rows name."""


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
        label: Name or number of the class of the image, "" if the data have none. In data that are
            read for their captions, the class that these were made of.
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
    label: str = ""

    @property
    def drawn_by(self) -> str:
        """Key that, with seed and epoch, seeds the sample's crop, caption and rewrites."""
        return self.key or self.id


_CHUNK = 1 << 16
_TEXT, _TEXTS = pa.large_string(), pa.large_list(pa.large_string())
SCHEMA = pa.schema(
    [
        ("id", _TEXT),
        ("place", pa.int32()),  # which of the places holds the image
        ("image", _TEXT),  # its name in the place
        ("captions", _TEXTS),
        ("negatives", _TEXTS),
        ("neighbours", pa.large_list(pa.int64())),
        ("negative_place", pa.int32()),
        ("negative_image", _TEXT),  # "" for none
        ("mirror", pa.bool_()),  # the negative image is shown mirrored; without one the image is it
        ("group", _TEXT),
        ("score", pa.float64()),
        ("image_score", pa.float64()),
        ("positives", _TEXTS),
        ("label", _TEXT),
        ("split", _TEXT),  # "" where the data name none
    ]
)
EMPTY: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(("captions", "negatives", "positives", "neighbours"), ()),
        **dict.fromkeys(("id", "image", "negative_image", "group", "label", "split"), ""),
        **dict.fromkeys(("score", "image_score")),
        "place": 0,
        "negative_place": 0,
        "mirror": False,
    }
)


# --- Where images lie. ---


@dataclass(frozen=True)
class ImageFolder:
    """Images as files below a folder, called by relative path."""

    root: Path

    def __call__(self, image: str) -> Path:
        return self.root / image

    def located(self, image: str) -> tuple[Path, str]:
        """Return the file of an image, which is no member of it."""
        return self.root / image, ""

    def stamp(self, image: str, state: Callable[[Path], str]) -> str:
        """Return the name with what changes when the image does; state: see `file_stamp`."""
        return f"{image} {state(self.root / image)}"


@dataclass(frozen=True)
class ImageColumn:
    """Images encoded in a column of a table, called by row.

    images: with a `stamp` that changes when any of them does.
    """

    name: str
    images: Any

    def __call__(self, image: str) -> bytes:
        encoded: bytes = self.images(image)
        return encoded

    def located(self, image: str) -> tuple[Path, str]:
        """Return the table that holds a row, and the column and row in it."""
        file, row = self.images.located(int(image))
        return file, f"{self.name}:{row}"

    def stamp(self, image: str, state: Callable[[Path], str]) -> str:
        """Return column and row with what changes when the image does."""
        return f"{self.name}:{image} {self.images.stamp}"


@dataclass(frozen=True)
class ImageShard:
    """Images that are members of a tar file, called "offset:size"."""

    path: Path

    def __call__(self, image: str) -> bytes:
        return read_at(self.path, *map(int, image.split(":")))

    def located(self, image: str) -> tuple[Path, str]:
        """Return the tar file, and the name of the member."""
        return self.path, _member_names(self.path, file_stamp(self.path))[image]

    def stamp(self, image: str, state: Callable[[Path], str]) -> str:
        """Return tar file and member with what changes when the file does."""
        return f"{self.path} {state(self.path)} {image}"


@cache
def _member_names(shard: Path, stamp: str) -> Mapping[str, str]:
    """Return the names of members by offset and size. stamp: of the file, which may be replaced."""
    return {f"{member.offset_data}:{member.size}": member.name for member in whole_members(shard)}


Place = ImageFolder | ImageColumn | ImageShard


# --- The source. ---


class Source:
    """Samples at random, so that any order can be replayed exactly: rows of a table of `SCHEMA`.

    A mixture is the tables of several sources, one behind the other, and a selection some rows of
    one. Texts live in Arrow buffers, not Python objects: millions of captions stay small, and
    forked workers share them.

    places: what its columns place and negative_place count from 0. left_out: numbers of what the
    reader left out and belongs to no row, by reason. lost: the same of the captions and samples of
    rows, by their split. made_from: what else a run depends on, by name:
    of rows, the folder of the images. mix: how a mixture of data sets is sampled; other data show
    every sample once per epoch. upright: whether images are rotated by their EXIF orientation;
    images of published data sets are not. classes: the names that labels may have, in the order of
    their numbers, where the data list them. selected: whether a selection names the rows, which may
    be of one split already.
    """

    def __init__(
        self,
        table: pa.Table,
        places: Sequence[Place],
        description: str,
        left_out: Mapping[str, int],
        made_from: Mapping[str, Any],
        mix: WeightedMix | None = None,
        lost: Mapping[str, Counter[str]] = MappingProxyType({}),
    ) -> None:
        self._table, self._places, self._lost = table, places, lost
        self._description, self._made_from, self.mix = description, made_from, mix
        self.upright = True
        self.classes: tuple[str, ...] = ()
        self.selected = False
        self._left_out = left_out
        self.hashes: dict[int, tuple[NDArray[np.float64], int]] = {}  # see `splits`
        self._ends = np.cumsum(list(mix.sizes.values())) if mix else None
        # Columns without content are not read; one chunk is read faster than several.
        names = (name for name in SCHEMA.names if name != "split")
        columns = {name: table[name] for name in names if holds_any(table[name])}
        self._columns = {k: c.chunk(0) if c.num_chunks == 1 else c for k, c in columns.items()}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def left_out(self) -> dict[str, int]:
        """Return the numbers of captions and samples that were left out, by reason."""
        counts = sum(self._lost.values(), Counter(self._left_out))
        return {reason: number for reason, number in counts.items() if number}

    def split_counts(self) -> Counter[str]:
        """Return the number of samples of each split, those that were left out included."""
        counts = pc.value_counts(self._table["split"]).to_pylist()
        samples = Counter({count["values"]: count["counts"] for count in counts})
        for split, lost in self._lost.items():
            samples[split] += sum(lost[reason] for reason in SAMPLE_REASONS)
        return +samples

    def __getitem__(self, index: int, bare: bool = False) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = dict(EMPTY)
        for name, column in self._columns.items():
            row[name] = column[index].as_py()

        def opened(side: str) -> Path | bytes:
            place = self._places[row[f"{side}place"]]
            name = row[f"{side}image"]
            return b"" if bare and isinstance(place, ImageColumn | ImageShard) else place(name)

        image = opened("")
        negative: Picture | None = opened("negative_") if row["negative_image"] else None
        if row["mirror"]:
            negative = mirrored(image if negative is None else negative)
        key = ""
        if self._ends is not None:
            # Ids, which seed the sampling of texts, are unique in one data set only.
            key = f"{np.searchsorted(self._ends, index, side='right')}\x1f{row['id']}"
        cells = {name: row[name] for name in ("id", "group", "score", "image_score", "label")}
        lists = ("captions", "negatives", "neighbours", "positives")
        cells |= {name: tuple(row[name]) for name in lists}
        return Sample(image=image, negative_image=negative, key=key, **cells)

    def located(self) -> Iterator[tuple[Path, str]]:
        """Yield the file that holds each image, and the image's `archives.Members` name in it."""
        cells = zip(self.column("place"), self.column("image"), strict=True)
        return (self._places[place].located(image) for place, image in cells)

    def bare(self, index: int) -> Sample:
        """Return the sample without images that lie in no file of their own."""
        return self.__getitem__(index, True)  # bare

    def column(self, name: str) -> Iterator[Any]:
        """Yield the cells of a column of `SCHEMA`, without touching the images."""
        for chunk in self._table.select([name]).to_batches(max_chunksize=_CHUNK):
            cells = chunk.column(0).to_pylist()
            yield from map(tuple, cells) if name == "captions" else cells

    def captions(self) -> Iterator[str]:
        """Yield all captions, in order."""
        return (caption for captions in self.column("captions") for caption in captions)

    def brings(self) -> frozenset[str]:
        """Return which of negatives, neighbours, negative_image, group, positives, label exist."""
        names = {NEGATIVES, NEIGHBOURS, NEGATIVE_IMAGE, GROUP, POSITIVES, LABEL}.intersection(
            self._columns
        )
        return frozenset(names | ({NEGATIVE_IMAGE} if "mirror" in self._columns else set()))

    def require(self, name: str, needed: str) -> None:
        """Raise UsageError with the need unless any sample has a field of this name."""
        require(name in self.brings(), self.describe(), f"brings no {needed}", UsageError)

    @property
    def orientation(self) -> Literal["upright", "stored"]:
        """Return "upright" or "stored", for records."""
        return "upright" if self.upright else "stored"

    def fingerprint(self) -> Fingerprint:
        """Return a checksum per row of every column, and of the name and stamp of every image file;
        images in tables count as the table."""
        state = lru_cache(_CHUNK)(file_stamp)  # rows of one file are near each other

        def stamps(side: str) -> pa.ChunkedArray:
            cells = zip(*map(self.column, (side, f"{side[:-5]}image")))
            texts = (self._places[n].stamp(image, state) if image else "" for n, image in cells)
            parts = iter(lambda: list(islice(texts, _CHUNK)), [])
            return pa.chunked_array([pa.array(part, _TEXT) for part in parts], _TEXT)

        columns = {name: self._table[name] for name in COLUMNS}
        columns |= {"ids": self._table["id"], "images": stamps("place")}
        columns["negative images"] = stamps("negative_place")
        columns["mirrored images"] = [
            "mirrored" if mirrored else "" for mirrored in self.column("mirror")
        ]
        return Fingerprint(self._made_from, checksums(columns))

    def describe(self) -> str:
        """Return where the samples come from, for logs and results."""
        return self._description

    def count(self, left_out: Mapping[str, int]) -> None:
        """Count more that is left out, by reason."""
        self._left_out = Counter(self._left_out) + Counter(left_out)

    def take(
        self,
        indices: NDArray[np.int64],
        description: str,
        left_out: Mapping[str, int],
        captions: Sequence[Sequence[str]] | None = None,
        splits: Collection[str] | None = None,
        labels: Sequence[str] | None = None,
        made_from: Mapping[str, Any] = MappingProxyType({}),
    ) -> Source:
        """Return the samples of some rows, ascending, without neighbours that are left out.

        left_out: counts to add to those of the reader. captions, labels: other ones. splits: names
        of the splits that the rows are of; what was left out in others is not counted. made_from:
        what else a run on these rows depends on.
        """
        require(len(indices), description, "no usable sample")
        table, unknown = renumbered(self._table.take(pa.array(indices)), indices)
        if captions is not None:
            table = replaced(table, {"captions": pa.array(captions, _TEXTS)})
        if labels is not None:
            table = replaced(table, {LABEL: pa.array(labels, _TEXT)})
        mix = self.mix and self.mix.of(indices)
        counts = Counter(self._left_out) + Counter(left_out)
        counts[NO_NEIGHBOUR] += unknown if splits is not None else 0
        lost = {k: v for k, v in self._lost.items() if splits is None or k in splits}
        depends_on = {**self._made_from, **made_from}
        source = Source(table, self._places, description, counts, depends_on, mix, lost)
        source.upright, source.classes = self.upright, self.classes
        source.selected = self.selected
        return source

    @staticmethod
    def mixed(parts: Mapping[str, Source], description: str, mix: WeightedMix) -> Source:
        """Concatenate several data sets, to be sampled by `mix`."""
        tables: list[pa.Table] = []
        places: list[Place] = []
        first = 0
        for part in parts.values():
            names, shift = ("place", "negative_place"), pa.scalar(len(places), pa.int32())
            table = replaced(part._table, {n: pc.add(part._table[n], shift) for n in names})
            rows = np.arange(len(part))  # of the part, that are rows of the mixture from `first` on
            tables.append(renumbered(table, rows, first)[0])
            places += part._places
            first += len(part)
        counts = sum((Counter(part.left_out) for part in parts.values()), Counter())
        made_from = {name: part._made_from for name, part in parts.items()}
        table = pa.concat_tables(tables)
        source = Source(table, places, description, counts, made_from, mix)
        source.upright = any(part.upright for part in parts.values())
        return source


def holds_any(column: pa.ChunkedArray) -> bool:
    """Return whether any cell of a column holds something: a text, an entry, a number but 0."""
    if pa.types.is_floating(column.type):
        return bool(column.null_count < len(column))
    if pa.types.is_large_list(column.type):
        column = pc.list_value_length(column)
    elif pa.types.is_large_string(column.type):
        column = pc.binary_length(column)
    return bool(pc.max(column).as_py())


def replaced(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table with other values in some of its columns."""
    for name, column in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), column)
    return table


def renumbered(table: pa.Table, rows: NDArray[np.int64], first: int = 0) -> tuple[pa.Table, int]:
    """Replace the row numbers in a table's neighbours by positions; also count unknown numbers.

    rows: the number of every row, ascending. first: the position of the first row. Neighbours that
    are not in the table, or are the row itself, are left out.
    """
    near = table["neighbours"].combine_chunks()
    numbers = near.flatten().to_numpy()
    if not len(numbers):
        return table, 0
    owner = np.repeat(np.arange(len(near)), pc.list_value_length(near).to_numpy())
    positions = np.minimum(np.searchsorted(rows, numbers), len(rows) - 1)
    exists = rows[positions] == numbers
    good = exists & (positions != owner)
    ends = np.cumsum(np.bincount(owner[good], minlength=len(near)))
    column = pa.LargeListArray.from_arrays(
        pa.array([0, *ends], pa.int64()), positions[good] + first
    )
    return replaced(table, {"neighbours": column}), int((~exists).sum())
