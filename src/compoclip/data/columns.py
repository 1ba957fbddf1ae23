"""Which columns of a table hold the image and the captions."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from compoclip.errors import UsageError

IMAGE_COLUMNS = ("filepath", "file_name", "filename", "image", "image_path", "path", "file", "jpg")
CAPTION_COLUMNS = ("title", "caption", "captions", "text", "texts", "sentences", "txt")
# Reasons for leaving captions and samples out.
NO_CAPTION = "sample without a caption"
EMPTY_CAPTION = "empty caption"

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


def cell_captions(value: Any) -> list[str]:
    """The captions of one cell: a text, a list of texts, or a list written as Python or JSON text.

    Anything else (missing values, numbers) is no caption.
    """
    if isinstance(value, str):
        return text_list(value) or [value]
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str)]
    return []


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
