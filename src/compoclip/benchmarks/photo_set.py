"""Labelled photos, whatever layout they came in: what the readers of zero-shot sets yield."""

from __future__ import annotations

import io
import os
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compoclip import files as room_files
from compoclip.archives import DAMAGED_TAR, DAMAGED_ZIP, tar_members, zip_members
from compoclip.benchmarks import files
from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.prompts import read_names
from compoclip.benchmarks.tables import column_names, opened_parquet
from compoclip.data.boxes import BoxedPhoto, BoxedThing
from compoclip.errors import CompoclipError, shown
from compoclip.tables import holds_bytes

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)


Photo = tuple[ImageRef, tuple[int, ...], str]
"""An image, its labels, and the text that identifies both in the data hash."""


@dataclass(frozen=True)
class PhotoSet:
    """Photos with their labels, and what the data themselves say about the classes.

    labels: of each photo, one or several numbers. names: what the data call the classes, by label
    (directories, a label file, the names of a column); () when they do not say. folders: the names
    are those of directories, in sorted order. toolkit: numbers that no name explains are those of
    the ELEVATER toolkit. templates: a file of prompt templates among the data.
    keys: texts that decide the items and the labels, for the data hash. left_out: reason -> count.
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
    def of(cls, photos: Iterable[Photo], empty: str, names: Sequence[str], **told: Any) -> PhotoSet:
        """The set of these photos; `told`: other fields. CompoclipError(`empty`) without any."""
        found = list(photos)
        if not found:
            raise CompoclipError(empty)
        images, labels, keys = zip(*found)
        return cls(images, labels, tuple(names), keys, **told)


# --- Photos in a folder of classes: <folder>/<class directory>/**/<photo>. ---

_TEST_SPLITS, _TRAIN_SPLITS = ("test", "val", "validation"), ("train", "training")


def read_folders(folder: Path, hint: str = "") -> PhotoSet:
    """Every photo below a class directory, classes by the sorted names of their directories.

    Where the directories are splits ("test" or "val", with or without "train"), the classes are
    looked for in the test or else the validation split. Directories that start with a dot are no
    classes. hint: what to add when the folder is absent. Raises CompoclipError when it is absent,
    cannot be listed, or holds no class or no photo.
    """
    directories = _directories(folder, hint)
    split = next((name for name in _TEST_SPLITS if name in directories), None)
    if split is not None and set(directories) <= {*_TEST_SPLITS, *_TRAIN_SPLITS}:
        folder = folder / split
        directories = _directories(folder, hint)
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


def _directories(folder: Path, hint: str) -> tuple[str, ...]:
    """Sorted names of the directories; those that start with a dot do not count."""
    try:
        found = sorted(
            entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."
        )
    except FileNotFoundError as error:
        raise CompoclipError(
            f"{folder}: folder not found; put the class folders of {folder.name!r} there{hint}"
        ) from error
    except OSError as error:
        raise CompoclipError(f"{folder}: cannot be listed ({error.strerror})") from error
    if not found:
        raise CompoclipError(f"{folder}: no class directories; expected <class>/<photo>")
    return tuple(found)


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
    """Category names and photos by their ids, and annotations with image and category."""
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
        if isinstance(key, bool) or not isinstance(key, int | str) or key not in ids:
            raise CompoclipError(f"{where}: no {what} {key!r:.40} in the file; {damaged}")
        return key

    annotations = [
        ((where, row), known("image", photos, where, row), known("category", names, where, row))
        for where, row in rows("annotations")
    ]
    return names, photos, annotations


def read_coco(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """Return the photos in file order, and the names of the categories by label.

    Raises CompoclipError for a list, a key or an id that lacks or is there twice, and for a photo
    without a label.
    """
    names, photos, annotations = _coco(path, files.OFFICIAL)
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    place = {key: k for k, key in enumerate(order)}
    labels: dict[Any, set[int]] = {key: set() for key in photos}
    for _, image, category in annotations:
        labels[image].add(place[category])
    rows = []
    for key, (where, row) in photos.items():
        if not labels[key]:
            raise CompoclipError(f"{where}: no annotation gives it a label; {files.OFFICIAL}")
        rows.append((where, files.text(row, "file_name", where), tuple(sorted(labels[key]))))
    return rows, tuple(names[key] for key in order)


MEND = "mend the file"


def coco_boxes(path: Path) -> list[BoxedPhoto]:
    """Return the photos, with their things in order, of a file like COCO's instances.

    Raises CompoclipError for a file of another form, or one whose parts do not fit.
    """
    names, photos, annotations = _coco(path, MEND)
    things: dict[Any, list[BoxedThing]] = {key: [] for key in photos}
    for (where, row), image, category in annotations:
        box = box_corners(files.field(row, "bbox", where), where)
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
    if min(width, height) <= 0:
        raise CompoclipError(f"{where}: a photo of {width:g} x {height:g} pixels; {MEND}")
    return BoxedPhoto(files.text(row, key, where), width * height, tuple(things))


def box_corners(value: Any, where: str) -> tuple[float, float, float, float]:
    """Return (left, upper, right, lower) of [x, y, width, height]; the area may be 0."""
    row = files.items(value, f"{where}: box")
    if len(row) != 4:
        raise CompoclipError(f"{where}: expected [x, y, width, height], found {len(row)}")
    place = f"{where}: [x, y, width, height]"
    x, y, width, height = (files.number({"box": each}, "box", place) for each in row)
    if min(width, height) < 0:  # 0 occurs in COCO: a thing that counts and is too small to be asked
        raise CompoclipError(f"{where}: a box {width:g} x {height:g} pixels; {MEND}")
    return (x, y, x + width, y + height)


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
    """Read an index. Members that their archive does not hold are photos that do not exist.

    Raises CompoclipError for malformed lines, photos listed twice, paths that lead outside, and
    archives that cannot be read.
    """
    rows: Iterable[Row]
    if path.suffix == ".json":
        rows, names = read_coco(path)
    else:
        rows, names = _of_lines(path), _label_names(path.parent)
    held: dict[Path, frozenset[str] | None] = {}
    photos: list[Photo] = []
    seen: set[str] = set()
    for where, photo, labels in rows:
        if photo in seen:
            raise CompoclipError(f"{where}: {photo!r:.80} is listed twice; fetch the index again")
        seen.add(photo)
        key = f"{photo} {','.join(map(str, labels))}"
        photos.append((_image(path.parent, photo, where, held), labels, key))
    empty = f"{path}: lists no photo; fetch the index again"
    found = PhotoSet.of(photos, empty, names, toolkit=True)
    if names and found.classes > len(names):
        raise CompoclipError(
            f"{path}: label {found.classes - 1} has no name among the {len(names)} of "
            f"{path.parent}; labels count from 0"
        )
    return found


def _of_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        photo, _, tail = line.strip().rpartition(" ")
        if not photo:
            raise CompoclipError(
                f"{where}: expected 'archive.zip@path label[,label]', found {line[:60]!r}"
            )
        yield where, photo.strip(), _labels(tail, where)


def _image(
    folder: Path, photo: str, where: str, held: dict[Path, frozenset[str] | None]
) -> ImageRef:
    archive, at, inner = photo.partition("@")
    if not at:
        return ImageRef(files.image_path(folder, photo, where))
    path = files.image_path(folder, archive, where)
    absent = files.image_path(path.with_name(f"{path.name}@"), inner, where)
    if path not in held:
        held[path] = _members(path)
    members = held[path]
    # A path that does not exist: coverage counts and names it.
    return ImageRef(path, member=inner) if members and inner in members else ImageRef(absent)


def _members(archive: Path) -> frozenset[str] | None:
    """Names in an archive, None when there is no such file."""
    try:
        with zipfile.ZipFile(archive) as opened:
            return frozenset(each.filename for each in zip_members(opened))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise room_files.unreadable(archive, error) from error
    except DAMAGED_ZIP as error:
        raise CompoclipError(f"{archive}: not a whole zip file; fetch the archive again") from error


def _labels(text: str, where: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        raise CompoclipError(f"{where}: labels {text[:40]!r} must be whole numbers from 0")
    return tuple(sorted({int(part) for part in parts}))


def _label_names(folder: Path) -> tuple[str, ...]:
    path = next((folder / name for name in LABELS if (folder / name).is_file()), None)
    return () if path is None else read_names(path, folder.name)


# --- Photos in tar shards with a label beside each, as CLIP_benchmark publishes its sets. ---
#
#     <folder>/classnames.txt                            one name a line, in the order of the labels
#     <folder>/zeroshot_classification_templates.txt     one template a line, placeholder {c}
#     <folder>/test/0.tar, 1.tar, ... (or in the folder itself)
#
# A sample is the members that share a name up to the first dot of the file name: an image, and its
# label as `.cls` (a number) or, where several classes are true, as `.npy` (a vector of 0 and 1).

_NAMES, _TEMPLATES = "classnames.txt", "zeroshot_classification_templates.txt"
_LABEL_BYTES = 1 << 20
_NO_IMAGE = "samples without an image"


def find_shards(folder: Path) -> tuple[Path, ...]:
    """The shards of a folder, or else of its `test` folder, in the order of their numbers."""
    for place in (folder, folder / "test"):
        found = sorted(place.glob("*.tar"), key=_number)
        if found:
            return tuple(found)
    return ()


def _number(path: Path) -> tuple[list[int], str]:
    return [int(each) for each in re.findall(r"\d+", path.stem)], path.name


def read_shards(folder: Path, shards: tuple[Path, ...]) -> PhotoSet:
    """Read all samples. Raises CompoclipError for damaged shards and samples without a label."""
    left_out: Counter[str] = Counter()
    photos: list[Photo] = []
    for shard in shards:
        for key, image, label in _samples(shard):
            if image is None:
                left_out[_NO_IMAGE] += 1
            elif label is None:
                raise CompoclipError(f"{shard}: sample {key!r:.80} has no .cls or .npy label")
            else:
                stated = f"{shard.name}@{image} {','.join(map(str, label))}"
                photos.append((ImageRef(shard, member=image), label, stated))
    names, templates = folder / _NAMES, folder / _TEMPLATES
    return PhotoSet.of(
        photos,
        f"{shards[0]}: holds no photo; fetch the shards again",
        read_names(names, folder.name) if names.is_file() else (),
        templates=templates if templates.is_file() else None,
        left_out=dict(left_out),
    )


def _samples(shard: Path) -> Iterator[tuple[str, str | None, tuple[int, ...] | None]]:
    """(key, image member, label) of each sample, in file order."""
    found: dict[str, tuple[str | None, tuple[int, ...] | None]] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in tar_members(archive):
                member.name.encode()  # half a character could be written to no result
                folder, _, name = member.name.rpartition("/")
                stem, dot, suffix = name.partition(".")
                if not member.isreg() or not stem or not dot:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                image, label = found.get(key, (None, None))
                if f".{suffix.lower()}" in SUFFIXES:
                    if image is not None:
                        raise CompoclipError(
                            f"{shard}: two images of sample {key!r:.80}; fetch the shard again"
                        )
                    image = member.name
                elif suffix in ("cls", "npy") and member.size <= _LABEL_BYTES:
                    if label is not None:
                        raise CompoclipError(
                            f"{shard}: two labels of sample {key!r:.80}; fetch the shard again"
                        )
                    stream = archive.extractfile(member)
                    data = stream.read() if stream else b""
                    label = _stored_label(data, suffix, f"{shard}: {member.name!r:.80}")
                found[key] = image, label
    except OSError as error:
        raise room_files.unreadable(shard, error) from error
    except DAMAGED_TAR as error:
        reason = room_files.reason(error)
        raise CompoclipError(
            f"{shard}: not a whole tar file ({reason}); fetch the shard again"
        ) from error
    for key, (image, label) in found.items():
        yield key, image, label


def _stored_label(data: bytes, suffix: str, where: str) -> tuple[int, ...]:
    if suffix == "cls":
        text = data.decode("ascii", "replace").strip()
        if not text.isdigit() or len(text) > 6:
            raise CompoclipError(f"{where}: label {text[:40]!r} is no whole number from 0")
        return (int(text),)
    try:
        vector = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # a damaged header fails in many ways
        raise CompoclipError(f"{where}: not a numpy vector of 0 and 1") from error
    if vector.ndim != 1 or not np.isin(vector, (0, 1)).all() or not vector.any():
        raise CompoclipError(f"{where}: not a numpy vector of 0 and 1 with a 1")
    return tuple(np.flatnonzero(vector).tolist())


# --- Photos in Parquet files, as data-set hubs store them: a column of encoded images, one of
# labels. ---
#
# Images are bytes or a struct with a field `bytes`, labels whole numbers or lists of them. The
# names of the labels are read from the schema where it states them (ClassLabel).

_LABELS = ("label", "labels", "fine_label", "class", "cls", "target")


def find_tables(folder: Path) -> tuple[Path, ...]:
    """The Parquet files of a folder, or else of its `data` folder.

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
    """Read the labels of all rows; images stay where they are.

    Raises CompoclipError for damaged files, and where a column or a label is missing.
    """
    photos: list[Photo] = []
    names: tuple[str, ...] = ()
    for path in paths:
        with opened_parquet(path) as table:
            schema = table.schema_arrow
            image, label = _columns(schema, path)
            values = table.read([label])[label].to_pylist()
        names = names or _hub_names(schema, label)
        for row, value in enumerate(values):
            found = _cell_label(value, f"{path}: row {row + 1}: {label!r}")
            key = f"{path.name}:{row} {','.join(map(str, found))}"
            photos.append((ImageRef(path, member=f"{image}:{row}"), found, key))
    return PhotoSet.of(photos, f"{paths[0]}: holds no photo; fetch it again", names)


def _columns(schema: pa.Schema, path: Path) -> tuple[str, str]:
    image = next((field.name for field in schema if holds_bytes(field.type)), None)
    label = next((name for name in _LABELS if name in schema.names), None)
    if image is None or label is None:
        lacking = "encoded images (bytes)" if image is None else f"labels ({', '.join(_LABELS)})"
        raise CompoclipError(
            f"{path}: no column with {lacking}; its columns are {column_names(schema.names)}"
        )
    return image, label


def _cell_label(value: Any, where: str) -> tuple[int, ...]:
    found = value if isinstance(value, list) else [value]
    good = all(isinstance(each, int) and not isinstance(each, bool) for each in found)
    if not good or not found or min(found) < 0:
        raise CompoclipError(
            f"{where} must be a whole number from 0 or a list of them, not {shown(value)}; this "
            "split may have no public labels"
        )
    return tuple(sorted(set(found)))


def _hub_names(schema: pa.Schema, label: str) -> tuple[str, ...]:
    """The names that the hub's feature description gives the labels, () without any."""
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
    is one of class directories, see `read_folders`.
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
