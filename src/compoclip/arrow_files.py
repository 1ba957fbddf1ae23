"""Parquet and Arrow files: opened with clear errors, and what kinds of column they have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compoclip.bounds import MAX_UNPACKED_RATIO
from compoclip.errors import CompoclipError, UsageError
from compoclip.tables import FETCH_AGAIN, not_whole, require_honest_size, require_one_of_each

PARQUET_BATCH = 8192


@contextmanager
def opened_parquet(
    path: Path,
    damaged: str = FETCH_AGAIN,
    *,
    most_rows: int | None = None,
    most_values: int | None = None,
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file to read from.

    Args:
        path: The file.
        damaged: The remedy when it is not whole.
        most_rows: Rows that it may have. Given, texts stay packed as they are stored, and little is
            read ahead: by default all pictures of a table would be in memory at once.
        most_values: Values that a column may have whose cells are lists.

    Raises:
        CompoclipError: When it is missing or damaged, also while it is read, unpacks to far more
            than its size, has more rows or values, or two columns of one name.
    """
    try:
        footer = pq.read_metadata(path)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        options: dict[str, Any] = {}
        if most_rows is not None:
            leaves = range(footer.num_columns)
            values = (sum(group.column(leaf).num_values for group in groups) for leaf in leaves)
            limit = most_values or most_rows
            if not (footer.num_rows <= most_rows and max(values, default=0) <= limit):
                raise CompoclipError(
                    f"{path}: more than the {most_rows:,} rows or {limit:,} values that such a "
                    "table may have; split it"
                )
            texts = (footer.schema.column(leaf) for leaf in leaves)
            packed = [column.path for column in texts if column.logical_type.type == "STRING"]
            options = {"read_dictionary": packed, "pre_buffer": False, "buffer_size": 1 << 20}
        with pq.ParquetFile(path, metadata=footer, **options) as parquet:
            require_one_of_each(parquet.schema_arrow.names, path)
            size = path.stat().st_size
            require_honest_size(path, size, sum(group.total_byte_size for group in groups))
            # Repeated values take next to no bytes, rows that name images at least one.
            if most_rows is None:
                require_honest_size(path, size, MAX_UNPACKED_RATIO * footer.num_rows)
            yield parquet
    except UnicodeDecodeError as error:
        raise CompoclipError(
            f"{path}: holds text that is not UTF-8 ({error.reason}); convert the file"
        ) from None
    except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
        raise not_whole(path, "Parquet", error, damaged) from error


def arrow_table(path: Path, damaged: str = FETCH_AGAIN) -> pa.Table:
    """Return the rows of an Arrow file, of either of its two layouts, without copying them.

    It is a stream, as the datasets library saves it, or has a footer, and is checked in full: a
    damaged one would be read beyond its end. damaged: the remedy when it is not whole.
    """
    try:
        mapped = pa.memory_map(str(path))
        footer = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        reader = pa.ipc.open_file(mapped) if footer else pa.ipc.open_stream(mapped)
        numbers = range(reader.num_record_batches) if footer else ()
        batches, unpacked = [], 0
        for batch in map(reader.get_batch, numbers) if footer else reader:
            unpacked += batch.nbytes
            if unpacked > MAX_UNPACKED_RATIO * path.stat().st_size:
                raise CompoclipError(f"{path}: unpacks to far more than its size; {damaged}")
            batches.append(batch)
        table = pa.Table.from_batches(batches, schema=reader.schema)
        table.validate(full=True)
        require_one_of_each(table.column_names, path)
        return table
    except (OSError, pa.ArrowException, ValueError) as error:
        raise not_whole(path, "Arrow", error, damaged) from error


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a column has encoded images: bytes, or a struct with a field `bytes`."""
    if pa.types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and holds_bytes(kind.field(index).type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def has_image(images: pa.Array) -> pa.Array:
    """Return for each cell of a column as in `holds_bytes` whether it has bytes, or a path."""
    if not pa.types.is_struct(images.type):
        length = images.dictionary_decode() if pa.types.is_dictionary(images.type) else images
        return pc.fill_null(pc.greater(pc.binary_length(length), 0), False)
    encoded = has_image(pc.struct_field(images, "bytes"))
    if images.type.get_field_index("path") < 0:
        return encoded
    return pc.or_(encoded, pc.is_valid(pc.struct_field(images, "path")))


def holds_lists(kind: pa.DataType) -> bool:
    """Return whether the cells of a column are lists."""
    tests = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return any(getattr(pa.types, test)(kind) for test in tests)


def holds_text(kind: pa.DataType, *, lists: bool = False) -> bool:
    """Return whether a column has texts, also as bytes or codes; `lists`: or lists of them."""
    types = pa.types
    if types.is_dictionary(kind) or (lists and holds_lists(kind)):
        return holds_text(kind.value_type)
    tests = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary")
    return any(getattr(types, test, types.is_string)(kind) for test in tests)


def require_texts(name: str, kind: pa.DataType, place: object, *, images: bool = False) -> None:
    """Raise UsageError for a column without texts; images: whether its bytes are images."""
    if images or not holds_text(kind, lists=True):
        held = "images" if holds_bytes(kind) else kind
        raise UsageError(f"{place}: column {name!r} holds {held}, not captions; choose others")
