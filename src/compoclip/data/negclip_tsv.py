"""NegCLIP's training files: captions with generated hard negatives."""

from __future__ import annotations

from pathlib import Path

from compoclip.data.extras import read_extras
from compoclip.data.paths import relative_image
from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.data.textfiles import delimited_header, read_delimited
from compoclip.errors import UsageError

COLUMNS = ("title", "filepath", "neg_caption")


def open_negclip(path: Path, images: Path | None = None) -> RowSource:
    """TSV (or CSV) with columns title, filepath, neg_caption; one sample a row.

    `neg_caption` is a Python list written as text; its entries become `Sample.negatives`. Further
    columns are read as in `read_extras` (neg_image: rows with similar images). Captions may hold
    line breaks. Ids are "filepath#row", rows counted from 0 as in neg_image. images: the folder the
    paths are relative to, by default the folder of the file. Raises CompoclipError for a malformed
    row, UsageError when a column is missing.
    """
    root = images if images is not None else path.parent
    header = delimited_header(path)
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise UsageError(
            f"{path}: no column {missing[0]!r}; the columns are: {', '.join(header) or 'none'}"
        )
    builder = RowBuilder(path)
    for number, row in read_delimited(path):
        origin = f"{path}, row {number}"
        image = relative_image(row["filepath"], root, origin)
        extras = read_extras(row, root, origin, lists=True)
        builder.add(f"{image}#{number - 1}", image, [row["title"]], extras, origin)
    return builder.build(FolderImages(root), f"NegCLIP table {path}")
