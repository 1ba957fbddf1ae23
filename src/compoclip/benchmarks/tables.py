"""Rows of annotation files: one reader of JSON, JSON lines, CSV, Parquet and Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.errors import CompoclipError
from compoclip.tables import delimited_header, read_delimited, read_jsonl, text_list

Row = tuple[Any, str, Any]
"""Key of a row, file and row for messages, and the row."""


def read_annotations(
    path: Path,
    columns: Sequence[str] = (),
    absent: str = "",
    damaged: str = files.OFFICIAL,
    *,
    kind: str = "",
    delimiter: str = "",
) -> Iterator[Row]:
    """Yield the rows of an annotation file.

    The key of a row is its line in JSON lines, its name in a JSON object, else its place from 0.

    Args:
        path: The file.
        columns: Columns that a table must have.
        absent: What to do when the file is absent.
        damaged: What to do about a malformed one.
        kind: Its ending, where the name has another one.
        delimiter: Of the cells of a CSV file, by default as the name says.
    """
    match kind or path.suffix.lower():
        case ".csv" | ".tsv":
            files.require_size(path, absent or files.ABSENT)
            files.require_columns(path, delimited_header(path, delimiter), columns, damaged)
            for number, cells in read_delimited(path, delimiter):
                yield number - 1, f"{path}: row {number}", cells
        case ".arrow" | ".parquet":
            from compoclip.benchmarks.arrow_tables import table_rows  # with pyarrow

            for index, row in enumerate(table_rows(path, columns, damaged)):
                yield index, f"{path}: row {index + 1}", row
        case ".jsonl" | ".jsonlines":
            files.require_size(path, absent or files.ABSENT)
            for line, row in read_jsonl(path, damaged=damaged, halves=False):
                yield line, f"{path}: line {line}", row
        case _:
            yield from json_rows(files.read_json(path, absent, damaged), str(path))


def json_rows(value: Any, location: str) -> Iterator[Row]:
    """Yield the rows of a JSON object or list, as `read_annotations` does."""
    if isinstance(value, dict):
        yield from ((key, f"{location}: row {key!r:.80}", row) for key, row in value.items())
    else:
        for index, row in enumerate(files.items(value, location)):
            yield index, f"{location}: row {index}", row


def texts(row: Mapping[str, str], key: str, location: str) -> tuple[str, ...]:
    """Return the strings of a Python list or set written into a cell, those of a set sorted.

    Nothing is evaluated but literals. Raises CompoclipError for any other cell and blank strings.
    """
    listed = text_list(row[key])
    if listed is None or not all(text.strip() for text in listed):
        raise CompoclipError(
            f"{location}: {key!r} must be a Python list of texts, found {row[key][:40]!r}; "
            f"{files.OFFICIAL}"
        )
    return tuple(listed or ())
