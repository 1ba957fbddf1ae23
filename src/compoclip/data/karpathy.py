"""COCO and Flickr30k captions in the JSON files of Karpathy's splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from compoclip.data.paths import relative_image
from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import read_json

# Karpathy's train split leaves out the part of COCO val2014 that everybody trains on as well.
_TRAIN = ("train", "restval")


def open_karpathy(path: Path, images: Path | None = None, split: str | None = None) -> RowSource:
    """Karpathy's splits, in either of the two forms in use.

    The original dataset_*.json: {"images": [{filepath, filename, split, sentences: [{raw}]}]};
    split "train" includes "restval", None takes everything. Or rows [{image, caption}] as in
    BLIP's files, where `caption` is a list or, one row a caption, a text; such a file is one split
    already. Rows of one image become one sample. Ids are the image paths.

    images: the folder the paths are relative to, by default the folder of the file. Raises
    CompoclipError for a file of another form, UsageError for a split that it does not have.
    """
    root = images if images is not None else path.parent
    data = read_json(path, damaged="fetch the file again")
    if isinstance(data, dict) and isinstance(data.get("images"), list):
        rows = _original(data["images"], path, split)
    elif isinstance(data, list):
        if split is not None:
            raise UsageError(f"{path}: holds one split already; leave out split {split!r}")
        rows = _rows(data, path)
    else:
        raise CompoclipError(f"{path}: neither a list of rows nor an object with 'images'")
    builder = RowBuilder(path)
    captions: dict[str, list[str]] = {}
    for number, image, texts in rows:
        name = relative_image(image, root, f"{path}, row {number}")
        captions.setdefault(name, []).extend(texts)
    for name, texts in captions.items():
        builder.add(name, name, texts)
    part = f", split {split}" if split else ""
    return builder.build(FolderImages(root), f"Karpathy JSON {path}{part}")


def _rows(data: list[Any], path: Path) -> Iterator[tuple[int, str, list[str]]]:
    for number, row in enumerate(data):
        if not isinstance(row, dict) or not isinstance(row.get("image"), str):
            keys = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise CompoclipError(
                f"{path}: row {number} has no 'image' path (it has: {keys}); is this a Karpathy "
                "file?"
            )
        caption = row.get("caption")
        texts = [caption] if isinstance(caption, str) else caption
        if not isinstance(texts, list):
            raise CompoclipError(f"{path}: row {number} has no 'caption'; it has: {', '.join(row)}")
        yield number, row["image"], _texts(texts)


def _original(
    entries: list[Any], path: Path, split: str | None
) -> Iterator[tuple[int, str, list[str]]]:
    wanted = _TRAIN if split == "train" else (split,)
    found: set[str] = set()
    for number, entry in enumerate(entries):
        try:
            folder, name, part = entry.get("filepath", ""), entry["filename"], entry["split"]
            texts = [sentence["raw"] for sentence in entry["sentences"]]
        except (TypeError, KeyError, AttributeError) as error:
            raise CompoclipError(
                f"{path}: image {number} lacks {error}; is this a Karpathy dataset file?"
            ) from None
        found.add(str(part))
        if split is None or part in wanted:
            yield number, f"{folder}/{name}" if folder else str(name), _texts(texts)
    if split is not None and not found.intersection(wanted):
        raise UsageError(f"{path}: no split {split!r}; it has: {', '.join(sorted(found))}")


def _texts(values: Iterable[Any]) -> list[str]:
    return [value for value in values if isinstance(value, str)]
