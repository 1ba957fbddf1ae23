"""Labelled photos, whatever layout they came in: what the readers of zero-shot sets yield."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from compoclip.archives import opened_zip, zip_members
from compoclip.benchmarks import files
from compoclip.benchmarks.case import ImageRef
from compoclip.data.options import DataOptions, as_target_option, naming_options
from compoclip.data.places import TABLES
from compoclip.data.prompts import NUMBERS, list_of_names, listed_names, numbered, read_names
from compoclip.errors import CompoclipError, require
from compoclip.files import first_of, open_regular
from compoclip.files import reading as reading_file
from compoclip.patterns import has_ending, shards_of_folder
from compoclip.typed import read_fields

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
        return max(len(self.names), 1 + max((max(labels) for labels in self.labels), default=-1))

    def require_names(self, place: Path) -> None:
        """Raise CompoclipError, naming the place, if the data name some classes but not all."""
        require(
            not self.names or len(self.names) == self.classes,
            place,
            f"label {self.classes - 1} has no name among the {len(self.names)} there; fix the list "
            "of names, or give the option classes",
        )


# --- Photos in class folders, tar shards or tables: read as training data with labels are. ---

_TEMPLATES = "zeroshot_classification_templates.txt"


def holds_shards(folder: Path) -> bool:
    """Return whether a folder holds tar shards."""
    return folder.is_dir() and bool(shards_of_folder(folder))


def read_labelled(place: Path, reading: DataOptions) -> PhotoSet:
    """Return the photos of a folder of classes, of shards (also in `test`) or of a table.

    Unless a split is named, these are of the test split or else of another that is held out, where
    the data name splits. A class is numbered as the data say, else by the order of the names.
    Shards are as CLIP_benchmark publishes them: a label as .cls (a number) or, where several
    classes are true, as .npy (a vector of 0 and 1). Numbers have the names of a list in the folder.
    """
    from compoclip.data.sources.labels import in_class_folders
    from compoclip.data.sources.open import request_of

    folder = place if place.is_dir() else place.parent
    if place.is_dir() and not holds_shards(place) and holds_shards(place / "test"):
        place = place / "test"
    images = None if place.is_dir() else reading.images
    request = request_of(str(place), replace(reading, images=images))
    with naming_options(as_target_option):
        source = replace(request, needs="labels").open_held_out()
    names = source.classes or tuple(sorted({*source.column("label")}))
    numbers = {name: k for k, name in enumerate(names)} if len({*names}) == len(names) else {}
    unnamed = not source.classes and all(map(NUMBERS.fullmatch, names))
    rows = list(zip(source.located(), source.column("image"), source.column("label"), strict=True))
    in_folders = place.is_dir() and not any(member for (_, member), *_ in rows)
    in_folders = in_folders and in_class_folders((image, label) for _, image, label in rows)
    listed = listed_names(folder) if unnamed and not in_folders else ()
    parts = sorted({number for label in names for number in label.split(",")})
    places = dict(zip(parts, numbered(parts, len(listed))))
    photos: list[Photo] = []
    for (path, member), image, label in rows:
        if label in numbers and not unnamed:
            labels: tuple[int, ...] = (numbers[label],)
        else:
            require(
                NUMBERS.fullmatch(label),
                f"{path}@{member}" if member else path,
                f"label {label!r:.40} is neither a number from 0 nor the name of a class",
            )
            labels = tuple(places.get(number, int(number)) for number in label.split(","))
        if in_folders:
            key = f"/{image}"[f"/{image}".index(f"/{label}/") + 1 :]
        else:
            name = member if has_ending(path, ".tar") else member.rpartition(":")[2]
            separator = "@" if has_ending(path, ".tar") else ":"
            stated = f"{path.name}{separator}{name}" if member else image
            key = f"{stated} {','.join(map(str, labels))}"
        photos.append((ImageRef(path, member=member), labels, key))
    if in_folders:
        photos.sort(key=lambda photo: (photo[1], photo[2]))
    elif holds_shards(place):  # in the order of their numbers
        photos.sort(key=lambda photo: [int(n) for n in re.findall(r"\d+", photo[0].path.stem)])
    require(photos, place, "holds no photo")
    refs, labels_of, keys = zip(*photos)
    templates = folder / ("templates.json" if in_folders else _TEMPLATES)
    return PhotoSet(
        refs,
        labels_of,
        listed if unnamed else tuple(names),
        keys,
        folders=in_folders,
        templates=templates if templates.is_file() else None,
        left_out={as_target_option(reason): n for reason, n in source.left_out.items()},
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
Placed = tuple[str, dict[str, Any]]
"""Place in the file for messages, row."""


def coco_instances(
    path: Path, damaged: str
) -> tuple[dict[Any, str], dict[Any, Placed], list[Placed]]:
    """Return category names and photos by id, and annotations."""
    parts = ("categories", "images", "annotations")
    data = read_fields(
        files.read_json(path, damaged=damaged), dict.fromkeys(parts, list), str(path), damaged
    )

    def rows(part: str, **kinds: Any) -> Iterator[Placed]:
        for index, row in enumerate(data[part]):
            location = f"{path}: {part} {index}"
            yield location, read_fields(row, kinds, location, damaged)

    def by_id(part: str) -> dict[Any, Placed]:
        seen_ids: set[object] = set()
        listed = list(rows(part, id=int | str))
        for location, row in listed:
            files.identifier(row, "id", location, seen_ids, damaged)
        return {row["id"]: (location, row) for location, row in listed}

    categories, photos = by_id("categories"), by_id("images")
    names = {key: files.text(row, "name", place) for key, (place, row) in categories.items()}
    annotations = list(rows("annotations", image_id=int | str, category_id=int | str))
    for location, row in annotations:
        for key, ids in (("image", photos), ("category", names)):
            if row[f"{key}_id"] not in ids:
                raise CompoclipError(
                    f"{location}: no {key} {row[f'{key}_id']!r:.40} in the file; {damaged}"
                )
    return names, photos, annotations


def read_coco(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """Return the photos in file order, each with a label, and the category names by label."""
    names, photos, annotations = coco_instances(path, files.OFFICIAL)
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    place = {key: k for k, key in enumerate(order)}
    labels: dict[Any, set[int]] = {key: set() for key in photos}
    for _, row in annotations:
        labels[row["image_id"]].add(place[row["category_id"]])
    rows = []
    for key, (location, row) in photos.items():
        require(labels[key], location, f"no annotation gives it a label; {files.OFFICIAL}")
        rows.append((location, files.text(row, "file_name", location), tuple(sorted(labels[key]))))
    return rows, tuple(names[key] for key in order)


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


def read_photo_index(path: Path) -> PhotoSet:
    """Read an index. Members that their archive does not hold are photos that do not exist."""
    rows: Iterable[Row]
    if has_ending(path, ".json"):
        rows, names = read_coco(path)
    else:
        rows = _of_lines(path)
        listed = list_of_names(path.parent)
        names = () if listed is None else read_names(listed, path.parent.name)
    members = cache(_members)
    photos: list[Photo] = []
    seen_photos: set[str] = set()
    for location, photo, labels in rows:
        if photo in seen_photos:
            raise CompoclipError(
                f"{location}: {photo!r:.80} is listed twice; fetch the index again"
            )
        seen_photos.add(photo)
        key = f"{photo} {','.join(map(str, labels))}"
        archive, at, inner = photo.partition("@")
        image = ImageRef(files.image_path(path.parent, archive, location))
        if at:
            packed = image.path
            absent = files.image_path(packed.with_name(f"{packed.name}@"), inner, location)
            # A path that does not exist: coverage counts and names it.
            here = inner in members(packed)
            image = ImageRef(packed, member=inner) if here else ImageRef(absent)
        photos.append((image, labels, key))
    require(photos, path, "lists no photo; fetch the index again")
    images, labels_of, keys = zip(*photos)
    return PhotoSet(images, labels_of, names, keys, toolkit=True)


def _of_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        location = f"{path}: line {number}"
        photo, _, tail = line.strip().rpartition(" ")
        if not photo:
            raise CompoclipError(
                f"{location}: expected 'archive.zip@path label[,label]', found {line[:60]!r}"
            )
        parts = tail.split(",")
        if not all(label.isascii() and label.isdigit() and len(label) <= 6 for label in parts):
            raise CompoclipError(f"{location}: labels {tail[:40]!r} must be whole numbers from 0")
        yield location, photo.strip(), tuple(sorted(set(map(int, parts))))


def _members(archive: Path) -> frozenset[str]:
    """Return the names of the members of a zip file, none of an absent one."""
    if not archive.exists():
        return frozenset()
    with opened_zip(archive) as opened:
        return frozenset(member.filename for member in zip_members(opened))


def is_training_data(file: Path) -> bool:
    """Return whether a file of labelled photos is a table, a list in JSON or a shard."""
    if has_ending(file, ".json"):
        with reading_file(file), open_regular(file) as content:
            return content.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    return has_ending(file, *TABLES, ".tar")


def find_index(place: Path) -> Path | None:
    """Return the index that a file is, unless it is training data, or that a folder has."""
    if place.is_file():
        return None if is_training_data(place) else place
    return first_of(place, INDEXES)


def read_photos(place: Path, reading: DataOptions) -> PhotoSet:
    """Return the photos of an index, a table or a folder of whatever layout."""
    index = find_index(place)
    return read_labelled(place, reading) if index is None else read_photo_index(index)
