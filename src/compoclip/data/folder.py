"""A folder of images with the captions beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from compoclip.data.decode import EXTENSIONS
from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.data.splits import Split, split_of
from compoclip.data.tables import open_table
from compoclip.data.textfiles import read_lines
from compoclip.errors import CompoclipError

METADATA = ("metadata.jsonl", "captions.jsonl", "metadata.csv", "metadata.parquet")
NO_IMAGE = "caption file without an image"
# Kinds of images that are not read: for want of a decoder, or because reading starts a program.
UNREAD = (
    frozenset(("heic", "heif", "hif", "avif", "jxl", "eps", "svg", "psd", "tga", "ico", "pcx"))
    | frozenset(("exr", "hdr", "dng", "cr2", "cr3", "nef", "arw", "xcf", "djvu"))
) - EXTENSIONS


def open_folder(
    path: Path,
    image_column: str | None = None,
    caption_column: str | None = None,
    split: str | None = None,
) -> RowSource:
    """Images below a folder, with captions in one of two forms.

    A metadata file in the folder (see METADATA; as Hugging Face's imagefolder: columns file_name
    and text) names the images. Without one, every image file below the folder (links to folders
    are not followed) has its captions in a .txt file of the same name, one a line. Images without
    captions, images of a kind that is not read and captions without an image are left out and
    counted. Ids are paths relative to the folder, in sorted order.

    split: of a metadata file as in `open_table`. Else folders such as train and val2014 are splits:
    "train" is read unless another one is given, and images of the others are counted; "all" is
    everything.

    Raises CompoclipError when the folder holds no captioned image, UsageError for a split that is
    not there.
    """
    if not path.is_dir():
        raise CompoclipError(f"{path}: folder not found; check the path")
    metadata = next((path / name for name in METADATA if (path / name).is_file()), None)
    if metadata is not None:
        return open_table([metadata], path, image_column, caption_column, split)
    builder = RowBuilder(path)
    chosen = Split(split)
    by_split = split is not None or any(
        each.is_dir() and split_of(each.name) for each in path.iterdir()
    )
    for parent, folders, files in os.walk(path):
        folders.sort()
        names = set(files)
        _count_unread(files, builder.left_out)
        for name in sorted(files):
            stem, extension = _stem(name)
            if extension.lower() not in EXTENSIONS:
                continue
            image = os.path.relpath(os.path.join(parent, name), path)
            if by_split and not chosen.takes(chosen.named(os.path.dirname(image))):
                continue
            captions: list[str] = []
            if f"{stem}.txt" in names:
                captions = [line for _, line in read_lines(Path(parent, f"{stem}.txt"))]
            builder.add(image, image, [line for line in captions if line.strip()])
    chosen.require(path)
    builder.left_out.update(chosen.left_out("image"))
    return builder.build(FolderImages(path), f"folder {path}{chosen}")


def _count_unread(files: Iterable[str], left_out: Counter[str]) -> None:
    """Count images of a kind that is not read, and captions that no image goes with."""
    kinds: dict[str, list[str]] = {}
    for name in files:
        stem, extension = _stem(name)
        kinds.setdefault(stem, []).append(extension)
    for extensions in kinds.values():
        if any(extension.lower() in EXTENSIONS for extension in extensions):
            continue  # what else has the name goes with that image
        unread = [extension for extension in extensions if extension.lower() in UNREAD]
        if "txt" in extensions:  # what lies beside captions is taken for their image
            unread = [extension for extension in extensions if extension not in ("txt", "")]
            left_out[NO_IMAGE] += not unread
        for extension in unread:
            left_out[f"image of a kind that is not read (.{extension.lower()})"] += 1


def _stem(name: str) -> tuple[str, str]:
    """The name of a file without its extension, and that; no extension for hidden files."""
    stem, dot, extension = name.rpartition(".")
    return (stem, extension) if dot and not name.startswith(".") else (name, "")
