"""Captions with ids from the files `compoclip rewrite` takes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compoclip.data.textfiles import read_delimited, read_jsonl, read_lines
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import unreadable

SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv")
DEFAULT_COLUMN = "caption"
_ID_COLUMN = "id"


@dataclass(frozen=True)
class CaptionFile:
    """(id, caption) pairs of a .txt (one a line), .jsonl, .csv or .tsv file; iterable repeatedly.

    Ids are the "id" column where there is one, else the number of the line (.txt, .jsonl) or row
    (tables), from 1. Iterating raises CompoclipError that names file and line for a bad row, and
    UsageError that lists the columns when `column` is not among them.
    """

    path: Path
    column: str = DEFAULT_COLUMN

    def __iter__(self) -> Iterator[tuple[str, str]]:
        if self.path.suffix.lower() == ".txt":
            yield from ((str(number), line) for number, line in read_lines(self.path))
            return
        jsonl = self.path.suffix.lower() == ".jsonl"
        for number, row in read_jsonl(self.path) if jsonl else read_delimited(self.path):
            if self.column not in row:
                names = ", ".join(row)
                raise UsageError(f"{self.path}: no column {self.column!r}; choose one of: {names}")
            yield str(row.get(_ID_COLUMN, number)), self._text(row[self.column], number)

    def _text(self, value: Any, number: int) -> str:
        if not isinstance(value, str):
            noun = "line" if self.path.suffix.lower() == ".jsonl" else "row"
            raise CompoclipError(
                f"{self.path}, {noun} {number}: {self.column!r} is no text; mend it"
            )
        return value

    def identity(self) -> dict[str, str]:
        """What tells these captions from others: digest of the file, format and column."""
        digest = hashlib.blake2b(digest_size=16)
        try:
            with self.path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise unreadable(self.path, error) from None
        text = self.path.suffix.lower() == ".txt"
        return {
            "blake2b": digest.hexdigest(),
            "format": self.path.suffix.lower()[1:],
            "column": "" if text else self.column,
        }


def caption_file(source: str, column: str) -> CaptionFile | None:
    """The file that `source` names, or None when it is a caption itself.

    An existing file, or a name with one of the known endings, is a file. Raises CompoclipError when
    it is missing and UsageError for a file of an unknown kind.
    """
    if not source.strip():
        return None
    try:
        path = Path(source)
        exists = path.exists()
    except (OSError, ValueError):  # too long or with odd bytes: surely a caption
        return None
    known = path.suffix.lower() in SUFFIXES
    named = known and not any(c.isspace() for c in source)
    if not exists and not named:
        return None
    if not exists:
        raise CompoclipError(f"{source}: no such file; check the path")
    if not path.is_file() or not known:
        raise UsageError(f"{source}: not one of the kinds {', '.join(SUFFIXES)}; convert it")
    return CaptionFile(path, column)
