"""Tables of images and captions: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow.parquet as pq

from compoclip.data.extras import EXTRA_COLUMNS, NEG_IMAGE, Extras, read_extras
from compoclip.data.members import EmbeddedImages, holds_bytes, holds_text
from compoclip.data.sources.rows import (
    ALL,
    COLUMN,
    FolderImages,
    Images,
    RowBuilder,
    RowSource,
    Split,
)
from compoclip.data.textfiles import (
    PARQUET_BATCH,
    as_text,
    cell_captions,
    delimited_header,
    has_ending,
    opened_parquet,
    pick_columns,
    read_delimited,
    read_jsonl,
    relative_image,
)
from compoclip.errors import CompoclipError, UsageError


def open_table(
    files: Sequence[Path],
    images: Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split: str | None = None,
    extras: Mapping[str, str] = MappingProxyType({}),
    quoting: bool = True,
) -> RowSource:
    """One or several tables of one kind and the same columns, as one source.

    files: .csv, .tsv, .jsonl, .jsonl.gz or .parquet. images: the folder that image paths are
    relative to, by default the folder of the first file. image_column: paths; in Parquet also the
    encoded bytes or a struct with a field `bytes`, as on the Hugging Face hub. caption_column: one
    name or several joined by commas; a cell holds one caption or a list of them. Columns not named
    are guessed. split: of a table with a column "split", the rows that are read: "train" unless
    given, with those of others counted; "all" for all.
    The columns that `read_extras` knows are read as well; in Parquet neg_image may hold encoded
    images, too. Ids are "image#row", rows counted from 0 over all files as neg_image does, and
    "FILE, row N" of encoded images. extras: what such a column is called in the file, where it is
    not by the name that `read_extras` knows. quoting: as for `read_delimited`.

    Raises UsageError for a column or a split that is not there, CompoclipError for a file that is
    missing or malformed, an image path that leaves the folder, or when no sample is left.
    """
    root = images if images is not None else files[0].parent
    builder = RowBuilder(files[0])
    table = _Table(builder, root, image_column, caption_column, Split(split), extras, quoting)
    opener: Images = FolderImages(root)
    if has_ending(files[0], ".parquet"):
        opener = _add_parquet(files, table)
    else:
        for file in files:
            _add_text(file, table)
    chosen = table.split
    if split not in (None, ALL) and not table.has_splits:
        raise UsageError(f"{files[0]}: tables take no --split without a column {COLUMN!r}")
    chosen.require(files[0])
    builder.left_out.update(chosen.left_out())
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    columns = ", ".join(dict.fromkeys(builder.columns))
    return builder.build(opener, f"table {files[0]}{more} (columns {columns}){chosen}")


@dataclass
class _Table:
    """State shared by the files of a table."""

    builder: RowBuilder
    root: Path
    image_column: str | None
    caption_column: str | None
    split: Split
    names: Mapping[str, str]
    quoting: bool
    has_splits: bool = False

    def called(self, extra: str) -> str:
        """What an extra column is called in the file."""
        return self.names.get(extra, extra)

    def extras(self, record: Mapping[str, Any], origin: str) -> Extras:
        """The extra columns of a row."""
        if self.names:
            own = {extra: record.get(self.called(extra)) for extra in EXTRA_COLUMNS}
            record = {**record, **own}
        return read_extras(record, self.root, origin)

    def columns(self, names: Collection[str], file: Path) -> tuple[str, tuple[str, ...]]:
        """The image column and the caption columns of a file."""
        image, captions = pick_columns(names, self.image_column, self.caption_column, file)
        self.builder.columns += (image, *captions)
        return image, captions

    def takes(self, record: Mapping[str, Any]) -> bool:
        """True if a row is of the split; other rows are still numbered."""
        self.has_splits |= COLUMN in record
        if not self.has_splits:
            return True
        part = as_text(record.get(COLUMN))
        if self.split.takes(None if part is None else str(part)):
            return True
        self.builder.skip()
        return False


def _add_text(file: Path, table: _Table) -> None:
    """Add the rows of a CSV, TSV or JSON-lines file."""
    rows: Iterator[tuple[int, dict[str, Any]]]
    chosen: tuple[str, tuple[str, ...]] | None = None
    noun = "row"
    if has_ending(file, ".jsonl", ".jsonl.gz"):
        rows, noun = read_jsonl(file), "line"
    else:
        rows = read_delimited(file, quoting=table.quoting)
        chosen = table.columns(delimited_header(file, quoting=table.quoting), file)
    for number, record in rows:
        chosen = chosen or table.columns(record, file)
        if not table.takes(record):
            continue
        origin = f"{file}, {noun} {number}"
        image = record.get(chosen[0])
        if not isinstance(image, str):
            raise CompoclipError(f"{origin} has no image path in column {chosen[0]!r}; mend it")
        relative = relative_image(image, table.root, origin)
        captions = [text for name in chosen[1] for text in cell_captions(record.get(name))]
        id = f"{relative}#{table.builder.rows}"
        table.builder.add(id, relative, captions, table.extras(record, origin), origin)


def _add_parquet(files: Sequence[Path], table: _Table) -> Images:
    """Add the rows of Parquet files; returns what opens their images."""
    embedded: set[str] | None = None
    unique = len({file.name for file in files}) == len(files)
    for file in files:
        with opened_parquet(file) as parquet:
            schema = parquet.schema_arrow
            columns = table.columns(schema.names, file)
            known = {columns[0], table.called(NEG_IMAGE)}.intersection(schema.names)
            held = {name for name in known if holds_bytes(schema.field(name).type)}
            if embedded is not None and held != embedded:
                raise CompoclipError(f"{file}: holds images in other columns than {files[0]}")
            embedded = held
            _add_rows(parquet, file, table, columns, embedded, file.name if unique else str(file))
    if not embedded:
        return FolderImages(table.root)
    opened = {name: EmbeddedImages(files, name) for name in sorted(embedded)}
    return ColumnImages(table.root, opened)


class StampedColumn(Protocol):
    """The encoded images of a column, and a text that changes when they do."""

    @property
    def stamp(self) -> str: ...

    def __call__(self, image: str) -> bytes: ...


class ColumnImages:
    """Images named "column:row", encoded in a column of the table, or else by path below a folder.

    Only names that begin with one of the columns are of the table.
    """

    def __init__(self, root: Path, columns: Mapping[str, StampedColumn]) -> None:
        self.root = root
        self._folder = FolderImages(root)
        self._columns = dict(columns)

    def __call__(self, image: str) -> Path | bytes:
        """The file, or the encoded image."""
        column, _, row = image.rpartition(":")
        return self._columns[column](row) if column in self._columns else self._folder(image)

    def bare(self, image: str) -> Path | bytes:
        """The file; no bytes in place of an image of the table."""
        return b"" if image.rpartition(":")[0] in self._columns else self._folder(image)

    def stamps(self, images: Sequence[str]) -> list[str]:
        """Names with the stamp of their column, or as those of files."""
        columns = [self._columns.get(name.rpartition(":")[0]) for name in images]
        files = [name if column is None else "" for name, column in zip(images, columns)]
        return [
            stamp if column is None else f"{name} {column.stamp}"
            for name, column, stamp in zip(images, columns, self._folder.stamps(files))
        ]


def _add_rows(
    parquet: pq.ParquetFile,
    file: Path,
    table: _Table,
    columns: tuple[str, tuple[str, ...]],
    embedded: Collection[str],
    name: str,
) -> None:
    """Add the rows of one file. embedded: its columns of images; name: the file in their ids."""
    image, captions = columns
    schema = parquet.schema_arrow
    kinds = {column: schema.field(column).type for column in (image, *captions)}
    if image not in embedded and not holds_text(kinds[image]):
        raise UsageError(f"{file}: column {image!r} holds {kinds[image]}, not image paths or bytes")
    odd = (c for c in captions if c in embedded or not holds_text(kinds[c], lists=True))
    wrong = next(odd, None)
    if wrong is not None:
        raise UsageError(f"{file}: column {wrong!r} holds {kinds[wrong]}, not captions")
    other = table.called(NEG_IMAGE)
    negative = EmbeddedImages([file], other).present() if other in embedded else []
    further = map(table.called, EXTRA_COLUMNS)
    wanted = {image, *captions, COLUMN, *further}.intersection(schema.names)
    first = table.builder.rows
    for batch in parquet.iter_batches(PARQUET_BATCH, columns=sorted(wanted - set(embedded))):
        for record in batch.to_pylist():
            row = table.builder.rows
            if not table.takes(record):
                continue
            place = f"row {row - first + 1}"
            origin = f"{file}, {place}"
            extras = table.extras(record, origin)
            if negative and negative[row - first]:
                extras = replace(extras, negative_image=f"{other}:{row}")
            texts = [text for column in captions for text in cell_captions(record[column])]
            if image in embedded:
                id, path = f"{name}, {place}", f"{image}:{row}"
            elif record[image] is None:
                raise CompoclipError(f"{origin} has no image path; mend the row")
            else:
                path = relative_image(record[image], table.root, origin)
                id = f"{path}#{row}"
            table.builder.add(id, path, texts, extras, origin)
