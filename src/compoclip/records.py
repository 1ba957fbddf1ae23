"""Objects in JSON lines, Parquet, CSV or TSV files, one a row, and the columns that they have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from compoclip.errors import UsageError, require
from compoclip.patterns import ROW_FILES, find_files, has_ending
from compoclip.tables import delimited_header, read_delimited, read_jsonl

Enough = Callable[[Collection[str]], object]
"""Given the columns of the first rows: true when no further column is of use, false when one may
be. Raises UsageError while a column is missing that a reader needs."""
_FIRST_ROWS = 1000


def numbered_rows(
    path: Path, columns: Collection[str] | None = None, quoting: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, object) of a .parquet, .csv or .tsv file, else of a JSON-lines file.

    The number is that of the line in JSON lines, which may have blank ones, else that of the row.
    columns: those of a .parquet file that are read, as far as it has them; by default all.
    quoting: as for `read_delimited`.
    """
    if has_ending(path, ".csv", ".tsv"):
        yield from read_delimited(path, quoting=quoting)
        return
    if not has_ending(path, ".parquet"):
        yield from read_jsonl(path)
        return
    from compoclip.arrow_files import PARQUET_BATCH, opened_parquet

    with opened_parquet(path) as parquet:
        names = [n for n in parquet.schema_arrow.names if columns is None or n in columns]
        batches = parquet.iter_batches(PARQUET_BATCH, columns=names)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)


def read_rows(
    path: Path, columns: Collection[str] | None = None, quoting: bool = True
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("line N" or "row N", object) of the rows of a file; see `numbered_rows`."""
    noun = "row" if has_ending(path, ".parquet", ".csv", ".tsv") else "line"
    yield from ((f"{noun} {number}", row) for number, row in numbered_rows(path, columns, quoting))


def columns_of(path: Path, enough: Enough, quoting: bool = True) -> list[str]:
    """Return the columns that a file of rows states, or those of its `json_columns`."""
    if has_ending(path, ".csv", ".tsv"):
        return delimited_header(path, quoting=quoting)
    if has_ending(path, ".parquet"):
        from compoclip.arrow_files import opened_parquet

        with opened_parquet(path) as parquet:
            return list(parquet.schema_arrow.names)
    return json_columns((row for _, row in read_jsonl(path)), enough)


def json_columns(rows: Iterable[Mapping[str, Any]], enough: Enough) -> list[str]:
    """Return the columns of JSON objects, each of which may lack some: those of the first rows.

    Rows are read until there are `enough` columns; for a column that may be of use, 1,000.
    """
    names: dict[str, None] = {}
    for number, row in enumerate(rows, 1):
        before = len(names)
        names |= dict.fromkeys(map(str, row))
        if number == 1 or len(names) > before or number == _FIRST_ROWS:
            with suppress(UsageError):
                if enough(names) or number >= _FIRST_ROWS:
                    break
    return [*names]


def read_records(spec: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file: line N", object) of every row of the files `spec` means, see `find_files`."""
    files = find_files(spec, ROW_FILES)
    require(files, spec, f"holds no {', '.join(ROW_FILES)} file; check the path")
    for path in files:
        yield from ((f"{path}: {place}", row) for place, row in read_rows(path))
