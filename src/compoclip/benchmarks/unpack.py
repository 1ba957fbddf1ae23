"""Zip and tar archives to a folder, without letting a member leave it or fill the disk."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from compoclip import files
from compoclip.benchmarks.archives import DAMAGED, DAMAGED_TAR
from compoclip.console import track
from compoclip.errors import CompoclipError

MOST_GROWTH = 200
"""How many times its own size an archive may unpack to; more is a bomb."""

_BLOCK = 1 << 20


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
    of files. Raises CompoclipError for an archive that is damaged, holds no file, unpacks to more
    than MOST_GROWTH times its size or than the disk holds, or has members that are no files, have
    no proper name, lie outside the archive or share one place.
    """
    try:
        packed = archive.stat().st_size
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                return _write(archive, _in_zip(archive, opened), folder, packed)
        with tarfile.open(archive) as tar:
            return _write(archive, _in_tar(archive, tar), folder, packed)
    except FileNotFoundError as error:
        raise files.unreadable(archive, error) from error
    except (*DAMAGED, *DAMAGED_TAR) as error:
        raise CompoclipError(
            f"{archive}: cannot be unpacked ({files.reason(error)}); delete it and fetch it again"
        ) from error
    except OSError as error:
        raise files.unwritable(folder, error) from error


def is_archive(path: Path) -> bool:
    """Whether a file is an archive that `unpack` knows, as far as its ends tell."""
    try:
        return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)
    except (OSError, *DAMAGED, *DAMAGED_TAR):
        return False


def _in_zip(archive: Path, opened: zipfile.ZipFile) -> Iterator[_Member]:
    for info in opened.infolist():
        folder = info.filename.endswith("/")
        place = _place(archive, info.filename, folder)
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            raise CompoclipError(
                f"{archive}: {info.filename!r:.80} is a link; not the official archive"
            )
        if not folder and "__MACOSX" not in place.parts:
            yield _Member(place, info.file_size, partial(opened.open, info))


def _in_tar(archive: Path, opened: tarfile.TarFile) -> Iterator[_Member]:
    for info in opened:
        place = _place(archive, info.name, info.isdir())
        if info.isdir():
            continue
        if not info.isreg():
            raise CompoclipError(
                f"{archive}: {info.name!r:.80} is no plain file; not the official one"
            )
        yield _Member(place, info.size, partial(_from_tar, opened, info))


def _from_tar(opened: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = opened.extractfile(info)
    if stream is None:
        raise tarfile.ReadError(f"{info.name} cannot be read")
    return stream


def _place(archive: Path, name: str, folder: bool) -> PurePosixPath:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or PureWindowsPath(name).drive:
        raise CompoclipError(f"{archive}: the member {name!r:.80} leads outside the archive")
    if not name.isprintable() or not (pure.parts or folder):
        raise CompoclipError(
            f"{archive}: the member {name!r:.80} has no proper name; not the official archive"
        )
    return pure


def _bounded(archive: Path, members: Iterable[_Member], packed: int) -> Iterator[_Member]:
    """The members, as long as they unpack to no more than MOST_GROWTH times the archive's size."""
    total = 0
    for member in members:
        total += member.size
        if total > MOST_GROWTH * packed:
            raise CompoclipError(
                f"{archive}: {packed:,} bytes unpack to {total:,}; this is not the official archive"
            )
        yield member


def _write(archive: Path, listed: Iterable[_Member], folder: Path, packed: int) -> int:
    members = list(_bounded(archive, listed, packed))
    total = sum(member.size for member in members)
    if not members:
        raise CompoclipError(f"{archive}: holds no file; delete it and fetch it again")
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
            name = str(member.place)[:80]
            raise CompoclipError(f"{archive}: holds two files {name}; not the official one")
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
