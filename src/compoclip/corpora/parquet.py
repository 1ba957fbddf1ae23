"""Parquet shards, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.corpora.job import PARSE, Counts, Job, row_of
from compoclip.corpora.splice import taken
from compoclip.data.columns import cell_captions, pick_captions
from compoclip.data.embedded import holds_text
from compoclip.data.textfiles import opened_parquet
from compoclip.errors import CompoclipError, UsageError


def check(source: Path, column: str | None) -> None:
    """Raise UsageError when the shard lacks the column or it holds no text.

    column: caption columns joined by commas, guessed when not given. Raises CompoclipError when the
    shard is unreadable.
    """
    with opened_parquet(source) as parquet:
        schema = parquet.schema_arrow
    for name in pick_captions(schema.names, column, source):
        kind = schema.field(name).type
        if not holds_text(kind, lists=True):
            raise UsageError(f"{source}: column {name!r} holds {kind}, not captions; choose others")


def transform(source: Path, target: Path, column: str | None, job: Job, counts: Counts) -> None:
    """Write `source` with the columns of the job behind its own.

    Row groups, metadata and the kind of compression stay. Rows are named by their column "id", or
    by file name and row number. Memory: one row group. Raises CompoclipError for a damaged shard,
    OSError when the target cannot be written.
    """
    check(source, column)
    groups = _groups(source)
    schema, codec = _layout(source)
    columns = pick_captions(schema.names, column, source)
    for field in job.fields:
        if field.name in schema.names:
            raise taken(field.name, str(source))
        schema = schema.append(field)
    number = 0
    try:
        with pq.ParquetWriter(target, schema, compression=codec) as writer:
            for table in groups:
                number, table = _extended(source, table, columns, job, counts, number)
                writer.write_table(table, max(1, table.num_rows))
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise CompoclipError(f"{source}: cannot be copied ({error}); mend the shard") from None


def _extended(
    source: Path,
    table: pa.Table,
    columns: tuple[str, ...],
    job: Job,
    counts: Counts,
    number: int,
) -> tuple[int, pa.Table]:
    """The table with the columns of the job, and the number of the next row."""
    cells = [table[name].to_pylist() for name in columns]
    ids = table["id"].to_pylist() if "id" in table.column_names else [None] * table.num_rows
    stored = table[PARSE].to_pylist() if PARSE in table.column_names else [None] * table.num_rows
    rows = []
    for place, (id, parses) in enumerate(zip(ids, stored)):
        texts = [text for cell in cells for text in cell_captions(cell[place])]
        name = f"{source.name}#{number + place}" if id is None else str(id)
        rows.append(row_of(name, texts, parses, counts))
    made = job.make(rows, counts)
    for field in job.fields:
        values = pa.array([value[field.name] for value in made], field.type)
        table = table.append_column(field, values)
    return number + len(rows), table


def _layout(source: Path) -> tuple[pa.Schema, str]:
    """The schema, and the compression of the first column."""
    with opened_parquet(source) as parquet:
        footer = parquet.metadata
        first = footer.num_row_groups and footer.num_columns
        codec = footer.row_group(0).column(0).compression if first else "SNAPPY"
        return parquet.schema_arrow, "NONE" if codec == "UNCOMPRESSED" else codec


def _groups(source: Path) -> Iterator[pa.Table]:
    # A generator, so that errors of reading are told from errors of writing.
    with opened_parquet(source) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group)
