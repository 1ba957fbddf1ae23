"""Rows of CSV, TSV, JSON-lines and Parquet files, as mappings from column to value.

In messages a line is a line of the file and a row is a record, without the header; both are counted
from 1.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.data.paths import row_files
from compoclip.errors import CompoclipError
from compoclip.files import unreadable

PARQUET_BATCH = 8192
# A few hundred kilobytes can unpack to more than the memory holds: bounds on what they may become.
LONGEST_LINE = 1 << 24  # bytes of a line, characters of a cell
_MOST_RATIO = 100  # unpacked to packed size; captions reach 30
_SMALL = 1 << 26  # bytes that a file may unpack to whatever its own size


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """("line N" or "row N", object) of a JSON-lines file or of a .parquet file."""
    if path.suffix.lower() != ".parquet":
        for number, row in read_jsonl(path):
            yield f"line {number}", row
        return
    number = 0
    with opened_parquet(path) as parquet:
        for batch in parquet.iter_batches(PARQUET_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row


def read_records(spec: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file: line N", object) of every row of the files that `spec` means, see `row_files`."""
    for path in row_files(spec):
        for place, row in read_rows(path):
            yield f"{path}: {place}", row


@contextmanager
def opened_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file to read from.

    Raises CompoclipError when it is missing or damaged, unpacks to far more than its size, or has
    two columns of one name.
    """
    try:
        with pq.ParquetFile(path) as parquet:
            footer = parquet.metadata
            _require_one_of_each(parquet.schema_arrow.names, path)
            groups = map(footer.row_group, range(footer.num_row_groups))
            size = path.stat().st_size
            _require_size(path, size, sum(group.total_byte_size for group in groups))
            # Repeated values take next to no bytes, rows that name images at least one.
            _require_size(path, size, _MOST_RATIO * footer.num_rows)
            yield parquet
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from None
        reason = str(error).partition("\n")[0]  # damage comes as an error of either kind
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
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise CompoclipError(
            f"{path}: line {number} is not valid JSON ({error}); mend the line"
        ) from None
    if not isinstance(row, dict):
        raise CompoclipError(f"{path}: line {number} is not a JSON object; mend the line")
    return row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"the key {_repeated([key for key, _ in pairs])!r} occurs twice")
    return fields


#: The value of a JSON text; ValueError also for an object that has a key twice.
parse_json: Callable[[str], Any] = json.JSONDecoder(object_pairs_hook=_unique).decode


def _repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs twice, if any; unnamed columns may."""
    return next((name for name, times in Counter(names).items() if name and times > 1), None)


def _require_one_of_each(names: Sequence[str], path: Path) -> None:
    name = _repeated(names)
    if name is not None:
        raise CompoclipError(f"{path}: has two columns {name!r}; rename or remove one")


def _require_size(path: Path, packed: int, unpacked: int) -> None:
    """Raise CompoclipError when a file unpacks to more than any real one would."""
    if unpacked > _SMALL + _MOST_RATIO * packed:
        raise CompoclipError(
            f"{path}: unpacks to more than {_MOST_RATIO} times its size; it is no honest data "
            "file: fetch the file again, or unpack and look at it"
        )


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of a UTF-8 file, also of a compressed .gz one.

    Raises CompoclipError that names the file, and the line where there is one, for a file that is
    missing, damaged or no UTF-8 text, for a line of more than LONGEST_LINE bytes, and for a
    compressed file that unpacks to far more than its size.
    """
    number = 0
    try:
        with _opened(path) as file:
            packed = path.stat().st_size if path.suffix.lower() == ".gz" else None
            unpacked = 0
            for line in _bounded(file, path):
                number += 1
                if packed is not None:
                    unpacked += len(line)
                    _require_size(path, packed, unpacked)
                if number == 1:
                    line = line.removeprefix(BOM_UTF8)
                yield number, line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CompoclipError(
            f"{path}: line {number} is not UTF-8 text ({error.reason}); convert the file"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CompoclipError(
            f"{path}: not a whole .gz file ({error}); fetch the file again"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _opened(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(gzip.GzipFile(path))
    return path.open("rb")


def _bounded(file: IO[AnyStr], path: Path) -> Iterator[AnyStr]:
    """The lines of a file. Raises CompoclipError for one of more than LONGEST_LINE."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise CompoclipError(
                f"{path}: line {number} is longer than {LONGEST_LINE >> 20} MiB; is this the right "
                "file? Break or remove the line"
            )
        yield line


def read_delimited(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(row number from 1, columns) of a CSV or TSV file with a header line.

    CSV quoting applies to both, so that cells may hold tabs, commas and line breaks. A row with
    more or fewer cells than the header is an error: it would shift captions between images.
    """
    with _csv_rows(path) as rows:
        header = next(rows, None)
        if header is None:
            raise CompoclipError(f"{path}: the file is empty; a header line is needed")
        names = header[1]
        _require_one_of_each(names, path)
        number = 0
        for line, row in rows:
            if not row:
                continue
            number += 1
            if len(row) != len(names):
                raise CompoclipError(
                    f"{path}: line {line} has {len(row)} cells, the header has {len(names)}; "
                    "check quoting and delimiter"
                )
            yield number, dict(zip(names, row))


def delimited_header(path: Path) -> list[str]:
    """The column names of a CSV or TSV file; empty when the file is empty."""
    with _csv_rows(path) as rows:
        return next(rows, (0, []))[1]


@contextmanager
def _csv_rows(path: Path) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """(line where it ends, cells) of every row, with errors as CompoclipError."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # The csv module's default of 128 KiB is less than a long list of captions.
    csv.field_size_limit(LONGEST_LINE)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_bounded(file, path), delimiter=delimiter, strict=True)
            yield ((reader.line_num, row) for row in reader)
    except csv.Error as error:
        raise CompoclipError(
            f"{path}: line {reader.line_num}: {error}; check quoting and delimiter"
        ) from None
    except UnicodeDecodeError as error:
        for _ in read_lines(path):  # raises at the line, which decoding in blocks does not know
            pass
        raise CompoclipError(f"{path}: not UTF-8 text ({error.reason}); convert the file") from None
    except OSError as error:
        raise unreadable(path, error) from None
