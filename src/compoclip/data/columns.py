"""The columns of a row: its image, its captions, and columns for some methods."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from compoclip.bounds import MAX_TEXT_CHARACTERS
from compoclip.data.options import Needs
from compoclip.data.split_names import COLUMN
from compoclip.errors import CompoclipError, UsageError, names_listed, quoted, require, typed_repr
from compoclip.files import encodable, parse_json
from compoclip.patterns import has_ending
from compoclip.tables import literal, text_list


def relative_image(image: str, root: Path, origin: str, *, absolute: bool) -> str:
    """Return the image's path relative to `root`, refusing whatever leads out of it.

    Relative names may not climb above the root, absolute ones must lie in it. Links inside the
    root may point anywhere: whoever made the folder put them there. Backslashes, as Windows writes
    them, separate folders where the file then exists. absolute: whether absolute paths may lie
    anywhere, and stay as they are. Raises CompoclipError naming `origin` (file and row) otherwise,
    or when the name is a URL, or a picture in base64.
    """
    from compoclip.data.image_names import is_encoded  # looks for Pillow; --help must not

    if "://" in image:
        raise CompoclipError(f"{origin}: {quoted(image)} is a URL; download the images first")
    if is_encoded(image) and not os.path.exists(os.path.join(root, image)):
        raise CompoclipError(
            f"{origin}: {quoted(image)} looks like a picture in base64, not a path; write the "
            "pictures as files, or as bytes into Parquet or tar shards"
        )
    if "\0" in image:
        raise CompoclipError(
            f"{origin}: the image path {quoted(image)} is not usable; fix the file"
        )
    normal = os.path.normpath(image)
    if "\\" in normal and not os.path.exists(os.path.join(root, normal)):
        slashed = os.path.normpath(image.replace("\\", "/"))
        normal = slashed if os.path.exists(os.path.join(root, slashed)) else normal
    inside = os.path.relpath(normal, os.path.abspath(root)) if os.path.isabs(normal) else normal
    if inside.split(os.sep)[0] != "..":
        return inside
    if absolute and os.path.isabs(normal):
        return normal
    remedy = "pass --images with the folder that holds the images"
    if not os.path.isabs(normal):  # below no folder, whatever its name
        remedy = "write its path below the folder of the images, and pass that with --images"
    raise CompoclipError(f"{origin}: image {quoted(image)} lies outside {root}; {remedy}")


# --- Which columns of a table hold the image and the captions. ---

IMAGE_COLUMNS = (
    *("filepath", "file_name", "filename", "image", "image_path", "image_name", "path", "file"),
    "jpg",
)
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "cls", "target")
UNIT_CAPTION = "original_caption"  # in CS-CLIP's training data
CAPTION_COLUMNS = (
    *("title", "caption", "captions", "text", "texts", "sentences", "txt", "comment"),
    *("description", "alt", "alt_text", "conversations", "messages"),
)


def pick_columns(
    available: Collection[str],
    image: str | None,
    caption: str | None,
    path: object,
    needs: Needs = "captions",
    kinds: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[str, tuple[str, ...]]:
    """Return the image column and the caption columns.

    caption: one name or several joined by commas. Names not given are guessed from the usual ones,
    a column of encoded images before one of paths; captions may be absent where there are labels,
    or where samples need none. kinds: the Arrow types of the columns, where the table states them.
    Raises UsageError that lists the columns of the file when a name is not among them.
    """
    encoded: list[str] = []
    if kinds:
        from compoclip.arrow_files import holds_bytes  # with pyarrow, which texts do not need

        encoded = [name for name in available if name in kinds and holds_bytes(kinds[name])]
    image = image or usual_column(IMAGE_COLUMNS, encoded)
    image = _column(image, IMAGE_COLUMNS, available, "image", path)
    optional = needs != "captions" or usual_column(LABEL_COLUMNS, available) is not None
    if optional and caption is None and usual_column(CAPTION_COLUMNS, available) is None:
        return image, ()
    return image, pick_captions(available, caption, path)


def read_label(cell: Any, classes: Sequence[str] = ()) -> str:
    """Return the label in a cell as text, "" for none; several numbers are joined by commas.

    A number below 0 is none: so hubs store splits without public labels. 1.0 is the number 1: so
    columns of numbers are stored that have empty cells. classes: the names of the numbers, where
    the data state them, each once.
    """
    cell = cell[0] if isinstance(cell, list) and len(cell) == 1 else as_text(cell)
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    elif isinstance(cell, str) and _WHOLE_FLOAT.fullmatch(cell.strip()):
        cell = cell.strip().partition(".")[0]
    if isinstance(cell, list) and all(type(number) is int and number >= 0 for number in cell):
        return ",".join(map(str, sorted({*cell})))
    if isinstance(cell, bool):
        cell = str(cell)
    if isinstance(cell, int):
        name = classes[cell] if 0 <= cell < len(classes) else ""
        cell = name.strip() or str(cell)  # a number without a name is asked for one, not left out
    if not isinstance(cell, str) or is_empty(cell) or _BELOW_0.fullmatch(cell.strip()):
        return ""
    return cell.strip()


def read_split(cell: Any, origin: str, names: Sequence[str] = ()) -> str:
    """Return the split that a cell names, "" for none, as `read_label` reads it.

    Raises CompoclipError, naming `origin` (file and row), for a list of several and an object.
    """
    split = read_label(cell, names)
    if not split and isinstance(cell, list | dict) and cell:
        raise CompoclipError(
            f"{origin}: split {typed_repr(cell)} is no name of a split; fix the row"
        )
    return split


_BELOW_0 = re.compile("-[0-9]+")
_WHOLE_FLOAT = re.compile(r"-?[0-9]{1,6}\.0")


def distinct_names(classes: Sequence[str]) -> Sequence[str]:
    """Return the names of classes; () where two classes share one, so that numbers stay labels."""
    return classes if len({*classes}) == len(classes) else ()


def class_names(schema: Any, label: str) -> tuple[str, ...]:
    """Return the names that the metadata of a hub's table give the labels, () without any."""
    try:
        feature = parse_json(schema.metadata[b"huggingface"].decode())["info"]["features"][label]
        while "names" not in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"]
    except (KeyError, TypeError, ValueError, IndexError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def pick_captions(available: Collection[str], caption: str | None, path: object) -> tuple[str, ...]:
    """Return the caption columns, as for `pick_columns`."""
    names: list[str | None] = [caption]
    if caption is not None and caption not in available:  # names may hold commas
        names = [part.strip() for part in caption.split(",")]
    return tuple(_column(name, CAPTION_COLUMNS, available, "caption", path) for name in names)


def usual_column(usual: Iterable[str], available: Iterable[str]) -> str | None:
    """Return the first column that has one of the usual names, ignoring case."""
    names = {name.strip().lower(): name for name in reversed([*available])}
    return next((names[name] for name in usual if name in names), None)


def column_named(name: str, available: Collection[str]) -> str | None:
    """Return the column of this name or, without one, the first that has it in other capitals."""
    return name if name in available else usual_column([name], available)


@lru_cache(256)
def usual_names(
    columns: tuple[str, ...],
    names: tuple[str, ...],
    renamed: tuple[tuple[str, str], ...] = (),
) -> Mapping[str, str]:
    """Return the name of each column that has one of these names in other capitals.

    renamed: (name, what a published table calls it) of names that are other words there.
    """
    words = {name: name for name in names} | dict(renamed)
    usual = {column_named(word, columns): name for name, word in words.items()}
    different = {column: name for column, name in usual.items() if column and column != name}
    return MappingProxyType(different)


def _column(
    name: str | None, usual: Iterable[str], available: Collection[str], kind: str, path: object
) -> str:
    """The column of this name, or the first of a usual name."""
    require(available, path, "has no columns; name a file with a header and rows", UsageError)
    columns = names_listed(available)
    if name is None:
        name = usual_column(usual, available)
        problem = f"no {kind} column found; name it with --{kind}-column, one of: {columns}"
        if has_ending(Path(str(path)), ".csv", ".tsv"):
            problem = _no_header(available) or problem
    else:
        problem = f"no column {name!r}; the columns are: {columns}"
    require(name in available, path, problem, UsageError)
    return str(name)


def _no_header(available: Iterable[str]) -> str:
    """Return what to say of columns that are called by the cells of a first row; "" of others."""
    from compoclip.data.image_names import is_encoded, is_read  # looks for Pillow

    cell = next((name for name in available if is_read(name) or is_encoded(name)), None)
    if cell is None:
        return ""
    problem = f"has no header, its first line holds {quoted(cell)}"
    return f"{problem}; write a line image,caption above it"


# --- Captions. ---

# Reasons for leaving captions and samples out.
NO_CAPTION = "sample without a caption"
NO_LABEL = "sample without a label"
NO_IMAGE = "sample without an image"
NO_ORIGINAL = "edit whose original is not there"
SAMPLE_REASONS = (NO_IMAGE, NO_CAPTION, NO_LABEL, NO_ORIGINAL)
"""Reasons that a whole sample is left out for; other reasons concern one of its texts or files."""
EMPTY_CAPTION = "empty caption"
NO_TEXT = "caption that is no text"
_EMPTY_WORDS = frozenset(("nan", "none", "null", "<na>"))  # what programs write of an empty cell
EMPTY_CELL = "text that is the word for an empty cell (nan, none, null)"
LONG_TEXT = f"text of more than {MAX_TEXT_CHARACTERS:,} characters"


def is_empty(cell: Any) -> bool:
    """Return whether a cell holds nothing: null, NaN, blanks, or a program's word for it."""
    if isinstance(cell, str):
        return not cell.strip() or cell.strip().lower() in _EMPTY_WORDS
    return cell is None or bool(cell != cell)


def cell_captions(value: Any) -> list[Any]:
    """Return the caption values of one cell, to be filtered by `usable_texts`.

    A cell holds a text (or UTF-8 bytes), a list, a list of texts written as Python or JSON text,
    the turns of a conversation, of which the answers are captions, or nothing.
    """
    value = as_text(value)
    if isinstance(value, str):
        return text_list(value) or [value]
    if isinstance(value, list):
        if value and all(isinstance(turn, dict) for turn in value):
            return [text for turn in value for text in _answer(turn)]
        return [as_text(item) for item in value]
    return [] if is_empty(value) else [value]


# Who speaks, and what is said, in LLaVA's conversations and in chat messages.
_TURNS = (("from", "value", "gpt"), ("role", "content", "assistant"))


def _answer(turn: Mapping[str, Any]) -> list[Any]:
    """The text of a turn of a conversation, if it answers; an object of another form as it is."""
    for speaker, said, answering in _TURNS:
        if speaker in turn and said in turn:
            return [turn[said]] if turn[speaker] == answering else []
    return [turn]


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
    usable = []
    for value in values:
        text = value.strip() if isinstance(value, str) else None
        if text is None:
            left_out[NO_TEXT] += 1
        elif is_empty(text):
            left_out[EMPTY_CELL if text else empty] += 1
        elif len(text) > MAX_TEXT_CHARACTERS:
            left_out[LONG_TEXT] += 1
        else:
            usable.append(text)
    return usable


def row_captions(values: Iterable[Any], left_out: Counter[str]) -> tuple[str, ...]:
    """Return the usable captions of a row, stripped; count other values, and a row without any."""
    captions = tuple(usable_texts(values, EMPTY_CAPTION, left_out))
    if not captions:
        left_out[NO_CAPTION] += 1
    return captions


def row_id(row: Mapping[str, Any], number: str) -> str:
    """Return the id of a row: its column "id", or its number if it has none or an empty one."""
    id = row.get("id")
    return number if is_empty(id) else str(id)


def caption_id(row: str, number: int) -> str:
    """Return the id of a caption, which seeds its rewrites: the row's, numbered from the second."""
    return f"{row}#{number}" if number else row


def require_texts(texts: Iterable[str], origin: str) -> None:
    """Raise CompoclipError that starts with `origin` for a text that cannot be stored."""
    for text in texts:
        if len(text) > MAX_TEXT_CHARACTERS:
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
_FLAGS = {
    **dict.fromkeys(("true", "yes", "1", "1.0"), True),
    **dict.fromkeys(("false", "no", "0", "0.0"), False),
}
"""Words for yes and no. pandas writes 1.0 for the whole numbers of a column with gaps."""


def read_flag(cell: Any) -> bool | None:
    """Return what true, yes, 1 and their opposites say, also as text; None for other cells."""
    return _FLAGS.get(str(cell).strip().lower())


def _texts(cell: Any, lists: bool = False) -> list[str] | None:
    if isinstance(cell, str):
        return text_list(cell) if lists or cell.strip()[0] in "[{" else [cell]
    texts = list(map(as_text, cell)) if isinstance(cell, list) else None
    return texts if all(isinstance(text, str) for text in texts or ()) else None


def _rows(cell: Any) -> list[int] | None:
    if isinstance(cell, str):
        cell = literal(cell, 1 << 16)
    good = isinstance(cell, list) and all(type(r) is int and 0 <= r < 1 << 62 for r in cell)
    return cell if good else None


def _score(cell: Any) -> float | None:
    with suppress(ValueError):
        if math.isfinite(value := float(str(cell))):
            return value
    return None


# Column -> the name in `sources.SCHEMA`, what reads a cell, and what a bad one is not.
_EXTRAS: Mapping[str, tuple[str, Callable[[Any], Any], str]] = {
    NEG_CAPTION: ("negatives", _texts, "not a list of texts"),
    POS_CAPTION: ("positives", _texts, "not a list of texts"),
    NEG_IMAGE: ("neighbours", _rows, "neither a list of row numbers nor an image path"),
    MIRROR: (MIRROR, read_flag, "neither true nor false"),
    GROUP: (GROUP, str, ""),
    SCORE: (SCORE, _score, "not a number"),
    IMAGE_SCORE: (IMAGE_SCORE, _score, "not a number"),
}
EXTRA_COLUMNS = {column: name for column, (name, _, _) in _EXTRAS.items()}
"""The extra columns, and what `sources.SCHEMA` calls them."""
EXTRA_NAMES = (*EXTRA_COLUMNS, COLUMN)
"""The columns of a table that are read besides images, captions and labels."""


def read_extras(
    row: Mapping[str, Any],
    origin: str,
    path_of: Callable[[Any, str], str | None],
    *,
    lists: bool = False,
) -> dict[str, Any]:
    """Return the extra columns of a row, by the names of `sources.SCHEMA`; empty ones are left out.

    neg_caption, pos_caption: a text, a list of texts, or such a list as Python text. neg_image: a
    list of row numbers (also as text), or the path of an image. mirror: true or false, yes or no,
    1 or 0. group: text or number. score, image_score: numbers. path_of: `RowBuilder.path_of`.
    lists: neg_caption must be a list. Raises CompoclipError, naming `origin` (file and row).
    """
    extras: dict[str, Any] = {}
    for column, (name, read, complaint) in _EXTRAS.items():
        cell = as_text(row.get(column))
        if is_empty(cell):
            continue
        value: Any
        if column == NEG_IMAGE and isinstance(cell, str) and not cell.strip().startswith("["):
            name, value = "negative_image", path_of(cell.strip(), origin)
        else:
            value = _texts(cell, lists) if column == NEG_CAPTION else read(cell)
        if value is None:
            raise CompoclipError(
                f"{origin}: {column} {typed_repr(cell)} is {complaint}; fix the row"
            )
        if value or type(value) is float:
            extras[name] = value
    return extras
