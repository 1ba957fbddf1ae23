"""Webdataset tar shards, read at random by offset; nothing is ever unpacked to disk."""

from __future__ import annotations

import json
import os
import tarfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compoclip.console import track
from compoclip.data.decode import EXTENSIONS
from compoclip.data.rows import EMPTY_NEGATIVE, NO_NEIGHBOUR, any_of
from compoclip.data.sample import Sample
from compoclip.data.tarmembers import (
    BAD_JSON,
    BAD_NAME,
    BAD_TEXT,
    CAPTION_LIMIT,
    SECOND,
    TOO_LONG,
    member_json,
    member_text,
    sample_captions,
    sample_key,
    whole_members,
)
from compoclip.data.textfiles import (
    EMPTY_CAPTION,
    NEG_IMAGE,
    NO_CAPTION,
    Extras,
    encodable,
    expand_braces,
    read_extras,
    usable_texts,
)
from compoclip.errors import CompoclipError
from compoclip.files import cache_paths, fingerprint, write_cache

# --- The index of a tar shard: where each sample's image lies, its captions and extra columns. ---
#
# Made by reading the headers and caption members once; kept as an Arrow file, and made anew when
# the shard's size or time of change differs.
#
# The extra columns (see `read_extras`) are keys of a sample's .json member. Its negative image is a
# member KEY.neg_image.jpg (or another kind of image), or the one that neg_image names. Row numbers
# in neg_image count the samples of all shards.

NO_IMAGE = "sample without an image"
NOT_A_FILE = "tar member that is not a plain file"
NO_NEGATIVE_IMAGE = "negative image that is not in the shard"

_VERSION = 3
_SUFFIX = ".compoclip-index"
_SCHEMA = pa.schema(
    [
        ("key", pa.large_string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("captions", pa.large_list(pa.large_string())),
        ("negatives", pa.large_list(pa.large_string())),
        ("neighbours", pa.large_list(pa.int64())),
        ("negative_offset", pa.int64()),
        ("negative_size", pa.int64()),
        ("group", pa.large_string()),
        ("score", pa.float64()),
        ("image_score", pa.float64()),
        ("row", pa.int64()),
    ]
)
ROWS = b"rows"  # in the metadata: how many samples the shard has, with those left out
_NOWHERE = (0, 0)


@dataclass
class _Group:
    """The members of one sample met so far."""

    key: str
    image: tuple[int, int] | None = None
    negative: tuple[int, int] | None = None
    text: str | None = None
    fields: object = None
    seen: set[str] = field(default_factory=set)


def load_index(shard: Path, caption_key: str | None) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The samples of a shard (columns of `_SCHEMA`) and what was left out.

    offset, size: of the image; negative_size is 0 where there is no negative image. row: the number
    of the sample in the shard, those left out counted.

    Raises CompoclipError when the shard cannot be read, is truncated or is no plain tar.
    """
    stamp = json.dumps([_VERSION, fingerprint(shard), caption_key])
    for path in cache_paths(shard, _SUFFIX):
        kept = _load(path, stamp)
        if kept is not None:
            return kept
    table, left_out = _scan(shard, caption_key)
    meta = {"stamp": stamp, "left_out": json.dumps(left_out)}
    table = table.replace_schema_metadata({**table.schema.metadata, **meta})
    write_cache(shard, _SUFFIX, partial(_save, table))
    return table, left_out


def _save(table: pa.RecordBatch, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table)


def _load(path: Path, stamp: str) -> tuple[pa.RecordBatch, dict[str, int]] | None:
    try:
        with pa.OSFile(str(path), "rb") as file:
            table = pa.ipc.open_file(file).get_batch(0)
    except (OSError, pa.ArrowException):
        return None
    meta = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    if meta.get("stamp") != stamp:
        return None
    return table, json.loads(meta["left_out"])


def _scan(shard: Path, caption_key: str | None) -> tuple[pa.RecordBatch, dict[str, int]]:
    left_out: Counter[str] = Counter()
    columns: tuple[list[object], ...] = tuple([] for _ in _SCHEMA.names)
    repeats: Counter[str] = Counter()
    places: dict[str, tuple[int, int]] = {}
    named: list[str] = []  # of each sample kept: the member that is its negative image, or ""
    spare: list[str] = []  # images of samples that have one already
    row = -1
    for row, group in enumerate(_groups(shard, left_out, places, spare)):
        captions = sample_captions(group.text, group.fields, caption_key)
        kept = usable_texts(captions, EMPTY_CAPTION, left_out)
        if group.image is None:
            left_out[NO_IMAGE] += 1
        elif not kept:
            left_out[NO_CAPTION] += 1
        else:
            repeats[group.key] += 1
            again = f"#{repeats[group.key]}" if repeats[group.key] > 1 else ""
            extras = _extras(group, shard)
            wrong = usable_texts(extras.negatives, EMPTY_NEGATIVE, left_out)
            named.append("" if group.negative else extras.negative_image)
            texts = (kept, wrong, list(extras.neighbours))
            variation = (extras.group, extras.score, extras.image_score)
            negative = group.negative or _NOWHERE
            values = (group.key + again, *group.image, *texts, *negative, *variation, row)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    offsets, sizes = (columns[_SCHEMA.get_field_index(f"negative_{n}")] for n in ("offset", "size"))
    for place, name in enumerate(named):
        if name:
            offsets[place], sizes[place] = places.get(name, _NOWHERE)
            left_out[NO_NEGATIVE_IMAGE] += name not in places
    left_out[SECOND] += len(spare) - len({*spare} & {*named})
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA)]
    table = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
    return table.replace_schema_metadata({ROWS: str(row + 1)}), dict(+left_out)


def _extras(group: _Group, shard: Path) -> Extras:
    fields = group.fields if isinstance(group.fields, dict) else {}
    return read_extras(fields, shard, f"{shard}, sample {group.key}")


def _groups(
    shard: Path, left_out: Counter[str], places: dict[str, tuple[int, int]], spare: list[str]
) -> Iterator[_Group]:
    """Consecutive members that share folder and name up to the first dot are one sample.

    places: gets offset and size of every image by the name of its member; spare: the names of
    images of samples that have one already.
    """
    group: _Group | None = None
    with shard.open("rb") as file:
        for member in whole_members(shard, file):
            if member.isdir():
                continue
            if not member.isreg() or member.sparse is not None:
                left_out[NOT_A_FILE] += 1
                continue
            if not encodable(member.name):
                left_out[BAD_NAME] += 1
                continue
            key, extension = sample_key(member.name)
            if not key:
                continue
            if group is None or group.key != key:
                if group is not None:
                    yield group
                group = _Group(key)
            name = os.path.normpath(member.name)
            if extension.rpartition(".")[2].lower() in EXTENSIONS:
                places[name] = (member.offset_data, member.size)
            if extension.lower() in EXTENSIONS and group.image is not None:
                spare.append(name)
            _take(group, member, extension.lower(), file, left_out)
    if group is not None:
        yield group


def _take(
    group: _Group, member: tarfile.TarInfo, extension: str, file: IO[bytes], left_out: Counter[str]
) -> None:
    if extension in EXTENSIONS:
        group.image = group.image or (member.offset_data, member.size)
    elif extension.startswith(f"{NEG_IMAGE}.") and extension.rpartition(".")[2] in EXTENSIONS:
        group.negative = (member.offset_data, member.size)
    elif extension not in ("txt", "json"):
        return
    elif member.size > CAPTION_LIMIT:
        left_out[TOO_LONG] += 1
    elif extension in group.seen:
        left_out[SECOND] += 1
    else:
        group.seen.add(extension)
        position = file.tell()
        file.seek(member.offset_data)
        data = file.read(member.size)
        file.seek(position)
        if extension == "txt":
            group.text = member_text(data)
            left_out[BAD_TEXT] += group.text is None
        else:
            found = member_json(data)
            group.fields = found and found[1]
            left_out[BAD_JSON] += found is None


# --- Webdataset tar shards, read at random by offset; nothing is ever unpacked to disk. ---

_TEXTS = ("captions", "negatives", "neighbours")
_READ = ("key", "offset", "size", *_TEXTS, "negative_offset", "negative_size", "group")


class ShardSource:
    """Samples of tar shards in shard order. Ids are "shard.tar/key".

    left_out: how many captions, samples and members were left out, by reason.
    """

    def __init__(self, shards: Sequence[Path], caption_key: str | None = None) -> None:
        """Index the shards (once; the index is kept for the next run).

        caption_key: name of the caption in .json members; without it .txt members come first,
        then "caption" or "text" of .json members. Raises CompoclipError for a shard that is
        missing, truncated or no tar, and when no usable sample is left.
        """
        self._shards = tuple(shards)
        self._caption_key = caption_key
        self._tables: list[pa.RecordBatch] = []
        left_out: Counter[str] = Counter()
        for shard in track(self._shards, "indexing shards", unit="shards"):
            table, missing = load_index(shard, caption_key)
            self._tables.append(table)
            left_out.update(missing)
        self._ends = list(accumulate(table.num_rows for table in self._tables))
        self.left_out: Mapping[str, int] = dict(left_out)
        if not len(self):
            counted = ", ".join(f"{reason}: {n}" for reason, n in left_out.items())
            raise CompoclipError(f"{self.describe()}: no usable sample (left out: {counted})")
        self._rows, unknown = self._numbered()
        if unknown:
            self.left_out = {**self.left_out, NO_NEIGHBOUR: unknown}
        names = [shard.name for shard in self._shards]
        # Shards of one name in different folders are told apart by their folder.
        unique = len(set(names)) == len(names)
        self._names = names if unique else [shard.as_posix() for shard in self._shards]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect_right(self._ends, index)
        table, path = self._tables[shard], self._shards[shard]
        place = index - (self._ends[shard] - table.num_rows)
        row = {name: table.column(name)[place].as_py() for name in _READ}
        negative = None
        if row["negative_size"]:
            negative = _read(path, row["negative_offset"], row["negative_size"])
        return Sample(
            id=f"{self._names[shard]}/{row['key']}",
            image=_read(path, row["offset"], row["size"]),
            captions=tuple(row["captions"]),
            negatives=tuple(row["negatives"]),
            neighbours=self._positions(row["neighbours"], index),
            negative_image=negative,
            group=row["group"],
        )

    def _numbered(self) -> tuple[NDArray[np.int64], int]:
        """The row number of every sample over all shards, if any names others by theirs.

        And how often a row is named that was left out or does not exist.
        """
        if "neighbours" not in self.brings():
            return np.empty(0, np.int64), 0
        first, parts = 0, []
        for table in self._tables:
            parts.append(table.column("row").to_numpy() + first)
            first += int(table.schema.metadata[ROWS])
        rows = np.concatenate(parts)
        named = [table.column("neighbours").flatten().to_numpy() for table in self._tables]
        return rows, int((~np.isin(np.concatenate(named), rows)).sum())

    def _positions(self, rows: Sequence[int], index: int) -> tuple[int, ...]:
        """The samples of these rows, without those left out and the sample itself."""
        found = np.searchsorted(self._rows, rows).tolist()
        known = (at for at, row in zip(found, rows) if at < len(self) and self._rows[at] == row)
        return tuple(at for at in known if at != index)

    def ids(self) -> list[str]:
        """The id of every sample, in order, without touching the images."""
        return [
            f"{name}/{key}"
            for name, table in zip(self._names, self._tables)
            for key in table.column("key").to_pylist()
        ]

    def captions(self) -> Iterable[str]:
        """All captions in order, without touching the images."""
        for table in self._tables:
            yield from table.column("captions").flatten().to_pylist()

    def caption_lists(self) -> Iterable[tuple[str, ...]]:
        """The captions of each sample in order, without touching the images."""
        for table in self._tables:
            yield from map(tuple, table.column("captions").to_pylist())

    def brings(self) -> frozenset[str]:
        """Which of "negatives", "neighbours", "negative_image", "group" any sample has."""
        found: frozenset[str] = frozenset()
        for table in self._tables:
            sizes = {
                "negatives": table.column("negatives").value_lengths(),
                "neighbours": table.column("neighbours").value_lengths(),
                "negative_image": table.column("negative_size"),
                "group": pc.binary_length(table.column("group")),
            }
            found |= any_of(sizes)
        return found

    def groups(self) -> tuple[list[str], list[float | None]]:
        """The group of every sample ("" for none), and its score, if any."""
        return self._all("group"), self._all("score")

    def image_scores(self) -> list[float | None]:
        """The score of every sample's image, if any."""
        return self._all("image_score")

    def _all(self, column: str) -> list[Any]:
        return [cell for table in self._tables for cell in table.column(column).to_pylist()]

    def describe(self) -> str:
        """Where the samples come from, for logs and results."""
        more = f" and {len(self._shards) - 1} more" if len(self._shards) > 1 else ""
        key = f" (captions {self._caption_key!r})" if self._caption_key else ""
        return f"webdataset shards {self._shards[0]}{more}{key}"


def _read(shard: Path, offset: int, size: int) -> bytes:
    try:
        with shard.open("rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        raise CompoclipError(f"{shard}: {error.strerror}; is the disk still there?") from None
    if data is None or len(data) < size:
        raise CompoclipError(f"{shard}: shorter than when it was indexed; fetch the shard again")
    return data


def find_shards(spec: str) -> list[Path]:
    """The tar files that `spec` means: one .tar, a brace pattern of them, or a folder of them.

    Raises CompoclipError when there is no shard or one of them is missing or compressed.
    """
    folder = Path(spec)
    if folder.is_dir():
        shards = sorted(folder.glob("*.tar"))
        if not shards:
            raise CompoclipError(f"{spec}: no .tar file in this folder; check the path")
        return shards
    shards = [folder] if folder.is_file() else [Path(name) for name in expand_braces(spec)]
    for shard in shards:
        if shard.suffix != ".tar":
            raise CompoclipError(f"{shard}: only plain .tar shards can be read; decompress it")
        if not shard.is_file():
            raise CompoclipError(f"{shard}: shard not found; check the path or the pattern")
    return shards
