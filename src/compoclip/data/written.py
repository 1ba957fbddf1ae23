"""Positives and negatives of captions that were written beforehand, from a file beside the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from compoclip.data.columns import require_texts
from compoclip.data.textfiles import read_records
from compoclip.errors import CompoclipError, UsageError

_KINDS = ("positive", "negative")
_TEXTS = pa.large_list(pa.large_string())
_ABSENT = "none"  # what language models answer when there is nothing to write


class WrittenTexts:
    """Written positives and negatives by caption, held compactly."""

    def __init__(self, path: Path) -> None:
        """Read `path`, JSON lines or Parquet, one file or several (see `row_files`): {"caption",
        "positive", "negative"}, or one of the latter two, as `compoclip caption` writes them.

        "positive" and "negative" are a text or a list of texts; "None" and null stand for none.
        Lines of one caption add up, each text once. Raises UsageError when no file is named,
        CompoclipError for one that is malformed.
        """
        if path == Path():
            raise UsageError(
                "this method needs a file of written texts (where it is composed: "
                '--set texts.written=FILE) with lines {"caption": ..., "positive": ...}'
            )
        self.path = path
        self._index: dict[str, int] = {}
        columns: dict[str, list[list[str]]] = {kind: [] for kind in _KINDS}
        for origin, row in read_records(path):
            caption = row.get("caption")
            if not isinstance(caption, str) or not any(kind in row for kind in _KINDS):
                raise CompoclipError(
                    f'{origin}: needs "caption" and "positive" or "negative"; mend it'
                )
            place = self._index.setdefault(caption.strip(), len(self._index))
            for kind, column in columns.items():
                if place == len(column):
                    column.append([])
                texts = _texts(row.get(kind), f"{origin}: {kind!r}")
                column[place] += [text for text in texts if text not in column[place]]
        self._texts = {kind: pa.array(column, _TEXTS) for kind, column in columns.items()}

    def __len__(self) -> int:
        """How many captions the file is about."""
        return len(self._index)

    def find(self, caption: str, *, positive: bool) -> list[str]:
        """The texts written for a caption, in the order of the file."""
        row = self._index.get(caption)
        kind = _KINDS[not positive]
        return [] if row is None else list(self._texts[kind][row].as_py())


def _texts(value: Any, origin: str) -> list[str]:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in texts):
        raise CompoclipError(f"{origin} is neither a text nor a list of texts; mend the line")
    require_texts(texts, origin)
    return [text for text in texts if text.strip().strip(".").lower() != _ABSENT]
