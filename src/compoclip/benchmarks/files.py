"""Reading official files: clear errors, safe image paths, a hash over the bytes.

Every reader of this room goes through these helpers, so that each malformed input ends in one line
naming the file, the row and the remedy.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Annotated, Any

from compoclip import files
from compoclip.benchmarks.case import ImageRef
from compoclip.bounds import MAX_ANNOTATION_BYTES, MAX_NAME_BYTES, MAX_PATH_CHARACTERS
from compoclip.captions.clip_text import token_key
from compoclip.data.image_names import ENDINGS, is_read
from compoclip.errors import CompoclipError, require
from compoclip.files import bytes_hash, file_hash
from compoclip.typed import Within, require_kind

OFFICIAL = "fetch the official file again"
"""Remedy for a damaged official file."""
ABSENT = "put the official file there, or name its place with an option"


def require_small(location: object, size: int) -> None:
    """Raise CompoclipError for more than MAX_ANNOTATION_BYTES."""
    if size > MAX_ANNOTATION_BYTES:
        raise CompoclipError(
            f"{location}: more than {MAX_ANNOTATION_BYTES >> 20} MiB, which no file of annotations "
            "has; name the right file"
        )


def require_size(path: Path, remedy: str = "check the path") -> None:
    """Raise CompoclipError for a file that is absent or larger than MAX_ANNOTATION_BYTES."""
    try:
        require_small(path, path.stat().st_size)
    except OSError as error:
        raise files.unreadable(path, error, remedy) from error
    except ValueError as error:
        raise CompoclipError(
            f"{str(path)!r}: is not a file name ({error}); check the path"
        ) from error


def require_columns(path: Path, there: Sequence[str], columns: Sequence[str], remedy: str) -> None:
    """Raise CompoclipError when one of `columns` is not `there`."""
    lacking = next((column for column in columns if column not in there), None)
    names = ", ".join(f"{name!r:.40}" for name in there[:40]) or "nothing"
    require(lacking is None, path, f"no column {lacking!r}, only {names}; {remedy}")


def read_text(path: Path, remedy: str = "", damaged: str = OFFICIAL) -> str:
    """Return the content of a UTF-8 file of bounded size, without a byte order mark.

    remedy: what to do when it is absent, e.g. how to select other parts. damaged: what to do when
    it is no text. Raises CompoclipError naming the file.
    """
    require_size(path, remedy or ABSENT)
    return files.read_text(path, absent=remedy or ABSENT, damaged=damaged)


def parse_json(data: bytes, location: str) -> Any:
    """Return the JSON value of a file's content taken from an archive; see `read_json`."""
    try:
        return files.parse_json(files.decoded(data, location, OFFICIAL))
    except ValueError as error:
        raise CompoclipError(f"{location}: not valid JSON ({error}); {OFFICIAL}") from error


def read_json(path: Path, remedy: str = "", damaged: str = OFFICIAL) -> Any:
    """Return the JSON value of a file, see `read_text`; a key twice in one object is refused."""
    require_size(path, remedy or ABSENT)
    return files.read_json(path, absent=remedy or ABSENT, damaged=damaged)


def record(value: Any, location: str) -> dict[str, Any]:
    """Return `value` when it is a JSON object; else raise CompoclipError."""
    checked: dict[str, Any] = require_kind(location, value, dict, OFFICIAL)
    return checked


def items(value: Any, location: str, names: Sequence[str] = ()) -> list[Any]:
    """Return `value` when it is a JSON list, of as many values as `names`; else CompoclipError."""
    checked: list[Any] = require_kind(location, value, list, OFFICIAL)
    if names and len(checked) != len(names):
        raise CompoclipError(f"{location}: expected [{', '.join(names)}], found {len(checked)}")
    return checked


def field(row: Mapping[str, Any], key: str, location: str) -> Any:
    """Return the value of `key`, which must be there; else raise CompoclipError."""
    if key not in row:
        raise CompoclipError(f"{location}: no key {key!r}; is this the official file?")
    return row[key]


def text(row: Mapping[str, Any], key: str, location: str) -> str:
    """Return a string field with something in it, raw: captions keep their white space."""
    return nonempty(field(row, key, location), f"{location}: {key!r}")


def texts(row: Mapping[str, Any], keys: Iterable[str], location: str) -> tuple[str, ...]:
    """Return several string fields, see `text`."""
    return tuple(text(row, key, location) for key in keys)


def truth(value: object) -> bool | None:
    """Return what 1, 0, true or false says, also as a text; None for anything else."""
    return _TRUTHS.get(str(value).strip().lower()) if isinstance(value, str | int | float) else None


# pandas writes "1.0" for the whole numbers of a column that has gaps, too.
_TRUTHS = {"1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False}


def require_both(truths: set[int], place: str, remedy: str) -> None:
    """Raise CompoclipError unless statements of both truths, 0 and 1, are there."""
    require(truths == {0, 1}, place, f"no true or no false statements; {remedy}")


def nonempty(value: Any, location: str, remedy: str = OFFICIAL) -> str:
    """Return `value` when it is a string that is not blank; else raise CompoclipError."""
    checked: str = require_kind(location, value, str, remedy)
    if not checked.strip():
        raise CompoclipError(f"{location} is empty; {remedy}")
    return checked


def number(row: Mapping[str, Any], key: str, location: str) -> float:
    """Return a finite number field."""
    return float(require_kind(f"{location}: {key!r}", field(row, key, location), _NUMBER, OFFICIAL))


_NUMBER = Annotated[float, Within(-1e12, 1e12)]


def identifier(
    row: Mapping[str, Any], key: str, location: str, seen_ids: set[object], remedy: str = OFFICIAL
) -> str:
    """Return an id field (text or whole number) that no earlier row had; it joins `seen_ids`."""
    place = f"{location}: {key!r}"
    value = require_kind(place, field(row, key, location), int | str, remedy)
    name = nonempty(str(value), place, remedy)
    require(name not in seen_ids, place, f"{value!r:.60} occurs twice; {remedy}")
    seen_ids.add(name)
    return name


def once(key: object, location: str, places: dict[object, str], remedy: str = OFFICIAL) -> None:
    """Note in `places` where the row `key` stands; CompoclipError when an earlier row is the same.

    For rows without an id of their own, of which the official files have none twice: a file that
    was put together of two copies would count every item twice.
    """
    earlier = places.setdefault(key, location)
    require(earlier == location, location, f"the same as {earlier}; {remedy}")


Box = tuple[float, float, float, float]
VG_BOX = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")
"""The keys of a box of Visual Genome in a row: left, upper, width, height."""


def box(
    row: Mapping[str, Any], location: str, keys: Sequence[str] = VG_BOX, *, flat: bool = False
) -> Box:
    """Return (left, upper, right, lower) in pixels from the `keys` left, upper, width, height.

    The box may reach beyond the image, also to the left of it or above. flat: its area may be 0.
    Raises CompoclipError when a number is absent or the box has no area.
    """
    x, y, w, h = (number(row, key, location) for key in keys)
    if min(w, h) < 0 or (min(w, h) == 0 and not flat):
        raise CompoclipError(f"{location}: a box of {w:g} x {h:g} pixels is empty; {OFFICIAL}")
    return (x, y, x + w, y + h)


def corners(value: Any, location: str, *, flat: bool = False) -> Box:
    """Return (left, upper, right, lower) of a list [x, y, width, height], see `box`."""
    sides = ("x", "y", "width", "height")
    return box(dict(zip(sides, items(value, location, sides))), location, sides, flat=flat)


_PLAIN = re.compile(r"[A-Za-z0-9_\-]+(?:[/.][A-Za-z0-9_\-]+)*")


def image_path(root: Path, name: str, location: str) -> Path:
    """Return `root / name`; names that leave `root` and those that no file can have are refused.

    `name` comes from an annotation file and uses forward slashes. The file need not exist.
    """
    if len(name) <= MAX_NAME_BYTES and _PLAIN.fullmatch(name) and ".." not in name:
        return root / name  # nearly all names, and much faster
    pure = PurePosixPath(name)
    leaves = pure.is_absolute() or ".." in pure.parts or PureWindowsPath(name).drive != ""
    leaves = leaves or "\\" in name or "\0" in name or not pure.parts
    label = f"image name {name[:80]!r}"
    require(not leaves, location, f"{label} leads outside the image folder {root}")
    short = len(name) <= MAX_PATH_CHARACTERS and all(
        len(p.encode()) <= MAX_NAME_BYTES for p in pure.parts
    )
    require(short, location, f"{label}... is longer than a file name can be")
    return root / pure


def photo(folder: Path, row: Mapping[str, Any], key: str, location: str) -> ImageRef:
    """Return the photo in `folder` that the field `key` names, see `text` and `image_path`."""
    return ImageRef(image_path(folder, text(row, key, location), location))


def data_hash(files: Mapping[str, Path | bytes], extra: Sequence[str] = ()) -> str:
    """Return a hash (32 hex digits, blake2b) over the bytes of `files` in the order of their keys.

    The keys are the reader's own names of the files, so the hash does not depend on where they lie.
    `extra`: anything else that decides the items, such as the version of a tagger.
    """
    hashes = {
        name: bytes_hash(file) if isinstance(file, bytes) else file_hash(file)
        for name, file in files.items()
    }
    return combined_hash(hashes, extra)


def combined_hash(hashes: Mapping[str, str], extra: Sequence[str] = ()) -> str:
    """Return the `data_hash` of files whose hashes are known, by their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(hashes):
        digest.update(f"{name}\0{hashes[name]}\n".encode())
    for value in extra:
        digest.update(f"extra\0{value}\n".encode())
    return digest.hexdigest()


def images_hash(images: Iterable[ImageRef]) -> str:
    """Return a hash of the names and stamps of image files, which `data_hash` leaves out."""
    paths = dict.fromkeys(image.path for image in images)
    stamps = "\n".join(f"{path.name} {files.file_stamp(path)}" for path in paths)
    return hashlib.blake2b(stamps.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def hash_number(text: str) -> int:
    """Return the number from 0 to 2**64 that stands for a text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


# --- Photos whose official annotations name them by a key, not by a file: found by their stem. ---

_RANKS = {ending: rank for rank, ending in enumerate(sum(ENDINGS.values(), ()))}


def by_stem(folders: Sequence[Path]) -> Mapping[str, Path]:
    """Return stem -> image file, over all `folders` that exist.

    Of several files with one stem the one in the earlier folder is taken, then that whose ending
    comes first in `image_names.ENDINGS`. Raises CompoclipError for a folder that cannot be read.
    """
    best: dict[str, tuple[int, int, Path, str]] = {}
    for place, folder in enumerate(folders):
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise files.unreadable(folder, error) from error
        for name in names:
            if is_read(name):
                stem, _, ending = name.rpartition(".")
                entry = (place, _RANKS[ending.lower()], folder, name)
                best[stem] = min(entry, best.get(stem, entry))
    return {stem: folder / name for stem, (_, _, folder, name) in best.items()}


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
_RUNS = {WORDS: re.compile(r"[\w']+"), LETTERS: re.compile(r"[^\W_]+")}
_tokens = lru_cache(maxsize=1 << 14)(token_key)


@lru_cache(maxsize=1 << 15)
def runs(text: str, level: str = LETTERS) -> tuple[str, ...]:
    """Return the runs of letters and digits, of WORDS also "_" and apostrophes, lower case."""
    return tuple(_RUNS[level].findall(text.lower()))


def key(text: str, level: str) -> object:
    """Return what is equal for texts that are the same at `level`."""
    if level == STORED:
        return text
    return _tokens(text) if level == TOKENIZED else runs(text, level)


def same(a: str, b: str) -> str | None:
    """Return the first of LEVELS at which the texts are the same, None for different texts."""
    return next((level for level in LEVELS if key(a, level) == key(b, level)), None)


def same_bag(a: str, b: str) -> str | None:
    """Return WORDS or LETTERS when the texts hold the same words as often, in whatever order."""
    return next(
        (level for level in _RUNS if sorted(runs(a, level)) == sorted(runs(b, level))), None
    )
