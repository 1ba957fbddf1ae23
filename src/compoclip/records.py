"""Objects in JSON lines or Parquet files, one a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from compoclip.errors import require
from compoclip.patterns import ROW_FILES, find_files, has_ending
from compoclip.tables import read_jsonl


def read_rows(
    path: Path, columns: Collection[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("line N" or "row N", object) of a JSON-lines file or of a .parquet file.

    columns: those of a .parquet file that are read, as far as it has them; by default all.
    """
    if not has_ending(path, ".parquet"):
        yield from ((f"line {number}", row) for number, row in read_jsonl(path))
        return
    from compoclip.arrow_files import PARQUET_BATCH, opened_parquet

    with opened_parquet(path) as parquet:
        names = [n for n in parquet.schema_arrow.names if columns is None or n in columns]
        batches = parquet.iter_batches(PARQUET_BATCH, columns=names)
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))


def read_records(spec: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file: line N", object) of every row of the files `spec` means, see `find_files`."""
    files = find_files(spec, ROW_FILES)
    require(files, spec, f"holds no {', '.join(ROW_FILES)} file; check the path")
    for path in files:
        yield from ((f"{path}: {place}", row) for place, row in read_rows(path))
