"""Webdataset tar shards, read at random by offset; nothing is ever unpacked to disk."""

from __future__ import annotations

import json
import os
import tarfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compoclip.console import track
from compoclip.data.decode import EXTENSIONS, Picture, mirrored
from compoclip.data.extras import NEG_IMAGE, Extras, read_extras
from compoclip.data.fingerprint import COLUMNS, Fingerprint, checksums, file_stamps
from compoclip.data.members import DAMAGED_TAR, tar_members
from compoclip.data.sources import (
    GROUP,
    NEGATIVE_IMAGE,
    NEGATIVES,
    NEIGHBOURS,
    POSITIVES,
    Sample,
    Source,
)
from compoclip.data.sources.rows import (
    EMPTY_NEGATIVE,
    EMPTY_POSITIVE,
    NO_NEIGHBOUR,
    any_of,
    negative_sizes,
)
from compoclip.data.textfiles import (
    EMPTY_CAPTION,
    NO_CAPTION,
    expand_braces,
    usable_texts,
)
from compoclip.errors import CompoclipError
from compoclip.files import (
    cache_paths,
    encodable,
    fingerprint,
    load_arrays,
    parse_json,
    reason,
    save_arrays,
    unreadable,
    write_cache,
)

# --- Members of a shard: which sample they belong to, and where its captions are. ---

BAD_JSON = "unreadable .json member"
BAD_TEXT = ".txt member that is not UTF-8"
BAD_NAME = "tar member whose name is not UTF-8"
SECOND = "second image, .txt or .json member of a sample"
CAPTION_LIMIT = 1 << 20  # bytes; a longer .txt or .json member is no caption
TOO_LONG = f".txt or .json member of more than {CAPTION_LIMIT >> 20} MiB"


_KINDS = {"cap": "txt", "caption": "txt", "img": "jpg"}  # other names of kinds


def sample_key(member: str) -> tuple[str, str]:
    """Return the sample that a member belongs to, and what kind of member of it this is.

    Consecutive members that share folder and name up to the first dot are one sample; the rest of
    the name is the kind: "00/17.neg_image.jpg" is "neg_image.jpg" of "00/17". The key of hidden
    files, such as those that macOS adds, is "".
    """
    folder, _, base = member.rpartition("/")
    stem, _, extension = base.partition(".")
    kind = _KINDS.get(extension.lower(), extension)
    return (f"{folder}/{stem}" if folder and stem else stem), kind


def member_text(data: bytes) -> str | None:
    """The text of a .txt member, None when it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def member_json(data: bytes) -> tuple[str, Any] | None:
    """The text of a .json member and the value in it, None when it is damaged.

    A value with half characters, which JSON can spell and UTF-8 cannot hold, is damaged.
    """
    try:
        text = data.decode("utf-8-sig")
        return text, parse_json(text)
    except ValueError:
        return None


def whole_members(shard: Path, file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar in order.

    Raises CompoclipError for a file that is damaged, cut off or no plain tar.
    """
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            yield from tar_members(tar)
    except OSError as error:
        raise unreadable(shard, error) from None
    except DAMAGED_TAR as error:
        raise CompoclipError(
            f"{shard}: not a whole tar file ({reason(error)}); fetch or make the shard again"
        ) from None


def grouped(shard: Path, file: IO[bytes]) -> Iterator[tuple[str, list[tarfile.TarInfo]]]:
    """(key, members) of every sample of a tar, in order.

    What belongs to no sample (folders, links, hidden files, names that are no text) is a group with
    the key "", unless it lies between the members of one sample: that stays whole. Raises as
    `whole_members` does.
    """
    key = ""
    members: list[tarfile.TarInfo] = []
    others: list[tarfile.TarInfo] = []  # since the last member of the sample
    for member in whole_members(shard, file):
        named = member.isreg() and member.sparse is None and encodable(member.name)
        own = sample_key(member.name)[0] if named else ""
        if not own:
            others.append(member)
            continue
        if own != key:
            yield from filter(_holds_any, ((key, members), ("", others)))
            key, members, others = own, [], []
        members += [*others, member]
        others = []
    yield from filter(_holds_any, ((key, members), ("", others)))


def _holds_any(group: tuple[str, list[tarfile.TarInfo]]) -> bool:
    return bool(group[1])


@dataclass
class SampleTexts:
    """The contents of the .txt and the .json member of a sample.

    text: of the .txt member. json, fields: the text of the .json member and the value in it.
    """

    text: str | None = None
    json: str | None = None
    fields: Any = None
    seen: set[str] = field(default_factory=set)

    def take(self, kind: str, size: int, read: Callable[[], bytes]) -> str | None:
        """Read a member of the kind "txt" or "json"; returns the reason for leaving it out."""
        if size > CAPTION_LIMIT:
            return TOO_LONG
        if kind in self.seen:
            return SECOND
        self.seen.add(kind)
        if kind == "txt":
            self.text = member_text(read())
            return BAD_TEXT if self.text is None else None
        found = member_json(read())
        if found is None:
            return BAD_JSON
        self.json, self.fields = found
        return None

    def captions(self, caption_key: str | None) -> list[Any]:
        """The caption values; `usable_texts` keeps the captions among them.

        caption_key: the name in the .json member; without it the .txt member comes first, then
        "caption" or "text" of the .json member.
        """
        if caption_key is None and self.text is not None:
            return [self.text]
        if not isinstance(self.fields, dict):
            return []
        keys = ("caption", "text") if caption_key is None else (caption_key,)
        value: object = next((self.fields[key] for key in keys if key in self.fields), None)
        if isinstance(value, list):
            return value
        return [] if value is None else [value]


# --- The index of a tar shard: where each sample's image lies, its captions and extra columns. ---
#
# Made by reading the headers and caption members once, cached as an Arrow stream, and made anew
# when the shard's size or time of change differs.
#
# The extra columns (see `read_extras`) are keys of a sample's .json member. Its negative image is a
# member KEY.neg_image.jpg (or another kind of image), or the one that neg_image names. Row numbers
# in neg_image count the samples of all shards.

NO_IMAGE = "sample without an image"
NOT_A_FILE = "tar member that is not a plain file"
NO_NEGATIVE_IMAGE = "negative image that is not in the shard"

_VERSION = 6
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
        ("positives", pa.large_list(pa.large_string())),
        ("mirror", pa.bool_()),
        ("row", pa.int64()),
    ]
)
ROWS = b"rows"  # in the metadata: how many samples the shard has, with those left out
_LEFT_OUT = b"left_out"  # in the metadata of the index: how many of what were left out
_NOWHERE = (0, 0)


@dataclass
class _Group:
    """The members of one sample met so far."""

    key: str
    image: tuple[int, int] | None = None
    negative: tuple[int, int] | None = None
    texts: SampleTexts = field(default_factory=SampleTexts)


def load_index(shard: Path, caption_key: str | None) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The samples of a shard (columns of `_SCHEMA`) and what was left out.

    offset, size: of the image; negative_size is 0 where there is no negative image. row: the number
    of the sample in the shard, those left out counted.

    Raises CompoclipError when the shard cannot be read, is truncated or is no plain tar.
    """
    made_from = [_VERSION, fingerprint(shard), caption_key]
    for path in cache_paths(shard, _SUFFIX):
        cached = load_arrays(path, made_from)
        if cached is not None:
            table = pa.ipc.open_stream(pa.py_buffer(cached["table"])).read_next_batch()
            return table, json.loads(table.schema.metadata[_LEFT_OUT])
    table, left_out = _scan(shard, caption_key)
    meta = {**table.schema.metadata, _LEFT_OUT: json.dumps(left_out)}
    table = table.replace_schema_metadata(meta)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    arrays = {"table": np.frombuffer(sink.getvalue(), np.uint8)}
    write_cache(shard, _SUFFIX, lambda place: save_arrays(place, arrays, made_from))
    return table, left_out


def _scan(shard: Path, caption_key: str | None) -> tuple[pa.RecordBatch, dict[str, int]]:
    left_out: Counter[str] = Counter()
    columns: tuple[list[object], ...] = tuple([] for _ in _SCHEMA.names)
    repeats: Counter[str] = Counter()
    places: dict[str, tuple[int, int]] = {}
    named: list[str] = []  # of each sample kept: the member that is its negative image, or ""
    spare: list[str] = []  # images of samples that have one already
    row = -1
    for row, group in enumerate(_groups(shard, left_out, places, spare)):
        captions = group.texts.captions(caption_key)
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
            right = usable_texts(extras.positives, EMPTY_POSITIVE, left_out)
            named.append("" if group.negative else extras.negative_image)
            texts = (kept, wrong, list(extras.neighbours))
            variation = (extras.group, extras.score, extras.image_score)
            negative = group.negative or _NOWHERE
            further = (*variation, right, extras.mirror, row)
            values = (group.key + again, *group.image, *texts, *negative, *further)
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
    fields = group.texts.fields if isinstance(group.texts.fields, dict) else {}
    return read_extras(fields, shard, f"{shard}, sample {group.key}")


def _groups(
    shard: Path, left_out: Counter[str], places: dict[str, tuple[int, int]], spare: list[str]
) -> Iterator[_Group]:
    """Every sample, with what the index keeps of it.

    places: gets offset and size of every image by the name of its member; spare: the names of
    images of samples that have one already.
    """
    with shard.open("rb") as file:
        for key, members in grouped(shard, file):
            group = _Group(key)
            for member in members:
                if member.isdir():
                    continue
                if not member.isreg() or member.sparse is not None:
                    left_out[NOT_A_FILE] += 1
                elif not encodable(member.name):
                    left_out[BAD_NAME] += 1
                else:
                    _take(group, member, file, left_out, places, spare)
            if key:
                yield group


def _take(
    group: _Group,
    member: tarfile.TarInfo,
    file: IO[bytes],
    left_out: Counter[str],
    places: dict[str, tuple[int, int]],
    spare: list[str],
) -> None:
    key, extension = sample_key(member.name)
    if not key:
        return
    place, extension = (member.offset_data, member.size), extension.lower()
    name = os.path.normpath(member.name)
    last = extension.rpartition(".")[2]
    if last in EXTENSIONS:
        places[name] = place
    if extension in EXTENSIONS and group.image is not None:
        spare.append(name)
    elif extension in EXTENSIONS:
        group.image = place
    elif extension.startswith(f"{NEG_IMAGE}.") and last in EXTENSIONS:
        group.negative = place
    elif extension in ("txt", "json"):

        def read() -> bytes:
            file.seek(member.offset_data)
            return file.read(member.size)

        reason = group.texts.take(extension, member.size, read)
        if reason is not None:
            left_out[reason] += 1


# --- Webdataset tar shards, read at random by offset; nothing is ever unpacked to disk. ---

_TEXTS = ("captions", "negatives", "neighbours", "positives")
_PLACES = ("offset", "size", "negative_offset", "negative_size", "mirror")
_READ = ("key", *_PLACES, *_TEXTS, "group")


class ShardSource(Source):
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
        return self._sample(index, read_at)

    def bare(self, index: int) -> Sample:
        """The sample without its images, which are not read."""
        return self._sample(index, lambda shard, offset, size: b"")

    def _sample(self, index: int, read: Callable[[Path, int, int], bytes]) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect_right(self._ends, index)
        table, path = self._tables[shard], self._shards[shard]
        place = index - (self._ends[shard] - table.num_rows)
        row = {name: table.column(name)[place].as_py() for name in _READ}
        image = read(path, row["offset"], row["size"])
        negative: Picture | None = image if row["mirror"] else None
        if row["negative_size"]:
            negative = read(path, row["negative_offset"], row["negative_size"])
        if negative is not None and row["mirror"]:
            negative = mirrored(negative)
        return Sample(
            id=f"{self._names[shard]}/{row['key']}",
            image=image,
            captions=tuple(row["captions"]),
            negatives=tuple(row["negatives"]),
            neighbours=self._positions(row["neighbours"], index),
            negative_image=negative,
            group=row["group"],
            positives=tuple(row["positives"]),
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
        """Which of "negatives", "neighbours", "negative_image", "group", "positives" any has."""
        found: frozenset[str] = frozenset()
        for table in self._tables:
            sizes = {
                NEGATIVES: table.column("negatives").value_lengths(),
                NEIGHBOURS: table.column("neighbours").value_lengths(),
                NEGATIVE_IMAGE: negative_sizes(
                    table.column("negative_size"), table.column("mirror")
                ),
                GROUP: pc.binary_length(table.column("group")),
                POSITIVES: table.column("positives").value_lengths(),
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

    def fingerprint(self) -> Fingerprint:
        """What the samples hold, see `Source`; images go by the state of their shard."""
        table = pa.Table.from_batches(self._tables)
        stamps = file_stamps(map(str, self._shards), str)
        files = [each for each, t in zip(stamps, self._tables) for _ in range(t.num_rows)]
        places = zip(files, *(table[name].to_pylist() for name in _PLACES))
        columns = {name: table[name] for name in COLUMNS}
        columns |= {"ids": table["key"], "images": [str(place) for place in places]}
        return Fingerprint({}, checksums(columns))

    def describe(self) -> str:
        """Where the samples come from, for logs and results."""
        more = f" and {len(self._shards) - 1} more" if len(self._shards) > 1 else ""
        key = f" (captions {self._caption_key!r})" if self._caption_key else ""
        return f"webdataset shards {self._shards[0]}{more}{key}"


def read_at(shard: Path, offset: int, size: int) -> bytes:
    """The bytes of a member of a shard. Raises CompoclipError when they are not there."""
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
