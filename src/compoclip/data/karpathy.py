"""COCO and Flickr30k captions in the JSON files of Karpathy's splits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compoclip.data.paths import relative_image
from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.data.splits import ALL, Split
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import read_json


def open_karpathy(path: Path, images: Path | None = None, split: str | None = None) -> RowSource:
    """Karpathy's splits, in either of the two forms in use.

    The original dataset_*.json: {"images": [{filepath, filename, split, sentences: [{raw}]}]};
    split: "train" (with "restval") unless given; images of others are counted; "all" takes
    everything. Or rows [{image, caption}] as in BLIP's files, where `caption` is a list or, one row
    a caption, a text; such a file is one split already. Rows of one image become one sample. Ids
    are the image paths.

    images: the folder the paths are relative to, by default the folder of the file. Raises
    CompoclipError for a file of another form, UsageError for a split that it does not have.
    """
    root = images if images is not None else path.parent
    data = read_json(path, damaged="fetch the file again")
    chosen = Split(split)
    if isinstance(data, dict) and isinstance(data.get("images"), list):
        rows = _original(data["images"], path, chosen)
    elif isinstance(data, list):
        if split not in (None, ALL):
            raise UsageError(f"{path}: holds one split already; leave out split {split!r}")
        rows = _rows(data, path)
    else:
        raise CompoclipError(f"{path}: neither a list of rows nor an object with 'images'")
    builder = RowBuilder(path)
    captions: dict[str, tuple[str, list[Any]]] = {}
    for origin, image, texts in rows:
        name = relative_image(image, root, origin)
        captions.setdefault(name, (origin, []))[1].extend(texts)
    chosen.require(path)
    builder.left_out.update(chosen.left_out())
    for name, (origin, texts) in captions.items():
        builder.add(name, name, texts, origin=origin)
    return builder.build(FolderImages(root), f"Karpathy JSON {path}{chosen}")


def _rows(data: list[Any], path: Path) -> Iterator[tuple[str, str, list[Any]]]:
    """(file and row, image, captions) of every row."""
    for number, row in enumerate(data, 1):
        origin = f"{path}, row {number}"
        if not isinstance(row, dict) or not isinstance(row.get("image"), str):
            keys = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise CompoclipError(
                f"{origin} has no 'image' path (it has: {keys}); is this a Karpathy file?"
            )
        caption = row.get("caption")
        texts = [caption] if isinstance(caption, str) else caption
        if not isinstance(texts, list):
            raise CompoclipError(f"{origin} has no 'caption'; it has: {', '.join(row)}")
        yield origin, row["image"], texts


def _original(entries: list[Any], path: Path, split: Split) -> Iterator[tuple[str, str, list[Any]]]:
    """(file and row, image, captions) of every image of the split."""
    for number, entry in enumerate(entries, 1):
        origin = f"{path}, image {number}"
        try:
            folder, name, part = entry.get("filepath") or "", entry["filename"], entry["split"]
            texts = [sentence["raw"] for sentence in entry["sentences"]]
        except (TypeError, KeyError, AttributeError) as error:
            raise CompoclipError(
                f"{origin} lacks {error}; is this a Karpathy dataset file?"
            ) from None
        if not all(isinstance(value, str) for value in (folder, name, part)):
            raise CompoclipError(
                f"{origin}: filepath, filename and split must be texts; is this a Karpathy dataset "
                "file?"
            )
        if split.takes(part):
            yield origin, f"{folder}/{name}" if folder else name, texts
