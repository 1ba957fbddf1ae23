"""Rows of CSV, Parquet and Arrow files: columns checked, cells turned into numbers and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compoclip import tables as readers
from compoclip.benchmarks import files
from compoclip.benchmarks.case import ImageRef
from compoclip.errors import CompoclipError
from compoclip.tables import arrow_table, delimited_header, holds_bytes, read_delimited, text_list

MOST_ROWS = 1 << 21
"""Rows that a table of a benchmark may have: two million, five times the largest one's."""
_MOST_VALUES = 1 << 24  # of a column whose cells are lists

Row = Mapping[str, str]
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def read_rows(
    path: Path,
    columns: Sequence[str],
    remedy: str,
    lacking: str = "is this the official file?",
    delimiter: str = "",
) -> Iterator[tuple[str, Row]]:
    """(file and row for messages, row) of a CSV file that has all `columns`; rows count from 1.

    remedy: what to do when the file is absent; lacking: when it lacks a column. delimiter: of the
    cells, by default as the name says. Raises CompoclipError naming the file when it is absent,
    malformed, larger than `files.MOST_BYTES`, lacks a column or has one twice.
    """
    files.require_size(path, remedy)
    require_columns(path, delimited_header(path, delimiter), columns, lacking)
    for index, row in read_delimited(path, delimiter):
        yield f"{path}: row {index}", row


def require_columns(path: Path, there: Sequence[str], columns: Sequence[str], remedy: str) -> None:
    """Raise CompoclipError when one of `columns` is not `there`."""
    for column in columns:
        if column not in there:
            raise CompoclipError(
                f"{path}: no column {column!r}, only {column_names(there)}; {remedy}"
            )


def column_names(there: Sequence[str]) -> str:
    """The columns of a table, for messages."""
    return ", ".join(f"{name!r:.40}" for name in there[:40]) or "nothing"


def opened_parquet(
    path: Path, damaged: str = "fetch it again"
) -> AbstractContextManager[pq.ParquetFile]:
    """Open a Parquet file of at most MOST_ROWS, texts still packed as stored.

    damaged: what to do when it is not whole. Raises CompoclipError naming the file, also for what
    goes wrong while it is read.
    """
    return readers.opened_parquet(path, damaged, most_rows=MOST_ROWS, most_values=_MOST_VALUES)


@contextmanager
def opened_table(
    path: Path, damaged: str = "fetch it again"
) -> Iterator[tuple[pa.Schema, Callable[..., Iterator[pa.RecordBatch]]]]:
    """Yield the schema of a .parquet or .arrow file, and what gives its rows in batches.

    The latter takes rows at once and columns, "column.bytes" for a field. See `opened_parquet`.
    """
    if path.suffix.lower() != ".arrow":
        with opened_parquet(path, damaged) as parquet:
            yield parquet.schema_arrow, parquet.iter_batches
        return
    table = arrow_table(path, damaged)
    if table.num_rows > MOST_ROWS:
        raise CompoclipError(f"{path}: more than {MOST_ROWS:,} rows; {damaged}")

    def batches(size: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = [each for each in table.column_names if {each, f"{each}.bytes"} & {*columns}]
        yield from table.select(names).to_batches(max_chunksize=size)

    yield table.schema, batches


def table_rows(
    path: Path, columns: Sequence[str] = (), remedy: str = files.OFFICIAL
) -> list[dict[str, Any]]:
    """Return the rows of a Parquet or Arrow file: texts, lists of texts, numbers, true or false.

    columns: which there must be; all that hold such values are read. remedy: what to do about a
    malformed file. Raises CompoclipError naming the file when it is absent or malformed, lacks a
    column, has one twice, or holds more than `files.MOST_BYTES` of text. A small file may repeat a
    long text in millions of rows, so that texts are counted before they are unpacked.
    """
    rows: list[dict[str, Any]] = []
    left = files.MOST_BYTES
    with opened_table(path, remedy) as (schema, batches):
        require_columns(path, schema.names, columns, remedy)
        for batch in batches(1024, columns=[each.name for each in schema if _plain(each.type)]):
            left -= sum(map(_text_bytes, batch.columns))
            if left < 0:
                raise files.too_large(path)
            rows += batch.to_pylist()
    return rows


def _plain(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    of = pa.types
    return any(each(kind) for each in (of.is_string, of.is_integer, of.is_floating, of.is_boolean))


def _text_bytes(values: pa.Array) -> int:
    """Bytes of all texts, those that are stored once but stand in many rows counted in each."""
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _text_bytes(values.flatten())
    if pa.types.is_dictionary(kind):
        sizes = pc.binary_length(values.dictionary).take(values.indices)
    elif pa.types.is_string(kind):  # of an Arrow file, where nothing is packed
        sizes = pc.binary_length(values)
    else:
        return 0
    return int(pc.sum(sizes).as_py() or 0)


def picture_columns(path: Path, remedy: str = files.OFFICIAL) -> tuple[str, ...]:
    """Return the columns that hold encoded pictures: bytes, or a struct with `bytes`."""
    with opened_table(path, remedy) as (schema, _):
        return tuple(each.name for each in schema if holds_bytes(each.type))


def pictures(path: Path, column: str, seen: dict[str, ImageRef]) -> list[ImageRef]:
    """The pictures of a column, row by row; equal ones are one picture, the first that was seen.

    So items about one photo are known to be about one photo. seen: content hash -> picture, added
    to. Raises CompoclipError naming the file, and the row without a picture.
    """
    found = []
    with opened_table(path) as (schema, batches):
        inner = pa.types.is_struct(schema.field(column).type)
        leaf = f"{column}.bytes" if inner else column
        # One at a time: however often a file repeats a picture, memory holds it once.
        for row, batch in enumerate(batches(1, columns=[leaf])):
            values = pc.struct_field(batch.column(0), "bytes") if inner else batch.column(0)
            data = values[0].as_py()
            if not isinstance(data, bytes) or not data:
                raise CompoclipError(
                    f"{path}: row {row + 1}: {column!r:.60} holds no picture; add it"
                )
            ref = ImageRef(path, member=f"{column}:{row}")
            found.append(seen.setdefault(files.bytes_hash(data), ref))
    return found


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
