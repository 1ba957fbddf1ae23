"""NegCLIP's training files: captions with generated hard negatives."""

from __future__ import annotations

from pathlib import Path

from compoclip.data.columns import text_list
from compoclip.data.rows import FolderImages, RowBuilder, RowSource, relative_image
from compoclip.data.textfiles import delimited_header, read_delimited
from compoclip.errors import CompoclipError, UsageError

COLUMNS = ("title", "filepath", "neg_caption")


def open_negclip(path: Path, images: Path | None = None) -> RowSource:
    """TSV (or CSV) with columns title, filepath, neg_caption; one sample a row.

    `neg_caption` is a Python list written as text; its entries become `Sample.negatives`. Captions
    may hold line breaks. Ids are "filepath#row". images: the folder the paths are relative to, by
    default the folder of the file. Raises CompoclipError for a malformed row, UsageError when a
    column is missing.
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
        negatives = text_list(row["neg_caption"]) if row["neg_caption"].strip() else []
        if negatives is None:
            raise CompoclipError(
                f"{path}: row {number}: neg_caption is not a list of texts; mend the row"
            )
        image = relative_image(row["filepath"], root, f"{path}, row {number}")
        builder.add(f"{image}#{number}", image, [row["title"]], negatives)
    return builder.build(FolderImages(root), f"NegCLIP table {path}")
