"""Encoded images that lie in archives and tables, read where they are: nothing is unpacked."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from compoclip.data.embedded import EmbeddedImages
from compoclip.errors import CompoclipError
from compoclip.files import unreadable

SUFFIXES = (".zip", ".tar", ".parquet")
MOST_BYTES = 1 << 28  # of one image: more is a bomb
_Read = Callable[[str], bytes]


class Members:
    """The bytes of a member of an archive; archives stay open. May be called from threads.

    Members are named as in a .zip or .tar file (not compressed as a whole), or "column:row" for a
    column of images in a .parquet file.
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
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CompoclipError(
                f"{path}: {member!r} cannot be read ({reason}); fetch the archive again"
            ) from error
        return data

    def _opened(self, path: Path, member: str) -> tuple[_Read, str]:
        if path.suffix.lower() == ".parquet":
            column, _, row = member.rpartition(":")
            if (path, column) not in self._tables:
                self._tables[path, column] = EmbeddedImages([path], column)
            return self._tables[path, column], row
        if path not in self._archives:
            self._archives[path] = _zip(path) if path.suffix.lower() == ".zip" else _tar(path)
        return self._archives[path], member


def _zip(path: Path) -> _Read:
    archive = zipfile.ZipFile(path)

    def read(name: str) -> bytes:
        if archive.getinfo(name).file_size > MOST_BYTES:
            raise CompoclipError(f"{path}: {name!r} is too large for an image; remove it")
        return archive.read(name)

    return read


def _tar(path: Path) -> _Read:
    places = {}
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            if member.size < 0:  # leads back, to be read for ever
                raise tarfile.ReadError(f"{member.name!a} has a size below 0")
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
