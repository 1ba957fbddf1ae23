"""Photos listed in one file, as the ELEVATER toolkit stores its sets.

A text file has lines `archive.zip@inner/path.jpg label[,label...]`, labels being numbers from 0;
the names of the labels stand in a file beside it, one a line in the order of the labels. A JSON
file has the layout of COCO (`photo_coco`). The archives lie beside the file. A photo without
"archive.zip@" is a file below that folder.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from compoclip import files as room_files
from compoclip.benchmarks import files
from compoclip.benchmarks.archives import DAMAGED
from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.photo_coco import Row, read_coco
from compoclip.benchmarks.photo_set import PhotoSet
from compoclip.benchmarks.prompts import read_names
from compoclip.errors import CompoclipError

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
        rows, names = _of_lines(path), _names(path.parent)
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


def _names(folder: Path) -> tuple[str, ...]:
    path = next((folder / name for name in LABELS if (folder / name).is_file()), None)
    return () if path is None else read_names(path, folder.name)
