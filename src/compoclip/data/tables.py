"""Tables of images and captions: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.data.columns import cell_captions, pick_columns
from compoclip.data.embedded import EmbeddedImages, holds_bytes
from compoclip.data.extras import EXTRA_COLUMNS, NEG_IMAGE, read_extras
from compoclip.data.paths import has_ending, relative_image
from compoclip.data.rows import FolderImages, Images, RowBuilder, RowSource
from compoclip.data.textfiles import (
    PARQUET_BATCH,
    delimited_header,
    opened_parquet,
    read_delimited,
    read_jsonl,
)
from compoclip.errors import CompoclipError, UsageError


def open_table(
    files: Sequence[Path],
    images: Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
) -> RowSource:
    """One or several tables of one kind and the same columns, as one source.

    files: .csv, .tsv, .jsonl, .jsonl.gz or .parquet. images: the folder that image paths are
    relative to, by default the folder of the first file. image_column: paths; in Parquet also the
    encoded bytes or a struct with a field `bytes`, as on the Hugging Face hub. caption_column: one
    name or several joined by commas; a cell holds one caption or a list of them. Columns not named
    are guessed.
    The columns that `read_extras` knows are read as well; in Parquet neg_image may hold encoded
    images, too. Ids are "image#row" ("row#N" of encoded images); rows are counted over all files.

    Raises UsageError for a column that is not there, CompoclipError for a file that is missing or
    malformed, an image path that leaves the folder, or when no sample is left.
    """
    root = images if images is not None else files[0].parent
    builder = RowBuilder(files[0])
    opener: Images = FolderImages(root)
    if has_ending(files[0], ".parquet"):
        opener = _add_parquet(files, builder, root, image_column, caption_column)
    else:
        row = 0
        for file in files:
            row = _add_text(file, builder, root, image_column, caption_column, row)
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    columns = ", ".join(dict.fromkeys(builder.columns))
    return builder.build(opener, f"table {files[0]}{more} (columns {columns})")


def _add_text(
    file: Path,
    builder: RowBuilder,
    root: Path,
    image_column: str | None,
    caption_column: str | None,
    first: int,
) -> int:
    """Add the rows of a CSV, TSV or JSON-lines file; returns the number of the next row."""
    rows: Iterator[tuple[int, dict[str, Any]]]
    chosen: tuple[str, tuple[str, ...]] | None = None
    if has_ending(file, ".jsonl", ".jsonl.gz"):
        rows = read_jsonl(file)
    else:
        rows = read_delimited(file)
        chosen = pick_columns(delimited_header(file), image_column, caption_column, file)
        builder.columns += (chosen[0], *chosen[1])
    row = first
    for number, record in rows:
        if chosen is None:
            chosen = pick_columns(record, image_column, caption_column, file)
            builder.columns += (chosen[0], *chosen[1])
        image = record.get(chosen[0])
        if not isinstance(image, str):
            raise CompoclipError(
                f"{file}: row {number} has no image path in column {chosen[0]!r}; mend the row"
            )
        origin = f"{file}, row {number}"
        relative = relative_image(image, root, origin)
        captions = [text for name in chosen[1] for text in cell_captions(record.get(name))]
        builder.add(f"{relative}#{row}", relative, captions, read_extras(record, root, origin))
        row += 1
    return row


def _add_parquet(
    files: Sequence[Path],
    builder: RowBuilder,
    root: Path,
    image_column: str | None,
    caption_column: str | None,
) -> Images:
    """Add the rows of Parquet files; returns what opens their images."""
    row = 0
    embedded: set[str] = set()
    for file in files:
        with opened_parquet(file) as parquet:
            names = parquet.schema_arrow.names
            columns = pick_columns(names, image_column, caption_column, file)
            builder.columns += (columns[0], *columns[1])
            held = {n for n in (columns[0], NEG_IMAGE) if n in names and _embeds(parquet, n)}
            if row and held != embedded:
                raise CompoclipError(f"{file}: holds images in other columns than {files[0]}")
            embedded = held
            row = _add_rows(parquet, file, builder, root, columns, embedded, row)
    if not embedded:
        return FolderImages(root)
    return ColumnImages(root, {name: EmbeddedImages(files, name) for name in sorted(embedded)})


class ColumnImages:
    """Images named "column:row", encoded in a column of the table, or else by path below a folder.

    Only names that begin with one of the columns are of the table.
    """

    def __init__(self, root: Path, columns: Mapping[str, EmbeddedImages]) -> None:
        self._folder = FolderImages(root)
        self._columns = dict(columns)

    def __call__(self, image: str) -> Path | bytes:
        """The file, or the encoded image."""
        column, _, row = image.rpartition(":")
        return self._columns[column](row) if column in self._columns else self._folder(image)


def _embeds(parquet: pq.ParquetFile, column: str) -> bool:
    return holds_bytes(parquet.schema_arrow.field(column).type)


def _add_rows(
    parquet: pq.ParquetFile,
    file: Path,
    builder: RowBuilder,
    root: Path,
    columns: tuple[str, tuple[str, ...]],
    embedded: Collection[str],
    row: int,
) -> int:
    """Add the rows of one file, `embedded` being its columns of images; the number of the next."""
    image, captions = columns
    kind = parquet.schema_arrow.field(image).type
    if image not in embedded and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UsageError(f"{file}: column {image!r} holds {kind}, not image paths or bytes")
    negative = EmbeddedImages([file], NEG_IMAGE).present() if NEG_IMAGE in embedded else []
    wanted = {image, *captions, *EXTRA_COLUMNS}.intersection(parquet.schema_arrow.names)
    first = row
    for batch in parquet.iter_batches(PARQUET_BATCH, columns=sorted(wanted - set(embedded))):
        for record in batch.to_pylist():
            origin = f"{file}, row {row}"
            extras = read_extras(record, root, origin)
            if negative and negative[row - first]:
                extras = replace(extras, negative_image=f"{NEG_IMAGE}:{row}")
            texts = _captions(record, captions)
            if image in embedded:
                builder.add(f"row#{row}", f"{image}:{row}", texts, extras)
            elif record[image] is None:
                raise CompoclipError(f"{origin} has no image path; mend the row")
            else:
                path = relative_image(record[image], root, origin)
                builder.add(f"{path}#{row}", path, texts, extras)
            row += 1
    return row


def _captions(record: dict[str, Any], columns: tuple[str, ...]) -> list[str]:
    return [text for name in columns for text in cell_captions(record[name])]
