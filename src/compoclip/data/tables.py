"""Tables of images and captions: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.data.columns import cell_captions, pick_columns
from compoclip.data.embedded import EmbeddedImages, holds_bytes
from compoclip.data.extras import EXTRA_COLUMNS, read_extras
from compoclip.data.paths import relative_image
from compoclip.data.rows import FolderImages, Images, RowBuilder, RowSource
from compoclip.data.textfiles import delimited_header, read_delimited, read_jsonl
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import unreadable

_PARQUET_BATCH = 8192


def open_table(
    files: Sequence[Path],
    images: Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
) -> RowSource:
    """One or several tables of one kind and the same columns, as one source.

    files: .csv, .tsv, .jsonl or .parquet. images: the folder that image paths are relative to, by
    default the folder of the first file. image_column: paths; in Parquet also the encoded bytes or
    a struct with a field `bytes`, as on the Hugging Face hub. caption_column: one name or several
    joined by commas; a cell holds one caption or a list of them. Columns not named are guessed.
    Where images are files, the columns that `read_extras` knows are read as well.
    Ids are "image#row"; rows are counted over all files.

    Raises UsageError for a column that is not there, CompoclipError for a file that is missing or
    malformed, an image path that leaves the folder, or when no sample is left.
    """
    root = images if images is not None else files[0].parent
    builder = RowBuilder(files[0])
    opener: Images = FolderImages(root)
    if files[0].suffix.lower() == ".parquet":
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
    if file.suffix.lower() == ".jsonl":
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
    embedded: str | None = None
    for file in files:
        try:
            with pq.ParquetFile(file) as parquet:
                schema = parquet.schema_arrow
                image, captions = pick_columns(schema.names, image_column, caption_column, file)
                builder.columns += (image, *captions)
                if holds_bytes(schema.field(image).type):
                    embedded = image
                    row = _add_embedded(parquet, builder, captions, row)
                    continue
                row = _add_paths(parquet, file, builder, root, image, captions, row)
        except OSError as error:
            raise unreadable(file, error) from None
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise CompoclipError(
                f"{file}: not a whole Parquet file ({reason}); fetch the file again"
            ) from None
    return FolderImages(root) if embedded is None else EmbeddedImages(files, embedded)


def _add_paths(
    parquet: pq.ParquetFile,
    file: Path,
    builder: RowBuilder,
    root: Path,
    image: str,
    captions: tuple[str, ...],
    row: int,
) -> int:
    kind = parquet.schema_arrow.field(image).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UsageError(f"{file}: column {image!r} holds {kind}, not image paths or bytes")
    extra = [name for name in EXTRA_COLUMNS if name in parquet.schema_arrow.names]
    for batch in parquet.iter_batches(_PARQUET_BATCH, columns=[image, *captions, *extra]):
        for record in batch.to_pylist():
            if record[image] is None:
                raise CompoclipError(f"{file}: row {row} has no image path; mend the row")
            origin = f"{file}, row {row}"
            relative = relative_image(record[image], root, origin)
            texts = _captions(record, captions)
            builder.add(f"{relative}#{row}", relative, texts, read_extras(record, root, origin))
            row += 1
    return row


def _add_embedded(
    parquet: pq.ParquetFile, builder: RowBuilder, captions: tuple[str, ...], row: int
) -> int:
    for batch in parquet.iter_batches(_PARQUET_BATCH, columns=list(captions)):
        for record in batch.to_pylist():
            builder.add(f"row#{row}", str(row), _captions(record, captions))
            row += 1
    return row


def _captions(record: dict[str, Any], columns: tuple[str, ...]) -> list[str]:
    return [text for name in columns for text in cell_captions(record[name])]
