"""Captions from whatever a user points at: files of captions, training data, folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compoclip.console import note
from compoclip.data.options import naming_options
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import file_hash, read_json
from compoclip.patterns import files_in, has_ending

# --- A file of captions, one after the other, with ids. ---

SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv")
DEFAULT_COLUMN = "caption"


@dataclass(frozen=True)
class CaptionFile:
    """(id, caption) pairs of a .txt (one a line), .jsonl, .csv or .tsv file; iterable repeatedly.

    Ids are the "id" column where there is one, else the number of the line (.txt, .jsonl) or row
    (tables), from 1. Raises UsageError for another kind of file. Iterating raises CompoclipError
    that names file and line for a bad row, and UsageError that lists the columns when `column` is
    not among them.
    """

    path: Path
    column: str = DEFAULT_COLUMN

    def __post_init__(self) -> None:
        other = self.path.exists() and not self.path.is_file()
        if other or not has_ending(self.path, *SUFFIXES):
            raise UsageError(f"{self.path}: not one of the kinds {', '.join(SUFFIXES)}; convert it")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        from compoclip.tables import read_delimited, read_jsonl, read_lines

        kind = self.path.suffix.lower()
        if kind == ".txt":
            yield from ((str(number), line) for number, line in read_lines(self.path))
            return
        jsonl = kind == ".jsonl"
        for number, row in read_jsonl(self.path) if jsonl else read_delimited(self.path):
            if self.column not in row:
                names = ", ".join(row)
                raise UsageError(f"{self.path}: no column {self.column!r}; choose one of: {names}")
            caption: object = row[self.column]
            if not isinstance(caption, str):
                place = f"{self.path}, {'line' if jsonl else 'row'} {number}"
                raise CompoclipError(f"{place}: {self.column!r} is no text; fix it")
            yield str(row.get("id", number)), caption

    def identity(self) -> dict[str, str]:
        """Return what tells these captions from others: the file's digest, format and column."""
        kind = self.path.suffix.lower()[1:]
        column = "" if kind == "txt" else self.column
        return {"blake2b": file_hash(self.path), "format": kind, "column": column}


def caption_file(source: str, column: str) -> CaptionFile | None:
    """Return the file that `source` names, or None when it is a caption itself.

    An existing file, or a name with one of the known endings, is a file. Raises UsageError for a
    file of an unknown kind.
    """
    path = Path(source)
    try:
        exists = bool(source.strip()) and path.exists()
    except (OSError, ValueError):  # too long or with odd bytes: surely a caption
        return None
    named = has_ending(path, *SUFFIXES) and not re.search(r"\s", source)
    return CaptionFile(path, column) if exists or named else None


# --- The captions of training data, or of a bare list, by sample. ---


def caption_items(
    data: str, column: str | None, split: str | None
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield (id, captions) of every sample, in order.

    data: what `train --data` takes, with training's ids; a .txt file with one caption per line; or
    a .jsonl, .csv or .tsv file with captions and no images. Raises like the readers of each.
    """
    bare = _bare(Path(data), column)
    if bare is not None and split is None:
        for id, caption in bare:
            yield id, (caption.strip(),)
        return
    from compoclip.data.sources.open import open_source

    with naming_options(lambda text: text.replace("--caption-column", "--column")):
        source = open_source(data, caption_column=column, split=split)
    note_left_out(source.left_out)
    yield from zip(source.column("id"), source.column("captions"), strict=True)


def note_left_out(reasons: Mapping[str, int]) -> None:
    """Say how many rows of the data are left out, and why."""
    for reason, number in reasons.items():
        note(f"left out of the data: {number} x {reason}")


def _bare(path: Path, column: str | None) -> CaptionFile | None:
    """The file as a list of captions; None when it is (or should be) training data."""
    from compoclip.data.columns import CAPTION_COLUMNS, IMAGE_COLUMNS, usual_column
    from compoclip.data.published_rows import is_token_line
    from compoclip.tables import delimited_header, read_jsonl, read_lines

    kind = path.suffix.lower()
    if not path.is_file() or kind not in SUFFIXES:
        return None
    if kind == ".txt":
        first = next((line for _, line in read_lines(path) if line.strip()), "")
        return None if is_token_line(first) else CaptionFile(path)
    first_row = next((row for _, row in read_jsonl(path)), {}) if kind == ".jsonl" else {}
    names = [*first_row] or delimited_header(path)
    if usual_column(IMAGE_COLUMNS, names):
        return None
    return CaptionFile(path, column or usual_column(CAPTION_COLUMNS, names) or DEFAULT_COLUMN)


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
    """Return captions in file order.

    .txt: one a line, blank lines skipped. .jsonl: objects. .json: a list or an object of objects
    or strings (SugarCrepe), or JSON lines (SugarCrepe++). A folder: its .json, .jsonl and .txt
    files by name. Of an object every field with "caption" in its name counts, true and false
    captions alike. Raises CompoclipError when nothing is found.
    """
    captions = list(_captions(path))
    if not captions:
        raise CompoclipError(f"{path}: no captions found (fields named *caption* or text lines)")
    return captions


def _captions(path: Path) -> Iterator[str]:
    from compoclip.tables import read_jsonl, read_lines

    if path.is_dir():
        for file in files_in(path, ".json", ".jsonl", ".txt"):
            if file.is_file():
                yield from _captions(file)
        return
    rows: Iterable[Any]
    if has_ending(path, ".json"):
        try:
            data = read_json(path, damaged="fix the file")
            listed = [*data.values()] if isinstance(data, dict) else data
            rows = listed if isinstance(listed, list) else ()
        except CompoclipError:  # some publishers name JSON lines .json
            rows = [row for _, row in read_jsonl(path)]
    elif has_ending(path, ".jsonl"):
        rows = (row for _, row in read_jsonl(path))
    else:
        rows = (line for _, line in read_lines(path) if line.strip())
    for row in rows:
        if isinstance(row, str):
            yield row
        for key, value in row.items() if isinstance(row, dict) else ():
            if "caption" in key:
                texts = value if isinstance(value, list) else [value]
                yield from (text for text in texts if isinstance(text, str) and text.strip())
