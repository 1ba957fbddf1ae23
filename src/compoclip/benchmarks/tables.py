"""Rows of annotation files: one reader of JSON, JSON lines, CSV, Parquet and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compoclip.benchmarks import files
from compoclip.benchmarks.case import ImageRef
from compoclip.bounds import MAX_ANNOTATION_ROWS, MAX_ANNOTATION_VALUES
from compoclip.errors import require
from compoclip.files import bytes_hash
from compoclip.tables import (
    arrow_table,
    delimited_header,
    holds_bytes,
    opened_parquet,
    read_delimited,
    read_jsonl,
    text_list,
)

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
    content: bytes | None = None,
    name: str = "",
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
        content: Its bytes, of a JSON file in an archive.
        name: What messages call that file.
    """
    match kind or path.suffix.lower():
        case ".csv" | ".tsv":
            files.require_size(path, absent or files.ABSENT)
            _require_columns(path, delimited_header(path, delimiter), columns, damaged)
            for number, cells in read_delimited(path, delimiter):
                yield number - 1, f"{path}: row {number}", cells
        case ".arrow" | ".parquet":
            for index, row in enumerate(table_rows(path, columns, damaged)):
                yield index, f"{path}: row {index + 1}", row
        case ".jsonl" | ".jsonlines":
            files.require_size(path, absent or files.ABSENT)
            for line, row in read_jsonl(path, damaged=damaged, halves=False):
                yield line, f"{path}: line {line}", row
        case _ if content is not None:
            yield from json_rows(files.parse_json(content, name), name)
        case _:
            yield from json_rows(files.read_json(path, absent, damaged), str(path))


def json_rows(value: Any, location: str) -> Iterator[Row]:
    """Yield the rows of a JSON object or list, as `read_annotations` does."""
    if isinstance(value, dict):
        yield from ((key, f"{location}: row {key!r:.80}", row) for key, row in value.items())
    else:
        for index, row in enumerate(files.items(value, location)):
            yield index, f"{location}: row {index}", row


def _require_columns(path: Path, there: Sequence[str], columns: Sequence[str], remedy: str) -> None:
    """Raise CompoclipError when one of `columns` is not `there`."""
    lacking = next((column for column in columns if column not in there), None)
    names = ", ".join(f"{name!r:.40}" for name in there[:40]) or "nothing"
    require(lacking is None, path, f"no column {lacking!r}, only {names}; {remedy}")


@contextmanager
def opened_table(
    path: Path, damaged: str = "fetch it again"
) -> Iterator[tuple[pa.Schema, Callable[..., Iterator[pa.RecordBatch]]]]:
    """Yield the schema of a .parquet or .arrow file, and what gives its rows in batches.

    The latter takes rows at once and columns, "column.bytes" for a field. Texts are still packed as
    they are stored.
    """
    if path.suffix.lower() != ".arrow":
        limits = {"most_rows": MAX_ANNOTATION_ROWS, "most_values": MAX_ANNOTATION_VALUES}
        with opened_parquet(path, damaged, **limits) as parquet:
            yield parquet.schema_arrow, parquet.iter_batches
        return
    table = arrow_table(path, damaged)
    few = table.num_rows <= MAX_ANNOTATION_ROWS
    require(few, path, f"more than {MAX_ANNOTATION_ROWS:,} rows; {damaged}")

    def batches(size: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = [name for name in table.column_names if {name, f"{name}.bytes"} & {*columns}]
        yield from table.select(names).to_batches(max_chunksize=size)

    yield table.schema, batches


def table_rows(
    path: Path, columns: Sequence[str] = (), remedy: str = files.OFFICIAL
) -> list[dict[str, Any]]:
    """Return the rows of a Parquet or Arrow file: texts, numbers, true or false; lists and objects
    of these.

    columns: which there must be. remedy: what to do about a malformed file. A small file may repeat
    a long text in millions of rows, so that few are unpacked at once, and counted.
    """
    rows: list[dict[str, Any]] = []
    size = 0
    with opened_table(path, remedy) as (schema, batches):
        _require_columns(path, schema.names, columns, remedy)
        for batch in batches(16, columns=[field.name for field in schema if _plain(field.type)]):
            unpacked = batch.to_pylist()
            rows += unpacked
            size += len(str(unpacked))
            files.require_small(path, size)
    return rows


def _plain(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_plain(field.type) for field in kind)
    of = pa.types
    return any(test(kind) for test in (of.is_string, of.is_integer, of.is_floating, of.is_boolean))


def pictures(
    path: Path,
    columns: Iterable[str],
    by_hash: dict[str, ImageRef],
    damaged: str = files.OFFICIAL,
    *,
    gaps: bool = False,
) -> dict[str, list[ImageRef | None]]:
    """Return those of some columns that hold pictures (bytes, or a struct with `bytes`), by row.

    Equal pictures are the first that was seen, so that items about one photo are known to be about
    one photo. by_hash: content hash -> picture, added to. damaged: remedy for a malformed file.
    gaps: rows may lack their picture (None). Else raises CompoclipError naming such a row.
    """
    with opened_table(path, damaged) as (schema, _):
        pictured = [name for name in columns if name in schema.names]
        pictured = [name for name in pictured if holds_bytes(schema.field(name).type)]
    return {column: _pictures(path, column, by_hash, gaps) for column in pictured}


def _pictures(
    path: Path, column: str, by_hash: dict[str, ImageRef], gaps: bool
) -> list[ImageRef | None]:
    refs: list[ImageRef | None] = []
    with opened_table(path) as (schema, batches):
        inner = pa.types.is_struct(schema.field(column).type)
        leaf = f"{column}.bytes" if inner else column
        # One at a time: however often a file repeats a picture, memory holds it once.
        for row, batch in enumerate(batches(1, columns=[leaf])):
            values = pc.struct_field(batch.column(0), "bytes") if inner else batch.column(0)
            data = values[0].as_py()
            if gaps and data is None:
                refs.append(None)
                continue
            good = isinstance(data, bytes) and data
            require(good, f"{path}: row {row + 1}", f"{column!r:.60} holds no picture; add it")
            ref = ImageRef(path, member=f"{column}:{row}")
            refs.append(by_hash.setdefault(bytes_hash(data), ref))
    return refs


def texts(row: Mapping[str, str], key: str, location: str) -> tuple[str, ...]:
    """Return the strings of a Python list or set written into a cell, those of a set sorted.

    Nothing is evaluated but literals. Raises CompoclipError for any other cell and blank strings.
    """
    listed = text_list(row[key])
    good = listed is not None and all(text.strip() for text in listed)
    problem = f"{key!r} must be a Python list of texts, found {row[key][:40]!r}; {files.OFFICIAL}"
    require(good, location, problem)
    return tuple(listed or ())
