"""Zero-shot classification: ELEVATER's twenty sets, ImageNet-1K and its shifts, and any other set.

A family: load one set as `zero_shot:NAME`, in one of four layouts below <root>/elevater/NAME (or in
the folder of the argument `images`), looked for in this order:

    test.txt or test.json, zip archives, labels.txt   as ELEVATER has it
    *.tar or test/*.tar, classnames.txt               as CLIP_benchmark has it
    *.parquet or data/*.parquet                       as on hubs
    <class directory>/**/<photo>, index.json          folders of classes

All but the first are read as training data with labels are, so a table of images and labels or a
shard is a set, too (`zero_shot:labels.csv`), and the options of `DataOptions` apply. Option
`annotations`: an index or table under another name. Class names are taken from, in this order:
option `index` or the folder's index.json (what the data call a class -> name), option `classes` (a
list in label order; for numbers also classnames.txt, labels.txt or labelmap.txt in the folder), the
published names, the data themselves. Of the latter WordNet ids get the names of their classes,
"001.Black_footed_Albatross" becomes "black footed albatross" and "AnnualCrop" "annual crop"; a note
says so. Classes that an index does not name keep those of the data. Numbers without names are
refused.
Templates: option `templates`, those among the data, the published ones, "a photo of a {}.". File
formats: see `prompts`; in files that hold several data sets the key is NAME, the section of NAME
in `prompts.md`, or the option `key`. A class without photos still competes.

Published names and templates are OpenAI's; scores hang on them, and a note says where others are
used. Those of the twenty sets come with compoclip (see `data/README.md`), ImageNet's with installed
libraries. ImageNet-A and -R are restricted to their 200 classes. Where an index of the ELEVATER
toolkit has no label names that fit, its numbers mean what they mean in the toolkit.

Each known set has its own metric, and `kitti-distance` is squashed instead of cropped (see
below); option `metric` overrides the metric.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from compoclip.benchmarks import files
from compoclip.benchmarks.case import ZERO_SHOT, Aggregate, Classification, ImageRef
from compoclip.benchmarks.entries import entries
from compoclip.benchmarks.photo_set import PhotoSet, read_photos
from compoclip.benchmarks.reader import OWN, Loading
from compoclip.console import counted, note
from compoclip.data import prompts
from compoclip.data.options import DataOptions
from compoclip.errors import CompoclipError, UsageError, closest, require

PER_CLASS, MAP11, AUC = "mean-per-class", "map11", "auc"


class ZeroShotSet(NamedTuple):
    """One set. classes: how many the published scores use.

    section: its heading in `prompts.md` of the CLIP repository, "" when it has none there. squash:
    photos are squashed to the model's size instead of cropped.
    """

    classes: int
    metric: str = "accuracy"
    section: str = ""
    squash: bool = False


SETS: Mapping[str, ZeroShotSet] = MappingProxyType(
    {name: ZeroShotSet(*row) for name, row in entries()["zero_shot"]["sets"].items()}
)


# --- Which class each label of a zero-shot set means, and what the class is called in prompts. ---

TOOLKIT = "data/elevater_labels.json"


def published(name: str) -> prompts.PublishedPrompts:
    """Return what is known of a set of the literature; nothing of others."""
    if name not in SETS:
        return prompts.PublishedPrompts()
    facts = prompts.published(name)
    places = prompts.class_places(facts.classes)
    text = resources("compoclip.benchmarks").joinpath(TOOLKIT).read_text(encoding="utf-8")
    labels = json.loads(text)["sets"].get(name, ())
    return replace(facts, toolkit=tuple(places[prompts.plain_name(label)] for label in labels))


def match(photos: PhotoSet, facts: prompts.PublishedPrompts, location: str) -> list[int] | None:
    """Return the published class of each label; None when no class that the data name fits.

    Names fit when they are equal but for case and punctuation. Numbers count from 0, or from 1 when
    they end at the number of classes. Where no name fits, the classes of an ELEVATER index are
    those that the toolkit gives its numbers, and data that do not name their classes have them in
    the published order. Raises CompoclipError when only some names fit, or there are more labels
    than classes.
    """
    total = len(facts.classes)
    if not total:
        return None
    if photos.classes > total:
        raise CompoclipError(
            f"{location}: {counted(photos.classes, 'class')}, where the published set has {total}; "
            "name yours with the option index or classes"
        )
    by_number = list(facts.toolkit) if photos.toolkit and facts.toolkit else list(range(total))
    if not photos.names:
        return by_number
    place = prompts.class_places(facts.classes)
    places = [place.get(prompts.plain_name(name)) for name in photos.names]
    fitting = [index for index in places if index is not None]
    if len(set(fitting)) == len(places):
        return fitting
    if numbers := prompts.numbered(photos.names, total):
        return numbers
    if fitting:
        labelled = zip(photos.names, places)
        odd = next(name for name, k in labelled if k is None or fitting.count(k) > 1)
        names = [aliases[0] for aliases in facts.classes]
        raise CompoclipError(
            f"{location}: class {odd!r:.80} is not a class of the set, or occurs twice "
            f"({closest(odd, names)}); rename it, add missing directories (they may be empty), or "
            "name all classes with the option index"
        )
    return by_number if photos.toolkit and len(photos.names) == total else None


# --- Reading a set. ---


def find_set(data: Loading, annotations: Path | None) -> tuple[str, Path]:
    """Return the name of the set that a target names, and where its photos lie.

    Raises CompoclipError when there is no such folder.
    """
    name = ",".join(data.parts)
    if name == OWN and annotations is not None:
        return annotations.name, data.images or annotations
    target = f"{data.about.id}:{name}"
    folder = data.images or files.image_path(data.root / "elevater", name, target)
    if annotations is None and not folder.is_dir():
        hint = "" if name in SETS else f" ({closest(name, SETS)})"
        raise CompoclipError(
            f"{folder}: no such folder; put the photos of {name!r} there{hint}"
        ) from FileNotFoundError(folder)
    return name, folder


def as_shown(photos: PhotoSet, name: str, reading: DataOptions) -> tuple[ImageRef, ...]:
    """Return the photos of a set as models are shown them: squashed, or turned upright."""
    squash = name in SETS and SETS[name].squash
    upright = name not in SETS
    if reading.orientation is not None:
        upright = reading.orientation == "upright"
    return tuple(replace(ref, squash=squash, upright=upright) for ref in photos.images)


def read(
    data: Loading,
    *,
    reading: DataOptions,
    annotations: Path | None = None,
    index: Path | None = None,
    classes: Path | None = None,
    key: str | None = None,
    metric: Literal["accuracy", "mean-per-class", "auc", "map11"] | None = None,
) -> Classification:
    """Read the set that the target names, called "zero_shot_<name>"; layouts: see the module."""
    benchmark, name = data.about.id, ",".join(data.parts)
    if index is not None and classes is not None:
        raise UsageError(f"{benchmark}: give index or classes, not both")
    one = SETS.get(name, ZeroShotSet(0))
    name, folder = find_set(data, annotations)
    photos = read_photos(annotations or folder, reading)
    facts = published(name)
    if index is None and classes is None and photos.folders:
        if (folder / "index.json").is_file():
            index = folder / "index.json"
        elif not facts.classes and prompts.are_numbers(photos.names):
            classes = prompts.list_of_names(folder)
    if classes is None:
        photos.require_names(folder)
    section = key or one.section
    published_place = None
    fix = "or give the option classes"
    unnamed = f"the data do not name their classes; add a file of names (see zero_shot), {fix}"
    if index is not None:
        require(photos.names, folder, unnamed)
        names, spoken = _indexed(photos, folder, index)
        if changed := prompts.say_renamed([*spoken], [*spoken.values()]):
            data.assumed += (changed,)
    elif classes is not None:
        names = _listed(photos, folder, classes, (key or name, section))
    elif published_place := match(photos, facts, str(folder)):
        names = tuple(aliases[0] for aliases in facts.classes)
    else:
        require(photos.names, folder, unnamed)
        if prompts.are_numbers(photos.names):
            raise CompoclipError(
                f"{folder}: classes are called by numbers ({', '.join(photos.names[:3])}, ...), "
                "which no prompt can use; put their names in label order into classnames.txt "
                f"there, {fix}"
            )
        for number, name_of_class in enumerate(photos.names):
            if not name_of_class:
                raise CompoclipError(
                    f"{folder}: class {number} has no name, which no prompt can do without; fix "
                    f"the list of names, {fix}"
                )
        names = prompts.spoken_names(photos.names, folder)
        if changed := prompts.say_renamed(photos.names, names):
            data.assumed += (changed,)
        plain = prompts.plain_name(name)
        similar = [other for other in SETS if prompts.plain_name(other).startswith(plain)]
        if name not in SETS and similar:
            data.assumed += (f"no published set; those have names: {', '.join(similar)}",)
    place = published_place or list(range(len(names)))
    if reading.templates is not None:
        used = prompts.templates_of(reading.templates, key or name, section)
    elif photos.templates is not None:
        used = prompts.read_templates(photos.templates, key or name, section)
    else:
        used = facts.templates or prompts.DEFAULT_TEMPLATES
    if name in SETS:  # scores hang on the prompts
        class_names = {aliases[0] for aliases in facts.classes}
        odd = next((name for name in names if name not in class_names), None)
        if odd is not None:
            note(f"zero_shot:{name}: published scores use other class names (not {odd!r:.80})")
        if set(prompts.fill(used, name)) != set(prompts.fill(facts.templates, name)):
            counts = f"{len(facts.templates)} other than these {len(used)}"
            note(f"zero_shot:{name}: published scores use other prompt templates ({counts})")
    for assumption in data.assumed:
        note(f"zero_shot:{name}: {assumption}")
    scored_by = metric or one.metric
    tags = tuple(tuple(place[label] for label in labels) for labels in photos.labels)
    content = Classification(
        images=as_shown(photos, name, reading),
        labels=() if scored_by == MAP11 else tuple(label for labels in tags for label in labels),
        classes=names,
        prompts=tuple(prompts.fill(used, class_name) for class_name in names),
        metric=scored_by,
        tags=tags if scored_by == MAP11 else (),
    )
    _check(content, photos, str(classes or index or folder))
    data.stated += [*photos.names, *names, *used, *photos.keys]
    if one.squash:
        data.stated.append("squash")
    if content.images[0].upright:
        data.stated.append("upright")
    data.name, data.headline, data.aggregates = f"{benchmark}_{name}", scored_by, content.rules()
    if name.startswith("imagenet-"):
        data.aggregates["top5"] = Aggregate((ZERO_SHOT,), metric="top5")
    expected = data.about.expected.get(name)
    data.expected = dict.fromkeys(content.counts(), expected) if expected else {}
    data.skills = dict.fromkeys(content.counts(), "recognition")
    data.left_out.update(photos.left_out)
    return content


def _listed(
    photos: PhotoSet, folder: Path, classes: Path, keys: tuple[str, str]
) -> tuple[str, ...]:
    """Return the names of the classes in a user's list, in its order."""
    names = prompts.read_names(classes, *keys)
    if photos.folders and len(names) != len(photos.names):
        raise CompoclipError(
            f"{classes}: {counted(len(names), 'class name')} for "
            f"{counted(len(photos.names), 'directory')} in {folder}; "
            "add the missing directories or give an index file {directory: name}"
        )
    if photos.folders and (places := prompts.numbered(photos.names, len(names))):
        return tuple(names[place] for place in places)
    if len(names) < photos.classes:
        raise CompoclipError(
            f"{classes}: {counted(len(names), 'class name')} for "
            f"{counted(photos.classes, 'class')} of {folder}"
        )
    return names


def _indexed(photos: PhotoSet, folder: Path, index: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the names of the classes by a user's index, and what others are called."""
    named = prompts.names_by_index(index, photos.names, folder)
    others = [name for name in photos.names if name not in named]
    if others and prompts.are_numbers(others):
        raise CompoclipError(
            f"{index}: no class name for directory {others[0]!r:.80} of {folder}; add it"
        )
    spoken = prompts.spoken_among(others, photos.names, folder)
    return tuple((named | spoken)[name] for name in photos.names), spoken


def _check(content: Classification, photos: PhotoSet, location: str) -> None:
    if content.metric != MAP11:
        several = next((k for k, labels in enumerate(photos.labels) if len(labels) > 1), None)
        if several is not None:
            raise CompoclipError(
                f"{location}: {photos.images[several].photo} has {len(photos.labels[several])} "
                f"labels, which {content.metric} cannot score; give the option metric={MAP11}"
            )
    if content.metric == AUC and len(content.classes) != 2:
        classes = counted(len(content.classes), "class")
        raise CompoclipError(f"{location}: {classes}; the metric auc needs 2")
    doubles = [name for name, n in Counter(content.classes).items() if n > 1]
    if doubles and content.metric in (PER_CLASS, MAP11):
        raise CompoclipError(
            f"{location}: two classes are called {next(iter(doubles), '')!r:.80}; {content.metric} "
            "needs distinct names"
        )
    if doubles:
        names = ", ".join(f"{name!r:.80}" for name in doubles[:3])
        more = ", ..." if len(doubles) > 3 else ""
        note(
            f"{location}: several classes share {counted(len(doubles), 'name')} ({names}{more}): "
            "they get the same score, and the first of them counts as the answer"
        )
