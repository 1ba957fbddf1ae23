"""Rows of CSV, TSV, JSON-lines and Parquet files, as mappings from column to value.

In messages a line is a line of the file and a row is a record, without the header; both are counted
from 1.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import os
import re
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.console import counted
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import encodable, parse_json, unreadable

# --- Paths as data files write them: many as one pattern, and images below a folder. ---

_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+:/|pipe:", re.IGNORECASE)
_LIMIT = 1_000_000
ROW_FILES = (".parquet", ".jsonl", ".jsonl.gz")


def expand_braces(pattern: str) -> list[str]:
    """The names a shell-like brace pattern stands for, first group slowest.

    "a-{000..002}.tar" counts, keeping leading zeros; "{train,val}.tar" lists; groups may be
    repeated but not nested. Raises UsageError for other braces.
    """
    *groups, end = _GROUP.split(pattern)
    plain, inner = [*groups[::2], end], groups[1::2]
    if any("{" in part or "}" in part for part in plain):
        raise UsageError(f"{pattern}: unmatched brace in the pattern")
    names = [plain[0]]
    for group, rest in zip(inner, plain[1:]):
        choices = _choices(group, pattern)
        if len(names) * len(choices) > _LIMIT:
            raise UsageError(
                f"{pattern}: stands for more than {_LIMIT:,} names; write a shorter one"
            )
        names = [name + choice + rest for name in names for choice in choices]
    return names


def _choices(inner: str, pattern: str) -> list[str]:
    """The alternatives between two braces."""
    numbers = _RANGE.fullmatch(inner)
    if numbers is not None:
        first, last = int(numbers.group(1)), int(numbers.group(2))
        width = max(map(len, numbers.groups())) if inner.startswith("0") else 0
        if not first <= last < first + _LIMIT:
            raise UsageError(f"{pattern}: the range {{{inner}}} is empty or too long")
        return [f"{number:0{width}d}" for number in range(first, last + 1)]
    if "," in inner:
        return inner.split(",")
    raise UsageError(f"{pattern}: {{{inner}}} is neither a range like 000..099 nor a list")


def require_local(spec: str | Path) -> None:
    """Raise UsageError for anything but a local path: a URL, or a command to read from."""
    text = str(spec)
    if _REMOTE.match(text):
        # A Path holds one slash where the URL has two.
        shown = text if "://" in text else text.replace(":/", "://", 1)
        raise UsageError(
            f"{shown}: not supported: data is read from files on this machine; download it first"
        )


def row_files(spec: str | Path) -> list[Path]:
    """The files of rows that `spec` means: one, a brace pattern, or all of a folder.

    Raises CompoclipError for a folder without such files, UsageError as `rows_in` does.
    """
    folder = Path(spec)
    if not folder.is_dir():
        return [folder] if folder.is_file() else [Path(name) for name in expand_braces(str(spec))]
    files = rows_in(folder)
    if not files:
        raise CompoclipError(f"{folder}: holds no {', '.join(ROW_FILES)} file; check the path")
    return files


def rows_in(folder: Path) -> list[Path]:
    """The files of rows in a folder and in its folder "data", as on the Hugging Face hub, by name.

    They are of one of the kinds `ROW_FILES`; raises UsageError when there are several.
    """
    files = sorted(
        file
        for place in (folder, folder / "data")
        for file in (place.iterdir() if place.is_dir() else ())
        if has_ending(file, *ROW_FILES) and not file.name.startswith(".")
    )
    kinds = sorted({str(ending_of(file.name, ROW_FILES)) for file in files})
    if len(kinds) > 1:
        raise UsageError(
            f"{folder}: holds files of several kinds ({', '.join(kinds)}); name those you mean, as "
            "in 'part-{000..099}.jsonl'"
        )
    return files


def ending_of(name: str, endings: Iterable[str]) -> str | None:
    """The ending that a file name has, ignoring case; None for another one."""
    return next((ending for ending in endings if name.lower().endswith(ending)), None)


def has_ending(file: Path, *endings: str) -> bool:
    """True if the name has one of these endings, ignoring case."""
    return ending_of(file.name, endings) is not None


def relative_image(image: str, root: Path, origin: str) -> str:
    """The image's path relative to `root`, refusing whatever leads out of it.

    Relative names may not climb above the root, absolute ones must lie in it. Links inside the
    root may point anywhere: whoever made the folder put them there. Backslashes, as Windows writes
    them, separate folders where the file then exists. Raises CompoclipError naming `origin` (file
    and row) otherwise, or when the name is a URL.
    """
    if "://" in image:
        raise CompoclipError(f"{origin}: {image!r} is a URL; download the images first")
    if "\0" in image or not image.strip():
        raise CompoclipError(f"{origin}: the image path {image!r} is not usable; mend the file")
    normal = os.path.normpath(image)
    if "\\" in normal and not os.path.exists(os.path.join(root, normal)):
        slashed = os.path.normpath(image.replace("\\", "/"))
        normal = slashed if os.path.exists(os.path.join(root, slashed)) else normal
    if os.path.isabs(normal):
        normal = os.path.relpath(normal, os.path.abspath(root))
    if normal == ".." or normal.startswith(".." + os.sep):
        raise CompoclipError(
            f"{origin}: image {image!r} lies outside {root}; pass --images with the folder that "
            "holds the images"
        )
    return normal


# --- Rows of CSV, TSV, JSON-lines and Parquet files, as mappings from column to value. ---

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
    except UnicodeDecodeError as error:
        raise CompoclipError(
            f"{path}: holds text that is not UTF-8 ({error.reason}); convert the file"
        ) from None
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
        row = parse_json(line, halves=True)  # texts are checked where they are taken
    except ValueError as error:
        raise CompoclipError(
            f"{path}: line {number} is not valid JSON ({error}); mend the line"
        ) from None
    if not isinstance(row, dict):
        raise CompoclipError(f"{path}: line {number} is not a JSON object; mend the line")
    return row


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


def read_delimited(
    path: Path, delimiter: str = "", quoting: bool = True
) -> Iterator[tuple[int, dict[str, str]]]:
    """(row number from 1, columns) of a CSV or TSV file with a header line.

    delimiter: by default what the name's ending says or, where the header lacks that, the comma,
    semicolon, bar or tab that it has most of. quoting: CSV quoting applies, so that cells may hold
    delimiters and line breaks; without it quotes are text. A row with more or fewer cells than the
    header is an error: it would shift captions between images.
    """
    with _csv_rows(path, delimiter, quoting) as rows:
        header = next(rows, None)
        if header is None:
            raise CompoclipError(f"{path}: the file is empty; a header line is needed")
        names = _stripped(header[1])
        _require_one_of_each(names, path)
        number = 0
        for line, row in rows:
            if not row:
                continue
            number += 1
            if len(row) != len(names):
                raise CompoclipError(
                    f"{path}: line {line} has {counted(len(row), 'cell')}, the header has "
                    f"{len(names)}; check quoting and delimiter"
                )
            yield number, dict(zip(names, row))


def delimited_header(path: Path, delimiter: str = "", quoting: bool = True) -> list[str]:
    """The column names of a CSV or TSV file; empty when the file is empty."""
    with _csv_rows(path, delimiter, quoting) as rows:
        return _stripped(next(rows, (0, []))[1])


def _stripped(names: Sequence[str]) -> list[str]:
    return [name.strip() for name in names]


@contextmanager
def _csv_rows(
    path: Path, delimiter: str, quoting: bool
) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """(line where it ends, cells) of every row, with errors as CompoclipError."""
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    # The csv module's default of 128 KiB is less than a long list of captions.
    csv.field_size_limit(LONGEST_LINE)
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
        for _ in read_lines(path):  # raises at the line, which decoding in blocks does not know
            pass
        raise CompoclipError(f"{path}: not UTF-8 text ({error.reason}); convert the file") from None
    except OSError as error:
        raise unreadable(path, error) from None


# --- Which columns of a table hold the image and the captions. ---

IMAGE_COLUMNS = (
    *("filepath", "file_name", "filename", "image", "image_path", "image_name", "path", "file"),
    "jpg",
)
CAPTION_COLUMNS = ("title", "caption", "captions", "text", "texts", "sentences", "txt", "comment")
# Reasons for leaving captions and samples out.
NO_CAPTION = "sample without a caption"
EMPTY_CAPTION = "empty caption"
NO_TEXT = "caption that is no text"
LONGEST_TEXT = 1 << 16  # characters; models read 77 tokens, the rest only takes memory
CELL = frozenset(("nan", "none", "null", "<na>"))  # what programs write of an empty cell
EMPTY_CELL = "text that is the word for an empty cell (nan, none, null)"
LONG_TEXT = f"text of more than {LONGEST_TEXT:,} characters"

_COLUMNS_LITERAL_LIMIT = 1 << 20


def pick_columns(
    available: Collection[str], image: str | None, caption: str | None, path: Path
) -> tuple[str, tuple[str, ...]]:
    """The image column and the caption columns.

    caption: one name or several joined by commas. Names not given are guessed from the usual ones.
    Raises UsageError that lists the columns of the file when a name is not among them.
    """
    if image is None:
        image = _guessed(IMAGE_COLUMNS, available, "image", path)
    elif image not in available:
        raise _absent(image, available, path)
    return image, pick_captions(available, caption, path)


def pick_captions(available: Collection[str], caption: str | None, path: Path) -> tuple[str, ...]:
    """The caption columns, as for `pick_columns`."""
    if caption is None:
        caption = _guessed(CAPTION_COLUMNS, available, "caption", path)
    captions: Sequence[str] = (caption,)
    if caption not in available:  # a column whose own name holds a comma comes first
        captions = [part.strip() for part in caption.split(",")]
    for name in captions:
        if name not in available:
            raise _absent(name, available, path)
    return tuple(captions)


def usual_column(usual: Iterable[str], available: Iterable[str]) -> str | None:
    """The first column that has one of the usual names, ignoring case."""
    names = {name.strip().lower(): name for name in reversed([*available])}
    return next((names[name] for name in usual if name in names), None)


def _guessed(usual: Iterable[str], available: Collection[str], kind: str, path: Path) -> str:
    name = usual_column(usual, available)
    if name is None:
        raise UsageError(
            f"{path}: no {kind} column found; name it with --{kind}-column, one of: "
            f"{_names(available)}"
        )
    return name


def _absent(name: str, available: Collection[str], path: Path) -> UsageError:
    return UsageError(f"{path}: no column {name!r}; the columns are: {_names(available)}")


def _names(available: Collection[str]) -> str:
    return ", ".join(str(name) for name in available) or "none"


def cell_captions(value: Any) -> list[Any]:
    """The caption values of one cell: a text, the entries of a list, or those of a
    list of texts written as Python or JSON text; nothing when the value is missing.

    `usable_texts` keeps the captions among them. Bytes are texts where they are UTF-8.
    """
    if isinstance(value, bytes):
        value = as_text(value)
    if isinstance(value, str):
        return text_list(value) or [value]
    if isinstance(value, list):
        return [as_text(item) for item in value]
    missing = value is None or value != value  # tables write NaN for what is missing
    return [] if missing else [value]


def as_text(value: Any) -> Any:
    """Bytes, as some writers store texts, as the text they are; anything else as it is."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def usable_texts(values: Iterable[Any], empty: str, left_out: Counter[str]) -> list[str]:
    """The texts among `values`, stripped; what is no text, blank or too long is counted.

    empty: the reason for blank ones.
    """
    kept = []
    for value in values:
        text = value.strip() if isinstance(value, str) else None
        if text is None:
            left_out[NO_TEXT] += 1
        elif not text:
            left_out[empty] += 1
        elif text.lower() in CELL:
            left_out[EMPTY_CELL] += 1
        elif len(text) > LONGEST_TEXT:
            left_out[LONG_TEXT] += 1
        else:
            kept.append(text)
    return kept


def require_texts(texts: Iterable[str], origin: str) -> None:
    """Raise CompoclipError that starts with `origin` for a text that cannot be kept."""
    for text in texts:
        if len(text) > LONGEST_TEXT:
            raise CompoclipError(f"{origin}: a {LONG_TEXT}; shorten or remove it")
        if not encodable(text):
            raise CompoclipError(
                f"{origin}: {text[:40]!a} is not valid text (it holds half a character, a lone "
                "surrogate); mend or remove it"
            )


def text_list(cell: str) -> list[str] | None:
    """The strings of a list or set literal written as text, None when `cell` is nothing such."""
    cell = cell.strip()
    if len(cell) > _COLUMNS_LITERAL_LIMIT or (cell[:1], cell[-1:]) not in (("[", "]"), ("{", "}")):
        return None
    try:
        value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    if isinstance(value, set):
        value = sorted(value, key=str)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None
