"""Rows of CSV, TSV and JSON-lines files: the one reading of them, beside `arrow_files`.

Data, benchmarks and captions go through here, so that every malformed file ends in one line that
names the file, the line or row, and the remedy. In messages a line is a line of the file and a row
is a record, without the header; both are counted from 1.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import zlib
from codecs import BOM_UTF8
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, AnyStr

from compoclip.bounds import (
    MAX_LINE_BYTES,
    MAX_LITERAL_CHARACTERS,
    MAX_UNPACKED_FREE,
    MAX_UNPACKED_RATIO,
)
from compoclip.console import counted
from compoclip.errors import CompoclipError, typed_repr
from compoclip.files import parse_json, reason, unreadable
from compoclip.patterns import has_ending

FETCH_AGAIN = "fetch the file again"

# --- Lines, and JSON lines. ---

# Bounds on unpacked sizes: a few hundred kilobytes can unpack to more than the memory.


def require_honest_size(path: Path, packed: int, unpacked: int) -> None:
    """Raise CompoclipError when a file unpacks to more than any real one would."""
    if unpacked > MAX_UNPACKED_FREE + MAX_UNPACKED_RATIO * packed:
        raise CompoclipError(
            f"{path}: unpacks to more than {MAX_UNPACKED_RATIO} times its size; it is no honest "
            "data file: fetch the file again, or unpack and look at it"
        )


def not_whole(
    path: Path, kind: str, error: Exception, damaged: str = FETCH_AGAIN
) -> CompoclipError:
    """Return the error of a file that cannot be read; damage may be an OSError without a number.

    kind: what it should be. damaged: the remedy.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return unreadable(path, error)
    cause = reason(error).partition("\n")[0]
    return CompoclipError(f"{path}: not a whole {kind} file ({cause}); {damaged}")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 file, which may end in .gz.

    Raises CompoclipError with file and line for a file that is missing, damaged, not UTF-8 or
    unpacks to far more than its size, and for a line of more than MAX_LINE_BYTES bytes.
    """
    number = unpacked = 0
    packed = has_ending(path, ".gz")
    try:
        size = path.stat().st_size
        with io.BufferedReader(gzip.GzipFile(path)) if packed else path.open("rb") as file:
            for number, line in enumerate(_bounded(file, path), 1):
                unpacked += len(line)
                if unpacked > MAX_UNPACKED_FREE:
                    require_honest_size(path, size, unpacked)
                text = line.removeprefix(BOM_UTF8) if number == 1 else line
                yield number, text.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CompoclipError(
            f"{path}: line {number} is not UTF-8 text ({error.reason}); convert the file"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise not_whole(path, ".gz", error) from None
    except OSError as error:
        raise unreadable(path, error) from None


def first_line(path: Path) -> str:
    """Return the first line of `read_lines` that is not blank, "" without one."""
    return next((line for _, line in read_lines(path) if line.strip()), "")


def _bounded(file: IO[AnyStr], path: Path) -> Iterator[AnyStr]:
    """The lines of a file. Raises CompoclipError for one of more than MAX_LINE_BYTES."""
    lines = iter(partial(file.readline, MAX_LINE_BYTES + 1), file.read(0))
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_BYTES:
            raise CompoclipError(
                f"{path}: line {number} is longer than {MAX_LINE_BYTES >> 20} MiB; is this the "
                "right file? Break or remove the line"
            )
        yield line


def read_jsonl(
    path: Path, *, damaged: str = "fix the line", halves: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of every line that is not blank, one JSON object per line.

    damaged, halves: as for `json_row`. Raises CompoclipError as it and `read_lines` do.
    """
    for number, line in read_lines(path):
        if line.strip():
            yield number, json_row(line, path, number, damaged=damaged, halves=halves)


def json_row(
    line: str, path: Path, number: int, *, damaged: str = "fix the line", halves: bool = True
) -> dict[str, Any]:
    """Return the object on a line. Raises CompoclipError naming file and line for anything else.

    damaged: the remedy. halves: whether texts may hold half characters, see `files.parse_json`.
    """
    try:
        row = parse_json(line, halves=halves)
    except ValueError as error:
        raise CompoclipError(
            f"{path}: line {number}: not valid JSON ({error}); {damaged}"
        ) from error
    if not isinstance(row, dict):
        raise CompoclipError(
            f"{path}: line {number}: expected a JSON object, found {typed_repr(row)}; {damaged}"
        )
    return row


# --- CSV and TSV. ---


def read_delimited(
    path: Path, delimiter: str = "", quoting: bool = True
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (row number from 1, columns) of a CSV or TSV file with a header line.

    delimiter: by default that of the file's ending or, if the header lacks it, the most frequent of
    comma, semicolon, bar and tab. quoting: whether quoted cells may hold delimiters and line
    breaks; otherwise quotes are text. A row with more or fewer cells than the header is an error:
    it would shift captions between images.
    """
    with _csv_rows(path, delimiter, quoting) as rows:
        _, header = next(rows, (0, None))
        if header is None:
            raise CompoclipError(f"{path}: the file is empty; a header line is needed")
        names = [name.strip() for name in header]
        require_one_of_each(names, path)
        filled = (pair for pair in rows if pair[1])
        for number, (line, row) in enumerate(filled, 1):
            if len(row) != len(names):
                raise CompoclipError(
                    f"{path}: line {line} has {counted(len(row), 'cell')}, the header has "
                    f"{len(names)}; check quoting and delimiter"
                )
            yield number, dict(zip(names, row))


def delimited_header(path: Path, delimiter: str = "", quoting: bool = True) -> list[str]:
    """Return the column names of a CSV or TSV file; none when the file is empty."""
    with _csv_rows(path, delimiter, quoting) as rows:
        return [name.strip() for name in next(rows, (0, []))[1]]


@contextmanager
def _csv_rows(
    path: Path, delimiter: str, quoting: bool
) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """(line where it ends, cells) of every row, with errors as CompoclipError."""
    usual = "\t" if has_ending(path, ".tsv") else ","
    # The csv module's default of 128 KiB is less than a long list of captions.
    csv.field_size_limit(MAX_LINE_BYTES)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(_bounded(file, path), "")
            file.seek(0)
            if not delimiter:
                delimiter = usual if usual in header else max((usual, *",;|\t"), key=header.count)
            reader = csv.reader(
                _bounded(file, path),
                delimiter=delimiter,
                strict=True,
                skipinitialspace=f"{delimiter} " in header,
                quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
            )
            yield ((reader.line_num, row) for row in reader)
    except csv.Error as error:
        raise CompoclipError(
            f"{path}: line {reader.line_num}: {error}; check quoting and delimiter (training data: "
            "--no-quoting takes quotes as text)"
        ) from None
    except UnicodeDecodeError as error:
        deque(read_lines(path), 0)  # raises at the line, which decoding in blocks does not know
        raise CompoclipError(f"{path}: not UTF-8 text ({error.reason}); convert the file") from None
    except OSError as error:
        raise unreadable(path, error) from None


def require_one_of_each(names: Sequence[str], path: Path) -> None:
    """Raise CompoclipError for two columns of one name."""
    for name, times in Counter(names).items():
        if name and times > 1:  # unnamed columns may be many
            raise CompoclipError(f"{path}: two columns are called {name!r:.60}; keep one of them")


def literal(cell: str, longest: int = MAX_LITERAL_CHARACTERS) -> Any:
    """Return the value of a Python literal written as text; None for any other or longer text."""
    if len(cell) > longest:
        return None
    try:
        return ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def text_list(cell: str) -> list[str] | None:
    """Return the strings of a list or set literal written as text; None for any other text."""
    cell = cell.strip()
    if (cell[:1], cell[-1:]) not in (("[", "]"), ("{", "}")):
        return None
    value = literal(cell)
    if isinstance(value, set):
        value = sorted(value, key=str)
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if texts else None
