"""The columns of a row: its image, its captions, and columns for some methods."""

from __future__ import annotations

import math
import os
from ast import literal_eval
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from compoclip.errors import CompoclipError, UsageError, shown
from compoclip.files import encodable
from compoclip.tables import text_list


def relative_image(image: str, root: Path, origin: str) -> str:
    """Return the image's path relative to `root`, refusing whatever leads out of it.

    Relative names may not climb above the root, absolute ones must lie in it. Links inside the
    root may point anywhere: whoever made the folder put them there. Backslashes, as Windows writes
    them, separate folders where the file then exists. Raises CompoclipError naming `origin` (file
    and row) otherwise, or when the name is a URL.
    """
    if "://" in image:
        raise CompoclipError(f"{origin}: {image!r} is a URL; download the images first")
    if "\0" in image or not image.strip():
        raise CompoclipError(f"{origin}: the image path {image!r} is not usable; fix the file")
    normal = os.path.normpath(image)
    if "\\" in normal and not os.path.exists(os.path.join(root, normal)):
        slashed = os.path.normpath(image.replace("\\", "/"))
        normal = slashed if os.path.exists(os.path.join(root, slashed)) else normal
    if os.path.isabs(normal):
        normal = os.path.relpath(normal, os.path.abspath(root))
    if normal == ".." or normal.startswith(".." + os.sep):
        raise CompoclipError(
            f"{origin}: image {image!r} lies outside {root}; pass --images with the folder that "
            "holds the images"
        )
    return normal


# --- Records of JSON files: their keys, and the types of the values. ---

_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a number",
    list: "a list",
    list[str]: "a list of texts",
    list[str | None]: "a list of texts or null",
    dict: "an object",
    NoneType: "null",
}


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value of a JSON file is of a type: `str`, `list[str]`, `dict[str, int]`."""
    outer, inner = get_origin(kind), get_args(kind)
    if outer is UnionType:
        return any(fits(value, each) for each in inner)
    if outer in (list, dict):
        parts = value.values() if outer is dict and isinstance(value, dict) else value
        return isinstance(value, outer) and all(fits(each, inner[-1]) for each in parts)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def fields(
    row: Any, kinds: Mapping[str, Any], origin: str, remedy: str = "fetch the file again"
) -> dict[str, Any]:
    """Return a record that has these keys, of these types; optional ones may be missing or None.

    Raises CompoclipError, beginning with `origin` (file and row), for anything else.
    """
    needed = [key for key, kind in kinds.items() if kind is object or not fits(None, kind)]
    if not isinstance(row, dict) or not row.keys() >= {*needed}:
        have = ", ".join(map(str, row)) if isinstance(row, dict) else shown(row)
        what = ", ".join(needed) or "an object"
        raise CompoclipError(f"{origin} needs {what}; it has: {have}; {remedy}")
    for key, kind in kinds.items():
        if not fits(row.get(key), kind):
            parts = get_args(kind) if get_origin(kind) is UnionType else (kind,)
            words = " or ".join(_WORDS.get(each) or _WORDS[get_origin(each)] for each in parts)
            what = f"{key!r} must be {words}, found {shown(row.get(key))}"
            raise CompoclipError(f"{origin}: {what}; {remedy}")
    return {**dict.fromkeys(kinds), **row}


# --- Which columns of a table hold the image and the captions. ---

IMAGE_COLUMNS = (
    *("filepath", "file_name", "filename", "image", "image_path", "image_name", "path", "file"),
    "jpg",
)
CAPTION_COLUMNS = ("title", "caption", "captions", "text", "texts", "sentences", "txt", "comment")


def pick_columns(
    available: Collection[str], image: str | None, caption: str | None, path: Path
) -> tuple[str, tuple[str, ...]]:
    """Return the image column and the caption columns.

    caption: one name or several joined by commas. Names not given are guessed from the usual ones.
    Raises UsageError that lists the columns of the file when a name is not among them.
    """
    (image,) = _named([image] if image else None, IMAGE_COLUMNS, available, "image", path)
    return image, pick_captions(available, caption, path)


def pick_captions(available: Collection[str], caption: str | None, path: Path) -> tuple[str, ...]:
    """Return the caption columns, as for `pick_columns`."""
    names = None if caption is None else [caption]
    if caption is not None and caption not in available:  # names may hold commas
        names = [part.strip() for part in caption.split(",")]
    return _named(names, CAPTION_COLUMNS, available, "caption", path)


def usual_column(usual: Iterable[str], available: Iterable[str]) -> str | None:
    """Return the first column that has one of the usual names, ignoring case."""
    names = {name.strip().lower(): name for name in reversed([*available])}
    return next((names[name] for name in usual if name in names), None)


def _named(
    names: Sequence[str] | None,
    usual: Iterable[str],
    available: Collection[str],
    kind: str,
    path: Path,
) -> tuple[str, ...]:
    """The columns of these names, or the first of a usual name."""
    listed = ", ".join(map(str, available)) or "none"
    if names is None:
        name = usual_column(usual, available)
        if name is None:
            what = f"no {kind} column found; name it with --{kind}-column"
            raise UsageError(f"{path}: {what}, one of: {listed}")
        return (name,)
    for each in names:
        if each not in available:
            raise UsageError(f"{path}: no column {each!r}; the columns are: {listed}")
    return tuple(names)


# --- Captions. ---

# Reasons for leaving captions and samples out.
NO_CAPTION = "sample without a caption"
EMPTY_CAPTION = "empty caption"
NO_TEXT = "caption that is no text"
LONGEST_TEXT = 1 << 16  # characters; models read 77 tokens, the rest only takes memory
CELL = frozenset(("nan", "none", "null", "<na>"))  # what programs write of an empty cell
EMPTY_CELL = "text that is the word for an empty cell (nan, none, null)"
LONG_TEXT = f"text of more than {LONGEST_TEXT:,} characters"


def cell_captions(value: Any) -> list[Any]:
    """Return the caption values of one cell, to be filtered by `usable_texts`.

    A cell holds a text (or UTF-8 bytes), a list, a list of texts written as Python or JSON text, or
    nothing.
    """
    value = as_text(value)
    if isinstance(value, str):
        return text_list(value) or [value]
    if isinstance(value, list):
        return [as_text(item) for item in value]
    missing = value is None or value != value  # tables write NaN for what is missing
    return [] if missing else [value]


def as_text(value: Any) -> Any:
    """Decode bytes, as which some writers store texts; return other values unchanged."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def usable_texts(values: Iterable[Any], empty: str, left_out: Counter[str]) -> list[str]:
    """Return the usable texts, stripped; count other values and texts that are blank or too long.

    empty: the reason to count blank texts by.
    """
    kept = []
    for value in values:
        text = value.strip() if isinstance(value, str) else None
        if text is None:
            left_out[NO_TEXT] += 1
        elif not text:
            left_out[empty] += 1
        elif text.lower() in CELL:
            left_out[EMPTY_CELL] += 1
        elif len(text) > LONGEST_TEXT:
            left_out[LONG_TEXT] += 1
        else:
            kept.append(text)
    return kept


def require_texts(texts: Iterable[str], origin: str) -> None:
    """Raise CompoclipError that starts with `origin` for a text that cannot be kept."""
    for text in texts:
        if len(text) > LONGEST_TEXT:
            raise CompoclipError(f"{origin}: a {LONG_TEXT}; shorten or remove it")
        if not encodable(text):
            raise CompoclipError(
                f"{origin}: {text[:40]!a} is not valid text (it holds half a character, a lone "
                "surrogate); fix or remove it"
            )


# --- Negatives, similar images, groups: columns that only some methods read. ---

NEG_CAPTION, NEG_IMAGE, GROUP = "neg_caption", "neg_image", "group"
POS_CAPTION = "pos_caption"
SCORE, IMAGE_SCORE, MIRROR = "score", "image_score", "mirror"
EXTRA_COLUMNS = (NEG_CAPTION, POS_CAPTION, NEG_IMAGE, MIRROR, GROUP, SCORE, IMAGE_SCORE)
_WRONG = {
    **dict.fromkeys((NEG_CAPTION, POS_CAPTION), "not a list of texts"),
    **dict.fromkeys((SCORE, IMAGE_SCORE), "not a number"),
    NEG_IMAGE: "neither a list of row numbers nor an image path",
    MIRROR: "neither true nor false",
}
_MOST_ROWS = 1 << 62
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_extras(
    row: Mapping[str, Any], root: Path, origin: str, *, lists: bool = False
) -> dict[str, Any]:
    """Return the extra columns of a row, by the names of `sources.table.SCHEMA`.

    neg_caption, pos_caption: a text, a list of texts, or such a list as Python text. neg_image: a
    list of row numbers (also as text), or the path of an image below `root`. mirror: true or false,
    yes or no, 1 or 0. group: text or number. score, image_score: numbers. Empty columns are left
    out. lists: neg_caption must be a list. Raises CompoclipError, naming `origin` (file and row).
    """
    found: dict[str, Any] = {}
    for column in EXTRA_COLUMNS:
        cell = as_text(row.get(column))
        if cell is None or cell == "":
            continue
        text = cell.strip() if isinstance(cell, str) else None
        value: Any = None
        name = column
        match column:
            case "neg_caption" | "pos_caption":
                name = "negatives" if column == NEG_CAPTION else "positives"
                if text is None:
                    value = list(map(as_text, cell)) if isinstance(cell, list) else None
                elif (lists and column == NEG_CAPTION) or text[:1] in ("[", "{"):
                    value = text_list(cell) if text else []
                else:
                    value = [cell] if text else []
                if not all(isinstance(each, str) for each in value or ()):
                    value = None
            case "neg_image" if text is not None and not text.startswith("["):
                name = "negative_image"
                value = relative_image(text, root, origin) if text else ""
            case "neg_image":
                name = "neighbours"
                rows: Any = cell
                if text is not None:
                    try:
                        rows = literal_eval(text) if len(text) < 1 << 16 else None
                    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                        rows = None
                if isinstance(rows, list):
                    numbers = all(type(r) is int and 0 <= r < _MOST_ROWS for r in rows)
                    value = rows if numbers else None
            case "group":
                value = str(cell)
            case "mirror":
                value = _FLAGS.get(str(cell).strip().lower())
            case _:
                with suppress(ValueError):
                    value = float(str(cell))
                value = value if value is not None and math.isfinite(value) else None
        if value is None:
            told = f" {shown(cell)}" if column in (MIRROR, SCORE, IMAGE_SCORE) else ""
            raise CompoclipError(f"{origin}: {column}{told} is {_WRONG[column]}; fix the row")
        found[name] = value
    return {name: value for name, value in found.items() if value or type(value) is float}
