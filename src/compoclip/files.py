"""Files and folders: read with one clear line when that fails, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from compoclip.errors import CompoclipError

try:
    import fcntl
except ImportError:  # not on Windows: what killed writers leave there stays
    fcntl = None  # type: ignore[assignment]

_WRITING = re.compile(r"\..*\.[0-9a-f]{8}\.tmp")  # folders that `_beside` makes
_LOCK = ".writer-lock"
_swept: set[Path] = set()


def unreadable(path: Path, error: OSError, remedy: str = "check the path") -> CompoclipError:
    """The error to raise for a file or folder that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return CompoclipError(f"{path}: no such file; {remedy}")
    return CompoclipError(f"{path}: cannot be read ({error.strerror or error}); check the path")


def disguised(path: Path) -> str:
    """What a file is when it is one that downloads often leave in place of another, and the remedy;
    "" for any other. Raises OSError when it cannot be read."""
    with path.open("rb") as file:
        start = file.read(200).lstrip()
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        return "a Git LFS pointer, not the file itself: run git lfs pull, or download the file"
    if start[:20].lower().startswith((b"<!doctype html", b"<html")):
        return "a web page, not the file itself: download it by the link to the file"
    return ""


def read_text(
    path: Path, *, absent: str = "check the path", damaged: str = "restore the file"
) -> str:
    """The content of a UTF-8 file, without a byte order mark.

    absent, damaged: what to do when the file is not there, or is no such text. Raises
    CompoclipError naming the file and the remedy.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CompoclipError(f"{path}: not UTF-8 text (byte {error.start}); {damaged}") from error
    except OSError as error:
        raise unreadable(path, error, absent) from error


def read_json(
    path: Path, *, absent: str = "check the path", damaged: str = "restore the file"
) -> Any:
    """The value in a JSON file. Raises CompoclipError like `read_text`, and for no JSON."""
    text = read_text(path, absent=absent, damaged=damaged)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = disguised(path) or f"not valid JSON ({error}); {damaged}"
        raise CompoclipError(f"{path}: {reason}") from error


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yield an empty file on the disk of `path`; what it is after the block becomes `path`.

    Readers see the old file or the new one, never a part. Errors of the block pass through, and
    nothing is left behind. temporary: the file to yield, by default one of its own; what a killed
    process left there is overwritten.
    """
    with nullcontext(temporary) if temporary else _beside(path) as place:
        try:
            place.touch()
            mode = place.stat().st_mode
            yield place
            place.chmod(mode)  # safetensors makes files that nobody else can read
            os.replace(place, path)
        finally:
            with suppress(OSError):
                place.unlink()


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then move it to `path`, whose folder is made if need be.

    Raises CompoclipError when the folder cannot be written or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            write(temporary)
    except (OSError, SafetensorError) as error:
        raise unwritable(path, error) from error


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`, which takes its place when the block is done.

    The files directly in it are flushed to the disk before. Raises CompoclipError when `folder` is
    there already and not empty, or when writing fails; then nothing is left behind.
    """
    folder = folder.absolute()
    try:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise CompoclipError(f"{folder}: already exists; choose another place or delete it")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _beside(folder) as temporary:
            temporary.mkdir()
            yield temporary
            mode = temporary.stat().st_mode & 0o666
            for file in temporary.iterdir():
                if file.is_file():
                    file.chmod(mode)  # see `replacing`
                    sync(file)
            if folder.exists():
                folder.rmdir()
            os.replace(temporary, folder)
            sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise unwritable(folder, error) from error


def unwritable(path: Path, error: Exception) -> CompoclipError:
    """The error to raise for a file or folder that cannot be written."""
    reason = getattr(error, "strerror", None) or error
    return CompoclipError(
        f"{path}: cannot be written ({reason}); free space or choose another place"
    )


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yield a free place on the disk of `path`: in a folder beside it, gone after the block.

    A process that is killed cannot take its folder away. The next one that writes in the same
    place does, once it finds that nobody holds the lock in it.
    """
    _sweep(path.parent.absolute())
    folder, lock = _locked(path)
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(path: Path) -> tuple[Path, int]:
    """A new folder beside `path`, and the open file in it whose lock says that its writer lives."""
    while True:
        folder = path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex[:8]}.tmp")
        folder.mkdir()
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # swept away, being empty
            continue
        except OSError:
            folder.rmdir()
            raise
        try:
            if fcntl:
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(lock), os.stat(folder / _LOCK)):
                return folder, lock
        except FileNotFoundError:  # swept away, not being locked yet
            pass
        except OSError:  # a disk without locks, where nobody sweeps either
            return folder, lock
        os.close(lock)


def _sweep(parent: Path) -> None:
    """Remove the folders that killed writers left in `parent`; once in this process, for it may be
    large."""
    if parent in _swept or not fcntl:
        return
    _swept.add(parent)
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _WRITING.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_abandoned(Path(entry.path))


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of `_beside` unless its writer lives, here or in another process."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:
        with suppress(OSError):
            folder.rmdir()  # empty when its writer was killed at once
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # held
        pass
    finally:
        os.close(lock)


def sync(path: Path) -> None:
    """Have the system write what it holds of a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
