"""Photos in a folder of classes: <folder>/<class directory>/**/<photo>."""

from __future__ import annotations

import os
from pathlib import Path

from compoclip.benchmarks.case import ImageRef
from compoclip.benchmarks.photo_set import SUFFIXES, PhotoSet
from compoclip.errors import CompoclipError

_SPLITS = (("test", "val", "validation"), ("train", "training"))


def read_folders(folder: Path, hint: str = "") -> PhotoSet:
    """Every photo below a class directory, classes by the sorted names of their directories.

    Where the directories are splits ("test" or "val", with or without "train"), the classes are
    looked for in the test or else the validation split. Directories that start with a dot are no
    classes. hint: what to add when the folder is absent. Raises CompoclipError when it is absent,
    cannot be listed, or holds no class or no photo.
    """
    directories = _directories(folder, hint)
    split = next((name for name in _SPLITS[0] if name in directories), None)
    if split is not None and set(directories) <= {*_SPLITS[0], *_SPLITS[1]}:
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
