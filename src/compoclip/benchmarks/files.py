"""Reading official files: clear errors, safe image paths, a hash over the bytes.

Every reader of this room goes through these helpers, so that each malformed input ends in one line
naming the file, the row and the remedy.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any

from compoclip import files, tables
from compoclip.benchmarks.case import Aggregate, Classification, ImageRef
from compoclip.errors import CompoclipError, printable
from compoclip.rewrites.base import token_key
from compoclip.tables import kind_of

MOST_BYTES = 1 << 28
"""Bytes that a file of annotations may have, unpacked: 256 MiB, more than any official one."""

OFFICIAL = "fetch the official file again"
"""What to do about a damaged file, where it is not the user's own."""
_ABSENT = "put the official file there, or name its place with an option"


def require_size(path: Path, remedy: str = "check the path") -> None:
    """Raise CompoclipError for a file that is absent or larger than MOST_BYTES."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise files.unreadable(path, error, remedy) from error
    except ValueError as error:
        raise CompoclipError(
            f"{str(path)!r}: no name of a file ({error}); check the path"
        ) from error
    if size > MOST_BYTES:
        raise too_large(path)


def too_large(where: object) -> CompoclipError:
    """Return the error for a file of more than MOST_BYTES."""
    return CompoclipError(
        f"{where}: more than {MOST_BYTES >> 20} MiB, which no file of annotations has; name the "
        "right file"
    )


def read_text(path: Path, remedy: str = "", damaged: str = OFFICIAL) -> str:
    """Return the content of a UTF-8 file of at most MOST_BYTES, without a byte order mark.

    remedy: what to do when it is absent, e.g. how to select other parts. damaged: what to do when
    it is no text. Raises CompoclipError naming the file.
    """
    require_size(path, remedy or _ABSENT)
    return files.read_text(path, absent=remedy or _ABSENT, damaged=damaged)


def parse_json(data: bytes, where: str, damaged: str = OFFICIAL) -> Any:
    """Return the JSON value of a file's content, e.g. taken from an archive; see `read_json`."""
    try:
        return files.parse_json(files.decoded(data, where, damaged))
    except ValueError as error:
        raise CompoclipError(f"{where}: not valid JSON ({error}); {damaged}") from error


def read_json(path: Path, remedy: str = "", damaged: str = OFFICIAL) -> Any:
    """Return the JSON value of a file; arguments as for `read_text`.

    Raises CompoclipError when it is absent, malformed or double-keyed.
    """
    require_size(path, remedy or _ABSENT)
    return files.read_json(path, absent=remedy or _ABSENT, damaged=damaged)


def read_jsonl(
    path: Path, remedy: str = "", damaged: str = OFFICIAL
) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects of a JSON Lines file with their 1-based line numbers, without blank lines.

    Arguments as for `read_text`. Raises CompoclipError naming the line when one is malformed or no
    object.
    """
    require_size(path, remedy or _ABSENT)
    return list(tables.read_jsonl(path, damaged=damaged, halves=False))


def record(value: Any, where: str) -> dict[str, Any]:
    """`value` when it is a JSON object; else CompoclipError starting with `where`."""
    if not isinstance(value, dict):
        raise CompoclipError(f"{where}: expected a JSON object, found {kind_of(value)}")
    return value


def items(value: Any, where: str) -> list[Any]:
    """`value` when it is a JSON list; else CompoclipError starting with `where`."""
    if not isinstance(value, list):
        raise CompoclipError(f"{where}: expected a JSON list, found {kind_of(value)}")
    return value


def field(row: Mapping[str, Any], key: str, where: str) -> Any:
    """The value of `key`, which must be there; else CompoclipError starting with `where`."""
    if key not in row:
        raise CompoclipError(f"{where}: no key {key!r}; is this the official file?")
    return row[key]


def text(row: Mapping[str, Any], key: str, where: str) -> str:
    """A string field with something in it, returned raw (captions keep their white space)."""
    return nonempty(field(row, key, where), f"{where}: {key!r}")


def texts(row: Mapping[str, Any], keys: Iterable[str], where: str) -> tuple[str, ...]:
    """Several string fields, see `text`."""
    return tuple(text(row, key, where) for key in keys)


def nonempty(value: Any, where: str, remedy: str = OFFICIAL) -> str:
    """`value` when it is a string that is not blank; else CompoclipError starting with `where`."""
    if not isinstance(value, str):
        raise CompoclipError(f"{where} must be text, found {kind_of(value)}")
    if not value.strip():
        raise CompoclipError(f"{where} is empty; {remedy}")
    return value


def number(row: Mapping[str, Any], key: str, where: str) -> float:
    """A finite number field."""
    value = field(row, key, where)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise CompoclipError(f"{where}: {key!r} must be a number, found {kind_of(value)}")
    return float(value)


def identifier(
    row: Mapping[str, Any], key: str, where: str, seen: set[object], remedy: str = OFFICIAL
) -> str:
    """An id field (text or whole number) that no earlier row had; it is added to `seen`."""
    value = field(row, key, where)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise CompoclipError(f"{where}: {key!r} must be a number or text, found {kind_of(value)}")
    if str(value) in seen:
        raise CompoclipError(f"{where}: {key!r} {value!r:.60} occurs twice; {remedy}")
    seen.add(str(value))
    return str(value)


def once(key: object, where: str, seen: dict[object, str], remedy: str = OFFICIAL) -> None:
    """Note in `seen` where the row `key` stands; CompoclipError when an earlier row is the same.

    For rows without an id of their own, of which the official files have none twice: a file that
    was put together of two copies would count every item twice.
    """
    earlier = seen.setdefault(key, where)
    if earlier != where:
        raise CompoclipError(f"{where}: the same as {earlier}; {remedy}")


def box(row: Mapping[str, Any], where: str) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) in pixels from `bbox_x`, `bbox_y`, `bbox_w`, `bbox_h`.

    The box may reach beyond the image, also to the left of it or above. Raises CompoclipError when
    a number is absent or the box has no area.
    """
    x, y, w, h = (number(row, f"bbox_{name}", where) for name in "xywh")
    if w <= 0 or h <= 0:
        raise CompoclipError(f"{where}: a box {w:g} x {h:g} pixels holds nothing; {OFFICIAL}")
    return (x, y, x + w, y + h)


_PLAIN = re.compile(r"[A-Za-z0-9_\-]+(?:[/.][A-Za-z0-9_\-]+)*")
_LONGEST_NAME = 255  # bytes, of a file or folder on the usual file systems


def image_path(root: Path, name: str, where: str) -> Path:
    """`root / name`, refusing names that could leave `root` and those that no file can have.

    `name` comes from an annotation file and uses forward slashes. Whether the file exists is not
    asked here: see `coverage`.
    """
    if len(name) <= _LONGEST_NAME and _PLAIN.fullmatch(name) and ".." not in name:
        return root / name  # nearly all names, and much faster
    pure = PurePosixPath(name)
    escapes = (
        pure.is_absolute()
        or ".." in pure.parts
        or PureWindowsPath(name).drive
        or "\\" in name
        or "\0" in name
    )
    if escapes or not pure.parts:
        raise CompoclipError(
            f"{where}: image name {name[:80]!r} leads outside the image folder {root}"
        )
    if len(name) > 1024 or any(len(part.encode()) > _LONGEST_NAME for part in pure.parts):
        raise CompoclipError(f"{where}: image name {name[:40]!r}... is longer than a file's can be")
    return root / pure


def photo(folder: Path, row: Mapping[str, Any], key: str, where: str) -> ImageRef:
    """The photo in `folder` that the field `key` names; raises as `text` and `image_path`."""
    return ImageRef(image_path(folder, text(row, key, where), where))


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


# --- Names that a user misspelled. ---

_LONGEST_HINT = 400


def close(name: str, known: Iterable[str]) -> str:
    """A hint such as "did you mean swap_obj?", or the whole list when nothing comes close."""
    known = tuple(known)
    match = difflib.get_close_matches(name[:100], known[:1000], n=3)
    hint = f"did you mean {' or '.join(match)}?" if match else f"known: {', '.join(known)}"
    return printable(hint, _LONGEST_HINT)  # names may come from a file


def classification_rules(content: Classification) -> dict[str, Aggregate]:
    """Aggregates of a classification set; the one called like its metric is the headline.

    Mean-per-class only where no two classes share a name.
    """
    one = ("zero_shot",)
    if content.metric == "map11":
        devkit = Aggregate(content.classes, metric="ap11_devkit")
        return {"map11": Aggregate(content.classes), "map11_devkit": devkit}
    if content.metric == "auc":
        return {"auc": Aggregate(one), "accuracy": Aggregate(one, metric="accuracy")}
    rules = {"accuracy": Aggregate(one)}
    if len(set(content.classes)) == len(content.classes):
        rules["mean-per-class"] = Aggregate(one, macro_by="class")
    return rules


# --- Photos whose official annotations name them by a key, not by a file: found by their stem. ---

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")


def by_stem(folders: Sequence[Path]) -> Mapping[str, Path]:
    """Stem -> image file, over all `folders` that exist.

    Of several files with one stem the one in the earlier folder is taken, then that whose suffix
    comes first in `SUFFIXES`. Raises CompoclipError for a folder that cannot be read.
    """
    found: dict[str, tuple[int, int, Path, str]] = {}
    for place, folder in enumerate(folders):
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise files.unreadable(folder, error) from error
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix.lower() not in SUFFIXES:
                continue
            entry = (place, SUFFIXES.index(suffix.lower()), folder, name)
            if stem not in found or entry < found[stem]:
                found[stem] = entry
    return {stem: folder / name for stem, (_, _, folder, name) in found.items()}


def only_zip(folder: Path) -> Path | None:
    """The one zip archive in a folder, None without any. Raises CompoclipError for several."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".zip")
    if len(found) > 1:
        raise CompoclipError(
            f"{folder}: holds {len(found)} archives, {found[0].name} and {found[1].name}; keep one"
        )
    return found[0] if found else None


# --- When two texts are the same: four levels, from the bytes of the file to letters alone. ---
#
# Every count of equal texts depends on what is ignored, so it is always stated with its level
# (`IGNORED`). Texts with the same words in another order have the levels words and letters alone.

STORED, TOKENIZED, WORDS, LETTERS = "stored", "tokenized", "words", "letters"
IGNORED: Mapping[str, str] = MappingProxyType(
    {
        STORED: "the same string, as in the file",
        TOKENIZED: "the same token ids of CLIP's tokenizer, which ignores case and blanks",
        WORDS: "the same runs of letters, digits and apostrophes, case and punctuation ignored",
        LETTERS: 'the same runs of letters and digits: "the cat\'s" is "the", "cat", "s"',
    }
)
"""Level -> what makes texts the same at that level, the strictest first."""
LEVELS = tuple(IGNORED)
_WORDS = re.compile(r"[\w']+")
_LETTERS = re.compile(r"[^\W_]+")


@lru_cache(maxsize=1 << 14)
def words(text: str) -> tuple[str, ...]:
    """Runs of letters, digits, "_" and apostrophes, lower case."""
    return tuple(_WORDS.findall(text.lower()))


@lru_cache(maxsize=1 << 14)
def letters(text: str) -> tuple[str, ...]:
    """Runs of letters and digits, lower case."""
    return tuple(_LETTERS.findall(text.lower()))


_tokens = lru_cache(maxsize=1 << 14)(token_key)


def key(text: str, level: str) -> object:
    """Equal for texts that are the same at `level`."""
    if level == STORED:
        return text
    return {TOKENIZED: _tokens, WORDS: words, LETTERS: letters}[level](text)


def same(a: str, b: str) -> str | None:
    """The first of LEVELS at which the texts are the same, None for different texts."""
    return next((level for level in LEVELS if key(a, level) == key(b, level)), None)


def same_bag(a: str, b: str) -> str | None:
    """WORDS or LETTERS when the texts hold the same words as often, in whatever order."""
    for level, split in ((WORDS, words), (LETTERS, letters)):
        one, two = split(a), split(b)
        if len(one) == len(two) and sorted(one) == sorted(two):
            return level
    return None
