"""One shard in, one shard out: written whole or not at all, and known as finished afterwards."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from glob import glob, has_magic
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.archives import whole_members
from compoclip.corpora.job import PARSE, CorpusJob, CorpusRow, Counts, leave_out, new_counts, row_of
from compoclip.data.columns import cell_captions, pick_captions
from compoclip.data.sources.shards import BAD_JSON, BAD_NAME, SampleTexts, grouped, sample_key
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import (
    encodable,
    fingerprint,
    replacing,
    unreadable,
    unwritable,
    write_text,
)
from compoclip.recordfile import json_bytes
from compoclip.tables import (
    ROW_FILES,
    ending_of,
    expand_braces,
    holds_text,
    json_row,
    opened_parquet,
    read_lines,
    require_local,
)

# --- Adding fields to a JSON object without touching what it holds. ---


def spliced(text: str, fields: Mapping[str, Any], added: Mapping[str, Any], origin: str) -> bytes:
    """The JSON object `text`, whose value is `fields`, with the fields `added` at its end.

    The bytes of the object stay as they are. Raises CompoclipError naming `origin` when it has one
    of the added fields already.
    """
    twice = next((name for name in added if name in fields), None)
    if twice is not None:
        raise taken(twice, origin)
    head = text.strip()[:-1].rstrip().encode()
    return head + (b", " if fields else b"") + json_bytes(dict(added))[1:]


def taken(name: str, origin: str) -> CompoclipError:
    """The error to raise for a row that has an added field already."""
    return CompoclipError(f"{origin}: has a field {name!r} already; rename or remove it")


# --- JSON-lines shards, plain or compressed. ---

_JSONL_BATCH = 1000
_LEVEL = 6
_Line = tuple[int, str, dict[str, Any]]


def jsonl_check(source: Path, column: str | None) -> None:
    """Raise UsageError when the first row lacks the column, CompoclipError when it is unreadable.

    column: caption columns joined by commas, guessed when not given.
    """
    for _, _, row in islice(_lines(source), 1):
        pick_captions(row, column, source)


def jsonl_transform(
    source: Path, target: Path, column: str | None, job: CorpusJob, counts: Counts
) -> None:
    """Write `source` with the fields of the job added to every line.

    Blank lines are dropped, everything else stays as it is. Rows are named by their field "id", or
    by file name and row number. Raises CompoclipError for a damaged shard, OSError when the target
    cannot be written.
    """
    lines = _lines(source)
    columns: tuple[str, ...] = ()
    number = 0
    with _writing(target, source.name) as out:
        while batch := list(islice(lines, _JSONL_BATCH)):
            columns = columns or pick_captions(batch[0][2], column, source)
            rows = []
            for _, _, row in batch:
                texts = [text for name in columns for text in cell_captions(row.get(name))]
                id = str(row.get("id", f"{source.name}#{number}"))
                rows.append(row_of(id, texts, row.get(PARSE), counts))
                number += 1
            for (place, line, row), added in zip(batch, job.make(rows, counts), strict=True):
                out.write(spliced(line, row, added, f"{source}: line {place}") + b"\n")


def _lines(path: Path) -> Iterator[_Line]:
    for number, line in read_lines(path):
        if line.strip():
            yield number, line, json_row(line, path, number)


@contextmanager
def _writing(target: Path, name: str) -> Iterator[IO[bytes]]:
    with target.open("wb") as file:
        if not name.lower().endswith(".gz"):
            yield file
            return
        # Neither name nor time in the header: the same lines, the same bytes.
        with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as compressed:
            yield compressed  # type: ignore[misc]


# --- Parquet shards, row group by row group. ---


def parquet_check(source: Path, column: str | None) -> None:
    """Raise UsageError when the shard lacks the column or it holds no text.

    column: caption columns joined by commas, guessed when not given. Raises CompoclipError when the
    shard is unreadable.
    """
    with opened_parquet(source) as parquet:
        schema = parquet.schema_arrow
    for name in pick_captions(schema.names, column, source):
        kind = schema.field(name).type
        if not holds_text(kind, lists=True):
            raise UsageError(f"{source}: column {name!r} holds {kind}, not captions; choose others")


def parquet_transform(
    source: Path, target: Path, column: str | None, job: CorpusJob, counts: Counts
) -> None:
    """Write `source` with the columns of the job behind its own.

    Row groups, metadata and the kind of compression stay. Rows are named by their column "id", or
    by file name and row number. Memory: one row group. Raises CompoclipError for a damaged shard,
    OSError when the target cannot be written.
    """
    parquet_check(source, column)
    groups = _groups(source)
    schema, codec = _layout(source)
    columns = pick_captions(schema.names, column, source)
    for each_field in job.fields:
        if each_field.name in schema.names:
            raise taken(each_field.name, str(source))
        schema = schema.append(each_field)
    number = 0
    try:
        with pq.ParquetWriter(target, schema, compression=codec) as writer:
            for table in groups:
                number, table = _extended(source, table, columns, job, counts, number)
                writer.write_table(table, max(1, table.num_rows))
    except (pa.ArrowException, UnicodeError) as error:
        raise CompoclipError(f"{source}: cannot be copied ({error}); mend the shard") from None


def _extended(
    source: Path,
    table: pa.Table,
    columns: tuple[str, ...],
    job: CorpusJob,
    counts: Counts,
    number: int,
) -> tuple[int, pa.Table]:
    """The table with the columns of the job, and the number of the next row."""
    cells = [table[name].to_pylist() for name in columns]
    ids = table["id"].to_pylist() if "id" in table.column_names else [None] * table.num_rows
    stored = table[PARSE].to_pylist() if PARSE in table.column_names else [None] * table.num_rows
    rows = []
    for place, (id, parses) in enumerate(zip(ids, stored)):
        texts = [text for cell in cells for text in cell_captions(cell[place])]
        name = f"{source.name}#{number + place}" if id is None else str(id)
        rows.append(row_of(name, texts, parses, counts))
    made = job.make(rows, counts)
    for each_field in job.fields:
        values = pa.array([value[each_field.name] for value in made], each_field.type)
        table = table.append_column(each_field, values)
    return number + len(rows), table


def _layout(source: Path) -> tuple[pa.Schema, str]:
    """The schema, and the compression of the first column."""
    with opened_parquet(source) as parquet:
        footer = parquet.metadata
        first = footer.num_row_groups and footer.num_columns
        codec = footer.row_group(0).column(0).compression if first else "SNAPPY"
        return parquet.schema_arrow, "NONE" if codec == "UNCOMPRESSED" else codec


def _groups(source: Path) -> Iterator[pa.Table]:
    # A generator, so that errors of reading are told from errors of writing.
    with opened_parquet(source) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group)


# --- Webdataset tar shards: the fields go into the .json member of each sample. ---

_TAR_BATCH = 200


@dataclass
class _Sample:
    """The members of one sample; only small texts are held."""

    key: str
    members: list[tarfile.TarInfo]
    texts: SampleTexts = field(default_factory=SampleTexts)
    damaged: bool = False


def tar_check(source: Path, column: str | None) -> None:
    """Raise CompoclipError when the shard cannot be read; samples may differ in what they hold."""
    with _reading(source) as file:
        for _ in islice(whole_members(source, file), 1):
            pass


def tar_transform(
    source: Path, target: Path, column: str | None, job: CorpusJob, counts: Counts
) -> None:
    """Write `source` with the fields of the job in the .json member of every sample.

    A sample without one gets one behind its other members, if there is anything to say. All other
    members stay as they are. Captions are found as `train` finds them; `column` is their name in
    .json members. Samples are named "SHARD/KEY". Raises CompoclipError for a damaged shard, OSError
    when the target cannot be written.
    """
    with _reading(source) as file, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        samples = _samples(source, counts)
        while batch := list(islice(samples, _TAR_BATCH)):
            rows = [_row(sample, source, column, counts) for sample in batch]
            made = iter(job.make([row for row in rows if row is not None], counts))
            for sample, row in zip(batch, rows):
                added = None if row is None else next(made)
                for member in _changed(sample, added, source):
                    content, data = member
                    if data is None and content.isreg():
                        data = _content(source, file, content)
                    out.addfile(content, None if data is None else BytesIO(data))


def _row(sample: _Sample, source: Path, column: str | None, counts: Counts) -> CorpusRow | None:
    """The row of a sample; None for one whose .json member cannot be added to, and of
    members that belong to no sample."""
    if not sample.key:
        return None
    if sample.damaged:
        counts["rows"] += 1
        leave_out(counts, BAD_JSON)
        return None
    fields = sample.texts.fields if isinstance(sample.texts.fields, dict) else {}
    captions = sample.texts.captions(column)
    return row_of(f"{source.name}/{sample.key}", captions, fields.get(PARSE), counts)


def _changed(
    sample: _Sample, added: dict[str, Any] | None, source: Path
) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """The members of a sample as they are to be written, with new content where it changes."""
    for member in sample.members:
        if added is None or sample.texts.json is None or not _is_json(member):
            yield member, None
            continue
        origin = f"{source}, sample {sample.key}"
        data = spliced(sample.texts.json, sample.texts.fields, added, origin)
        yield _sized(member, member.name, data), data
    if added is not None and any(added.values()) and sample.texts.json is None:
        data = json_bytes(added)
        yield _sized(sample.members[-1], f"{sample.key}.json", data), data


def _sized(model: tarfile.TarInfo, name: str, data: bytes) -> tarfile.TarInfo:
    """A plain file with rights, owner and time of another member."""
    member = copy(model)
    member.name, member.size, member.type = name, len(data), tarfile.REGTYPE
    member.linkname, member.pax_headers = "", {}
    return member


def _samples(source: Path, counts: Counts) -> Iterator[_Sample]:
    with _reading(source) as file, _reading(source) as contents:
        for key, members in grouped(source, file):
            sample = _Sample(key, members)
            for member in members:
                if member.sparse is not None:
                    raise CompoclipError(
                        f"{source}: {member.name!r} is a sparse file; pack it anew"
                    )
                if member.isreg() and not encodable(member.name):
                    leave_out(counts, BAD_NAME)
                elif member.isreg():
                    _take(sample, member, source, contents, counts)
            yield sample


def _is_json(member: tarfile.TarInfo) -> bool:
    return member.isreg() and sample_key(member.name)[1].lower() == "json"


def _take(
    sample: _Sample, member: tarfile.TarInfo, source: Path, file: IO[bytes], counts: Counts
) -> None:
    key, kind = sample_key(member.name)
    kind = kind.lower()
    if not key or kind not in ("txt", "json"):
        return
    reason = sample.texts.take(kind, member.size, partial(_content, source, file, member))
    if kind == "json":
        # Fields cannot go into a second .json member, or into one that is no object.
        sample.damaged |= reason is not None or not isinstance(sample.texts.fields, dict)
    elif reason is not None:
        leave_out(counts, reason)


def _content(source: Path, file: IO[bytes], member: tarfile.TarInfo) -> bytes:
    try:
        file.seek(member.offset_data)
        data = file.read(member.size)
    except OSError as error:
        raise unreadable(source, error) from None
    if len(data) < member.size:
        raise CompoclipError(f"{source}: the tar file is cut off; fetch or make the shard again")
    return data


def _reading(source: Path) -> IO[bytes]:
    try:
        return source.open("rb")
    except OSError as error:
        raise unreadable(source, error) from None


# --- The shards that a file name, a folder or a pattern means. ---

KINDS = (*ROW_FILES, ".tar")


def kind_of(name: str) -> str | None:
    """The ending in `KINDS` that a file name has, if any."""
    return ending_of(name, KINDS)


def names_shards(source: str) -> bool:
    """True if a text names shards rather than being a caption: a folder, or a file or pattern that
    ends like a shard."""
    try:
        if source.strip() and Path(source).is_dir():
            return True
    except (OSError, ValueError):  # too long or with odd bytes
        return False
    return kind_of(source) is not None and (
        not any(map(str.isspace, source)) or Path(source).exists() or bool(glob(source))
    )


def find_shards(spec: str) -> list[Path]:
    """The shards in order of their names: a file, a folder of them, or a pattern.

    Args:
        spec: The file or folder, or a pattern such as "part-*.parquet", "part-{000..099}.tar" or
            "{a,b}.jsonl.gz".

    Returns:
        The files.

    Raises:
        CompoclipError: When there is none or one is missing.
        UsageError: When they are of several kinds, share a name or are not on this machine.
    """
    require_local(spec)
    path = Path(spec)
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if kind_of(file.name)]
        files = files or sorted(path.glob("data/*.parquet"))  # as on the Hugging Face hub
    elif path.exists():
        files = [path]
    else:
        files = [Path(name) for part in expand_braces(spec) for name in _matching(part)]
    shards = [file for file in files if kind_of(file.name) and not file.name.startswith(".")]
    kinds = sorted({str(kind_of(file.name)) for file in shards})
    if not shards:
        raise CompoclipError(f"{spec}: no shard there; they end in {', '.join(KINDS)}")
    if len(kinds) > 1:
        raise UsageError(
            f"{spec}: shards of several kinds ({', '.join(kinds)}); name those you mean with a "
            f"pattern such as '*{kinds[-1]}'"
        )
    twice = [name for name, times in Counter(file.name for file in shards).items() if times > 1]
    if twice:
        raise UsageError(f"{spec}: several shards are named {twice[0]}; run for each folder alone")
    return sorted(shards, key=lambda file: file.name)


def _matching(pattern: str) -> list[str]:
    return glob(pattern) if has_magic(pattern) else [pattern]


# --- One shard in, one shard out: written whole or not at all, and known as finished
# afterwards. ---

MANIFESTS = "manifest"
SETTINGS = "settings.json"


class _Format(NamedTuple):
    """How shards of one format are looked at, and how they are made."""

    check: Callable[[Path, str | None], None]
    transform: Callable[[Path, Path, str | None, CorpusJob, Counts], None]


_FORMATS: Mapping[str, _Format] = {
    ".parquet": _Format(parquet_check, parquet_transform),
    ".jsonl": _Format(jsonl_check, jsonl_transform),
    ".jsonl.gz": _Format(jsonl_check, jsonl_transform),
    ".tar": _Format(tar_check, tar_transform),
}


@dataclass(frozen=True)
class ShardTask:
    """What a worker does: `source` becomes a file of that name in the folder `out`."""

    source: Path
    out: Path
    job: CorpusJob
    column: str | None = None

    @property
    def target(self) -> Path:
        """The shard to write."""
        return self.out / self.source.name

    @property
    def manifest(self) -> Path:
        """Where it is written down that the shard is finished."""
        return self.out / MANIFESTS / f"{self.source.name}.json"


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard: its counts, or what is wrong with it.

    stop: the output cannot be written, so that going on with others is no use.
    """

    name: str
    counts: Counts | None = None
    error: str = ""
    stop: bool = False


def checked(source: Path, column: str | None) -> None:
    """Raise UsageError when the captions cannot be where `column` says, CompoclipError when the
    shard cannot be read."""
    _format_of(source).check(source, column)


def finished(task: ShardTask) -> Counts | None:
    """The counts of a shard that an earlier run finished; None when it is to be made.

    Finished is a shard whose file has the size that its manifest says, made from a source that has
    not changed since. Raises CompoclipError when it was made from another file of the same name.
    """
    try:
        known = json.loads(task.manifest.read_text(encoding="utf-8"))
        size = task.target.stat().st_size
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(known, dict) or known.get("bytes") != size:
        return None
    if known.get("state") == fingerprint(task.source):
        counts, usual = known.get("counts"), new_counts()
        task.job.make([], usual)
        return counts if isinstance(counts, dict) and _are_like(counts, usual) else None
    if known.get("source") != str(task.source.absolute()):
        raise CompoclipError(
            f"{task.target}: was made from {known.get('source')}, not from {task.source}; choose "
            "another -o"
        )
    return None


def _are_like(value: Any, usual: Any) -> bool:
    """Whether a value is a count or, where `usual` is a dictionary, one of counts with its names
    and perhaps more."""
    if not isinstance(usual, dict):
        return type(value) is int and value >= 0
    return (
        isinstance(value, dict)
        and usual.keys() <= value.keys()
        and all(_are_like(each, usual.get(name)) for name, each in value.items())
    )


def make_shard(task: ShardTask) -> ShardResult:
    """Do the task; the same task gives the same bytes. Never raises for bad shards or disks."""
    name = task.source.name
    counts = new_counts()
    try:
        state = fingerprint(task.source)
        part = task.target.with_name(f".{name}.part")
        with replacing(task.target, part) as place:
            _format_of(task.source).transform(task.source, place, task.column, task.job, counts)
        known = {
            "source": str(task.source.absolute()),
            "state": state,
            "bytes": task.target.stat().st_size,
            "counts": counts,
        }
        write_text(task.manifest, json.dumps(known, indent=1, sort_keys=True) + "\n")
    except CompoclipError as error:
        return ShardResult(name, error=str(error))
    except OSError as error:
        return ShardResult(name, error=str(unwritable(task.target, error)), stop=True)
    return ShardResult(name, counts)


def _format_of(source: Path) -> _Format:
    return _FORMATS[str(kind_of(source.name))]
