"""COCO's own caption annotations (captions_train2017.json and the like)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from compoclip.data.paths import relative_image
from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.errors import CompoclipError
from compoclip.files import read_json


def open_coco(path: Path, images: Path | None = None) -> RowSource:
    """{"images": [{id, file_name}], "annotations": [{image_id, caption}]}: one sample an image.

    images: the folder that holds the photos, by default the folder of the file. Ids are the file
    names. Raises CompoclipError for a file of another form, an image id that occurs twice, or a
    caption of an unknown image.
    """
    root = images if images is not None else path.parent
    data = read_json(path, damaged="fetch the file again")
    builder = RowBuilder(path)
    captions: dict[Any, tuple[str, str, list[Any]]] = {}
    for origin, key, name in _entries(data, "images", "id", "file_name", path):
        if key in captions:
            raise CompoclipError(f"{origin}: the image id {key!r} occurs twice; remove one")
        if not isinstance(name, str):
            raise CompoclipError(f"{origin}: the file_name {name!r} is no text; mend the file")
        captions[key] = (origin, relative_image(name, root, origin), [])
    for origin, key, caption in _entries(data, "annotations", "image_id", "caption", path):
        if key not in captions:
            raise CompoclipError(f"{origin}: no image has the id {key!r}; fetch the file again")
        captions[key][2].append(caption)
    for origin, name, texts in captions.values():
        builder.add(name, name, texts, origin=origin)
    return builder.build(FolderImages(root), f"COCO captions {path}")


def _entries(
    data: Any, part: str, key: str, value: str, path: Path
) -> Iterator[tuple[str, Hashable, Any]]:
    """(file and entry for messages, its id, its value) of a list of the file; entries from 1."""
    entries = data.get(part) if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise CompoclipError(f"{path}: lacks {part!r}; are these COCO's caption annotations?")
    for number, entry in enumerate(entries, 1):
        origin = f"{path}, {part} {number}"
        if not isinstance(entry, dict) or not {key, value} <= entry.keys():
            raise CompoclipError(f"{origin} lacks {key!r} or {value!r}; is the file whole?")
        if not isinstance(entry[key], str | int):
            raise CompoclipError(f"{origin}: the id {entry[key]!r} is no number; mend the file")
        yield origin, entry[key], entry[value]
