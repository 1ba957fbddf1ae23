"""Classification labels in the layout of COCO, as three sets of the ELEVATER toolkit have them:

    {"images": [{"id": 1, "file_name": "archive.zip@inner/path.jpg"}],
     "annotations": [{"id": 1, "image_id": 1, "category_id": 1}],
     "categories": [{"id": 1, "name": "meme"}]}

A label is the place of a category among the sorted ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.errors import CompoclipError

Row = tuple[str, str, tuple[int, ...]]
"""Place in the file for messages, photo, labels."""


def read_coco(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """The photos in file order, and the names of the categories by label.

    Raises CompoclipError for a list, a key or an id that lacks or is there twice, and for a photo
    without a label.
    """
    data = files.record(files.read_json(path), str(path))
    names: dict[int, str] = {}
    for where, row in _rows(data, "categories", path):
        names[_new(row, names, where)] = files.text(row, "name", where)
    place = {key: k for k, key in enumerate(sorted(names))}
    photos: dict[int, tuple[str, str]] = {}
    for where, row in _rows(data, "images", path):
        photos[_new(row, photos, where)] = (where, files.text(row, "file_name", where))
    labels: dict[int, set[int]] = {key: set() for key in photos}
    for where, row in _rows(data, "annotations", path):
        image, category = _id(row, "image_id", where), _id(row, "category_id", where)
        for what, key, known in (("image", image, photos), ("category", category, place)):
            if key not in known:
                raise CompoclipError(f"{where}: no {what} {key} in the file; fetch it again")
        labels[image].add(place[category])
    bare = next((where for key, (where, _) in photos.items() if not labels[key]), None)
    if bare is not None:
        raise CompoclipError(f"{bare}: no annotation gives it a label; fetch the file again")
    rows = [(where, photo, tuple(sorted(labels[key]))) for key, (where, photo) in photos.items()]
    return rows, tuple(names[key] for key in sorted(names))


def _rows(data: dict[str, Any], key: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for k, value in enumerate(files.items(files.field(data, key, str(path)), f"{path}: {key!r}")):
        where = f"{path}: {key} {k}"
        yield where, files.record(value, where)


def _new(row: dict[str, Any], known: dict[int, Any], where: str) -> int:
    key = _id(row, "id", where)
    if key in known:
        raise CompoclipError(f"{where}: the id {key} is there twice; fetch the file again")
    return key


def _id(row: dict[str, Any], key: str, where: str) -> int:
    value = files.field(row, key, where)
    if isinstance(value, bool) or not isinstance(value, int):
        raise CompoclipError(f"{where}: {key!r} must be a whole number, found {value!r:.40}")
    return value
