"""Tar and zip files, and encoded images in tables: read where they lie, nothing is unpacked."""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import accumulate
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compoclip.bounds import MAX_MEMBER_BYTES
from compoclip.console import note
from compoclip.errors import CompoclipError, require
from compoclip.files import cache_paths, file_stamp, reading, reason, unreadable, write_cache
from compoclip.tables import arrow_table, has_image, opened_parquet

_AGAIN = "fetch the archive again"

# --- Tar files. ---

DAMAGED_TAR = (
    *(tarfile.TarError, EOFError, struct.error, ValueError, OverflowError),
    *(LookupError, MemoryError),
)
"""Errors of reading a damaged tar that is not compressed as a whole, in addition to OSError."""


def tar_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar file in order, up to its end mark.

    The library takes a damaged header for the end of the archive, and zeros too: the end must be
    two blocks of zeros, with which writers fill the last record of 10,240 bytes. More zeros are
    members that a stopped download has not fetched. Raises tarfile.ReadError for a damaged or cut
    archive, with the byte, and for a member of negative size, which would be read forever.
    """
    members = 0
    for member in archive:
        members += 1
        if member.size < 0:
            raise tarfile.ReadError(f"{member.name!a} has a size below 0")
        yield member
        archive.members = []  # type: ignore[attr-defined]  # the list would only take memory
    end: int = archive.offset
    file: Any = archive.fileobj
    file.seek(end)
    padding = 2 * tarfile.BLOCKSIZE + -(end + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE
    tail = file.read(padding + 1)
    if len(tail) < 2 * tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"cut off at byte {end:,}, before its end mark")
    if tail.strip(b"\0"):
        raise tarfile.ReadError(f"damaged at byte {end:,}, neither a member nor the end mark")
    if len(tail) > padding:
        raise tarfile.ReadError(f"zeros from byte {end:,} on, after {members:,} members")


def whole_members(shard: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a plain tar in order. Raises CompoclipError unless it is whole."""
    try:
        with tarfile.open(shard, "r:") as tar:
            yield from tar_members(tar)
    except OSError as error:
        raise unreadable(shard, error) from None
    except DAMAGED_TAR as error:
        raise CompoclipError(
            f"{shard}: not a whole tar file ({reason(error)}); fetch or make the shard again"
        ) from None


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a plain file; nothing but its name and content decides the bytes."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, BytesIO(data))


def read_at(path: Path, offset: int, size: int) -> bytes:
    """Return the bytes of a member of a tar. Raises CompoclipError if the tar is too short."""
    with reading(path), path.open("rb", buffering=0) as file:
        file.seek(offset)
        data = file.read(size) or b""
    require(len(data) == size, path, "shorter than when it was indexed; fetch the shard again")
    return data


# --- Zip files. ---

DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    struct.error,
    ValueError,  # a name that is no text, a place before the start of the file
    RuntimeError,  # encrypted, or compressed in a way that is not known here
)
"""Errors of reading a damaged zip archive, in addition to OSError."""


def zip_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the members of a zip file.

    Raises zipfile.BadZipFile for bytes before the first member: the library reads the last list of
    members only, so that earlier members would be missing.
    """
    members = archive.infolist()
    before = min((member.header_offset for member in members), default=0)
    if before:
        raise zipfile.BadZipFile(f"{before:,} bytes before the first member")
    return members


@contextmanager
def opened_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file; damage, also within the block, is a CompoclipError that names it."""
    try:
        with reading(path), zipfile.ZipFile(path) as archive:
            yield archive
    except DAMAGED_ZIP as error:
        problem = f"cannot be unpacked ({reason(error)}); {_AGAIN}"
        raise CompoclipError(f"{path}: {problem}") from error


def read_members(
    archive: Path, names: Mapping[str, str], max_bytes: int = MAX_MEMBER_BYTES
) -> dict[str, tuple[str, bytes]]:
    """Return key -> (file and member for messages, content) of the members `names[key]` of a zip.

    Members may lie in a folder of the archive. Raises CompoclipError for an unreadable archive, a
    member that is missing, repeated or leads outside ("..", an absolute path), and for members of
    more than `max_bytes` bytes together.
    """
    contents: dict[str, tuple[str, bytes]] = {}
    with opened_zip(archive) as opened:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in zip_members(opened):
            pure = PurePosixPath(info.filename.replace("\\", "/"))
            inside = not pure.is_absolute() and ".." not in pure.parts
            message = f"the member {info.filename!r:.80} leads outside the archive"
            require(inside, archive, f"{message}; this is not the official one")
            folder = info.filename.endswith("/") or "__MACOSX" in pure.parts
            if pure.name in names.values() and not folder:
                twice = pure.name in members
                require(not twice, archive, f"holds two files {pure.name}; {_AGAIN}")
                members[pure.name] = info
        for key, name in names.items():
            problem = f"holds no {name}; {_AGAIN}, or select other parts"
            require(name in members, archive, problem)
            left = max_bytes - sum(len(data) for _, data in contents.values())
            with opened.open(members[name]) as stream:  # whose stated size may be a lie
                data = stream.read(left + 1)
            problem = f"{name}: more than {max_bytes >> 20} MiB; {_AGAIN}"
            require(len(data) <= left, archive, problem)
            contents[key] = f"{archive}: {name}", data
    return contents


# --- Encoded images inside Parquet files, read at random. ---
#
# Parquet compresses rows in groups, so that reading one image costs a group. The image column is
# therefore copied once into an Arrow file, which is mapped into memory and read at any row.

_SUFFIX = ".compoclip-images"
_VERSION = 2
_ROWS = 64  # images per Arrow batch: bounds the memory of the copy


class EmbeddedImages:
    """The images of one column of Parquet files, by row number over all files.

    Attributes:
        stamp: Stamps of the files.
    """

    def __init__(self, files: Sequence[Path], column: str) -> None:
        self._files, self._column = files, column
        self.stamp = " ".join(map(file_stamp, files))
        self._open_all()

    def __call__(self, image: str) -> bytes:
        """Return the encoded image of row `image`, b"" without one; remake a damaged copy."""
        for again in (True, False):
            row = int(image)
            batch = bisect_right(self._ends, row)
            images, checksums = self._batches[batch].columns
            place = row - (self._ends[batch] - len(images))
            value: bytes = images[place].as_py() or b""
            if zlib.crc32(value) == checksums[place].as_py():
                break
            if again:
                self._open_all(again=True)
        return value

    def located(self, row: int) -> tuple[Path, int]:
        """Return the file that holds a row, and the row's number in it."""
        file = bisect_right(self._last, row)
        return self._files[file], row - (self._last[file - 1] if file else 0)

    def present(self) -> list[bool]:
        """Return for each row whether it has an image; none is read."""
        return [has for batch in self._batches for has in has_image(batch.column(0)).to_pylist()]

    def _open_all(self, again: bool = False) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._last: list[int] = []  # rows up to the end of each file
        for file in self._files:
            self._batches += _copied(file, self._column, again)
            self._last.append(sum(map(len, self._batches)))
        self._ends = list(accumulate(len(batch) for batch in self._batches))

    def __reduce__(self) -> Any:
        return EmbeddedImages, (self._files, self._column)  # the batches are mapped into memory


def _copied(file: Path, column: str, again: bool = False) -> list[pa.RecordBatch]:
    """The images of `file` and their checksums, mapped from an Arrow file that is made if needed.

    again: make it in any case.
    """
    stamp = json.dumps([_VERSION, file_stamp(file), column])
    # Each column has a file of its own.
    suffix = f"{_SUFFIX}-{hashlib.blake2b(column.encode(), digest_size=4).hexdigest()}"
    for path in () if again else cache_paths(file, suffix):
        try:
            return _opened(path, stamp)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, pa.ArrowException) as error:
            note(f"{path}: {reason(error)}")
    times = "once more" if again else "once"
    note(f"copying the images of {file.name} {times}, for random access")

    def images() -> Iterator[pa.Array]:  # keeps reading errors apart from writing errors
        with opened_parquet(file) as parquet:
            for batch in parquet.iter_batches(_ROWS, columns=[column]):
                values = batch.column(0)
                if pa.types.is_dictionary(values.type):
                    values = values.dictionary_decode()
                yield _bytes_of(values).cast(pa.large_binary())

    def write(target: Path) -> None:
        fields = [("image", pa.large_binary()), ("crc32", pa.uint32())]
        schema = pa.schema(fields, metadata={"stamp": stamp})
        with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for values in images():
                checksums = [zlib.crc32(image.as_py() or b"") for image in values]
                columns = [values, pa.array(checksums, pa.uint32())]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    return _opened(write_cache(file, suffix, write), stamp)


def _bytes_of(images: Any) -> Any:
    """The encoded images of a column, which may be a struct."""
    return pc.struct_field(images, "bytes") if pa.types.is_struct(images.type) else images


def _opened(path: Path, stamp: str) -> list[pa.RecordBatch]:
    """Raises OSError, or ValueError for a file that is damaged or of another stamp."""
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if (reader.schema.metadata or {}).get(b"stamp") != stamp.encode():
        raise ValueError("was made from another state of the data")
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    for batch in batches:
        batch.validate(full=True)  # else a damaged one is read beyond its end
    return batches


# --- Any image in an archive or a table, by name. ---

SUFFIXES = (".zip", ".tar", ".parquet", ".arrow")
_Read = Callable[[str], bytes]


class Members:
    """The bytes of a member of an archive; archives stay open. May be called from threads.

    Members are named as in a .zip or .tar file (not compressed as a whole), or "column:row" for a
    column of images in a .parquet or .arrow file.
    """

    def __init__(self) -> None:
        self._opened: dict[tuple[Path, str], _Read] = {}
        self._lock = Lock()

    def __call__(self, path: Path, member: str) -> bytes:
        """Return the encoded image. Raises CompoclipError naming the archive and the member."""
        kind = path.suffix.lower()
        column, _, row = member.rpartition(":")
        name, column = (row, column) if kind in (".parquet", ".arrow") else (member, "")
        try:
            with self._lock:
                if (path, column) not in self._opened:
                    self._opened[path, column] = _reader(path, kind, column)
                read = self._opened[path, column]
            return read(name)
        except CompoclipError:
            raise
        except FileNotFoundError as error:
            raise unreadable(path, error, "check the data folder") from error
        except Exception as error:  # damaged archives fail with errors of every kind
            problem = f"{member!r} cannot be read ({reason(error)})"
            if isinstance(error, KeyError | IndexError | ValueError):
                problem = f"holds no image {member!r}"
            raise CompoclipError(f"{path}: {problem}; {_AGAIN}") from error


def _reader(path: Path, kind: str, column: str) -> _Read:
    """Open an archive or table; return the function that reads a member or row of it."""
    if kind == ".parquet":
        return EmbeddedImages([path], column)
    if kind == ".arrow":
        images = _bytes_of(arrow_table(path).column(column))
        return lambda row: bytes(images[int(row)].as_py() or b"")
    content: _Read
    if kind == ".zip":
        archive = zipfile.ZipFile(path)
        sizes = {member.filename: member.file_size for member in zip_members(archive)}
        content = archive.read
    else:
        with tarfile.open(path, "r:") as tar:
            members = {m.name: m for m in tar_members(tar) if m.isreg() and not m.sparse}
        places = {name: member.offset_data for name, member in members.items()}
        sizes = {name: member.size for name, member in members.items()}

        def content(name: str) -> bytes:
            return read_at(path, places[name], sizes[name])

    def read(name: str) -> bytes:
        if sizes[name] > MAX_MEMBER_BYTES:
            raise CompoclipError(f"{path}: {name!r} is too large for an image; remove it")
        return content(name)

    return read
