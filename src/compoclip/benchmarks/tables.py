"""Rows of CSV, Parquet and Arrow files: columns checked, cells turned into numbers and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compoclip import tables as readers
from compoclip.benchmarks import files
from compoclip.benchmarks.case import ImageRef
from compoclip.bounds import MAX_ANNOTATION_BYTES, MAX_ANNOTATION_ROWS, MAX_ANNOTATION_VALUES
from compoclip.errors import require
from compoclip.files import bytes_hash
from compoclip.tables import arrow_table, delimited_header, holds_bytes, read_delimited, text_list

Row = Mapping[str, str]


def read_rows(
    path: Path,
    columns: Sequence[str],
    remedy: str,
    lacking: str = "is this the official file?",
    delimiter: str = "",
) -> Iterator[tuple[str, Row]]:
    """Yield (file and row for messages, row) of a CSV file that has all `columns`; rows from 1.

    remedy: what to do when the file is absent; lacking: when it lacks a column. delimiter: of the
    cells, by default as the name says.
    """
    files.require_size(path, remedy)
    require_columns(path, delimited_header(path, delimiter), columns, lacking)
    for index, row in read_delimited(path, delimiter):
        yield f"{path}: row {index}", row


def require_columns(path: Path, there: Sequence[str], columns: Sequence[str], remedy: str) -> None:
    """Raise CompoclipError when one of `columns` is not `there`."""
    lacking = next((each for each in columns if each not in there), None)
    problem = f"no column {lacking!r}, only {column_names(there)}; {remedy}"
    require(lacking is None, path, problem)


def column_names(there: Sequence[str]) -> str:
    """Return the columns of a table, for messages."""
    return ", ".join(f"{name!r:.40}" for name in there[:40]) or "nothing"


opened_parquet = partial(
    readers.opened_parquet, most_rows=MAX_ANNOTATION_ROWS, most_values=MAX_ANNOTATION_VALUES
)
"""Open a Parquet file (and say what to do when it is not whole), texts still packed as stored."""


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
    few = table.num_rows <= MAX_ANNOTATION_ROWS
    require(few, path, f"more than {MAX_ANNOTATION_ROWS:,} rows; {damaged}")

    def batches(size: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = [each for each in table.column_names if {each, f"{each}.bytes"} & {*columns}]
        yield from table.select(names).to_batches(max_chunksize=size)

    yield table.schema, batches


def table_rows(
    path: Path, columns: Sequence[str] = (), remedy: str = files.OFFICIAL
) -> list[dict[str, Any]]:
    """Return the rows of a Parquet or Arrow file: texts, numbers, true or false; lists and objects
    of these.

    columns: which there must be. remedy: what to do about a malformed file. A small file may repeat
    a long text in millions of rows, so that texts are counted before they are unpacked.
    """
    rows: list[dict[str, Any]] = []
    left = MAX_ANNOTATION_BYTES
    with opened_table(path, remedy) as (schema, batches):
        require_columns(path, schema.names, columns, remedy)
        for batch in batches(1024, columns=[each.name for each in schema if _plain(each.type)]):
            left -= sum(map(_text_bytes, batch.columns))
            files.require_small(path, MAX_ANNOTATION_BYTES - left)
            rows += batch.to_pylist()
    return rows


def _plain(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_plain(field.type) for field in kind)
    of = pa.types
    return any(each(kind) for each in (of.is_string, of.is_integer, of.is_floating, of.is_boolean))


def _text_bytes(values: pa.Array) -> int:
    """Return the bytes of all texts; one that is stored once counts in each of its rows."""
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _text_bytes(values.flatten())
    if pa.types.is_struct(kind):
        return sum(map(_text_bytes, values.flatten()))
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
    """Return the pictures of a column, row by row; equal ones are the first that was seen.

    So items about one photo are known to be about one photo. seen: content hash -> picture, added
    to. Raises CompoclipError naming the row without a picture.
    """
    found = []
    with opened_table(path) as (schema, batches):
        inner = pa.types.is_struct(schema.field(column).type)
        leaf = f"{column}.bytes" if inner else column
        # One at a time: however often a file repeats a picture, memory holds it once.
        for row, batch in enumerate(batches(1, columns=[leaf])):
            values = pc.struct_field(batch.column(0), "bytes") if inner else batch.column(0)
            data = values[0].as_py()
            good = isinstance(data, bytes) and data
            require(good, f"{path}: row {row + 1}", f"{column!r:.60} holds no picture; add it")
            ref = ImageRef(path, member=f"{column}:{row}")
            found.append(seen.setdefault(bytes_hash(data), ref))
    return found


def texts(row: Row, key: str, where: str) -> tuple[str, ...]:
    """Return the strings of a Python list or set written into a cell, those of a set sorted.

    Nothing is evaluated but literals. Raises CompoclipError for any other cell and blank strings.
    """
    found = text_list(row[key])
    good = found is not None and all(text.strip() for text in found)
    problem = f"{key!r} must be a Python list of texts, found {row[key][:40]!r}; {files.OFFICIAL}"
    require(good, where, problem)
    return tuple(found or ())
