"""COCO's own caption annotations (captions_train2017.json and the like)."""

from __future__ import annotations

from pathlib import Path

from compoclip.data.paths import relative_image
from compoclip.data.rows import FolderImages, RowBuilder, RowSource
from compoclip.errors import CompoclipError
from compoclip.files import read_json


def open_coco(path: Path, images: Path | None = None) -> RowSource:
    """{"images": [{id, file_name}], "annotations": [{image_id, caption}]}: one sample an image.

    images: the folder that holds the photos, by default the folder of the file. Ids are the file
    names. Raises CompoclipError for a file of another form or a caption of an unknown image.
    """
    root = images if images is not None else path.parent
    data = read_json(path, damaged="fetch the file again")
    builder = RowBuilder(path)
    captions: dict[object, list[str]] = {}
    names: dict[object, str] = {}
    try:
        for entry in data["images"]:
            names[entry["id"]] = relative_image(entry["file_name"], root, str(path))
            captions[entry["id"]] = []
        for entry in data["annotations"]:
            captions[entry["image_id"]].append(str(entry["caption"]))
    except (TypeError, KeyError) as error:
        raise CompoclipError(
            f"{path}: lacks {error}; are these COCO's caption annotations, and whole?"
        ) from None
    for key, texts in captions.items():
        builder.add(names[key], names[key], texts)
    return builder.build(FolderImages(root), f"COCO captions {path}")
