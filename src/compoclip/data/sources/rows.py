"""The rows of an annotation file, held compactly, as a source of samples; which split is read.

Every reader of annotation files fills a `RowBuilder`; what comes out is a `RowSource`. Texts live
in Arrow buffers, not Python objects: millions of captions stay small, and forked workers share
them.

Data sets hold what models are tested on beside what they are trained on: the training split is
read unless another one is asked for. Reading all of it takes `--split all`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compoclip.data.decode import Picture, mirrored
from compoclip.data.extras import NOTHING, Extras
from compoclip.data.fingerprint import COLUMNS, Fingerprint, checksums, file_stamps
from compoclip.data.sources import (
    GROUP,
    NEGATIVE_IMAGE,
    NEGATIVES,
    NEIGHBOURS,
    POSITIVES,
    Sample,
    Source,
)
from compoclip.data.textfiles import EMPTY_CAPTION, NO_CAPTION, require_texts, usable_texts
from compoclip.errors import CompoclipError, UsageError

EMPTY_NEGATIVE = "empty negative"
EMPTY_POSITIVE = "empty positive"
NO_NEIGHBOUR = "similar image that the data has not"

_CHUNK = 1 << 16
_SCHEMA = pa.schema(
    [
        ("id", pa.large_string()),
        ("image", pa.large_string()),
        ("captions", pa.large_list(pa.large_string())),
        ("negatives", pa.large_list(pa.large_string())),
        ("neighbours", pa.large_list(pa.int64())),
        ("negative_image", pa.large_string()),
        ("group", pa.large_string()),
        ("score", pa.float64()),
        ("image_score", pa.float64()),
        ("positives", pa.large_list(pa.large_string())),
        ("mirror", pa.bool_()),
        ("row", pa.int64()),
    ]
)


class Images(Protocol):
    """Finds the image that a row names."""

    def __call__(self, image: str) -> Path | bytes: ...

    def bare(self, image: str) -> Path | bytes:
        """The same if it is a file; no bytes if it is not."""
        ...

    @property
    def root(self) -> Path: ...

    def stamps(self, images: Sequence[str]) -> list[str]:
        """Names with what changes when the images do, for fingerprints; "" stays ""."""
        ...


class FolderImages:
    """Images as files below a folder; rows name them by relative path."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, image: str) -> Path:
        return self.root / image

    bare = __call__

    def stamps(self, images: Sequence[str]) -> list[str]:
        """Names with size and modification time."""
        return file_stamps(images, lambda name: f"{self.root}/{name}")


class RowSource(Source):
    """Samples in the order of their rows.

    left_out: how many captions and samples the reader left out, by reason.
    """

    def __init__(
        self, table: pa.Table, images: Images, description: str, left_out: Mapping[str, int]
    ) -> None:
        self._table = table.combine_chunks()
        chunks = [
            column.chunk(0) if column.num_chunks else pa.array([], column.type)
            for column in (self._table[name] for name in _SCHEMA.names)
        ]
        self._ids, self._images, self._captions, self._negatives = chunks[:4]
        self._neighbours, self._negative_images, self._groups = chunks[4:7]
        self._scores, self._image_scores, self._positives, self._mirrors = chunks[7:11]
        self._open = images
        self._description = description
        self.left_out: Mapping[str, int] = {why: n for why, n in left_out.items() if n}

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Sample:
        return self._sample(index, self._open)

    def bare(self, index: int) -> Sample:
        """The sample without images that lie in a table."""
        return self._sample(index, self._open.bare)

    def _sample(self, index: int, images: Callable[[str], Path | bytes]) -> Sample:
        if not 0 <= index < len(self._ids):
            raise IndexError(index)
        image = images(self._images[index].as_py())
        name, mirror = self._negative_images[index].as_py(), self._mirrors[index].as_py()
        negative: Picture | None = images(name) if name else image if mirror else None
        return Sample(
            id=self._ids[index].as_py(),
            image=image,
            captions=tuple(self._captions[index].as_py()),
            negatives=tuple(self._negatives[index].as_py()),
            neighbours=tuple(self._neighbours[index].as_py()),
            negative_image=mirrored(negative) if negative is not None and mirror else negative,
            group=self._groups[index].as_py(),
            positives=tuple(self._positives[index].as_py()),
        )

    def ids(self) -> list[str]:
        """The id of every sample, in order."""
        return list(self._ids.to_pylist())

    def captions(self) -> Iterable[str]:
        """All captions in order, without touching the images."""
        for start in range(0, len(self._captions), _CHUNK):
            yield from self._captions.slice(start, _CHUNK).flatten().to_pylist()

    def caption_lists(self) -> Iterable[tuple[str, ...]]:
        """The captions of each sample in order, without touching the images."""
        for start in range(0, len(self._captions), _CHUNK):
            yield from map(tuple, self._captions.slice(start, _CHUNK).to_pylist())

    def brings(self) -> frozenset[str]:
        """Which of "negatives", "neighbours", "negative_image", "group", "positives" any has."""
        sizes = {
            NEGATIVES: self._negatives.value_lengths(),
            NEIGHBOURS: self._neighbours.value_lengths(),
            NEGATIVE_IMAGE: negative_sizes(pc.binary_length(self._negative_images), self._mirrors),
            GROUP: pc.binary_length(self._groups),
            POSITIVES: self._positives.value_lengths(),
        }
        return any_of(sizes)

    def groups(self) -> tuple[list[str], list[float | None]]:
        """The group of every sample ("" for none), and its score, if any."""
        return self._groups.to_pylist(), self._scores.to_pylist()

    def image_scores(self) -> list[float | None]:
        """The score of every sample's image, if any."""
        return list(self._image_scores.to_pylist())

    def fingerprint(self) -> Fingerprint:
        """What the samples hold, see `Source`; images in tables go by the state of the tables."""
        columns = {
            "ids": self._ids,
            **{name: self._table[name] for name in COLUMNS},
            "images": self._open.stamps(self._images.to_pylist()),
            "negative images": self._open.stamps(self._negative_images.to_pylist()),
            "mirrored images": pc.if_else(self._mirrors, "mirrored", ""),
        }
        folder = str(self._open.root.absolute())
        return Fingerprint({"images folder": folder}, checksums(columns))

    def describe(self) -> str:
        """Where the samples come from, for logs and results."""
        return self._description


class RowBuilder:
    """Collects rows, leaves out what cannot be used, and counts it.

    Rows of one image become one sample with all their captions, under the id of the first row,
    unless any row brings more than captions (`Extras`): what goes with a caption then stays with
    it, and every row is a sample.

    columns: those that images and captions were read from, for readers that choose. rows: how many
    there were so far.
    """

    def __init__(self, origin: Path | str) -> None:
        self.origin = str(origin)
        self.columns: tuple[str, ...] = ()
        self.left_out: Counter[str] = Counter()
        self._batches: list[pa.RecordBatch] = []
        self._rows: tuple[list[Any], ...] = _no_rows()
        self.rows = 0
        self._has_neighbours = False
        self._has_extras = False

    def add(
        self,
        id: str,
        image: str,
        captions: Iterable[Any],
        extras: Extras = NOTHING,
        origin: str = "",
    ) -> None:
        """Add one row; captions of no use are left out, and so is a sample that has no other.

        Every call counts as a row, whose number (from 0) neighbours of other rows refer to. origin:
        file and row for messages. Raises CompoclipError for texts that cannot be written as UTF-8.
        """
        row = self.rows
        self.skip()
        kept = usable_texts(captions, EMPTY_CAPTION, self.left_out)
        if not kept:
            extras = NOTHING
        self._has_extras |= extras != NOTHING
        wrong = usable_texts(extras.negatives, EMPTY_NEGATIVE, self.left_out)
        right = usable_texts(extras.positives, EMPTY_POSITIVE, self.left_out)
        texts = (id, image, *kept, *wrong, *right, extras.negative_image, extras.group)
        require_texts(texts, origin or self.origin)
        near = list(extras.neighbours)
        self._has_neighbours |= bool(near)
        values = (id, image, kept, wrong, near, extras.negative_image)
        variation = (extras.group, extras.score, extras.image_score)
        further = (*variation, right, extras.mirror, row)
        for column, value in zip(self._rows, (*values, *further), strict=True):
            column.append(value)
        if len(self._rows[0]) >= _CHUNK:
            self._flush()

    def skip(self) -> None:
        """Count a row that is not read, so that the numbers of those behind it stay."""
        self.rows += 1

    def _flush(self) -> None:
        arrays = [pa.array(column, field.type) for column, field in zip(self._rows, _SCHEMA)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        self._rows = _no_rows()

    def build(self, images: Images, description: str) -> RowSource:
        """The finished source. Raises CompoclipError when no sample is left."""
        self._flush()
        table = pa.Table.from_batches(self._batches, schema=_SCHEMA)
        rows = int(np.sum(_captioned(table)))
        if not self._has_extras:
            table = _joined(table)
        captioned = _captioned(table)
        self.left_out[NO_CAPTION] += len(captioned) - int(np.sum(captioned))
        table = table.filter(pa.array(captioned))
        if table.num_rows < rows:
            description += f", {table.num_rows:,} photos from {rows:,} rows"
        if table.num_rows == 0:
            counted = ", ".join(f"{reason}: {n}" for reason, n in self.left_out.items() if n)
            raise CompoclipError(
                f"{self.origin}: no usable sample" + (f" (left out: {counted})" if counted else "")
            )
        if self._has_neighbours:
            table = self._resolve(table)
        return RowSource(table, images, description, self.left_out)

    def _resolve(self, table: pa.Table) -> pa.Table:
        """Neighbours as positions in the table, without those of rows that were left out."""
        index = {row: i for i, row in enumerate(table["row"].to_pylist())}
        found = []
        for position, rows in enumerate(table["neighbours"].to_pylist()):
            known = [index[row] for row in rows if row in index]
            if len(known) < len(rows):
                self.left_out[NO_NEIGHBOUR] += len(rows) - len(known)
            found.append([other for other in known if other != position])
        field = _SCHEMA.field("neighbours")
        column = pa.array(found, field.type)
        return table.set_column(_SCHEMA.get_field_index("neighbours"), field, column)


def _captioned(table: pa.Table) -> NDArray[np.bool_]:
    """Which rows have a caption."""
    has: NDArray[np.bool_] = pc.list_value_length(table["captions"]).to_numpy() > 0
    return has


def _joined(table: pa.Table) -> pa.Table:
    """The first row of every image, with the captions of all of its rows."""
    image = table["image"].combine_chunks().dictionary_encode()
    if len(image.dictionary) == table.num_rows:
        return table
    number = image.indices.to_numpy()  # in the order in which images appear
    captions = table["captions"].combine_chunks()
    sizes = pc.list_value_length(captions).to_numpy()
    ends = np.bincount(number, weights=sizes).cumsum().astype(np.int64)
    texts = captions.take(pa.array(np.argsort(number, kind="stable"))).flatten()
    column = pa.LargeListArray.from_arrays(pa.array([0, *ends.tolist()], pa.int64()), texts)
    first = table.take(pa.array(np.unique(number, return_index=True)[1]))
    place = _SCHEMA.get_field_index("captions")
    return first.set_column(place, _SCHEMA.field(place), column)


def any_of(sizes: Mapping[str, pa.Array]) -> frozenset[str]:
    """The names of the columns of which any cell has a size above 0."""
    return frozenset(name for name, cells in sizes.items() if (pc.max(cells).as_py() or 0) > 0)


def negative_sizes(sizes: pa.Array, mirrors: pa.Array) -> pa.Array:
    """Above 0 where a row has a negative image: one of its own, or its image mirrored."""
    return pc.add(sizes.cast(pa.int64()), mirrors.cast(pa.int64()))


def _no_rows() -> tuple[list[Any], ...]:
    return tuple([] for _ in _SCHEMA.names)


# --- Which split of the data is read. ---

TRAIN, ALL = "train", "all"
COLUMN = "split"  # of tables that say the split of every row
# Karpathy's "train" leaves out the part of COCO val2014 that everybody trains on as well.
_TRAINED_ON = (TRAIN, "restval")
_KNOWN = re.compile(r"(restval|train(ing)?|val(id(ation)?)?|dev|test|eval)(?![a-z])", re.IGNORECASE)


class Split:
    """Takes the samples of one split and counts the others.

    wanted: its name; None for the training split, "all" for every sample. "train" takes "restval",
    too.
    """

    def __init__(self, wanted: str | None) -> None:
        self.name = wanted or TRAIN
        self._asked = wanted is not None
        self._names = _TRAINED_ON if self.name == TRAIN else (self.name,)
        self._taken = 0
        self._others: Counter[str] = Counter()

    def takes(self, split: str | None) -> bool:
        """True if samples of this split (None: of no split) are read; counts the others."""
        if self.name == ALL or split in self._names:
            self._taken += 1
            return True
        self._others[split or ""] += 1
        return False

    def named(self, name: str) -> str | None:
        """The split that the name of a file or folder begins with, if it begins with one."""
        return self.name if name.startswith(self.name) else split_of(name)

    def require(self, origin: object) -> None:
        """Raise UsageError, naming the splits there are, when there are only others."""
        if self._others and not self._taken:
            have = ", ".join(sorted(name or "samples of no split" for name in self._others))
            ask = "" if self._asked else "; name one with --split, or take everything: --split all"
            raise UsageError(f"{origin}: no split {self.name!r}; it has: {have}{ask}")

    def left_out(self, noun: str = "sample") -> dict[str, int]:
        """Numbers left out by default, not by request, by reason."""
        if self._asked:
            return {}
        return {
            f"{noun} of {f'split {name!r}' if name else 'no split'} (--split all takes it)": number
            for name, number in sorted(self._others.items())
        }

    def __str__(self) -> str:
        """ ", split train", for descriptions; empty when every sample is read."""
        return f", split {self.name}" if self._others else ""


def split_of(name: str) -> str | None:
    """The split that the name of a file or folder begins with ("val-000.tar"), if it is one."""
    found = _KNOWN.match(name)
    return found and found.group(1).lower()


def files_of(
    files: Sequence[Path], wanted: str | None, origin: object
) -> tuple[list[Path], dict[str, int]]:
    """The files of a split by the beginning of their names, and how many others were left out.

    wanted: see `Split`. When none is asked for and no file is named after one, all are taken.
    Raises UsageError for a split that no file is named after.
    """
    split = Split(wanted)
    if wanted is None and not any(split_of(file.name) for file in files):
        return list(files), {}
    chosen = [f for f in files if split.takes(split.named(f.name) or f.name.split("-")[0])]
    split.require(origin)
    return chosen, split.left_out("file")
