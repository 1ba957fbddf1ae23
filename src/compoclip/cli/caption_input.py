"""Captions from whatever a user points at: files of captions, training data, folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compoclip.console import note, reasons_listed
from compoclip.data.columns import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    caption_id,
    cell_captions,
    pick_captions,
    row_captions,
    row_id,
    usual_column,
)
from compoclip.data.options import naming_options
from compoclip.data.split_names import ALL
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import file_hash, read_json
from compoclip.patterns import ending_of, files_in, has_ending
from compoclip.records import Enough, columns_of, json_columns, numbered_rows
from compoclip.tables import first_line, read_jsonl, read_lines

# --- A file of captions, one after the other, with ids. ---

KINDS = (".txt", ".csv", ".tsv", ".jsonl", ".jsonl.gz", ".json", ".parquet")
"""The kinds of files that list captions."""
DEFAULT_COLUMN = "caption"


def _kind(path: Path) -> str:
    """The kind of a list of captions. Raises UsageError for anything else."""
    kind = ending_of(path.name, KINDS)
    if kind is None or (path.exists() and not path.is_file()):
        raise UsageError(f"{path}: not one of the kinds {', '.join(KINDS)}; convert it")
    return kind


def _entries(path: Path, columns: Collection[str] | None = None) -> Iterator[tuple[int, Any]]:
    """Number and value of every entry of a list of captions: a line of .txt, else a row.

    Entries of .json are those of a list, the values of an object, or JSON lines. columns: those of
    a .parquet file that are read; by default all.
    """
    kind = _kind(path)
    if kind == ".txt":
        yield from read_lines(path)
    elif kind == ".json":
        try:
            data = read_json(path, damaged="fix the file")
        except CompoclipError:  # some publishers name JSON lines .json
            yield from read_jsonl(path)
            return
        listed = [*data.values()] if isinstance(data, dict) else data
        yield from enumerate(listed if isinstance(listed, list) else (), 1)
    else:
        yield from numbered_rows(path, columns)


def _columns(path: Path, enough: Enough) -> list[str]:
    """The columns of a list of captions; none of lines or without a row."""
    kind = _kind(path)
    if kind == ".json":
        return json_columns((row for _, row in _entries(path) if isinstance(row, dict)), enough)
    return [] if kind == ".txt" else columns_of(path, enough)


@dataclass(frozen=True)
class CaptionFile:
    """The captions of a list of one of the KINDS, with ids; iterable repeatedly.

    Every line of .txt is a caption, also a blank one. Rows have captions in `column` (several
    joined by commas; by default "caption", or else a usual name), as those of `data.columns`. Ids
    are the number of the line or row, from 1, or the column "id". Raises UsageError for another
    kind of file. Iterating raises CompoclipError that names file and line for a malformed row, and
    UsageError that lists the columns when `column` is not among them.
    """

    path: Path
    column: str | None = None

    def __post_init__(self) -> None:
        _kind(self.path)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield (id, caption); the id of a further caption of a row has a number."""
        for id, captions in self.rows(Counter()):
            yield from ((caption_id(id, n), caption) for n, caption in enumerate(captions))

    def rows(self, left_out: Counter[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield (id, captions) of every line, and of every row with a usable caption.

        left_out: counts rows and captions that are left out, by reason.
        """
        columns = self._caption_columns()
        for number, entry in _entries(self.path, {*columns, "id"}):
            if self._kind == ".txt":
                yield str(number), (entry,)
                continue
            row = entry if isinstance(entry, dict) else {}
            values = [text for name in columns for text in cell_captions(row.get(name))]
            captions = row_captions(values if isinstance(entry, dict) else [entry], left_out)
            if captions:
                yield row_id(row, str(number)), captions

    def identity(self) -> dict[str, str]:
        """Return what tells these captions from others: the file's digest, format and column."""
        column = "" if self._kind == ".txt" else self.column or ",".join(self._caption_columns())
        return {"blake2b": file_hash(self.path), "format": self._kind[1:], "column": column}

    @property
    def _kind(self) -> str:
        return _kind(self.path)

    def _caption_columns(self) -> tuple[str, ...]:
        """The columns of captions; none of lines or without a row."""

        def pick(names: Collection[str]) -> tuple[str, ...]:
            usual = DEFAULT_COLUMN if DEFAULT_COLUMN in names else None
            return pick_captions(names, self.column or usual, self.path)

        with naming_options(_as_column):
            names = _columns(self.path, pick)
            return pick(names) if names else ()


def _as_column(text: str) -> str:
    return text.replace("--caption-column", "--column")


def caption_file(source: str, column: str | None) -> CaptionFile | None:
    """Return the file that `source` names, or None when it is a caption itself.

    An existing file, or a name with one of the known endings, is a file. Raises UsageError for a
    file of an unknown kind.
    """
    path = Path(source)
    try:
        exists = bool(source.strip()) and path.exists()
    except (OSError, ValueError):  # too long or with odd bytes: surely a caption
        return None
    named = has_ending(path, *KINDS) and not re.search(r"\s", source)
    return CaptionFile(path, column) if exists or named else None


# --- The captions of training data, or of a bare list, by sample. ---


def caption_items(
    data: str, column: str | None, split: str | None
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield (id, captions) of every sample, in order.

    data: what `train --data` takes, with training's ids; or a list of captions without images, of
    one of the KINDS other than .json. Raises like the readers of each.
    """
    bare = _bare(Path(data), column)
    if bare is not None:
        require(split in (None, ALL), data, "a list of captions takes no --split", UsageError)
        left_out: Counter[str] = Counter()
        yield from ((id, tuple(map(str.strip, texts))) for id, texts in bare.rows(left_out))
        note_left_out(left_out)
        return
    from compoclip.data.sources.open import open_source

    with naming_options(_as_column):
        source = open_source(data, caption_column=column, split=split)
    note_left_out(source.left_out)
    yield from zip(source.column("id"), source.column("captions"), strict=True)


def note_left_out(reasons: Mapping[str, int]) -> None:
    """Say how many rows of the data are left out, and why."""
    for listed in reasons_listed(reasons):
        note(f"left out of the data: {listed}")


def _bare(path: Path, column: str | None) -> CaptionFile | None:
    """The file as a list of captions; None when it is (or should be) training data."""
    from compoclip.data.published_rows import is_token_line
    from compoclip.data.sources.open import Request
    from compoclip.data.sources.published import published_table

    if not path.is_file() or not has_ending(path, *KINDS) or has_ending(path, ".json"):
        return None
    if has_ending(path, ".txt"):
        return None if is_token_line(first_line(path)) else CaptionFile(path)
    names = _columns(path, lambda names: usual_column(IMAGE_COLUMNS, names) is not None)
    if usual_column(IMAGE_COLUMNS, names) or published_table([path], Request(str(path))):
        return None
    return CaptionFile(path, column or usual_column(CAPTION_COLUMNS, names))


def validation_captions(data: Path) -> list[str]:
    """Return all captions of the split val of training data; of data that name no splits, such as
    COCO's captions_val2014.json, all captions. Raises like the readers of data."""
    from compoclip.data.options import DataOptions
    from compoclip.data.sources.open import open_source
    from compoclip.data.sources.splits import part_of
    from compoclip.data.split_names import ALL, VAL

    whole = open_source(str(data), split=ALL)
    named = any(whole.split_counts())
    return list((part_of(whole, VAL, DataOptions()) if named else whole).captions())


# --- Every caption in a file or folder, true or false. ---


def read_captions(path: Path) -> list[str]:
    """Return all captions of a list of one of the KINDS, or of those in a folder by name, in order.

    Of rows every column with "caption" in its name counts, true and false captions alike, but for
    ids; of others, the one with a usual name. Blank lines are skipped; rows and texts that are left
    out are counted on standard error. Raises UsageError for another kind of file, CompoclipError
    when nothing is found.
    """
    left_out: Counter[str] = Counter()
    files = [path]
    if path.is_dir():
        files = [file for file in files_in(path, *KINDS) if file.is_file()]
    captions = [text for file in files for text in _texts(file, left_out)]
    note_left_out(left_out)
    if not captions:
        raise CompoclipError(
            f"{path}: holds no captions; name a table with a column called caption or text, or a "
            ".txt of one per line"
        )
    return captions


def _texts(path: Path, left_out: Counter[str]) -> Iterator[str]:
    if has_ending(path, ".txt"):
        yield from (line for _, line in _entries(path) if line.strip())
        return
    stated = columns_of(path, bool) if has_ending(path, ".parquet") else None
    for _, entry in _entries(path, stated and _text_columns(stated)):
        values = [entry]
        if isinstance(entry, dict):
            names = _text_columns(entry)
            values = [text for name in names for text in cell_captions(entry[name])]
        yield from row_captions(values, left_out)


def _text_columns(names: Iterable[str]) -> list[str]:
    """The columns of true and false captions: caption, negative_caption, ..., but no caption_id."""
    lower = {name: name.strip().lower() for name in names}
    named = [name for name, low in lower.items() if "caption" in low and not low.endswith("id")]
    usual = usual_column(CAPTION_COLUMNS, lower)
    return named or ([usual] if usual else [])
