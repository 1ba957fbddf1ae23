"""A source: rows of one Arrow table, and the places that their images lie in.

Every reader returns a `TableSource`; a mixture is the tables of several, one behind the other, and
a selection some rows of one. Texts live in Arrow buffers, not Python objects: millions of captions
stay small, and forked workers share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compoclip.archives import read_at
from compoclip.data.columns import EMPTY_CAPTION, NO_CAPTION, require_texts, usable_texts
from compoclip.data.decode import Picture, mirrored
from compoclip.data.fingerprint import COLUMNS, Fingerprint, checksums, file_stamp
from compoclip.data.sources import (
    GROUP,
    NEGATIVE_IMAGE,
    NEGATIVES,
    NEIGHBOURS,
    POSITIVES,
    Sample,
    Source,
)
from compoclip.data.sources.mixture import WeightedMix
from compoclip.errors import CompoclipError

EMPTY_NEGATIVE = "empty negative"
EMPTY_POSITIVE = "empty positive"
NO_NEIGHBOUR = "similar image that the data has not"

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
    ]
)
_WITH_ROWS = SCHEMA.append(pa.field("row", pa.int64()))  # the number that neighbours go by


# --- Where images lie. ---


@dataclass(frozen=True)
class ImageFolder:
    """Images as files below a folder, called by relative path."""

    root: Path

    def __call__(self, image: str) -> Path:
        return self.root / image

    def stamp(self, image: str, stat: Callable[[str], str]) -> str:
        """Return the name with what changes when the image does; stat: see `file_stamp`."""
        return f"{image} {stat(f'{self.root}/{image}')}"


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

    def stamp(self, image: str, stat: Callable[[str], str]) -> str:
        """Return column and row with what changes when the image does."""
        return f"{self.name}:{image} {self.images.stamp}"


@dataclass(frozen=True)
class ImageShard:
    """Images that are members of a tar file, called "offset:size"."""

    path: Path

    def __call__(self, image: str) -> bytes:
        return read_at(self.path, *map(int, image.split(":")))

    def stamp(self, image: str, stat: Callable[[str], str]) -> str:
        """Return tar file and member with what changes when the file does."""
        return f"{self.path} {stat(str(self.path))} {image}"


Place = ImageFolder | ImageColumn | ImageShard


# --- The source. ---


class TableSource(Source):
    """Samples in the order of the rows of a table of `SCHEMA`.

    places: what its columns place and negative_place count from 0. left_out: numbers of captions
    and samples that the reader left out, by reason. made_from: what else a run depends on, by name:
    of rows, the folder of the images.
    """

    def __init__(
        self,
        table: pa.Table,
        places: Sequence[Place],
        description: str,
        left_out: Mapping[str, int],
        made_from: Mapping[str, Any],
        mix: WeightedMix | None = None,
    ) -> None:
        self._table, self._places = table, places
        self._description, self._made_from, self.mix = description, made_from, mix
        self.left_out: Mapping[str, int] = {why: n for why, n in left_out.items() if n}
        self._ends = np.cumsum(list(mix.sizes.values())) if mix else None
        # Columns without content are not read; one chunk is read faster than several.
        columns = {name: table[name] for name in SCHEMA.names if _filled(table[name])}
        self._columns = {k: c.chunk(0) if c.num_chunks == 1 else c for k, c in columns.items()}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, bare: bool = False) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = dict(_EMPTY)
        for name, column in self._columns.items():
            row[name] = column[index].as_py()

        def opened(side: str) -> Path | bytes:
            place = self._places[row[f"{side}place"]]
            name = row[f"{side}image"]
            return b"" if bare and not isinstance(place, ImageFolder) else place(name)

        image = opened("")
        negative: Picture | None = opened("negative_") if row["negative_image"] else None
        if row["mirror"]:
            negative = mirrored(image if negative is None else negative)
        key = ""
        if self._ends is not None:
            # Ids, which seed the sampling of texts, are unique in one data set only.
            key = f"{np.searchsorted(self._ends, index, side='right')}\x1f{row['id']}"
        cells = {name: row[name] for name in ("id", "group", "score", "image_score")}
        lists = ("captions", "negatives", "neighbours", "positives")
        cells |= {name: tuple(row[name]) for name in lists}
        return Sample(image=image, negative_image=negative, key=key, **cells)

    def bare(self, index: int) -> Sample:
        """Return the sample without images that lie in no file of their own."""
        return self.__getitem__(index, True)  # bare

    def column(self, name: str) -> Iterator[Any]:
        """Yield the cells of a column of `SCHEMA`, without touching the images."""
        for chunk in self._table.select([name]).to_batches(max_chunksize=_CHUNK):
            cells = chunk.column(0).to_pylist()
            yield from map(tuple, cells) if name == "captions" else cells

    def brings(self) -> frozenset[str]:
        """Return the optional columns in which any row has a value, see `Source`."""
        names = {NEGATIVES, NEIGHBOURS, NEGATIVE_IMAGE, GROUP, POSITIVES}.intersection(
            self._columns
        )
        return frozenset(names | ({NEGATIVE_IMAGE} if "mirror" in self._columns else set()))

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint, see `Source`; images in tables count as the table."""
        stat = cache(file_stamp)

        def stamps(side: str) -> list[str]:
            cells = zip(*map(self.column, (side, f"{side[:-5]}image")))
            return [self._places[n].stamp(image, stat) if image else "" for n, image in cells]

        columns = {name: self._table[name] for name in COLUMNS}
        columns |= {"ids": self._table["id"], "images": stamps("place")}
        columns["negative images"] = stamps("negative_place")
        columns["mirrored images"] = ["mirrored" if each else "" for each in self.column("mirror")]
        return Fingerprint(self._made_from, checksums(columns))

    def describe(self) -> str:
        """Return where the samples come from, for logs and results."""
        return self._description

    def take(
        self, kept: NDArray[np.int64], description: str, left_out: Mapping[str, int]
    ) -> TableSource:
        """Return the samples of some rows, ascending, without neighbours that are left out.

        left_out: counts to add to those of the reader.
        """
        table, _ = renumbered(self._table.take(pa.array(kept)), kept)
        mix = self.mix and self.mix.of(kept)
        counts = {**self.left_out, **left_out}
        source = TableSource(table, self._places, description, counts, self._made_from, mix)
        source.upright = self.upright
        return source

    @staticmethod
    def mixed(parts: Mapping[str, TableSource], description: str, mix: WeightedMix) -> TableSource:
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
        source = TableSource(table, places, description, counts, made_from, mix)
        source.upright = any(part.upright for part in parts.values())
        return source


def _filled(column: pa.ChunkedArray) -> bool:
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
    found = np.minimum(np.searchsorted(rows, numbers), len(rows) - 1)
    known = rows[found] == numbers
    good = known & (found != owner)
    ends = np.cumsum(np.bincount(owner[good], minlength=len(near)))
    column = pa.LargeListArray.from_arrays(pa.array([0, *ends], pa.int64()), found[good] + first)
    return replaced(table, {"neighbours": column}), int((~known).sum())


# --- How readers make one. ---


class RowBuilder:
    """Collects rows; leaves out and counts unusable captions and samples.

    Rows of one image become one sample with all their captions and the id of the first row. If any
    row has more than captions, every row is a sample, so that its columns stay with its caption.

    Attributes:
        rows: Number of rows so far; readers also count rows that they leave out.
        places: Places of images: the folder, then the columns.
        left_out: Numbers of captions and samples that were left out, by reason.
    """

    def __init__(self, origin: object, root: Path, *columns: Place) -> None:
        self.origin, self.root = str(origin), root
        self.places: list[Place] = [ImageFolder(root), *columns]
        self.left_out: Counter[str] = Counter()
        self.rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in _WITH_ROWS.names}
        self._has_extras, self._captioned = False, 0

    def add(
        self,
        id: str,
        image: str,
        captions: Iterable[Any],
        extras: Mapping[str, Any] = MappingProxyType({}),
        origin: str = "",
        place: int = 0,
    ) -> None:
        """Add one row; leave out unusable captions, and a sample without others.

        Neighbours of other rows refer to the number (from 0) of this call. image: its name in the
        place. captions: the values of the caption cells. extras: other columns of `SCHEMA` that are
        not empty. origin: file and row for messages. Raises CompoclipError for texts that cannot be
        written as UTF-8.
        """
        kept = usable_texts(captions, EMPTY_CAPTION, self.left_out)
        row = {**_EMPTY, **(extras if kept else {})}
        self._has_extras |= bool(extras) and bool(kept)
        self._captioned += bool(kept)
        row["negatives"] = usable_texts(row["negatives"], EMPTY_NEGATIVE, self.left_out)
        row["positives"] = usable_texts(row["positives"], EMPTY_POSITIVE, self.left_out)
        row |= {"id": id, "place": place, "image": image, "captions": kept, "row": self.rows}
        single = (row[name] for name in ("id", "image", "negative_image", "group"))
        require_texts((*single, *kept, *row["negatives"], *row["positives"]), origin or self.origin)
        for name, column in self._columns.items():
            column.append(row[name])
        self.rows += 1
        if len(self._columns["id"]) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        arrays = [pa.array(self._columns[field.name], field.type) for field in _WITH_ROWS]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=_WITH_ROWS))
        for column in self._columns.values():
            column.clear()

    def table(self) -> pa.Table:
        """Return the samples so far, with the number of their rows in a column "row"."""
        self._flush()
        table = pa.Table.from_batches(self._batches, _WITH_ROWS)
        number = np.arange(table.num_rows)  # of each row's image, in the order of appearance
        if not self._has_extras:
            number = table["image"].combine_chunks().dictionary_encode().indices.to_numpy()
        if len(number) and number.max() + 1 < len(number):
            # The first row of every image, with the captions of all of its rows.
            captions = table["captions"].combine_chunks()
            sizes = pc.list_value_length(captions).to_numpy()
            ends = np.bincount(number, weights=sizes).cumsum().astype(np.int64)
            texts = captions.take(pa.array(np.argsort(number, kind="stable"))).flatten()
            joined = pa.LargeListArray.from_arrays(pa.array([0, *ends.tolist()], pa.int64()), texts)
            first = table.take(pa.array(np.unique(number, return_index=True)[1]))
            table = replaced(first, {"captions": joined})
        captioned = pc.greater(pc.list_value_length(table["captions"]), 0)
        self.left_out[NO_CAPTION] += table.num_rows - (pc.sum(captioned).as_py() or 0)
        return table.filter(captioned)

    def build(self, description: str) -> TableSource:
        """Return the finished source. Raises CompoclipError when no sample is left."""
        table = self.table()
        if table.num_rows < self._captioned:
            description += f", {table.num_rows:,} photos from {self._captioned:,} rows"
        folder = {"images folder": str(self.root.absolute())}
        return finished(table, self.places, description, self.left_out, folder, self.origin)


def finished(
    table: pa.Table,
    places: Sequence[Place],
    description: str,
    left_out: Counter[str],
    made_from: Mapping[str, Any],
    origin: str,
) -> TableSource:
    """Return the source of a table with the number of each row, which neighbours go by.

    Raises CompoclipError, beginning with `origin`, when it has no row.
    """
    if not table.num_rows:
        counted = ", ".join(f"{reason}: {n}" for reason, n in left_out.items() if n)
        why = f" (left out: {counted})" if counted else ""
        raise CompoclipError(f"{origin}: no usable sample{why}")
    table, lost = renumbered(table, table["row"].to_numpy())
    left_out[NO_NEIGHBOUR] += lost
    table = table.drop_columns(["row"]).combine_chunks()
    return TableSource(table, places, description, left_out, made_from)


_EMPTY: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(("captions", "negatives", "positives", "neighbours"), ()),
        **dict.fromkeys(("id", "image", "negative_image", "group"), ""),
        **dict.fromkeys(("score", "image_score")),
        "place": 0,
        "negative_place": 0,
        "mirror": False,
    }
)
