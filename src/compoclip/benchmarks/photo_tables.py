"""Photos in Parquet files, as data-set hubs store them: a column of encoded images, one of labels.

Images are bytes or a struct with a field `bytes`, labels whole numbers or lists of them. The names
of the labels are read from the schema where it states them (ClassLabel).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.photo_set import PhotoSet
from compoclip.benchmarks.tables import column_names, opened_parquet, require_columns
from compoclip.data.embedded import holds_bytes
from compoclip.errors import CompoclipError

_LABELS = ("label", "labels", "fine_label", "class", "cls", "target")
_SPLITS = ("test", "val")


def find_tables(folder: Path) -> tuple[Path, ...]:
    """The Parquet files of a folder, or else of its `data` folder.

    Where their names start with a split, those of the test or else of the validation split.
    """
    for place in (folder, folder / "data"):
        found = sorted(place.glob("*.parquet"))
        for split in _SPLITS:
            of_split = [path for path in found if path.name.startswith(split)]
            if of_split:
                return tuple(of_split)
        if found:
            return tuple(found)
    return ()


def read_tables(paths: Sequence[Path]) -> PhotoSet:
    """Read the labels of all rows; images stay where they are.

    Raises CompoclipError for damaged files, and where a column or a label is missing.
    """
    images: list[ImageRef] = []
    labels: list[tuple[int, ...]] = []
    keys: list[str] = []
    names: tuple[str, ...] = ()
    for path in paths:
        with opened_parquet(path) as table:
            schema = table.schema_arrow
            require_columns(path, schema.names, (), "")
            image, label = _columns(schema, path)
            values = table.read([label])[label].to_pylist()
        names = names or _names(schema, label)
        for row, value in enumerate(values):
            found = _label(value, f"{path}: row {row + 1}: {label!r}")
            images.append(ImageRef(path, member=f"{image}:{row}"))
            labels.append(found)
            keys.append(f"{path.name}:{row} {','.join(map(str, found))}")
    if not images:
        raise CompoclipError(f"{paths[0]}: holds no photo; fetch it again")
    return PhotoSet(tuple(images), tuple(labels), names, tuple(keys))


def _columns(schema: pa.Schema, path: Path) -> tuple[str, str]:
    image = next((field.name for field in schema if holds_bytes(field.type)), None)
    label = next((name for name in _LABELS if name in schema.names), None)
    if image is None or label is None:
        lacking = "encoded images (bytes)" if image is None else f"labels ({', '.join(_LABELS)})"
        raise CompoclipError(
            f"{path}: no column with {lacking}; its columns are {column_names(schema.names)}"
        )
    return image, label


def _label(value: Any, where: str) -> tuple[int, ...]:
    found = value if isinstance(value, list) else [value]
    good = all(isinstance(each, int) and not isinstance(each, bool) for each in found)
    if not good or not found or min(found) < 0:
        raise CompoclipError(
            f"{where} must be a whole number from 0 or a list of them, not {value!r:.60}; this "
            "split may have no public labels"
        )
    return tuple(sorted(set(found)))


def _names(schema: pa.Schema, label: str) -> tuple[str, ...]:
    """The names that the hub's feature description gives the labels, () without any."""
    try:
        feature = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]
        while "names" not in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"]
    except (KeyError, TypeError, ValueError, IndexError):
        return ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()
