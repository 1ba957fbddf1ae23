"""Reading with one-line errors, atomic writing, locks, and caches of data files."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import stat
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError, printable, typed_repr

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOCK = ".lock"
_STAMPED = 1 << 14  # bytes at either end of a file that its stamp depends on
_RACES = 1000  # times that a folder may vanish between two system calls before that is an error
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what disks without locks answer
_swept: set[Path] = set()


def unreadable(path: Path, error: OSError, remedy: str = "check the path") -> CompoclipError:
    """Make the error for a file or folder that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return CompoclipError(f"{path}: no such file; {remedy}")
    return CompoclipError(f"{path}: cannot be read ({reason(error)}); check the path")


@contextmanager
def reading(path: Path, remedy: str = "check the path") -> Iterator[None]:
    """Turn an OSError of the block into the CompoclipError for a file that cannot be read."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error, remedy) from error


def open_regular(path: Path) -> io.FileIO:
    """Open a file for reading.

    Raises OSError, at once, for a pipe, which would be waited for, a socket, device or folder.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return io.FileIO(handle)
    os.close(handle)
    raise OSError(errno.EINVAL, "it is a pipe, socket, device or folder, not a file", str(path))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what writing raises in the block into the CompoclipError that names the place."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise unwritable(path, error) from error


def reason(error: BaseException) -> str:
    """Return the message of an error on one short line, whatever its raiser put into it."""
    said = str(getattr(error, "strerror", None) or error)
    return printable(" ".join(said.split()), 160) or type(error).__name__


def disguised(path: Path) -> str:
    """Recognise a Git LFS pointer or a web page, which downloads often leave instead of a file.

    Return what it is with the remedy, or "" for any other file. Raises OSError.
    """
    with path.open("rb") as file:
        start = file.read(200).lstrip()
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        return "a Git LFS pointer, not the file itself: run git lfs pull, or download the file"
    if start[:20].lower().startswith((b"<!doctype html", b"<html")):
        return "a web page, not the file itself: download it by the link to the file"
    return ""


def first_of(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the first file of these names that a folder has."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_text(
    path: Path, *, absent: str = "check the path", damaged: str = "restore the file"
) -> str:
    """Read a UTF-8 file, without its byte order mark.

    absent, damaged: the remedies for a missing and a malformed file. Raises CompoclipError.
    """
    with reading(path, absent):
        return decoded(path.read_bytes(), path, damaged)


def decoded(data: bytes | bytearray, place: object, damaged: str) -> str:
    """Decode UTF-8 without a byte order mark.

    place, damaged: place and remedy for the CompoclipError that other bytes raise.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CompoclipError(f"{place}: not UTF-8 text (byte {error.start}); {damaged}") from error


def encodable(text: str) -> bool:
    """Return whether a text can be written as UTF-8.

    JSON, arguments and file names may hold half a character (a lone surrogate), which cannot.
    """
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise KeyError(f"the key {key!r:.80} occurs twice in one object")
    return fields


_parse = json.JSONDecoder(object_pairs_hook=_unique).decode
_HALF = re.compile(r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")


def parse_json(text: str, *, halves: bool = False) -> Any:
    """Return the value of a JSON text.

    halves: Whether it may hold half a character (a lone surrogate, see `encodable`). Raises
    ValueError for malformed or too deeply nested JSON, a repeated key, and a number of thousands of
    digits.
    """
    try:
        value = _parse(text)
        if not halves and "\\u" in text and not encodable(json.dumps(value, ensure_ascii=False)):
            place = _HALF.search(text)
            raise json.JSONDecodeError("Half a character", text, place.start() if place else 0)
        return value
    except json.JSONDecodeError:
        raise
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except ValueError:
        raise ValueError("a number has thousands of digits") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(
    path: Path,
    *,
    absent: str = "check the path",
    damaged: str = "restore the file",
    halves: bool = False,
) -> Any:
    """Read a JSON file; halves: see `parse_json`. Raises CompoclipError as `read_text`."""
    text = read_text(path, absent=absent, damaged=damaged)
    try:
        return parse_json(text, halves=halves)
    except ValueError as error:
        problem = disguised(path) or f"not valid JSON ({error}); {damaged}"
        raise CompoclipError(f"{path}: {problem}") from error


def read_json_object(
    path: Path, *, damaged: str = "restore the file", halves: bool = False
) -> dict[str, Any]:
    """Read a JSON file that holds an object; arguments and errors as `read_json`."""
    record = read_json(path, damaged=damaged, halves=halves)
    if not isinstance(record, dict):
        raise CompoclipError(
            f"{path}: expected a JSON object, found {typed_repr(record)}; {damaged}"
        )
    return record


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk that a file or folder is on, or will be made on."""
    return shutil.disk_usage(_there(path)).free


def _there(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if os.path.lexists(parent))


@contextmanager
def replacing(path: Path, temporary: Path | None = None, *, flush: bool = True) -> Iterator[Path]:
    """Yield an empty file on the disk of `path`, which it replaces after the block.

    Readers see the old or the new file, never a part, also after a power cut. Errors of the block
    pass through and leave nothing behind. temporary: the file to yield, by default a new one; a
    file of a killed process is overwritten. flush: wait for the disk; not needed for thousands of
    files that can be made again.
    """
    with nullcontext(temporary) if temporary else _temporary_place(path) as place:
        try:
            place.touch()
            mode = place.stat().st_mode
            yield place
            place.chmod(mode)  # safetensors makes files that nobody else can read
            if flush:
                sync(place)
            os.replace(place, path)
            if flush:
                sync_folder(path.parent)
        finally:
            with suppress(OSError):
                place.unlink()


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then move it to `path`; make the folder if needed.

    Raises CompoclipError when the folder cannot be written or the disk is full.
    """
    with writing(path):
        _write_at(path, write)


def _write_at(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        write(temporary)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with `write_atomically`."""
    write_atomically(path, lambda place: place.write_text(text, encoding="utf-8"))


def write_json(path: Path, record: Any) -> None:
    """Write a record as indented JSON with `write_atomically`."""
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Write records as JSON lines with `write_atomically`."""
    write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `folder` after the block.

    Its files are flushed to the disk before. Raises CompoclipError when `folder` exists and is not
    empty, or when writing fails; nothing is left behind.
    """
    folder = folder.absolute()
    with writing(folder):
        require_new_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_place(folder) as temporary:
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
            sync_folder(folder.parent)


def require_new_folder(folder: Path) -> None:
    """Raise CompoclipError when `folder` exists and is not empty."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CompoclipError(
            f"{folder.absolute()}: already exists; choose another place or delete it"
        )


def unwritable(path: Path, error: BaseException | str) -> CompoclipError:
    """Make the error for a file or folder that cannot be written."""
    cause = error if isinstance(error, str) else reason(error)
    return CompoclipError(
        f"{path}: cannot be written ({cause}); free space, check folder and rights or choose "
        "another place"
    )


@contextmanager
def _temporary_place(path: Path) -> Iterator[Path]:
    """Yield a free place in a temporary folder next to `path`, removed after the block."""
    sweep_abandoned(path.parent.absolute())
    name = f".{path.name[:40]}.{uuid.uuid4().hex[:8]}.{os.uname().nodename}-{os.getpid()}.tmp"
    folder = path.with_name(name)
    folder.mkdir()
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_abandoned(parent: Path) -> None:
    """Remove the temporary folders of writers that were killed here, once per process."""
    if parent in _swept:
        return
    _swept.add(parent)
    here = re.compile(rf"\..*\.[0-9a-f]{{8}}\.{re.escape(os.uname().nodename)}-(\d+)\.tmp")
    for folder in parent.glob(".*.tmp"):
        match = here.fullmatch(folder.name)
        if match and not _runs(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    """Return whether there is a process of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's, and no number of a process
        return True
    return True


def sync(path: Path) -> None:
    """Flush a file or folder to the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, on file systems that can."""
    with suppress(OSError):
        sync(folder)


def file_stem(name: str) -> str:
    """Return a benchmark or model name as a file name: separators become "_"."""
    return "".join("_" if c in '/\\:*?"<>| ' or ord(c) < 32 else c for c in name).lstrip(".") or "_"


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """Return the `file_stem` of each name; raise UsageError for two names with the same."""
    names_of: dict[str, str] = {}
    for name in names:
        stem = file_stem(name)
        if (other := names_of.setdefault(stem, name)) != name:
            raise UsageError(f"'{other}' and '{name}' have one file name, {stem}; rename one")
    return {name: stem for stem, name in names_of.items()}


@contextmanager
def only_writer(out: Path, *, folder: bool = False, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing `out` while the block runs.

    The system's lock, on a hidden file next to `out` (in it, for a folder) that names the holder,
    ends with the process. The file is removed afterwards, and so are empty folders made for it. A
    note says when a file system has no locks.

    folder: whether `out` is a folder. wait: wait for the holder instead of refusing. Raises
    CompoclipError, naming the holder, for a held lock, and for a place that cannot be written.
    """
    from filelock import FileLock, Timeout  # here: most commands lock nothing

    place = out / LOCK if folder else out.with_name(f".{out.name}{LOCK}")
    created = [parent for parent in (place.parent, *place.parent.parents) if not parent.exists()]
    lock = FileLock(place, blocking=wait, thread_local=False, fallback_to_soft=False)
    for left in reversed(range(_RACES)):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            break
        except Timeout:
            holder = "another process"
            with suppress(OSError):
                holder = place.read_text(errors="replace").strip()[:200] or holder
            raise CompoclipError(
                f"{out}: {holder} is writing it; wait until that has ended, or choose another place"
            ) from None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and left:
                continue  # another process took its empty folders away meanwhile
            if error.errno not in _NO_LOCKS:
                raise unwritable(out, error) from error
            note(f"{out}: cannot be locked here ({error.strerror}); let no other run write it")
            break
    process = os.getpid()
    with suppress(OSError):  # on a full disk it stays empty
        now = time.strftime("%Y-%m-%d %H:%M")
        place.write_text(f"process {process} on {os.uname().nodename} ({now})")
    try:
        yield
    finally:
        if os.getpid() == process:  # not in a child that was forked within the block
            with suppress(OSError):
                place.unlink()  # before it is let go: who opened it meanwhile looks whether it is
            lock.release()
            with suppress(OSError):
                for folder_made in created:
                    folder_made.rmdir()


# --- Places that must be writable, checked before the work. ---


def require_writable(folder: Path) -> None:
    """Raise CompoclipError unless files can be written to `folder`, which is not made yet."""
    place = _there(folder)
    if not place.is_dir():
        raise unwritable(folder, f"{place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise unwritable(folder, f"no permission to write in {place}")


# --- What a file holds, as a short text. ---


def file_hash(path: Path, kind: str = "blake2b") -> str:
    """Return a hash of a file's bytes: blake2b (128 bit), md5 or sha256."""
    new: Any = partial(hashlib.new, kind, usedforsecurity=False)
    if kind == "blake2b":
        new = partial(hashlib.blake2b, digest_size=16)
    with reading(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, new).hexdigest()


def bytes_hash(data: bytes) -> str:
    """Return the `file_hash` of a file with this content."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def content_hash(path: Path) -> str:
    """Return a hash of a file, or of all files of a folder with their names; "" without one."""
    if not path.exists():
        return ""
    if path.is_file():
        return file_hash(path)
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    return bytes_hash("".join(f"{p.relative_to(path)} {file_hash(p)}\n" for p in inside).encode())


# --- Caches of data files: next to the file, else in the user's cache folder. ---


def file_stamp(path: Path) -> str:
    """Return size, modification time and a checksum of both ends of a file; "missing" without.

    It changes when the file is written, and also when a file of the same size and time takes its
    place, unless both begin and end with the same 16 KiB.
    """
    try:
        with open_regular(path) as file:
            status, ends = os.fstat(file.fileno()), file.read(_STAMPED)
            if status.st_size > _STAMPED:
                file.seek(max(_STAMPED, status.st_size - _STAMPED))
                ends += file.read(_STAMPED)
    except OSError:
        return "missing"
    return f"{status.st_size}-{status.st_mtime_ns}-{zlib.crc32(ends):08x}"


def file_stamps(paths: Iterable[Path]) -> dict[str, str]:
    """Return the stamps of files by their absolute paths."""
    return {str(path.absolute()): file_stamp(path) for path in paths}


def cache_folder() -> Path:
    """Return the user's cache folder: $XDG_CACHE_HOME/compoclip, else ~/.cache/compoclip."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compoclip"


def cache_paths(path: Path, suffix: str) -> tuple[Path, Path]:
    """Return the places for a cache of `path`: a hidden file next to it, then the cache folder."""
    digest = hashlib.blake2b(os.fsencode(path.absolute()), digest_size=16).hexdigest()
    return (
        path.with_name(f".{path.name}{suffix}"),
        cache_folder() / f"{path.name[:80]}-{digest}{suffix}",
    )


def write_cache(path: Path, suffix: str, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a file in the first writable place, atomically. Raises CompoclipError."""
    reasons = []
    for target in cache_paths(path, suffix):
        try:
            _write_at(target, write)
            return target
        except (OSError, SafetensorError) as error:
            reasons.append(f"{target.parent}: {reason(error)}")
    raise CompoclipError(
        f"{path}: nowhere to cache its index ({'; '.join(reasons)}); free space, or set "
        "XDG_CACHE_HOME to a folder that can be written"
    )


# --- Arrays of a cache, with a checksum and their inputs. ---

Arrays = Mapping[str, "NDArray[Any]"]
_STATED = "compoclip"  # in the metadata: what the arrays are made from, and their checksum


def save_arrays(path: Path, arrays: Arrays, made_from: object) -> None:
    """Write arrays to a safetensors file for `load_arrays`, within an atomic write.

    made_from: the inputs that the arrays depend on, JSON-ready.
    """
    import numpy as np  # here: the command line begins without it
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # One entry, for several are written in any order.
    save_file(dict(arrays), path, {_STATED: json.dumps([made_from, checksum(arrays)])})


def load_arrays(path: Path, made_from: object) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a cache; None if it is missing, of other inputs or damaged (noted)."""
    try:
        return read_arrays(path, made_from)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        note(f"{path}: damaged ({reason(error)}); made again")
        with suppress(OSError):
            path.unlink()
        return None


def read_arrays(path: Path, made_from: object) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a file of `save_arrays`; None for other inputs.

    Raises OSError, and ValueError for a damaged file.
    """
    try:
        with path.open("rb"), safe_open(path, "numpy") as file:
            stated, crc = json.loads((file.metadata() or {}).get(_STATED, "[null, 0]"))
            if stated != json.loads(json.dumps(made_from)):
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(reason(error)) from error
    if crc != checksum(arrays):
        raise ValueError("its checksum differs")
    return arrays


def checksum(arrays: Arrays) -> int:
    """Return the CRC-32 of arrays, by name, with their names and shapes."""
    value = 0
    for name, array in sorted(arrays.items()):
        value = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), value)
        value = zlib.crc32(array.reshape(-1).view("uint8").data, value)
    return value
