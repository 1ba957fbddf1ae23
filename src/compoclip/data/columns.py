"""Which columns of a table hold the image and the captions."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from compoclip.errors import CompoclipError, UsageError

IMAGE_COLUMNS = ("filepath", "file_name", "filename", "image", "image_path", "path", "file", "jpg")
CAPTION_COLUMNS = ("title", "caption", "captions", "text", "texts", "sentences", "txt")
# Reasons for leaving captions and samples out.
NO_CAPTION = "sample without a caption"
EMPTY_CAPTION = "empty caption"
NO_TEXT = "caption that is no text"
LONGEST_TEXT = 1 << 16  # characters; models read 77 tokens, the rest only takes memory
LONG_TEXT = f"text of more than {LONGEST_TEXT:,} characters"

_LITERAL_LIMIT = 1 << 20


def pick_columns(
    available: Collection[str], image: str | None, caption: str | None, path: Path
) -> tuple[str, tuple[str, ...]]:
    """The image column and the caption columns.

    caption: one name or several joined by commas. Names not given are guessed from the usual ones.
    Raises UsageError that lists the columns of the file when a name is not among them.
    """
    if image is None:
        image = next((name for name in IMAGE_COLUMNS if name in available), None)
        if image is None:
            raise UsageError(f"{path}: no image column found; name one of: {_names(available)}")
    elif image not in available:
        raise _absent(image, available, path)
    return image, pick_captions(available, caption, path)


def pick_captions(available: Collection[str], caption: str | None, path: Path) -> tuple[str, ...]:
    """The caption columns, as for `pick_columns`."""
    if caption is None:
        caption = next((name for name in CAPTION_COLUMNS if name in available), None)
        if caption is None:
            raise UsageError(f"{path}: no caption column found; name one of: {_names(available)}")
    captions: Sequence[str] = (caption,)
    if caption not in available:  # a column whose own name holds a comma comes first
        captions = [part.strip() for part in caption.split(",")]
    for name in captions:
        if name not in available:
            raise _absent(name, available, path)
    return tuple(captions)


def _absent(name: str, available: Collection[str], path: Path) -> UsageError:
    return UsageError(f"{path}: no column {name!r}; the columns are: {_names(available)}")


def _names(available: Collection[str]) -> str:
    return ", ".join(str(name) for name in available) or "none"


def cell_captions(value: Any) -> list[Any]:
    """What is in the place of captions in one cell: a text, the entries of a list, or those of a
    list of texts written as Python or JSON text; nothing when the value is missing.

    `usable_texts` keeps the captions among them. Bytes are texts where they are UTF-8.
    """
    if isinstance(value, bytes):
        value = as_text(value)
    if isinstance(value, str):
        return text_list(value) or [value]
    if isinstance(value, list):
        return [as_text(item) for item in value]
    missing = value is None or value != value  # tables write NaN for what is missing
    return [] if missing else [value]


def as_text(value: Any) -> Any:
    """Bytes, as some writers store texts, as the text they are; anything else as it is."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def usable_texts(values: Iterable[Any], empty: str, left_out: Counter[str]) -> list[str]:
    """The texts among `values`, stripped; what is no text, blank or too long is counted.

    empty: the reason for blank ones.
    """
    kept = []
    for value in values:
        text = value.strip() if isinstance(value, str) else None
        if text is None:
            left_out[NO_TEXT] += 1
        elif not text:
            left_out[empty] += 1
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
                "surrogate); mend or remove it"
            )


def encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8: JSON and names of files may hold half characters."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def text_list(cell: str) -> list[str] | None:
    """The strings of a list or set literal written as text, None when `cell` is nothing such."""
    cell = cell.strip()
    if len(cell) > _LITERAL_LIMIT or (cell[:1], cell[-1:]) not in (("[", "]"), ("{", "}")):
        return None
    try:
        value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    if isinstance(value, set):
        value = sorted(value, key=str)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None
