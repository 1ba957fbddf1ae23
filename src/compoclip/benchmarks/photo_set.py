"""Labelled photos, whatever layout they came in: what the readers of zero-shot sets yield."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compoclip import files as room_files
from compoclip.benchmarks import files
from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.files import DAMAGED, DAMAGED_TAR, close
from compoclip.benchmarks.tables import column_names, opened_parquet, require_columns
from compoclip.data.members import forward, holds_bytes
from compoclip.errors import CompoclipError

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)


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


# --- Photos in a folder of classes: <folder>/<class directory>/**/<photo>. ---

_PHOTO_FOLDERS_SPLITS = (("test", "val", "validation"), ("train", "training"))


def read_folders(folder: Path, hint: str = "") -> PhotoSet:
    """Every photo below a class directory, classes by the sorted names of their directories.

    Where the directories are splits ("test" or "val", with or without "train"), the classes are
    looked for in the test or else the validation split. Directories that start with a dot are no
    classes. hint: what to add when the folder is absent. Raises CompoclipError when it is absent,
    cannot be listed, or holds no class or no photo.
    """
    directories = _directories(folder, hint)
    split = next((name for name in _PHOTO_FOLDERS_SPLITS[0] if name in directories), None)
    if split is not None and set(directories) <= {
        *_PHOTO_FOLDERS_SPLITS[0],
        *_PHOTO_FOLDERS_SPLITS[1],
    }:
        folder = folder / split
        directories = _directories(folder, hint)
    photos: list[str] = []
    labels: list[tuple[int, ...]] = []
    others = 0
    for label, directory in enumerate(directories):
        found = []
        for parent, _, names in os.walk(folder / directory):
            for name in names:
                if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                    found.append((Path(parent) / name).relative_to(folder).as_posix())
                else:
                    others += 1
        photos += sorted(found)
        labels += [(label,)] * len(found)
    if not photos:
        raise CompoclipError(f"{folder}: no photos in the class directories")
    templates = folder / "templates.json"
    return PhotoSet(
        images=tuple(ImageRef(folder / photo) for photo in photos),
        labels=tuple(labels),
        names=directories,
        keys=tuple(photos),
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


# --- Classification labels in the layout of COCO, as three sets of the ELEVATER toolkit have
# them: ---
#
#     {"images": [{"id": 1, "file_name": "archive.zip@inner/path.jpg"}],
#      "annotations": [{"id": 1, "image_id": 1, "category_id": 1}],
#      "categories": [{"id": 1, "name": "meme"}]}
#
# A label is the place of a category among the sorted ids.

Row = tuple[str, str, tuple[int, ...]]
"""Place in the file for messages, photo, labels."""


def read_coco(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """The photos in file order, and the names of the categories by label.

    Raises CompoclipError for a list, a key or an id that lacks or is there twice, and for a photo
    without a label.
    """
    data = files.record(files.read_json(path), str(path))
    names: dict[int, str] = {}
    for where, row in _photo_coco_rows(data, "categories", path):
        names[_new(row, names, where)] = files.text(row, "name", where)
    place = {key: k for k, key in enumerate(sorted(names))}
    photos: dict[int, tuple[str, str]] = {}
    for where, row in _photo_coco_rows(data, "images", path):
        photos[_new(row, photos, where)] = (where, files.text(row, "file_name", where))
    labels: dict[int, set[int]] = {key: set() for key in photos}
    for where, row in _photo_coco_rows(data, "annotations", path):
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


def _photo_coco_rows(
    data: dict[str, Any], key: str, path: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
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


# --- Class names and prompt templates for zero-shot classification, read from the user's files. ---
#
# Class names (`read_names`), a JSON list in label order, a JSON object of such lists by data set
# (the layout of CLIP_benchmark's class-name file), a text file with one name a line, or
# `prompts.md` of the CLIP repository: Markdown with a section "## DataSet" that holds the Python
# lists `classes` and `templates`. Index (`read_index`), a JSON object directory -> class name. A
# name may be a list of aliases: the first counts. Templates (`read_templates`), a JSON list, a JSON
# object of lists by data set, a text file with one template a line, or `prompts.md`; each has the
# placeholder `{}` or `{c}` exactly once.

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def fill(templates: Iterable[str], name: str) -> tuple[str, ...]:
    """The prompts of a class. Other braces in templates and names stay as they are."""
    return tuple(_split(template)[0] + name + _split(template)[1] for template in templates)


def _split(template: str) -> tuple[str, str]:
    before, _, after = template.partition("{c}" if "{c}" in template else "{}")
    return before, after


def read_names(path: Path, dataset: str) -> tuple[str, ...]:
    """Class names of `dataset` in file order. Raises CompoclipError for malformed files."""
    return tuple(aliases[0] for aliases in read_aliases(path, dataset))


def read_aliases(path: Path, dataset: str) -> tuple[tuple[str, ...], ...]:
    """Class names of `dataset`, each with its aliases. Raises as `read_names`."""
    rows, where = _prompts_rows(path, dataset, "classes")
    return tuple(_aliases(value, f"{where}: class {k}") for k, value in enumerate(rows))


def read_index(path: Path) -> dict[str, str]:
    """Class name by directory, in file order. Raises CompoclipError for malformed files."""
    value = files.record(files.read_json(path), str(path))
    if not value:
        raise CompoclipError(f"{path}: names no class")
    return {key: _aliases(name, f"{path}: class {key!r:.80}")[0] for key, name in value.items()}


def read_templates(path: Path, dataset: str) -> tuple[str, ...]:
    """Templates for `dataset`. Raises CompoclipError for malformed files or placeholders."""
    rows, where = _prompts_rows(path, dataset, "templates")
    if not rows:
        raise CompoclipError(f"{where}: no templates")
    templates = tuple(files.nonempty(row, f"{where}: template {k}") for k, row in enumerate(rows))
    for template in templates:
        if template.count("{}") + template.count("{c}") != 1:
            raise CompoclipError(
                f"{where}: template {template!r:.80} needs the placeholder {{}} or {{c}} "
                "exactly once"
            )
    return templates


def _prompts_rows(path: Path, dataset: str, what: str) -> tuple[Sequence[Any], str]:
    """The list of classes or templates of a data set, and how messages call it."""
    match path.suffix.lower():
        case ".json":
            return _of_dataset(files.read_json(path), path, dataset)
        case ".md":
            return _of_section(files.read_text(path), path, dataset, what)
        case _:
            lines = [line.strip() for line in files.read_text(path).rstrip().split("\n")]
            return [line for line in lines if line or what == "classes"], str(path)


def _of_dataset(value: Any, path: Path, dataset: str) -> tuple[Sequence[Any], str]:
    if not isinstance(value, dict):
        return files.items(value, str(path)), str(path)
    if dataset not in value:
        raise CompoclipError(f"{path}: nothing for data set {dataset!r}; {close(dataset, value)}")
    where = f"{path}: data set {dataset!r}"
    return files.items(value[dataset], where), where


def _of_section(text: str, path: Path, section: str, what: str) -> tuple[Sequence[Any], str]:
    _, *parts = re.split(r"^## +(\S[^\n]*)\n", text, flags=re.MULTILINE)
    found = {title.rstrip(): body for title, body in zip(parts[::2], parts[1::2])}
    if section not in found:
        raise CompoclipError(f"{path}: no section {section!r}; {close(section, found)}")
    where = f"{path}: section {section!r}"
    block = re.search(r"^```.*?\n(.*?)^```", found[section], re.MULTILINE | re.DOTALL)
    try:
        with warnings.catch_warnings(action="ignore"):  # of "\d" in somebody else's file
            tree = ast.parse(block[1] if block else "")
        for node in tree.body:
            if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [what]:
                value = ast.literal_eval(node.value)
                if isinstance(value, list):
                    return value, where
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CompoclipError(f"{where}: {what} are no Python list; fetch the file again") from error
    raise CompoclipError(f"{where}: no list {what!r}; fetch the file again")


def _aliases(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, list):
        if not value:
            raise CompoclipError(f"{where}: empty list of aliases")
        return tuple(files.nonempty(each, where) for each in value)
    return (files.nonempty(value, where),)


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


def find_index(folder: Path) -> Path | None:
    """The index in a folder, by its usual names; the test split comes first."""
    return next((folder / name for name in INDEXES if (folder / name).is_file()), None)


def read_photo_index(path: Path) -> PhotoSet:
    """Read an index. Members that their archive does not hold are photos that do not exist.

    Raises CompoclipError for malformed lines, photos listed twice, paths that lead outside, and
    archives that cannot be read.
    """
    rows: Iterable[Row]
    if path.suffix == ".json":
        rows, names = read_coco(path)
    else:
        rows, names = _of_lines(path), _photo_index_names(path.parent)
    held: dict[Path, frozenset[str] | None] = {}
    images: list[ImageRef] = []
    labels: list[tuple[int, ...]] = []
    keys: list[str] = []
    seen: set[str] = set()
    for where, photo, found in rows:
        if photo in seen:
            raise CompoclipError(f"{where}: {photo!r:.80} is listed twice; fetch the index again")
        seen.add(photo)
        images.append(_image(path.parent, photo, where, held))
        labels.append(found)
        keys.append(f"{photo} {','.join(map(str, found))}")
    if not images:
        raise CompoclipError(f"{path}: lists no photo; fetch the index again")
    if names and 1 + max(max(each) for each in labels) > len(names):
        raise CompoclipError(
            f"{path}: label {max(max(each) for each in labels)} has no name among the "
            f"{len(names)} of {path.parent}; labels count from 0"
        )
    return PhotoSet(tuple(images), tuple(labels), names, tuple(keys), toolkit=True)


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
            return frozenset(opened.namelist())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise room_files.unreadable(archive, error) from error
    except DAMAGED as error:
        raise CompoclipError(f"{archive}: not a whole zip file; fetch the archive again") from error


def _labels(text: str, where: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        raise CompoclipError(f"{where}: labels {text[:40]!r} must be whole numbers from 0")
    return tuple(sorted({int(part) for part in parts}))


def _photo_index_names(folder: Path) -> tuple[str, ...]:
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
    images: list[ImageRef] = []
    labels: list[tuple[int, ...]] = []
    keys: list[str] = []
    for shard in shards:
        for key, image, label in _samples(shard):
            if image is None:
                left_out[_NO_IMAGE] += 1
            elif label is None:
                raise CompoclipError(f"{shard}: sample {key!r:.80} has no .cls or .npy label")
            else:
                images.append(ImageRef(shard, member=image))
                labels.append(label)
                keys.append(f"{shard.name}@{image} {','.join(map(str, label))}")
    if not images:
        raise CompoclipError(f"{shards[0]}: holds no photo; fetch the shards again")
    names, templates = folder / _NAMES, folder / _TEMPLATES
    return PhotoSet(
        images=tuple(images),
        labels=tuple(labels),
        names=read_names(names, folder.name) if names.is_file() else (),
        keys=tuple(keys),
        templates=templates if templates.is_file() else None,
        left_out=dict(left_out),
    )


def _samples(shard: Path) -> Iterator[tuple[str, str | None, tuple[int, ...] | None]]:
    """(key, image member, label) of each sample, in file order."""
    found: dict[str, tuple[str | None, tuple[int, ...] | None]] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in forward(archive):
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
                    label = _photo_shards_label(data, suffix, f"{shard}: {member.name!r:.80}")
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


def _photo_shards_label(data: bytes, suffix: str, where: str) -> tuple[int, ...]:
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
_PHOTO_TABLES_SPLITS = ("test", "val")


def find_tables(folder: Path) -> tuple[Path, ...]:
    """The Parquet files of a folder, or else of its `data` folder.

    Where their names start with a split, those of the test or else of the validation split.
    """
    for place in (folder, folder / "data"):
        found = sorted(place.glob("*.parquet"))
        for split in _PHOTO_TABLES_SPLITS:
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
        names = names or _photo_tables_names(schema, label)
        for row, value in enumerate(values):
            found = _photo_tables_label(value, f"{path}: row {row + 1}: {label!r}")
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


def _photo_tables_label(value: Any, where: str) -> tuple[int, ...]:
    found = value if isinstance(value, list) else [value]
    good = all(isinstance(each, int) and not isinstance(each, bool) for each in found)
    if not good or not found or min(found) < 0:
        raise CompoclipError(
            f"{where} must be a whole number from 0 or a list of them, not {value!r:.60}; this "
            "split may have no public labels"
        )
    return tuple(sorted(set(found)))


def _photo_tables_names(schema: pa.Schema, label: str) -> tuple[str, ...]:
    """The names that the hub's feature description gives the labels, () without any."""
    try:
        feature = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]
        while "names" not in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"]
    except (KeyError, TypeError, ValueError, IndexError):
        return ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()
