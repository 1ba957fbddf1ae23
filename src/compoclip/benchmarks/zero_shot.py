"""Zero-shot classification: ELEVATER's twenty sets, ImageNet-1K and its shifts, and any other set.

A family: load one set as `zero_shot:NAME`, in one of four layouts below <root>/elevater/NAME (or in
the folder of the argument `images`), looked for in this order:

    test.txt or test.json, zip archives, labels.txt   `photo_index`, as ELEVATER
    *.tar or test/*.tar, classnames.txt               `photo_shards`, as CLIP_benchmark
    *.parquet or data/*.parquet                       `photo_tables`, as on hubs
    <class directory>/**/<photo>, index.json          `photo_folders`

Option `annotations`: an index under another name. Class names are taken from, in this order: option
`index` or the folder's index.json (what the data call a class -> name), option `classes` (a list in
label order), the published names (`class_names`), the data themselves with "_" read as a blank.
Templates: option `templates`, those among the data, the published ones, "a photo of a {}.". File
formats: see `prompts`; in files that hold several data sets the key is NAME, the section of NAME in
`prompts.md`, or the option `key`. A class without photos still competes.

Published names and templates are OpenAI's; scores hang on them, and a note says where others are
used. Those of the twenty sets come with compoclip (see `data/README.md`), ImageNet's with installed
libraries. ImageNet-A and -R are restricted to their 200 classes. Where an index of the ELEVATER
toolkit has no label names that fit, its numbers mean what they mean in the toolkit.

Each known set has its own metric, and `kitti-distance` is squashed instead of cropped (see
`zero_shot_sets`); option `metric` overrides the metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Classification, TiePolicy
from compoclip.benchmarks.class_names import Published, match, published
from compoclip.benchmarks.meta import Meta
from compoclip.benchmarks.parts import classification_rules, close
from compoclip.benchmarks.photo_folders import read_folders
from compoclip.benchmarks.photo_index import LABELS, find_index, read_photo_index
from compoclip.benchmarks.photo_set import PhotoSet
from compoclip.benchmarks.photo_shards import find_shards, read_shards
from compoclip.benchmarks.photo_tables import find_tables, read_tables
from compoclip.benchmarks.prompts import (
    DEFAULT_TEMPLATES,
    fill,
    read_index,
    read_names,
    read_templates,
)
from compoclip.benchmarks.zero_shot_sets import AUC, MAP11, PER_CLASS, SETS, ZeroShotSet
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError

METRICS = ("accuracy", PER_CLASS, AUC, MAP11)
_SUBTASK = "zero_shot"
META = Meta(
    id="zero_shot",
    title="Zero-shot classification",
    citation="Li et al., ELEVATER: A Benchmark and Toolkit for Evaluating Language-Augmented "
    "Visual Models, NeurIPS 2022 Datasets and Benchmarks; prompts after Radford et al., ICML 2021",
    source="repository Computer-Vision-in-the-Wild/Elevater_Toolkit_IC and each data set's page; "
    "any folder of classes works; class names and templates come with compoclip",
    licence="per data set",
    status="partly gated",
    access="per data set; ImageNet by registration",
    files=(),
    optional=tuple(f"elevater/NAME/{file}" for file in ("index.json", "templates.json", *LABELS)),
    images=("elevater/NAME",),
    parts=tuple(SETS),
    chance={name: 1 / each.classes for name, each in SETS.items() if each.metric != MAP11},
    skills={_SUBTASK: "recognition"},
    expected={name: each.photos for name, each in SETS.items()},
    family=True,
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
    index: Path | None = None,
    classes: Path | None = None,
    templates: Path | None = None,
    key: str | None = None,
    metric: str | None = None,
) -> Benchmark:
    """Read one set; `subtasks` holds its name. Layouts: see the module.

    The benchmark is called "zero_shot_<name>". Raises CompoclipError when the folder, a class
    directory, a label or a name is missing or malformed, UsageError for bad options.
    """
    if len(subtasks) != 1:
        raise UsageError("zero_shot needs one set: zero_shot:NAME")
    name = subtasks[0]
    if index is not None and classes is not None:
        raise UsageError("give either the option index or the option classes, not both")
    if metric is not None and metric not in METRICS:
        raise UsageError(f"no metric {metric!r}; {close(metric, METRICS)}")
    about = SETS.get(name, ZeroShotSet(0, 0))
    folder = images or files.image_path(root / "elevater", name, f"zero_shot:{name}")
    photos = _read(folder, annotations, "" if name in SETS else f" ({close(name, SETS)})")
    known = published(name)
    if index is None and photos.folders and (folder / "index.json").is_file():
        index = folder / "index.json" if classes is None else None
    section = key or about.section or name
    if index is not None:
        names, place = _by_index(photos, folder, index)
    elif classes is not None:
        names = _listed(photos, folder, classes, section if _markdown(classes) else key or name)
        place = list(range(len(names)))
    else:
        fitting = match(photos, known, str(folder))
        names = tuple(each[0] for each in known.classes) if fitting else _own(photos, folder)
        place = fitting or list(range(len(names)))
    source = templates or photos.templates
    if source is not None:
        used = read_templates(source, section if _markdown(source) else key or name)
    else:
        used = known.templates or DEFAULT_TEMPLATES
    if name in SETS:
        _note_others(name, names, used, known)
    content = Classification(
        images=tuple(replace(each, squash=about.squash) for each in photos.images),
        labels=tuple(place[label] for labels in photos.labels for label in labels),
        classes=names,
        prompts=tuple(fill(used, each) for each in names),
        metric=metric or about.metric,
    )
    if content.metric == MAP11:
        tags = tuple(tuple(place[label] for label in labels) for labels in photos.labels)
        content = replace(content, labels=(), tags=tags)
    _check(content, photos, str(classes or index or folder))
    parts = names if content.metric == MAP11 else (_SUBTASK,)
    extra = (*photos.names, *names, *used, *photos.keys, *(["squash"] if about.squash else []))
    rules = classification_rules(content)
    if name.startswith("imagenet-"):
        rules["top5"] = Aggregate((_SUBTASK,), metric="top5")
    return Benchmark(
        name=f"zero_shot_{name}",
        content=content,
        data_hash=files.data_hash({}, extra),
        ties={"": TiePolicy.FIRST},
        skills=dict.fromkeys(parts, "recognition"),
        expected=dict.fromkeys(parts, about.photos) if about.photos else {},
        aggregates=rules,
        headline=content.metric,
        left_out=photos.left_out,
    )


def _read(folder: Path, annotations: Path | None, hint: str) -> PhotoSet:
    """The photos in whichever layout is there."""
    path = annotations or find_index(folder)
    if path is not None:
        return read_photo_index(path)
    shards = find_shards(folder)
    if shards:
        return read_shards(folder, shards)
    tables = find_tables(folder)
    return read_tables(tables) if tables else read_folders(folder, hint)


def _markdown(path: Path) -> bool:
    return path.suffix.lower() == ".md"


def _note_others(
    name: str, names: Sequence[str], templates: Sequence[str], known: Published
) -> None:
    """Say so where prompts are not those of published scores: the scores hang on them."""
    own = {each[0] for each in known.classes}
    odd = next((each for each in names if each not in own), None)
    if odd is not None:
        note(f"zero_shot:{name}: published scores use other class names (not {odd!r:.80})")
    if set(fill(templates, name)) != set(fill(known.templates, name)):
        counts = f"{len(known.templates)} other than these {len(templates)}"
        note(f"zero_shot:{name}: published scores use other prompt templates ({counts})")


def _own(photos: PhotoSet, folder: Path) -> tuple[str, ...]:
    """What the data themselves call the classes."""
    if not photos.names:
        raise CompoclipError(
            f"{folder}: the data do not name their classes; add a file of names (see zero_shot), "
            "or give the option classes"
        )
    if len(photos.names) < photos.classes:
        raise CompoclipError(
            f"{folder}: label {photos.classes - 1} has no name among the {len(photos.names)} that "
            "the data give; mend the list of names, or give the option classes"
        )
    return tuple(name.replace("_", " ") for name in photos.names)


def _listed(photos: PhotoSet, folder: Path, classes: Path, key: str) -> tuple[str, ...]:
    names = read_names(classes, key)
    if photos.folders and len(names) != len(photos.names):
        raise CompoclipError(
            f"{classes}: {len(names)} class names for {len(photos.names)} directories in "
            f"{folder}; add the missing directories or give an index file {{directory: name}}"
        )
    if len(names) < photos.classes:
        raise CompoclipError(
            f"{classes}: {len(names)} class names for {photos.classes} classes of {folder}"
        )
    return names


def _by_index(photos: PhotoSet, folder: Path, path: Path) -> tuple[tuple[str, ...], list[int]]:
    """Names that a file gives to what the data call the classes."""
    named = read_index(path)
    for each in named:
        if each not in photos.names:
            raise CompoclipError(
                f"{path}: class directory {each!r:.80} is not in {folder}; make it (empty for a "
                "class without photos) or drop the entry"
            )
    for each in photos.names:
        if each not in named:
            raise CompoclipError(
                f"{path}: no class name for directory {each!r:.80} of {folder}; add it"
            )
    return tuple(named[each] for each in photos.names), list(range(len(photos.names)))


def _check(content: Classification, photos: PhotoSet, where: str) -> None:
    """Refuse what the metric cannot score."""
    if content.metric != MAP11:
        several = next((k for k, each in enumerate(photos.labels) if len(each) > 1), None)
        if several is not None:
            raise CompoclipError(
                f"{where}: {photos.images[several].photo} has {len(photos.labels[several])} "
                f"labels, which {content.metric} cannot score; give the option metric={MAP11}"
            )
    if content.metric == AUC and len(content.classes) != 2:
        raise CompoclipError(f"{where}: {len(content.classes)} classes; the metric auc needs 2")
    double = next((name for name, n in Counter(content.classes).items() if n > 1), None)
    if double is not None and content.metric in (PER_CLASS, MAP11):
        raise CompoclipError(
            f"{where}: two classes are called {double!r:.80}; {content.metric} needs distinct names"
        )
