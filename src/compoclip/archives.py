"""Tar and zip files, and encoded images in tables: read where they lie, nothing is unpacked."""

from __future__ import annotations

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from threading import Lock
from typing import Any

from compoclip.bounds import MAX_MEMBER_BYTES
from compoclip.errors import CompoclipError, require
from compoclip.files import reading, reason, unreadable

_AGAIN = "fetch the archive again"
OTHER_ARCHIVE = "this is not the official archive"

# --- Tar files. ---

DAMAGED_TAR = (
    *(tarfile.TarError, EOFError, struct.error, ValueError, OverflowError),
    *(LookupError, MemoryError),
)
"""Errors of reading a damaged tar that is not compressed as a whole, in addition to OSError."""


def place_of_member(archive: Path, name: str, folder: bool | None = None) -> PurePosixPath | None:
    """Return where a member of an archive lies; None for a folder, and for what macOS adds.

    folder: whether it is one; by default its name says it, as in a zip file. A backslash parts
    folders, as in archives that are made on Windows.

    Raises CompoclipError for a name that leads outside the archive or cannot be printed.
    """
    if folder is None:
        folder = name.endswith(("/", "\\"))
    place = PurePosixPath(name.replace("\\", "/"))
    outside = place.is_absolute() or ".." in place.parts or PureWindowsPath(name).drive
    fault = "leads outside the archive" if outside else ""
    if not fault and not (name.isprintable() and (place.parts or folder)):
        fault = "has no proper name"
    require(not fault, archive, f"the member {name!r:.80} {fault}; {OTHER_ARCHIVE}")
    return None if folder or "__MACOSX" in place.parts else place


def is_archive(path: Path, kinds: str = "zip or tar") -> bool:
    """Return whether a file begins or ends as an archive does; a damaged one need not.

    kinds: "zip or tar", or "tar".
    """
    try:
        return (kinds != "tar" and zipfile.is_zipfile(path)) or tarfile.is_tarfile(path)
    except (OSError, zlib.error, lzma.LZMAError, *DAMAGED_TAR):
        return False


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
    if tail.strip(b"\0") or not 2 * tarfile.BLOCKSIZE <= len(tail) <= padding:
        raise tarfile.ReadError(f"no end mark at byte {end:,}, after {members:,} members")


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
        raise CompoclipError(f"{path}: cannot be unpacked ({reason(error)}); {_AGAIN}") from error


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
            place = place_of_member(archive, info.filename)
            if place is not None and place.name in names.values():
                if place.name in members:
                    raise CompoclipError(f"{archive}: holds two files {place.name}; {_AGAIN}")
                members[place.name] = info
        for key, name in names.items():
            if name not in members:
                raise CompoclipError(f"{archive}: holds no {name}; {_AGAIN}, or select other parts")
            left = max_bytes - sum(len(data) for _, data in contents.values())
            with opened.open(members[name]) as stream:  # whose stated size may be a lie
                data = stream.read(left + 1)
            if len(data) > left:
                raise CompoclipError(
                    f"{archive}: {name}: more than {max_bytes >> 20} MiB; {_AGAIN}"
                )
            contents[key] = f"{archive}: {name}", data
    return contents


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
            if isinstance(error, KeyError | IndexError | ValueError):
                raise CompoclipError(f"{path}: holds no image {member!r}; {_AGAIN}") from error
            raise CompoclipError(
                f"{path}: {member!r} cannot be read ({reason(error)}); {_AGAIN}"
            ) from error


def _reader(path: Path, kind: str, column: str) -> _Read:
    """Open an archive or table; return the function that reads a member or row of it."""
    if kind in (".parquet", ".arrow"):
        from compoclip.embedded_images import EmbeddedImages, arrow_images  # with pyarrow

        return EmbeddedImages([path], column) if kind == ".parquet" else arrow_images(path, column)
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
