"""Encoded images that lie in archives and tables, read where they are: nothing is unpacked."""

from __future__ import annotations

import hashlib
import json
import struct
import tarfile
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compoclip.console import note
from compoclip.data.textfiles import opened_parquet
from compoclip.errors import CompoclipError
from compoclip.files import cache_paths, fingerprint, reason, unreadable, write_cache

# --- Encoded images inside Parquet files, read at random. ---
#
# Parquet compresses rows in groups, so that one image costs a whole group. The image column is
# therefore copied once into an Arrow file (beside the Parquet file or in the cache folder), which
# is mapped into memory and read at any row.

_SUFFIX = ".compoclip-images"
_VERSION = 1
_ROWS = 64  # images per Arrow batch: bounds the memory of the copy


def holds_bytes(kind: pa.DataType) -> bool:
    """True for a column of encoded images: bytes, or a struct with a field `bytes`."""
    if pa.types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and holds_bytes(kind.field(index).type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def holds_text(kind: pa.DataType, *, lists: bool = False) -> bool:
    """True for a column of texts, also as bytes or dictionary codes; `lists`: or lists of them."""
    if lists and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return holds_text(kind.value_type)
    if pa.types.is_dictionary(kind):
        return holds_text(kind.value_type)
    tests = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary")
    return any(getattr(pa.types, test, pa.types.is_string)(kind) for test in tests)


class EmbeddedImages:
    """The images of one column of Parquet files, by row number over all files."""

    def __init__(self, files: Sequence[Path], column: str) -> None:
        self._paths = [_copy(file, column) for file in files]
        self._open_all()

    def __call__(self, image: str) -> bytes:
        """The encoded image of row `image`; no bytes when it has none, which decoding refuses."""
        row = int(image)
        batch = bisect_right(self._ends, row)
        values = self._batches[batch]
        value = values[row - (self._ends[batch] - len(values))].as_py()
        if value is None:
            return b""
        return bytes(value)

    def present(self) -> list[bool]:
        """For each row, whether it has an image; none is read."""
        return [held for batch in self._batches for held in batch.is_valid().to_pylist()]

    def _open_all(self) -> None:
        self._batches: list[Any] = []
        for path in self._paths:
            try:
                reader = pa.ipc.open_file(pa.memory_map(str(path)))
            except (OSError, pa.ArrowException) as error:
                raise CompoclipError(f"{path}: {error}; delete the file and run again") from None
            self._batches.extend(
                reader.get_batch(i).column(0) for i in range(reader.num_record_batches)
            )
        self._ends = list(accumulate(len(batch) for batch in self._batches))

    def __getstate__(self) -> dict[str, Any]:
        return {"_paths": self._paths}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._paths = state["_paths"]
        self._open_all()


def _copy(file: Path, column: str) -> Path:
    """The Arrow file with the images of `file`, made when there is none that is up to date."""
    stamp = json.dumps([_VERSION, fingerprint(file), column])
    # Each column has a file of its own.
    suffix = f"{_SUFFIX}-{hashlib.blake2b(column.encode(), digest_size=4).hexdigest()}"
    for path in cache_paths(file, suffix):
        try:
            with pa.OSFile(str(path), "rb") as opened:
                meta = pa.ipc.open_file(opened).schema.metadata or {}
        except (OSError, pa.ArrowException):
            continue
        if meta.get(b"stamp") == stamp.encode():
            return path
    note(f"copying the images of {file.name} once, for random access")
    return write_cache(file, suffix, partial(_write, file, column, stamp))


def _write(file: Path, column: str, stamp: str, target: Path) -> None:
    schema = pa.schema([("image", pa.large_binary())], metadata={"stamp": stamp})
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for images in _read(file, column):
            writer.write_batch(pa.RecordBatch.from_arrays([images], schema=schema))


def _read(file: Path, column: str) -> Iterator[pa.Array]:
    # A generator, so that errors of reading are told from errors of writing.
    with opened_parquet(file) as parquet:
        for batch in parquet.iter_batches(_ROWS, columns=[column]):
            images = batch.column(0)
            if pa.types.is_dictionary(images.type):
                images = images.dictionary_decode()
            if pa.types.is_struct(images.type):
                images = pc.struct_field(images, "bytes")
            yield images.cast(pa.large_binary())


# --- Arrow files, as data-set libraries save them: mapped into memory and read at any row. ---


def arrow_table(path: Path, damaged: str = "fetch the file again") -> pa.Table:
    """The rows of an Arrow file, of either of its two layouts, without copying them.

    Args:
        path: The file: a stream, as the datasets library saves it, or a file with a footer.
        damaged: What to do when it is not whole.

    Returns:
        The table, checked in full: a damaged one would be read beyond its end.

    Raises:
        CompoclipError: The file is absent, damaged, or unpacks to far more than its size.
    """
    try:
        size = path.stat().st_size
        mapped = pa.memory_map(str(path))
        footer = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        if footer:
            reader = pa.ipc.open_file(mapped)
            batches = (reader.get_batch(k) for k in range(reader.num_record_batches))
        else:
            reader = pa.ipc.open_stream(mapped)
            batches = iter(reader)
        kept, held = [], 0
        for batch in batches:
            held += batch.nbytes
            if held > _MOST_RATIO * size:
                raise CompoclipError(f"{path}: unpacks to far more than its size; {damaged}")
            kept.append(batch)
        table = pa.Table.from_batches(kept, schema=reader.schema)
        table.validate(full=True)
        return table
    except (OSError, pa.ArrowException, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from None
        reason = str(error).partition("\n")[0]
        raise CompoclipError(f"{path}: not a whole Arrow file ({reason}); {damaged}") from None


# --- Encoded images that lie in archives and tables, read where they are: nothing is unpacked. ---

SUFFIXES = (".zip", ".tar", ".parquet", ".arrow")
_MOST_RATIO = 100  # unpacked to packed size of an Arrow file; the usual ones are not packed at all
MOST_BYTES = 1 << 28  # of one image: more is a bomb
DAMAGED_TAR = (
    *(tarfile.TarError, EOFError, struct.error, ValueError, OverflowError),
    *(LookupError, MemoryError),
)
"""What reading a damaged tar raises, beside OSError, unless it is compressed as a whole."""
_MOST_PADDING = 1 << 20  # bytes of zeros at the end of a tar; writers add 10 KiB
_Read = Callable[[str], bytes]


class Members:
    """The bytes of a member of an archive; archives stay open. May be called from threads.

    Members are named as in a .zip or .tar file (not compressed as a whole), or "column:row" for a
    column of images in a .parquet or .arrow file.
    """

    def __init__(self) -> None:
        self._archives: dict[Path, _Read] = {}
        self._tables: dict[tuple[Path, str], _Read] = {}
        self._lock = Lock()

    def __call__(self, path: Path, member: str) -> bytes:
        """The encoded image. Raises CompoclipError naming the archive and the member."""
        try:
            with self._lock:
                read, name = self._opened(path, member)
            data = read(name)
        except CompoclipError:
            raise
        except FileNotFoundError as error:
            raise unreadable(path, error, "check the data folder") from error
        except (KeyError, IndexError, ValueError) as error:
            raise CompoclipError(
                f"{path}: holds no image {member!r}; fetch the archive again"
            ) from error
        except Exception as error:  # damaged archives fail with errors of every kind
            raise CompoclipError(
                f"{path}: {member!r} cannot be read ({reason(error)}); fetch the archive again"
            ) from error
        return data

    def _opened(self, path: Path, member: str) -> tuple[_Read, str]:
        suffix = path.suffix.lower()
        if suffix in (".parquet", ".arrow"):
            column, _, row = member.rpartition(":")
            if (path, column) not in self._tables:
                self._tables[path, column] = (
                    EmbeddedImages([path], column) if suffix == ".parquet" else _arrow(path, column)
                )
            return self._tables[path, column], row
        if path not in self._archives:
            self._archives[path] = _zip(path) if path.suffix.lower() == ".zip" else _tar(path)
        return self._archives[path], member


def _arrow(path: Path, column: str) -> _Read:
    images = arrow_table(path).column(column)
    if pa.types.is_struct(images.type):
        images = pc.struct_field(images, "bytes")

    def read(row: str) -> bytes:
        value = images[int(row)].as_py()
        return b"" if value is None else bytes(value)

    return read


def _zip(path: Path) -> _Read:
    archive = zipfile.ZipFile(path)
    zip_members(archive)

    def read(name: str) -> bytes:
        if archive.getinfo(name).file_size > MOST_BYTES:
            raise CompoclipError(f"{path}: {name!r} is too large for an image; remove it")
        return archive.read(name)

    return read


def tar_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar file in order, up to its end mark.

    The library takes a damaged header for the end of the archive. So what it stops at must be two
    blocks of zeros, and only zeros may follow, no more than writers add.

    Raises:
        tarfile.ReadError: For an archive that is damaged or cut off, with the byte, and for a
            member of a size below 0, which leads back: the archive would be read forever.
    """
    for member in archive:
        if member.size < 0:
            raise tarfile.ReadError(f"{member.name!a} has a size below 0")
        yield member
        archive.members = []  # type: ignore[attr-defined]  # the list would only take memory
    end: int = archive.offset
    file: Any = archive.fileobj
    file.seek(end)
    tail = file.read(_MOST_PADDING + 1)
    if len(tail) < 2 * tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"cut off at byte {end:,}, before its end mark")
    if tail.strip(b"\0") or len(tail) > _MOST_PADDING:
        raise tarfile.ReadError(f"damaged at byte {end:,}, neither a member nor the end mark")


def zip_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the members of a zip file.

    Raises:
        zipfile.BadZipFile: When bytes come before the first member: the library takes the last list
            of members that it finds, and those before it would be missing.
    """
    members = archive.infolist()
    before = min((each.header_offset for each in members), default=0)
    if before:
        raise zipfile.BadZipFile(f"{before:,} bytes before the first member")
    return members


def _tar(path: Path) -> _Read:
    places = {}
    with tarfile.open(path, "r:") as archive:
        for member in tar_members(archive):
            if member.isreg() and not member.sparse:
                places[member.name] = (member.offset_data, member.size)

    def read(name: str) -> bytes:
        offset, size = places[name]
        if size > MOST_BYTES:
            raise CompoclipError(f"{path}: {name!r} is too large for an image; remove it")
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)

    return read
