"""Files inside zip archives, read in memory: nothing is ever unpacked to the disk."""

from __future__ import annotations

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from compoclip import files
from compoclip.benchmarks.files import MOST_BYTES, too_large
from compoclip.errors import CompoclipError

DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    struct.error,
    ValueError,  # a name that is no text, a place before the start of the file
    RuntimeError,  # encrypted, or compressed in a way that is not known here
)
"""What the reading of a damaged zip archive raises, beside OSError."""
DAMAGED_TAR = (tarfile.TarError, EOFError, struct.error, ValueError, OverflowError, MemoryError)
"""The same of a tar archive, which is not compressed as a whole."""

_AGAIN = "fetch the archive again"


def only_zip(folder: Path) -> Path | None:
    """The one zip archive in a folder, None without any. Raises CompoclipError for several."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".zip")
    if len(found) > 1:
        raise CompoclipError(
            f"{folder}: holds {len(found)} archives, {found[0].name} and {found[1].name}; keep one"
        )
    return found[0] if found else None


def read_members(archive: Path, wanted: Mapping[str, str]) -> dict[str, tuple[str, bytes]]:
    """Key -> (file and member for messages, content) of the members called `wanted[key]`.

    Members may lie in a folder of the archive. Raises CompoclipError when the archive cannot be
    read, lacks a member, has two of one name, names one with ".." or an absolute path, which no
    official archive does, or when they unpack to more than MOST_BYTES together.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members: dict[str, zipfile.ZipInfo] = {}
            for info in opened.infolist():
                pure = PurePosixPath(info.filename.replace("\\", "/"))
                if pure.is_absolute() or ".." in pure.parts:
                    raise CompoclipError(
                        f"{archive}: the member {info.filename!r:.80} leads outside the archive; "
                        "this is not the official one"
                    )
                if info.filename.endswith("/") or "__MACOSX" in pure.parts:
                    continue
                if pure.name in wanted.values():
                    if pure.name in members:
                        raise CompoclipError(f"{archive}: holds two files {pure.name}; {_AGAIN}")
                    members[pure.name] = info
            found = {}
            left = MOST_BYTES
            for key, name in wanted.items():
                data = _read(opened, archive, name, members.get(name), left)
                left -= len(data)
                found[key] = f"{archive}: {name}", data
            return found
    except OSError as error:
        raise files.unreadable(archive, error) from error
    except DAMAGED as error:
        reason = files.reason(error)
        raise CompoclipError(f"{archive}: cannot be unpacked ({reason}); {_AGAIN}") from error


def _read(
    opened: zipfile.ZipFile, archive: Path, name: str, info: zipfile.ZipInfo | None, most: int
) -> bytes:
    if info is None:
        raise CompoclipError(f"{archive}: holds no {name}; {_AGAIN}, or select other parts")
    if info.file_size > most:
        raise too_large(f"{archive}: {name}")
    with opened.open(info) as stream:
        data = stream.read(info.file_size + 1)
    if len(data) > info.file_size:  # the size in the directory may be a lie
        raise too_large(f"{archive}: {name}")
    return data
