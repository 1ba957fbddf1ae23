"""Rows of CSV, TSV, JSON-lines and Parquet files, as mappings from column to value."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.data.paths import row_files
from compoclip.errors import CompoclipError
from compoclip.files import unreadable

PARQUET_BATCH = 8192
_FIELD_LIMIT = 1 << 27  # the csv module's default of 128 KiB is less than a long list of captions


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, object) of every line of a JSON-lines file, or row of a .parquet file."""
    if path.suffix.lower() != ".parquet":
        yield from read_jsonl(path)
        return
    number = 0
    with opened_parquet(path) as parquet:
        for batch in parquet.iter_batches(PARQUET_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def read_records(spec: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file: line N", object) of every row of the files that `spec` means, see `row_files`."""
    for path in row_files(spec):
        for number, row in read_rows(path):
            yield f"{path}: line {number}", row


@contextmanager
def opened_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file to read from. Raises CompoclipError when it is missing or damaged."""
    try:
        with pq.ParquetFile(path) as parquet:
            yield parquet
    except OSError as error:
        raise unreadable(path, error) from None
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise CompoclipError(
            f"{path}: not a whole Parquet file ({reason}); fetch the file again"
        ) from None


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank, one JSON object a line."""
    for number, line in read_lines(path):
        if line.strip():
            yield number, json_row(line, path, number)


def json_row(line: str, path: Path, number: int) -> dict[str, Any]:
    """The object on a line. Raises CompoclipError naming file and line for anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CompoclipError(
            f"{path}: line {number} is not valid JSON ({error}); mend the line"
        ) from None
    if not isinstance(row, dict):
        raise CompoclipError(f"{path}: line {number} is not a JSON object; mend the line")
    return row


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of a UTF-8 file, also of a compressed .gz one."""
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CompoclipError(f"{path}: not UTF-8 text ({error.reason}); convert the file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CompoclipError(
            f"{path}: not a whole .gz file ({error}); fetch the file again"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _opened(path: Path) -> TextIO:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")
    return path.open(encoding="utf-8-sig", newline="\n")


def read_delimited(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(row number from 0, columns) of a CSV or TSV file with a header line.

    CSV quoting applies to both, so that cells may hold tabs, commas and line breaks. A row with
    more or fewer cells than the header is an error: it would shift captions between images.
    """
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    csv.field_size_limit(_FIELD_LIMIT)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, None)
            if header is None:
                raise CompoclipError(f"{path}: the file is empty; a header line is needed")
            number = 0
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise CompoclipError(
                        f"{path}: line {reader.line_num} has {len(row)} cells, the header has "
                        f"{len(header)}; check quoting and delimiter"
                    )
                yield number, dict(zip(header, row))
                number += 1
    except csv.Error as error:
        raise CompoclipError(
            f"{path}: line {reader.line_num}: {error}; check quoting and delimiter"
        ) from None
    except UnicodeDecodeError as error:
        raise CompoclipError(f"{path}: not UTF-8 text ({error.reason}); convert the file") from None
    except OSError as error:
        raise unreadable(path, error) from None


def delimited_header(path: Path) -> list[str]:
    """The column names of a CSV or TSV file; empty when the file is empty."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file, delimiter=delimiter), [])
    except csv.Error as error:
        raise CompoclipError(f"{path}: line 1: {error}; check quoting and delimiter") from None
    except UnicodeDecodeError as error:
        raise CompoclipError(f"{path}: not UTF-8 text ({error.reason}); convert the file") from None
    except OSError as error:
        raise unreadable(path, error) from None
