"""Rows and pictures of annotation files in Parquet and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compoclip.arrow_files import arrow_table, holds_bytes, holds_lists, holds_text, opened_parquet
from compoclip.benchmarks import files
from compoclip.benchmarks.case import ImageRef
from compoclip.bounds import MAX_ANNOTATION_ROWS, MAX_ANNOTATION_VALUES
from compoclip.errors import CompoclipError
from compoclip.files import bytes_hash
from compoclip.patterns import has_ending


@contextmanager
def opened_table(
    path: Path, damaged: str = "fetch it again"
) -> Iterator[tuple[pa.Schema, Callable[..., Iterator[pa.RecordBatch]]]]:
    """Yield the schema of a .parquet or .arrow file, and what gives its rows in batches.

    The latter takes rows at once and columns, "column.bytes" for a field. Texts are still packed as
    they are stored.
    """
    if not has_ending(path, ".arrow"):
        limits = {"most_rows": MAX_ANNOTATION_ROWS, "most_values": MAX_ANNOTATION_VALUES}
        with opened_parquet(path, damaged, **limits) as parquet:
            yield parquet.schema_arrow, parquet.iter_batches
        return
    table = arrow_table(path, damaged)
    if table.num_rows > MAX_ANNOTATION_ROWS:
        raise CompoclipError(f"{path}: more than {MAX_ANNOTATION_ROWS:,} rows; {damaged}")

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
        files.require_columns(path, schema.names, columns, remedy)
        for name, kind in ((field.name, field.type) for field in schema):
            read = _plain(kind) or holds_bytes(kind) or pa.types.is_nested(kind)
            if name in columns and not read:
                raise CompoclipError(
                    f"{path}: column {name!r:.40} holds {kind}, no texts or numbers; {remedy}"
                )
        for batch in batches(16, columns=[field.name for field in schema if _plain(field.type)]):
            unpacked = batch.to_pylist()
            rows += unpacked
            size += len(str(unpacked))
            files.require_small(path, size)
    return rows


def _plain(kind: pa.DataType) -> bool:
    of = pa.types
    if holds_lists(kind) or of.is_dictionary(kind):
        return _plain(kind.value_type)
    if of.is_struct(kind):
        return all(_plain(field.type) for field in kind)
    text = holds_text(kind) and not holds_bytes(kind)
    return text or any(test(kind) for test in (of.is_integer, of.is_floating, of.is_boolean))


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
    by_column: dict[str, list[ImageRef | None]] = {}
    with opened_table(path, damaged) as (schema, batches):
        pictured = [name for name in columns if name in schema.names]
        for column in (name for name in pictured if holds_bytes(schema.field(name).type)):
            refs = by_column[column] = []
            inner = pa.types.is_struct(schema.field(column).type)
            leaf = f"{column}.bytes" if inner else column
            # One at a time: however often a file repeats a picture, memory holds it once.
            for row, batch in enumerate(batches(1, columns=[leaf])):
                values = pc.struct_field(batch.column(0), "bytes") if inner else batch.column(0)
                data = values[0].as_py()
                if gaps and data is None:
                    refs.append(None)
                    continue
                if not isinstance(data, bytes) or not data:
                    raise CompoclipError(
                        f"{path}: row {row + 1}: {column!r:.60} holds no picture; add it"
                    )
                ref = ImageRef(path, member=f"{column}:{row}")
                refs.append(by_hash.setdefault(bytes_hash(data), ref))
    return by_column
