"""Linear probes: a linear classifier of image features, fitted to labelled photos.

    compoclip evaluate MODEL --on probe:dtd probe:labels.csv

Photos are read as those of `zero_shot` are, from the same folders; here the classes need no names
that a prompt could use. Training and validation photos come from, in this order: the index files
of the ELEVATER toolkit (`train.txt` and `val.txt` beside `test.txt`, also under its other names),
the shards of `train` and `val` beside `test`, the splits that the data name, and the hash that
divides data without splits. Where no validation photos come with the test photos, a fifth of the
training photos are validation photos; `evaluation.forms.probe` says what is done with them.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks.case import Classification, Probe
from compoclip.benchmarks.photo_set import (
    PhotoSet,
    find_index,
    holds_shards,
    read_labelled,
    read_photo_index,
)
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.zero_shot import MAP11, PER_CLASS, SETS, as_shown, find_set
from compoclip.console import counted
from compoclip.data.options import DataOptions, as_target_option, naming_options
from compoclip.errors import CompoclipError, UsageError

TRAIN, VAL, TEST = "train", "val", "test"
_VALIDATION = 5  # of so many training photos one validates, where no others do


def read(data: Loading, *, reading: DataOptions, annotations: Path | None = None) -> Probe:
    """Read the set that the target names, called "probe_<name>"; layouts: see the module."""
    name, folder = find_set(data, annotations)
    target = f"{data.about.id}:{name}"
    if reading.split is not None:
        raise UsageError(
            f"{target}: a probe reads the train, val and test splits itself; leave split= out"
        )
    if reading.templates is not None:
        raise UsageError(f"{target}: a probe reads no texts; leave templates= out")
    metric = SETS[name].metric if name in SETS else ""
    if metric == MAP11:
        raise UsageError(
            f"{target}: its photos have several labels each, and a probe has one; measure it as "
            f"zero_shot:{name}"
        )
    splits = _splits(folder, annotations, reading)
    for split in (TEST, TRAIN):
        if split not in splits:
            raise CompoclipError(
                f"{folder}: no {split} photos ({', '.join(splits) or 'no split'} is all there is); "
                f"a probe needs them: add the split {split}, or give a table or folder without "
                "splits"
            )
    classes, sets = _with_classes(splits, folder)
    data.name, data.headline = f"probe_{name}", PER_CLASS if metric == PER_CLASS else "accuracy"
    content = {
        split: Classification(as_shown(photos, name, reading), sets[split], classes, ())
        for split, photos in splits.items()
    }
    if VAL not in content:
        content |= _divided(content[TRAIN], folder)
    probe = Probe(content[TEST], content[TRAIN], content[VAL])
    for split, photos in splits.items():
        data.stated += [split, *photos.keys]
        data.left_out.update(photos.left_out)
    data.stated += [*classes, *("squash" for ref in probe.images[:1] if ref.squash)]
    data.stated += ["upright" for ref in probe.images[:1] if ref.upright]
    data.skills = dict.fromkeys(probe.counts(), "recognition")
    return probe


def _splits(folder: Path, annotations: Path | None, reading: DataOptions) -> dict[str, PhotoSet]:
    """Return the photos of each split that is there."""
    from compoclip.data.sources.open import request_of
    from compoclip.data.split_names import members_of

    place = annotations or folder
    index = find_index(place)
    if index is not None:
        of_split = TEST if TEST in index.name else VAL
        files = {s: index.with_name(index.name.replace(of_split, s)) for s in (TRAIN, VAL, TEST)}
        by_split = {s: read_photo_index(file) for s, file in files.items() if file.is_file()}
    elif place.is_dir() and holds_shards(place / TEST):
        shards = [s for s in (TRAIN, VAL, TEST) if holds_shards(place / s)]
        by_split = {s: read_labelled(place / s, reading) for s in shards}
    else:
        images = None if place.is_dir() else reading.images
        request = request_of(str(place), replace(reading, images=images, split="all"))
        with naming_options(as_target_option):
            counts = replace(request, needs="labels").open().split_counts()
        named = [s for s in (TRAIN, VAL, TEST) if not any(counts) or members_of(s, counts)]
        by_split = {s: read_labelled(place, replace(reading, split=s)) for s in named}
    if TEST not in by_split and VAL in by_split:
        by_split[TEST] = by_split.pop(VAL)
    return by_split


def _with_classes(
    splits: dict[str, PhotoSet], folder: Path
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Return the classes of all splits, and the label of each photo of each split."""
    for photos in splits.values():
        several = next((k for k, labels in enumerate(photos.labels) if len(labels) > 1), None)
        if several is not None:
            raise CompoclipError(
                f"{folder}: {photos.images[several].photo} has several labels, and a probe has one"
            )
        photos.require_names(folder)
    labels = {split: [first for first, *_ in photos.labels] for split, photos in splits.items()}
    if not all(photos.names for photos in splits.values()):
        numbers = range(max(photos.classes for photos in splits.values()))
        return tuple(map(str, numbers)), {split: tuple(row) for split, row in labels.items()}
    order = [TEST, *splits]
    classes = tuple(dict.fromkeys(name for split in order for name in splits[split].names))
    place = {name: k for k, name in enumerate(classes)}
    return classes, {
        split: tuple(place[splits[split].names[label]] for label in row)
        for split, row in labels.items()
    }


def _divided(train: Classification, folder: Path) -> dict[str, Classification]:
    """Return training and validation photos: a fifth of them, sampled, are of the latter."""
    total = len(train.images)
    if total < _VALIDATION:
        raise CompoclipError(
            f"{folder}: {counted(total, 'training photo')}; a probe needs {_VALIDATION} at least"
        )
    sampled = {*random.Random(0).sample(train.images, total // _VALIDATION)}
    validation = train.without(lambda ref: ref not in sampled)
    return {TRAIN: train.without(sampled.__contains__), VAL: validation}
