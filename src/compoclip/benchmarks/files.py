"""Reading official files: clear errors, safe image paths, a hash over the bytes.

Every reader of this room goes through these helpers, so that each malformed input ends in one line
naming the file, the row and the remedy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from compoclip import files
from compoclip.errors import CompoclipError


def read_text(path: Path, remedy: str = "") -> str:
    """The content of a UTF-8 file, without a byte order mark.

    `remedy` is added to the message when the file is absent, e.g. how to select other parts.
    Raises CompoclipError naming the file.
    """
    absent = remedy or "put the official file there, or name its place with an option"
    return files.read_text(path, absent=absent, damaged="fetch the official file again")


class _DuplicateKeyError(ValueError):
    """A JSON object names the same key twice, so that one value would vanish silently."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise _DuplicateKeyError(key)
        value[key] = item
    return value


def read_bytes(path: Path, remedy: str) -> bytes:
    """The content of a file; `remedy` says what to do when it is absent. Raises CompoclipError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise files.unreadable(path, error, remedy) from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates)
    except _DuplicateKeyError as error:
        raise CompoclipError(
            f"{where}: the key {str(error)!r} occurs twice in one JSON object; keep one of them"
        ) from error
    except json.JSONDecodeError as error:
        raise CompoclipError(
            f"{where}: not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            "fetch the official file again"
        ) from error
    except ValueError as error:  # a number with thousands of digits
        raise CompoclipError(f"{where}: {error}; this is not the official file") from error
    except RecursionError as error:
        raise CompoclipError(
            f"{where}: JSON nested too deeply; this is not the official file"
        ) from error


def parse_json(data: bytes, where: str) -> Any:
    """The JSON value of a file's content, e.g. taken from an archive; see `read_json`."""
    try:
        return _parse(data.decode("utf-8-sig"), where)
    except UnicodeDecodeError as error:
        raise CompoclipError(
            f"{where}: not UTF-8 text (byte {error.start}); fetch the official file again"
        ) from error


def read_json(path: Path, remedy: str = "") -> Any:
    """The JSON value of a file. Raises CompoclipError when absent, malformed or double-keyed."""
    return _parse(read_text(path, remedy), str(path))


def read_jsonl(path: Path, remedy: str = "") -> list[tuple[int, dict[str, Any]]]:
    """Objects of a JSON Lines file with their 1-based line numbers; blank lines are allowed.

    Raises CompoclipError naming the line when one is malformed or no object.
    """
    rows = []
    # Not str.splitlines: JSON strings may hold the Unicode line separators it splits at.
    for number, line in enumerate(read_text(path, remedy).split("\n"), start=1):
        if line.strip():
            where = f"{path}: line {number}"
            rows.append((number, record(_parse(line, where), where)))
    return rows


def record(value: Any, where: str) -> dict[str, Any]:
    """`value` when it is a JSON object; else CompoclipError starting with `where`."""
    if not isinstance(value, dict):
        raise CompoclipError(f"{where}: expected a JSON object, found {_kind(value)}")
    return value


def items(value: Any, where: str) -> list[Any]:
    """`value` when it is a JSON list; else CompoclipError starting with `where`."""
    if not isinstance(value, list):
        raise CompoclipError(f"{where}: expected a JSON list, found {_kind(value)}")
    return value


def field(row: Mapping[str, Any], key: str, where: str) -> Any:
    """The value of `key`, which must be there; else CompoclipError starting with `where`."""
    if key not in row:
        raise CompoclipError(f"{where}: no key {key!r}; is this the official file?")
    return row[key]


def text(row: Mapping[str, Any], key: str, where: str) -> str:
    """A string field with something in it, returned raw (captions keep their white space)."""
    return nonempty(field(row, key, where), f"{where}: {key!r}")


def nonempty(value: Any, where: str) -> str:
    """`value` when it is a string that is not blank; else CompoclipError starting with `where`."""
    if not isinstance(value, str):
        raise CompoclipError(f"{where} must be text, found {_kind(value)}")
    if not value.strip():
        raise CompoclipError(f"{where} is empty; fetch the official file again")
    return value


def number(row: Mapping[str, Any], key: str, where: str) -> float:
    """A finite number field."""
    value = field(row, key, where)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise CompoclipError(f"{where}: {key!r} must be a number, found {_kind(value)}")
    return float(value)


def identifier(row: Mapping[str, Any], key: str, where: str, seen: set[object]) -> str:
    """An id field (text or whole number) that no earlier row had; it is added to `seen`."""
    value = field(row, key, where)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise CompoclipError(f"{where}: {key!r} must be a number or text, found {_kind(value)}")
    if str(value) in seen:
        raise CompoclipError(
            f"{where}: {key!r} {value} occurs twice; fetch the official file again"
        )
    seen.add(str(value))
    return str(value)


def box(row: Mapping[str, Any], where: str) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) in pixels from `bbox_x`, `bbox_y`, `bbox_w`, `bbox_h`.

    Raises CompoclipError when one is absent, negative or the box has no area.
    """
    x, y, w, h = (number(row, f"bbox_{name}", where) for name in "xywh")
    if x < 0 or y < 0 or w <= 0 or h <= 0:
        raise CompoclipError(
            f"{where}: box x={x:g} y={y:g} w={w:g} h={h:g} is not inside any image"
        )
    return (x, y, x + w, y + h)


_PLAIN = re.compile(r"[A-Za-z0-9_\-]+(?:[/.][A-Za-z0-9_\-]+)*")


def image_path(root: Path, name: str, where: str) -> Path:
    """`root / name`, refusing names that could leave `root`.

    `name` comes from an annotation file and uses forward slashes. Whether the file exists is not
    asked here: see `coverage`.
    """
    if _PLAIN.fullmatch(name) and ".." not in name:  # nearly all names, and much faster
        return root / name
    pure = PurePosixPath(name)
    escapes = (
        pure.is_absolute()
        or ".." in pure.parts
        or PureWindowsPath(name).drive
        or "\\" in name
        or "\0" in name
    )
    if escapes or not pure.parts:
        raise CompoclipError(f"{where}: image name {name!r} leads outside the image folder {root}")
    return root / pure


def file_hash(path: Path) -> str:
    """blake2b (128 bit, hex) of a file's bytes, as in `Meta.hashes`."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise files.unreadable(path, error) from error


def bytes_hash(data: bytes) -> str:
    """`file_hash` of a file with this content."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def data_hash(files: Mapping[str, Path | bytes], extra: Sequence[str] = ()) -> str:
    """Hash (32 hex digits, blake2b) over the bytes of `files` in the order of their sorted keys.

    The keys are the reader's own names of the files, so the hash does not depend on where they lie.
    `extra`: anything else that decides the items, such as the version of a tagger.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(files):
        file = files[name]
        known = bytes_hash(file) if isinstance(file, bytes) else file_hash(file)
        digest.update(f"{name}\0{known}\n".encode())
    for value in extra:
        digest.update(f"extra\0{value}\n".encode())
    return digest.hexdigest()


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", type(None): "null"}
    return names.get(type(value), f"the number {value!r}")
