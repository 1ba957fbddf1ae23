"""One shard in, one shard out: written completely or not at all, then marked as finished."""

from __future__ import annotations

import gzip
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.archives import read_at, whole_members
from compoclip.arrow_files import opened_parquet, require_texts
from compoclip.corpora.job import (
    PARSE,
    CorpusJob,
    CorpusRow,
    Counts,
    add_counts,
    new_counts,
    row_of,
)
from compoclip.data.columns import cell_captions, pick_captions, row_id
from compoclip.data.sources.shards import (
    BAD_JSON,
    BAD_NAME,
    SampleTexts,
    grouped,
    sample_key,
)
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import (
    content_hash,
    encodable,
    file_stamp,
    read_json,
    replacing,
    unwritable,
    write_json,
)
from compoclip.patterns import SHARD_FILES, ending_of, find_files, has_ending, require_local
from compoclip.recordfile import json_bytes
from compoclip.records import columns_of
from compoclip.tables import json_row, read_lines
from compoclip.typed import read_fields

_MANIFEST = {**dict.fromkeys(("source", "state", "content"), str), "counts": dict}
Made = Sequence[dict[str, Any]]
"""The added fields of every row of a batch."""
Fields = Sequence[pa.Field]
Batch = tuple[list[CorpusRow], Callable[[Any, Made], object]]
"""Rows, and a function that writes them with the added fields to an open output."""


class OpenShard(NamedTuple):
    """The batches of a shard, and a function that opens the output to write them to."""

    batches: Iterator[Batch]
    create: Callable[[Path], AbstractContextManager[Any]]


def opened_shard(source: Path, column: str | None, fields: Fields, counts: Counts) -> OpenShard:
    """Open a shard for one transform over its batches of rows.

    column: caption columns joined by commas, by default guessed; in tar shards the key in .json
    members. Ids are the column "id", or file name and row number; in a tar "SHARD/KEY". Raises
    UsageError for a column that cannot hold captions, CompoclipError for an unreadable shard, also
    while it is read.
    """
    return _FORMATS[str(ending_of(source.name, SHARD_FILES))](source, column, fields, counts)


def _spliced(text: str, fields: Mapping[str, Any], added: Mapping[str, Any], origin: str) -> bytes:
    """Append the fields `added` to the JSON object `text`, whose bytes stay as they are."""
    for name in added:
        _require_free(name, fields, origin)
    head = text.strip()[:-1].rstrip().encode()
    return head + (b", " if fields else b"") + json_bytes(dict(added))[1:]


def _require_free(name: str, there: Any, origin: object) -> None:
    require(name not in there, origin, f"has a field {name!r} already; rename or remove it")


def _rows(
    source: Path,
    records: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    first: int,
    counts: Counts,
) -> list[CorpusRow]:
    """The rows of records by column, numbered from `first`; count them."""
    rows = []
    for number, record in enumerate(records, first):
        texts = [text for name in columns for text in cell_captions(record.get(name))]
        name = row_id(record, f"{source.name}#{number}")
        rows.append(row_of(name, texts, record.get(PARSE), counts))
    return rows


# --- JSON-lines shards, plain or compressed: blank lines are dropped. ---

_JSONL_BATCH = 1000
_LEVEL = 6


def _jsonl(source: Path, column: str | None, fields: Fields, counts: Counts) -> OpenShard:
    lines = (
        (number, line, json_row(line, source, number))
        for number, line in read_lines(source)
        if line.strip()
    )
    names = columns_of(source, lambda names: pick_captions(names, column, source))
    columns = pick_captions(names, column, source) if names else ()

    def batches() -> Iterator[Batch]:
        number = 0
        while chunk := list(islice(lines, _JSONL_BATCH)):
            records = [row for _, _, row in chunk]
            yield _rows(source, records, columns, number, counts), partial(write, chunk)
            number += len(chunk)

    def write(chunk: list[tuple[int, str, dict[str, Any]]], out: IO[bytes], records: Made) -> None:
        for (place, line, row), added in zip(chunk, records, strict=True):
            out.write(_spliced(line, row, added, f"{source}: line {place}") + b"\n")

    @contextmanager
    def create(target: Path) -> Iterator[Any]:
        with target.open("wb") as file:
            if not has_ending(source, ".gz"):
                yield file
                return
            # Neither name nor time in the header: the same lines, the same bytes.
            with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as compressed:
                yield compressed

    return OpenShard(batches(), create)


# --- Parquet shards: row groups, metadata and the kind of compression stay. ---


def _parquet(source: Path, column: str | None, fields: Fields, counts: Counts) -> OpenShard:
    with opened_parquet(source) as parquet:
        schema, footer = parquet.schema_arrow, parquet.metadata
        first = footer.num_row_groups and footer.num_columns
        codec = footer.row_group(0).column(0).compression if first else "SNAPPY"
    columns = pick_captions(schema.names, column, source)
    for name in columns:
        require_texts(name, schema.field(name).type, source)

    def batches() -> Iterator[Batch]:
        number = 0
        with opened_parquet(source) as parquet:
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group)
                read = {*columns, "id", PARSE}.intersection(table.column_names)
                records = table.select(sorted(read)).to_pylist()
                yield _rows(source, records, columns, number, counts), partial(write, table)
                number += len(records)

    def write(table: pa.Table, out: pq.ParquetWriter, records: Made) -> None:
        for field in fields:
            values = pa.array([value[field.name] for value in records], field.type)
            table = table.append_column(field, values)
        out.write_table(table, max(1, table.num_rows))

    def create(target: Path) -> AbstractContextManager[Any]:
        whole = schema
        for field in fields:
            _require_free(field.name, schema.names, source)
            whole = whole.append(field)
        compression = "NONE" if codec == "UNCOMPRESSED" else codec
        writer: AbstractContextManager[Any] = pq.ParquetWriter(
            target, whole, compression=compression
        )
        return writer

    return OpenShard(batches(), create)


# --- Webdataset tar shards: the fields go into the .json member of each sample. ---
#
# A sample without one gets one behind its other members, if any field is set. All other members
# stay as they are. Captions are found as in training.

_TAR_BATCH = 200


def _tar(source: Path, column: str | None, fields: Fields, counts: Counts) -> OpenShard:
    next(whole_members(source), None)

    def batches() -> Iterator[Batch]:
        samples = grouped(source)
        while chunk := list(islice(samples, _TAR_BATCH)):
            rows, targets = [], []
            for key, members in chunk:
                texts, row = _sample(source, key, members, column, counts)
                rows += [row] if row else []
                targets.append((key, members, texts, row is not None))
            yield rows, partial(write, targets)

    def write(targets: list[Any], out: tarfile.TarFile, records: Made) -> None:
        added = iter(records)
        for key, members, texts, has_row in targets:
            more = next(added) if has_row else None
            for member in members:
                is_json = member.isreg() and sample_key(member.name)[1] == "json"
                if is_json and more is not None and texts.json is not None:
                    origin = f"{source}, sample {key}"
                    data = _spliced(texts.json, texts.fields, more, origin)
                    out.addfile(_sized(member, member.name, data), BytesIO(data))
                elif member.isreg():
                    data = read_at(source, member.offset_data, member.size)
                    out.addfile(member, BytesIO(data))
                else:
                    out.addfile(member)
            if more is not None and any(more.values()) and texts.json is None:
                data = json_bytes(more)
                out.addfile(_sized(members[-1], f"{key}.json", data), BytesIO(data))

    def create(target: Path) -> AbstractContextManager[Any]:
        return tarfile.open(target, "w", format=tarfile.PAX_FORMAT)

    return OpenShard(batches(), create)


def _sample(
    source: Path, key: str, members: list[tarfile.TarInfo], column: str | None, counts: Counts
) -> tuple[SampleTexts, CorpusRow | None]:
    """The texts of a sample and its row; None if fields cannot be added, or without a sample."""
    texts, damaged = SampleTexts(), False
    for member in members:
        if member.sparse is not None:
            raise CompoclipError(f"{source}: {member.name!r} is a sparse file; pack it anew")
        if not member.isreg():
            continue
        member_key, kind = sample_key(member.name)
        reason = texts.take(source, kind, member) if member_key else None
        if not encodable(member.name):
            reason = BAD_NAME
        if kind == "json" and member_key:
            # Fields cannot go into a second .json member, or into one that is no object.
            damaged |= reason is not None or texts.fields is None
        elif reason is not None:
            add_counts(counts, {"left_out": {reason: 1}})
    if not key:
        return texts, None
    if damaged:
        add_counts(counts, {"rows": 1, "left_out": {BAD_JSON: 1}})
        return texts, None
    stored = (texts.fields or {}).get(PARSE)
    return texts, row_of(f"{source.name}/{key}", texts.captions(column), stored, counts)


def _sized(model: tarfile.TarInfo, name: str, data: bytes) -> tarfile.TarInfo:
    """A plain file with rights, owner and time of another member."""
    member = copy(model)
    member.name, member.size, member.type = name, len(data), tarfile.REGTYPE
    member.linkname, member.pax_headers = "", {}
    return member


_FORMATS: Mapping[str, Callable[[Path, str | None, Fields, Counts], OpenShard]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".tar": _tar,
}

# --- Shards by file name, folder or pattern. ---


def find_shards(spec: str) -> list[Path]:
    """Find the shards of a file, a folder or a pattern, in order of their names.

    Args:
        spec: The file or folder, or a pattern such as "part-*.parquet", "part-{000..099}.tar" or
            "{a,b}.jsonl.gz".

    Raises:
        CompoclipError: When no shard matches or one is missing.
        UsageError: When they are of several kinds, share a name or are not on this machine.
    """
    require_local(spec)
    shards = [file for file in find_files(spec, SHARD_FILES) if has_ending(file, *SHARD_FILES)]
    require(shards, spec, f"no shard there; they end in {', '.join(SHARD_FILES)}")
    ((name, times),) = Counter(file.name for file in shards).most_common(1)
    if times != 1:
        raise UsageError(f"{spec}: several shards are named {name}; run for each folder alone")
    return sorted(shards, key=lambda file: file.name)


# --- One shard: written atomically, with a manifest when it is finished. ---

MANIFESTS = "manifest"
SETTINGS = "settings.json"


@dataclass(frozen=True)
class ShardTask:
    """A worker's task: `source` becomes a file of that name in the folder `out`."""

    source: Path
    out: Path
    job: CorpusJob
    column: str | None = None

    @property
    def target(self) -> Path:
        """Return the shard to write."""
        return self.out / self.source.name

    @property
    def manifest(self) -> Path:
        """Return the file that says that the shard is finished."""
        return self.out / MANIFESTS / f"{self.source.name}.json"


@dataclass(frozen=True)
class ShardResult:
    """The result of a shard: its counts, or its error. stop: the output cannot be written."""

    name: str
    counts: Counts | None = None
    error: str = ""
    stop: bool = False


def finished(task: ShardTask) -> Counts | None:
    """Return the counts of a shard that an earlier run finished; None if it has to be made.

    A finished shard is as it was written, and its source has not changed. Raises CompoclipError
    when it was made from another file of the same name.
    """
    try:
        manifest = read_fields(read_json(task.manifest), _MANIFEST, "", others=False)
    except CompoclipError:
        return None
    if manifest["content"] != content_hash(task.target):
        return None
    if manifest["state"] == file_stamp(task.source):
        counts, usual = manifest["counts"], new_counts()
        task.job.make([], usual)  # zeros
        with suppress(AttributeError, TypeError):  # no counts
            add_counts(usual, counts)
            return usual if usual == counts else None
        return None
    if manifest["source"] != str(task.source.absolute()):
        raise CompoclipError(
            f"{task.target}: was made from {manifest['source']}, not from {task.source}; "
            "choose another -o"
        )
    return None


def make_shard(task: ShardTask) -> ShardResult:
    """Do the task; equal tasks give equal bytes. Never raises for bad shards or disks."""
    name = task.source.name
    counts = new_counts()
    try:
        state = file_stamp(task.source)
        part = task.target.with_name(f".{name}.part")
        with replacing(task.target, part) as place:
            shard = opened_shard(task.source, task.column, task.job.fields, counts)
            with shard.create(place) as out:
                for rows, write in shard.batches:
                    write(out, task.job.make(rows, counts))
        manifest = {
            "source": str(task.source.absolute()),
            "state": state,
            "content": content_hash(task.target),
            "counts": counts,
        }
        write_json(task.manifest, manifest)
    except CompoclipError as error:
        return ShardResult(name, error=str(error))
    except (pa.ArrowException, UnicodeError) as error:
        return ShardResult(name, error=f"{task.source}: cannot be copied ({error}); fix the shard")
    except OSError as error:
        return ShardResult(name, error=str(unwritable(task.target, error)), stop=True)
    return ShardResult(name, counts)
