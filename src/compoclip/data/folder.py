"""A folder of images with the captions beside them."""

from __future__ import annotations

import os
from pathlib import Path

from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.data.tables import open_table
from compoclip.data.tarindex import IMAGE_EXTENSIONS
from compoclip.data.textfiles import read_lines
from compoclip.errors import CompoclipError

METADATA = ("metadata.jsonl", "captions.jsonl", "metadata.csv", "metadata.parquet")


def open_folder(
    path: Path, image_column: str | None = None, caption_column: str | None = None
) -> RowSource:
    """Images below a folder, with captions in one of two forms.

    A metadata file in the folder (see METADATA; as Hugging Face's imagefolder: columns file_name
    and text) names the images. Without one, every image file below the folder (links to folders
    are not followed) has its captions in a .txt file of the same name, one a line; images without
    captions are left out and counted. Ids are paths relative to the folder, in sorted order.

    Raises CompoclipError when the folder holds no captioned image.
    """
    if not path.is_dir():
        raise CompoclipError(f"{path}: folder not found; check the path")
    metadata = next((path / name for name in METADATA if (path / name).is_file()), None)
    if metadata is not None:
        return open_table([metadata], path, image_column, caption_column)
    builder = RowBuilder(path)
    for parent, folders, files in os.walk(path):
        folders.sort()
        names = set(files)
        for name in sorted(files):
            stem, dot, extension = name.rpartition(".")
            if not dot or name.startswith(".") or extension.lower() not in IMAGE_EXTENSIONS:
                continue
            image = os.path.relpath(os.path.join(parent, name), path)
            captions: list[str] = []
            if f"{stem}.txt" in names:
                captions = [line for _, line in read_lines(Path(parent, f"{stem}.txt"))]
            builder.add(image, image, [line for line in captions if line.strip()])
    return builder.build(FolderImages(path), f"folder {path}")
