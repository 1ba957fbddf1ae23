"""Zero-shot classification on a folder of classes (ImageFolder layout).

A family: load one set as `zero_shot:NAME`. Read from

    <root>/elevater/NAME/<class directory>/**/<photo>     (argument `images`: another folder)
    <root>/elevater/NAME/index.json                       optional: {directory: class name}
    <root>/elevater/NAME/templates.json                   optional: ["a photo of a {}.", ...]

Class order is that of the sorted directory names (Python's order, capitals first). Class names are
taken from, in this order: option `index` (directory -> name), option `classes` (a list in directory
order), the folder's index.json, the directory names with "_" read as a blank. Templates: option
`templates`, the folder's templates.json, "a photo of a {}.". File layouts: see `prompts`; in files
that hold several data sets the key is NAME or the option `key`. An empty directory is a class
without photos, which still competes.

The metric of the ELEVATER sets is theirs: mean-per-class for caltech-101, fgvc-aircraft-2013b,
oxford-flower-102 and oxford-iiit-pets, accuracy otherwise; option `metric` overrides it. voc-2007
and hateful-memes have other metrics (11-point mAP, ROC-AUC) and are refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Classification, ImageRef, TiePolicy
from compoclip.benchmarks.meta import Meta
from compoclip.benchmarks.parts import close
from compoclip.benchmarks.prompts import (
    DEFAULT_TEMPLATES,
    fill,
    read_index,
    read_names,
    read_templates,
)
from compoclip.errors import CompoclipError, UsageError

METRICS = ("accuracy", "mean-per-class")
_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
_SIZES = {
    "caltech-101": (6084, 102),
    "cifar-10": (10000, 10),
    "cifar-100": (10000, 100),
    "country211": (21100, 211),
    "dtd": (1880, 47),
    "eurosat_clip": (5000, 10),
    "fer-2013": (3589, 7),
    "fgvc-aircraft-2013b": (3333, 100),
    "food-101": (25250, 101),
    "gtsrb": (12630, 43),
    "imagenet-1k": (50000, 1000),
    "kitti-distance": (711, 4),
    "mnist": (10000, 10),
    "oxford-flower-102": (6149, 102),
    "oxford-iiit-pets": (3669, 37),
    "patch-camelyon": (32768, 2),
    "rendered-sst2": (1821, 2),
    "resisc45_clip": (25200, 45),
    "stanford-cars": (8041, 196),
}
_MEAN_PER_CLASS = ("caltech-101", "fgvc-aircraft-2013b", "oxford-flower-102", "oxford-iiit-pets")
_OTHER_METRIC = {"voc-2007": "11-point mAP", "hateful-memes": "ROC-AUC"}
META = Meta(
    id="zero_shot",
    title="Zero-shot classification",
    citation="Li et al., ELEVATER: A Benchmark and Toolkit for Evaluating Language-Augmented "
    "Visual Models, NeurIPS 2022 Datasets and Benchmarks; prompts after Radford et al., ICML 2021",
    source="repository Computer-Vision-in-the-Wild/Elevater_Toolkit_IC and each data set's page; "
    "any folder of classes works",
    licence="per data set",
    status="partly gated",
    access="per data set; ImageNet by registration",
    files=("elevater/NAME/index.json", "elevater/NAME/templates.json"),
    images=("elevater/NAME",),
    parts=tuple(_SIZES),
    chance={name: 1 / classes for name, (_, classes) in _SIZES.items()},
    skills={"zero_shot": "recognition"},
    expected={name: photos for name, (photos, _) in _SIZES.items()},
    family=True,
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    index: Path | None = None,
    classes: Path | None = None,
    templates: Path | None = None,
    key: str | None = None,
    metric: str | None = None,
) -> Benchmark:
    """Read one folder of classes; `subtasks` holds its name. Layout: see the module.

    The benchmark is called "zero_shot_<name>". Raises CompoclipError when the folder, a class
    directory or a name is missing or malformed, UsageError for bad options.
    """
    if len(subtasks) != 1:
        raise UsageError("zero_shot needs one set: zero_shot:NAME")
    name = subtasks[0]
    if name in _OTHER_METRIC:
        raise UsageError(f"zero_shot:{name} needs {_OTHER_METRIC[name]}, which is not offered")
    if index is not None and classes is not None:
        raise UsageError("give either the option index or the option classes, not both")
    if metric is not None and metric not in METRICS:
        raise UsageError(f"no metric {metric!r}; {close(metric, METRICS)}")
    metric = metric or METRICS[name in _MEAN_PER_CLASS]
    if images is None:
        images = files.image_path(root / "elevater", name, f"zero_shot:{name}")
    directories = _directories(images, name)
    names = _class_names(images, directories, index, classes, key or name)
    if metric == "mean-per-class" and len(set(names)) < len(names):
        double = next(each for each in names if names.count(each) > 1)
        raise CompoclipError(
            f"{classes or index or images}: two classes are called {double!r}; mean-per-class "
            "needs distinct names"
        )
    used = _templates(images, templates, key or name)
    photos, labels, left_out = _photos(images, directories)
    content = Classification(
        images=tuple(ImageRef(images / photo) for photo in photos),
        labels=tuple(labels),
        classes=names,
        prompts=tuple(fill(used, each) for each in names),
        metric=metric,
    )
    rules = {"accuracy": Aggregate(("zero_shot",))}
    if len(set(names)) == len(names):
        rules["mean-per-class"] = Aggregate(("zero_shot",), macro_by="class")
    return Benchmark(
        name=f"zero_shot_{name}",
        content=content,
        data_hash=files.data_hash({}, (*directories, *names, *used, *photos)),
        ties={"": TiePolicy.FIRST},
        skills=META.skills,
        expected={"zero_shot": _SIZES[name][0]} if name in _SIZES else {},
        aggregates=rules,
        headline=metric,
        left_out=left_out,
    )


def _directories(folder: Path, name: str) -> tuple[str, ...]:
    """Sorted names of the class directories; those that start with a dot are no classes."""
    try:
        found = sorted(
            entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."
        )
    except FileNotFoundError as error:
        hint = "" if name in _SIZES else f" ({close(name, _SIZES)})"
        raise CompoclipError(
            f"{folder}: folder not found; put the class folders of {name!r} there{hint}"
        ) from error
    except OSError as error:
        raise CompoclipError(f"{folder}: cannot be listed ({error.strerror})") from error
    if not found:
        raise CompoclipError(f"{folder}: no class directories; expected <class>/<photo>")
    return tuple(found)


def _class_names(
    folder: Path, directories: Sequence[str], index: Path | None, classes: Path | None, key: str
) -> tuple[str, ...]:
    if classes is not None:
        names = read_names(classes, key)
        if len(names) != len(directories):
            raise CompoclipError(
                f"{classes}: {len(names)} class names for {len(directories)} directories in "
                f"{folder}; add the missing directories or give an index file {{directory: name}}"
            )
        return names
    default = folder / "index.json"
    path = index or (default if default.is_file() else None)
    if path is None:
        return tuple(directory.replace("_", " ") for directory in directories)
    by_directory = read_index(path)
    for directory in by_directory:
        if directory not in directories:
            raise CompoclipError(
                f"{path}: class directory {directory!r} is not in {folder}; make it (empty for a "
                "class without photos) or drop the entry"
            )
    for directory in directories:
        if directory not in by_directory:
            raise CompoclipError(
                f"{path}: no class name for directory {directory!r} of {folder}; add it"
            )
    return tuple(by_directory[directory] for directory in directories)


def _templates(folder: Path, templates: Path | None, key: str) -> tuple[str, ...]:
    default = folder / "templates.json"
    path = templates or (default if default.is_file() else None)
    return DEFAULT_TEMPLATES if path is None else read_templates(path, key)


def _photos(
    folder: Path, directories: Sequence[str]
) -> tuple[list[str], list[int], dict[str, int]]:
    """Photo paths below `folder` with forward slashes, sorted within each class; their labels."""
    photos: list[str] = []
    labels: list[int] = []
    others = 0
    for label, directory in enumerate(directories):
        found = []
        for parent, _, names in os.walk(folder / directory):
            for name in names:
                if Path(name).suffix.lower() in _SUFFIXES and not name.startswith("."):
                    found.append((Path(parent) / name).relative_to(folder).as_posix())
                else:
                    others += 1
        photos += sorted(found)
        labels += [label] * len(found)
    if not photos:
        raise CompoclipError(f"{folder}: no photos in the class directories")
    return photos, labels, {"files in class directories that are no photos": others}
