"""Rows of official CSV files: columns checked, cells turned into numbers, flags and lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from compoclip.data.columns import text_list
from compoclip.data.textfiles import delimited_header, read_delimited
from compoclip.errors import CompoclipError

Row = Mapping[str, str]
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def read_rows(path: Path, columns: Sequence[str], remedy: str) -> Iterator[tuple[str, Row]]:
    """(file and row for messages, row) of a CSV file that has all `columns`; rows count from 1.

    `remedy` is added to the message when the file is absent. Raises CompoclipError naming the file
    when it is absent, malformed or lacks a column.
    """
    if not path.is_file():
        raise CompoclipError(f"{path}: no such file; {remedy}")
    header = delimited_header(path)
    for column in columns:
        if column not in header:
            raise CompoclipError(f"{path}: no column {column!r}; is this the official file?")
    for index, row in read_delimited(path):
        yield f"{path}: row {index}", row


def number(row: Row, key: str, where: str) -> float:
    """A finite number cell; else CompoclipError starting with `where`."""
    try:
        value = float(row[key])
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e12:
        raise CompoclipError(f"{where}: {key!r} must be a number, found {row[key][:40]!r}")
    return value


def flag(row: Row, key: str, where: str) -> bool:
    """A cell with True or False (or 1 or 0); else CompoclipError starting with `where`."""
    value = _FLAGS.get(row[key].strip().lower())
    if value is None:
        raise CompoclipError(f"{where}: {key!r} must be True or False, found {row[key][:40]!r}")
    return value


def texts(row: Row, key: str, where: str) -> tuple[str, ...]:
    """The strings of a Python list or set written into a cell, those of a set in sorted order.

    Nothing is evaluated but literals. Raises CompoclipError for any other cell and for blank
    strings.
    """
    found = text_list(row[key])
    if found is None or not all(text.strip() for text in found):
        raise CompoclipError(
            f"{where}: {key!r} must be a Python list of texts, found {row[key][:40]!r}; "
            "fetch the official file again"
        )
    return tuple(found)


def box(row: Row, where: str) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) in pixels from the cells x, y, width and height.

    The box may reach beyond the image. Raises CompoclipError when it has no area.
    """
    x, y, width, height = (number(row, key, where) for key in ("x", "y", "width", "height"))
    if width <= 0 or height <= 0:
        raise CompoclipError(f"{where}: a box {width:g} x {height:g} pixels holds nothing")
    return (x, y, x + width, y + height)
