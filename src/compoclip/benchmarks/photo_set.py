"""Labelled photos, whatever layout they came in: what the readers of zero-shot sets yield."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compoclip import files as room_files
from compoclip.archives import DAMAGED_ZIP, read_at, whole_members, zip_members
from compoclip.benchmarks import files
from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.prompts import read_names
from compoclip.benchmarks.tables import column_names, opened_parquet
from compoclip.bounds import MAX_LABEL_BYTES
from compoclip.data.boxes import BoxedPhoto, BoxedThing
from compoclip.errors import CompoclipError, require, shown
from compoclip.tables import holds_bytes

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)


Photo = tuple[ImageRef, tuple[int, ...], str]
"""An image, its labels, and the text that identifies both in the data hash."""


@dataclass(frozen=True)
class PhotoSet:
    """Photos with their labels, and what the data themselves say about the classes.

    labels: of each photo, one or several numbers. names: what the data call the classes, by label;
    () when they do not say. folders: the names are those of directories, in sorted order. toolkit:
    numbers that no name explains are those of the ELEVATER toolkit. templates: a file of prompt
    templates among the data. keys: texts that decide the items and the labels, for the data hash.
    left_out: reason -> count.
    """

    images: tuple[ImageRef, ...]
    labels: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    keys: tuple[str, ...]
    folders: bool = False
    toolkit: bool = False
    templates: Path | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Number of classes, as far as the labels and names tell."""
        return max(len(self.names), 1 + max((max(each) for each in self.labels), default=-1))

    @classmethod
    def of(cls, photos: Iterable[Photo], empty: str, names: Sequence[str], **more: Any) -> PhotoSet:
        """Return the set of these photos; without any CompoclipError(`empty`). more: fields."""
        found = list(photos)
        if not found:
            raise CompoclipError(empty)
        images, labels, keys = zip(*found)
        return cls(images, labels, tuple(names), keys, **more)


# --- Photos in a folder of classes: <folder>/<class directory>/**/<photo>. ---

_TEST_SPLITS, _TRAIN_SPLITS = ("test", "val", "validation"), ("train", "training")


def read_folders(folder: Path, hint: str = "") -> PhotoSet:
    """Return every photo below a class directory, classes by the sorted names of directories.

    Where the directories are splits ("test" or "val", with or without "train"), the classes are
    looked for in the test or else the validation split. Directories that start with a dot are no
    classes. hint: what to add when the folder is absent.
    """
    directories: list[str] = []
    for nested in (False, True):
        try:
            there = [each.name for each in os.scandir(folder) if each.is_dir()]
        except OSError as error:
            put = f"put the class folders of {folder.name!r} there{hint}"
            raise room_files.unreadable(folder, error, put) from error
        directories = sorted(name for name in there if name[0] != ".")
        require(directories, folder, "no class directories; expected <class>/<photo>")
        split = next((name for name in _TEST_SPLITS if name in directories), None)
        if nested or split is None or not set(directories) <= {*_TEST_SPLITS, *_TRAIN_SPLITS}:
            break
        folder = folder / split
    photos: list[Photo] = []
    others = 0
    for label, directory in enumerate(directories):
        found = []
        for parent, _, names in os.walk(folder / directory):
            for name in names:
                if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                    found.append((Path(parent) / name).relative_to(folder).as_posix())
                else:
                    others += 1
        photos += [(ImageRef(folder / photo), (label,), photo) for photo in sorted(found)]
    templates = folder / "templates.json"
    return PhotoSet.of(
        photos,
        f"{folder}: no photos in the class directories",
        directories,
        folders=True,
        templates=templates if templates.is_file() else None,
        left_out={"files in class directories that are no photos": others},
    )


# --- The layout of COCO: labels of three sets of the ELEVATER toolkit, and boxes of things. ---
#
#     {"images": [{"id": 1, "file_name": "archive.zip@inner/path.jpg"}],
#      "annotations": [{"id": 1, "image_id": 1, "category_id": 1}],
#      "categories": [{"id": 1, "name": "meme"}]}
#
# A label is the place of a category among the sorted ids.

Row = tuple[str, str, tuple[int, ...]]
"""Place in the file for messages, photo, labels."""
_Placed = tuple[str, dict[str, Any]]
"""Place in the file for messages, row."""


def _coco(
    path: Path, damaged: str
) -> tuple[dict[Any, str], dict[Any, _Placed], list[tuple[_Placed, Any, Any]]]:
    """Return category names and photos by id, and annotations with image and category."""
    data = files.record(files.read_json(path, damaged=damaged), str(path))

    def rows(key: str) -> Iterator[_Placed]:
        listed = files.items(files.field(data, key, str(path)), f"{path}: {key!r}")
        for k, value in enumerate(listed):
            yield f"{path}: {key} {k}", files.record(value, f"{path}: {key} {k}")

    def by_id(key: str) -> Iterator[tuple[Any, _Placed]]:
        seen: set[object] = set()
        for where, row in rows(key):
            files.identifier(row, "id", where, seen, damaged)
            yield row["id"], (where, row)

    names = {key: files.text(row, "name", where) for key, (where, row) in by_id("categories")}
    photos = dict(by_id("images"))

    def known(what: str, ids: Mapping[Any, Any], where: str, row: Mapping[str, Any]) -> Any:
        key = files.field(row, f"{what}_id", where)
        good = not isinstance(key, bool) and isinstance(key, int | str) and key in ids
        require(good, where, f"no {what} {key!r:.40} in the file; {damaged}")
        return key

    annotations = [
        ((where, row), known("image", photos, where, row), known("category", names, where, row))
        for where, row in rows("annotations")
    ]
    return names, photos, annotations


def read_coco(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """Return the photos in file order, each with a label, and the category names by label."""
    names, photos, annotations = _coco(path, files.OFFICIAL)
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    place = {key: k for k, key in enumerate(order)}
    labels: dict[Any, set[int]] = {key: set() for key in photos}
    for _, image, category in annotations:
        labels[image].add(place[category])
    rows = []
    for key, (where, row) in photos.items():
        require(labels[key], where, f"no annotation gives it a label; {files.OFFICIAL}")
        rows.append((where, files.text(row, "file_name", where), tuple(sorted(labels[key]))))
    return rows, tuple(names[key] for key in order)


MEND = "fix the file"


def coco_boxes(path: Path) -> list[BoxedPhoto]:
    """Return the photos, with their things in order, of a file like COCO's instances."""
    names, photos, annotations = _coco(path, MEND)
    things: dict[Any, list[BoxedThing]] = {key: [] for key in photos}
    for (where, row), image, category in annotations:
        box = files.corners(files.field(row, "bbox", where), f"{where}: box", flat=True)
        crowd = row.get("iscrowd") not in (None, 0, False)
        things[image].append(BoxedThing(names[category], box, crowd))
    return [
        boxed_photo(row, "file_name", things[key], where) for key, (where, row) in photos.items()
    ]


def boxed_photo(
    row: Mapping[str, Any], key: str, things: Sequence[BoxedThing], where: str
) -> BoxedPhoto:
    """Return a photo whose row has its name (`key`), width and height."""
    width, height = (files.number(row, side, where) for side in ("width", "height"))
    problem = f"a photo of {width:g} x {height:g} pixels; {MEND}"
    require(min(width, height) > 0, where, problem)
    return BoxedPhoto(files.text(row, key, where), width * height, tuple(things))


# --- Photos listed in one file, as the ELEVATER toolkit stores its sets. ---
#
# A text file has lines `archive.zip@inner/path.jpg label[,label...]`, labels being numbers from 0;
# the names of the labels stand in a file beside it, one a line in the order of the labels. A JSON
# file has the layout of COCO (above). The archives lie beside the file. A photo without
# "archive.zip@" is a file below that folder.

INDEXES = tuple(
    f"{split}{kind}"
    for split in ("test", "val")
    for kind in (".txt", "_images.txt", "_ic.txt", "_meta.json", ".json")
)
LABELS = ("labels.txt", "labelmap.txt", "classnames.txt")


def read_photo_index(path: Path) -> PhotoSet:
    """Read an index. Members that their archive does not hold are photos that do not exist."""
    rows: Iterable[Row]
    if path.suffix == ".json":
        rows, names = read_coco(path)
    else:
        rows = _of_lines(path)
        listed = next((each for name in LABELS if (each := path.parent / name).is_file()), None)
        names = () if listed is None else read_names(listed, path.parent.name)
    held: dict[Path, frozenset[str] | None] = {}
    photos: list[Photo] = []
    seen: set[str] = set()
    for where, photo, labels in rows:
        require(photo not in seen, where, f"{photo!r:.80} is listed twice; fetch the index again")
        seen.add(photo)
        key = f"{photo} {','.join(map(str, labels))}"
        archive, at, inner = photo.partition("@")
        image = ImageRef(files.image_path(path.parent, archive, where))
        if at:
            packed = image.path
            absent = files.image_path(packed.with_name(f"{packed.name}@"), inner, where)
            if packed not in held:
                held[packed] = _members(packed)
            # A path that does not exist: coverage counts and names it.
            here = inner in (held[packed] or ())
            image = ImageRef(packed, member=inner) if here else ImageRef(absent)
        photos.append((image, labels, key))
    empty = f"{path}: lists no photo; fetch the index again"
    found = PhotoSet.of(photos, empty, names, toolkit=True)
    problem = f"label {found.classes - 1} has no name among the {len(names)} of {path.parent}"
    require(not names or found.classes <= len(names), path, f"{problem}; labels count from 0")
    return found


def _of_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        photo, _, tail = line.strip().rpartition(" ")
        problem = f"expected 'archive.zip@path label[,label]', found {line[:60]!r}"
        require(photo, where, problem)
        parts = tail.split(",")
        good = all(each.isascii() and each.isdigit() and len(each) <= 6 for each in parts)
        require(good, where, f"labels {tail[:40]!r} must be whole numbers from 0")
        yield where, photo.strip(), tuple(sorted(set(map(int, parts))))


def _members(archive: Path) -> frozenset[str] | None:
    try:
        with zipfile.ZipFile(archive) as opened:
            return frozenset(each.filename for each in zip_members(opened))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise room_files.unreadable(archive, error) from error
    except DAMAGED_ZIP as error:
        raise CompoclipError(f"{archive}: not a whole zip file; fetch the archive again") from error


# --- Photos in tar shards with a label beside each, as CLIP_benchmark publishes its sets. ---
#
#     <folder>/classnames.txt                            one name a line, in the order of the labels
#     <folder>/zeroshot_classification_templates.txt     one template a line, placeholder {c}
#     <folder>/test/0.tar, 1.tar, ... (or in the folder itself)
#
# A sample is the members that share a name up to the first dot of the file name: an image, and its
# label as `.cls` (a number) or, where several classes are true, as `.npy` (a vector of 0 and 1).

_NAMES, _TEMPLATES = "classnames.txt", "zeroshot_classification_templates.txt"


def find_shards(folder: Path) -> tuple[Path, ...]:
    """Return the shards of a folder, or of its `test` folder, in the order of their numbers."""

    def number(path: Path) -> tuple[list[int], str]:
        return [int(each) for each in re.findall(r"\d+", path.stem)], path.name

    for place in (folder, folder / "test"):
        found = sorted(place.glob("*.tar"), key=number)
        if found:
            return tuple(found)
    return ()


def read_shards(folder: Path, shards: tuple[Path, ...]) -> PhotoSet:
    """Read all samples; one without a label is refused."""
    left_out: Counter[str] = Counter()
    photos: list[Photo] = []
    again = "fetch the shard again"
    for shard in shards:
        images: dict[str, str] = {}
        labels: dict[str, tuple[int, ...]] = {}
        keys: dict[str, None] = {}  # in file order
        for member in whole_members(shard):
            text = room_files.encodable(member.name)  # half a character fits into no result
            require(text, shard, f"not a whole tar file (a name that is no UTF-8); {again}")
            parent, _, name = member.name.rpartition("/")
            stem, dot, suffix = name.partition(".")
            if not member.isreg() or not stem or not dot:
                continue
            key = f"{parent}/{stem}" if parent else stem
            keys[key] = None
            if f".{suffix.lower()}" in SUFFIXES:
                once = key not in images
                require(once, shard, f"two images of sample {key!r:.80}; {again}")
                images[key] = member.name
            elif suffix in ("cls", "npy") and member.size <= MAX_LABEL_BYTES:
                once = key not in labels
                require(once, shard, f"two labels of sample {key!r:.80}; {again}")
                data = read_at(shard, member.offset_data, member.size)
                labels[key] = _stored_label(data, suffix, f"{shard}: {member.name!r:.80}")
        for key in keys:
            if key not in images:
                left_out["samples without an image"] += 1
                continue
            require(key in labels, shard, f"sample {key!r:.80} has no .cls or .npy label")
            stated = f"{shard.name}@{images[key]} {','.join(map(str, labels[key]))}"
            photos.append((ImageRef(shard, member=images[key]), labels[key], stated))
    names, templates = folder / _NAMES, folder / _TEMPLATES
    return PhotoSet.of(
        photos,
        f"{shards[0]}: holds no photo; fetch the shards again",
        read_names(names, folder.name) if names.is_file() else (),
        templates=templates if templates.is_file() else None,
        left_out=dict(left_out),
    )


def _stored_label(data: bytes, suffix: str, where: str) -> tuple[int, ...]:
    if suffix == "cls":
        text = data.decode("ascii", "replace").strip()
        good = text.isdigit() and len(text) <= 6
        require(good, where, f"label {text[:40]!r} is no whole number from 0")
        return (int(text),)
    try:
        vector = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # a damaged header fails in many ways
        raise CompoclipError(f"{where}: not a numpy vector of 0 and 1") from error
    tags = vector.ndim == 1 and np.isin(vector, (0, 1)).all() and vector.any()
    require(tags, where, "not a numpy vector of 0 and 1 with a 1")
    return tuple(np.flatnonzero(vector).tolist())


# --- Photos in Parquet files, as data-set hubs store them: a column of encoded images, one of
# labels. ---
#
# Images are bytes or a struct with a field `bytes`, labels whole numbers or lists of them. The
# names of the labels are read from the schema where it states them (ClassLabel).

_LABELS = ("label", "labels", "fine_label", "class", "cls", "target")


def find_tables(folder: Path) -> tuple[Path, ...]:
    """Return the Parquet files of a folder, or else of its `data` folder.

    Where their names start with a split, those of the test or else of the validation split.
    """
    for place in (folder, folder / "data"):
        found = sorted(place.glob("*.parquet"))
        for split in _TEST_SPLITS[:2]:
            of_split = [path for path in found if path.name.startswith(split)]
            if of_split:
                return tuple(of_split)
        if found:
            return tuple(found)
    return ()


def read_tables(paths: Sequence[Path]) -> PhotoSet:
    """Read the labels of all rows; images stay where they are."""
    photos: list[Photo] = []
    names: tuple[str, ...] = ()
    for path in paths:
        with opened_parquet(path) as table:
            schema = table.schema_arrow
            image = next((each.name for each in schema if holds_bytes(each.type)), "")
            label = next((name for name in _LABELS if name in schema.names), "")
            lacking = f"labels ({', '.join(_LABELS)})" if image else "encoded images (bytes)"
            problem = f"no column with {lacking}; its columns are {column_names(schema.names)}"
            require(image and label, path, problem)
            values = table.read([label])[label].to_pylist()
        names = names or _hub_names(schema, label)
        for row, value in enumerate(values):
            listed = value if isinstance(value, list) else [value]
            good = listed and all(type(each) is int and each >= 0 for each in listed)
            problem = f"{label!r} must be a whole number from 0 or a list of them, not "
            problem += f"{shown(value)}; this split may have no public labels"
            require(good, f"{path}: row {row + 1}", problem)
            found = tuple(sorted(set(listed)))
            key = f"{path.name}:{row} {','.join(map(str, found))}"
            photos.append((ImageRef(path, member=f"{image}:{row}"), found, key))
    return PhotoSet.of(photos, f"{paths[0]}: holds no photo; fetch it again", names)


def _hub_names(schema: pa.Schema, label: str) -> tuple[str, ...]:
    """Return the names that the hub's description gives the labels, () without any."""
    try:
        about = room_files.parse_json(schema.metadata[b"huggingface"].decode())
        feature = about["info"]["features"][label]
        while "names" not in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"]
    except (KeyError, TypeError, ValueError, IndexError):
        return ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def read_photos(folder: Path, annotations: Path | None = None, hint: str = "") -> PhotoSet:
    """Return the photos in whichever layout is there; the index `annotations` when given.

    The layouts with files of their own are looked for in the order of this module; any other folder
    is one of class directories.
    """
    if annotations is not None:
        return read_photo_index(annotations)
    for name in INDEXES:
        if (folder / name).is_file():
            return read_photo_index(folder / name)
    if shards := find_shards(folder):
        return read_shards(folder, shards)
    if found := find_tables(folder):
        return read_tables(found)
    return read_folders(folder, hint)
