"""Zip and tar archives to a folder, without letting a member leave it or fill the disk."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from compoclip import files
from compoclip.console import track
from compoclip.errors import CompoclipError

MOST_GROWTH = 200
"""How many times its own size an archive may unpack to; more is a bomb."""

_BLOCK = 1 << 20
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # encrypted
    NotImplementedError,  # compressed in a way that is not known here
)


@dataclass(frozen=True)
class _Member:
    """A file in an archive: its place, its size as stated, how to read it."""

    place: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path) -> int:
    """Write all files of a .zip or .tar archive (also .tar.gz, .bz2, .xz) below `folder`.

    Where all of them lie in one folder of the archive, that folder is dropped. A file that is there
    already with the right size is left as it is, so an interrupted run goes on. Returns the number
    of files. Raises CompoclipError for an archive that is damaged, unpacks to more than MOST_GROWTH
    times its size or than the disk holds, or has members that are no files, lie outside the archive
    or share one place.
    """
    try:
        packed = archive.stat().st_size
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                return _write(archive, list(_in_zip(archive, opened)), folder, packed)
        with tarfile.open(archive) as tar:
            return _write(archive, list(_in_tar(archive, tar)), folder, packed)
    except FileNotFoundError as error:
        raise files.unreadable(archive, error) from error
    except _DAMAGED as error:
        reason = " ".join(str(error).split())
        raise CompoclipError(
            f"{archive}: cannot be unpacked ({reason}); delete it and fetch it again"
        ) from error
    except OSError as error:
        raise files.unwritable(folder, error) from error


def _in_zip(archive: Path, opened: zipfile.ZipFile) -> Iterator[_Member]:
    for info in opened.infolist():
        place = _place(archive, info.filename)
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            raise CompoclipError(
                f"{archive}: {info.filename!r} is a link; not the official archive"
            )
        if not info.is_dir() and "__MACOSX" not in place.parts:
            yield _Member(place, info.file_size, partial(opened.open, info))


def _in_tar(archive: Path, opened: tarfile.TarFile) -> Iterator[_Member]:
    for info in opened:
        place = _place(archive, info.name)
        if info.isdir():
            continue
        if not info.isreg():
            raise CompoclipError(f"{archive}: {info.name!r} is no plain file; not the official one")

        yield _Member(place, info.size, partial(_from_tar, opened, info))


def _from_tar(opened: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = opened.extractfile(info)
    if stream is None:
        raise tarfile.ReadError(f"{info.name} cannot be read")
    return stream


def _place(archive: Path, name: str) -> PurePosixPath:
    pure = PurePosixPath(name)
    outside = pure.is_absolute() or ".." in pure.parts or not pure.parts
    if outside and name.rstrip("/") not in (".", ""):
        raise CompoclipError(f"{archive}: the member {name!r} leads outside the archive")
    if "\\" in name or "\0" in name or PureWindowsPath(name).drive:
        raise CompoclipError(f"{archive}: the member {name!r} leads outside the archive")
    return pure


def _write(archive: Path, members: list[_Member], folder: Path, packed: int) -> int:
    total = sum(member.size for member in members)
    if total > MOST_GROWTH * packed:
        raise CompoclipError(
            f"{archive}: {packed:,} bytes unpack to {total:,}; this is not the official archive"
        )
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if total > free + _there(folder, members):
        raise CompoclipError(
            f"{folder}: {total:,} bytes to unpack, {free:,} are free; free space or choose another "
            "place"
        )
    tops = {member.place.parts[0] for member in members}
    shared = len(tops) == 1 and all(len(member.place.parts) > 1 for member in members)
    targets: dict[Path, _Member] = {}
    for member in members:
        parts = member.place.parts[1:] if shared else member.place.parts
        target = folder.joinpath(*parts)
        if target in targets:
            raise CompoclipError(f"{archive}: holds two files {member.place}; not the official one")
        targets[target] = member
    base = folder.resolve()
    for target, member in track(targets.items(), f"unpacking {archive.name}", unit="files"):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(base):  # through a link that lay there before
            raise CompoclipError(f"{target.parent}: leads outside {folder}; remove that link")
        if not (target.is_file() and target.stat().st_size == member.size):
            _copy(archive, member, target)
    return len(targets)


def _there(folder: Path, members: list[_Member]) -> int:
    """Bytes that an earlier run wrote, at most."""
    if not any(folder.iterdir()):
        return 0
    return sum(member.size for member in members if _exists(folder, member))


def _exists(folder: Path, member: _Member) -> bool:
    return any(
        folder.joinpath(*parts).is_file() for parts in (member.place.parts, member.place.parts[1:])
    )


def _copy(archive: Path, member: _Member, target: Path) -> None:
    with files.replacing(target) as temporary, member.open() as stream, temporary.open("wb") as out:
        size = 0
        while block := stream.read(_BLOCK):
            size += len(block)
            if size > member.size:  # the size in the directory may be a lie
                break
            out.write(block)
        if size != member.size:
            raise CompoclipError(
                f"{archive}: {member.place} is not of the size that the archive states; delete it "
                "and fetch it again"
            )
