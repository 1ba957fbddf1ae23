"""Captions of samples that have a class and no caption: templates filled with the class's name.

A class is called, in this order: as `index.json` in the folder of the data says (what the data call
it -> name), by the name of the published set whose templates are used, by WordNet's noun for its
id, or by its own name as words ("001.Snow_goose": "snow goose"). Numbers have the names that the
data list, or a list of names there (`prompts.list_of_names`), one a line in the order of the
numbers.

Reference: Goyal et al., Finetune like you pretrain (CVPR 2023), train with the contrast of CLIP on
such captions, and sample a template for each image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compoclip.console import note_once
from compoclip.data import prompts
from compoclip.data.columns import require_texts
from compoclip.data.sources import LABEL, SEVERAL, Source
from compoclip.data.split_names import NoUseError
from compoclip.errors import CompoclipError

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request


def captioned_by_label(source: Source, request: Request) -> Source:
    """Return the samples; those without captions get one per class and template of the request.

    Raises NoUseError where all samples have captions, UsageError for unknown templates, and
    CompoclipError for classes that no caption can name.
    """
    templates = prompts.templates_of(request.templates or "")
    rows = [*zip(source.column("captions"), source.column(LABEL))]
    classes = {label: _classes_of(label) for texts, label in rows if not texts}
    if not classes:
        raise NoUseError(
            "templates",
            f"{request.spec}: every sample has captions of its own, so that they take no "
            "--templates",
        )
    every = sorted({name for several in classes.values() for name in several})
    images = zip(source.column("image"), rows)
    in_folders = in_class_folders((image, label) for image, (texts, label) in images if not texts)
    name_of = _names(every, source.classes, request, in_folders)
    names = {label: sorted({name_of[name] for name in classes[label]}) for label in classes}
    captions = {
        label: tuple(text for name in several for text in prompts.fill(templates, name))
        for label, several in names.items()
    }
    require_texts((text for several in captions.values() for text in several), request.spec)
    captioned = [texts or captions[label] for texts, label in rows]
    # Two samples of one label with captions of their own may still differ.
    labels = ["" if texts else SEVERAL.join(names[label]) for texts, label in rows]
    return source.take(np.arange(len(rows)), source.describe(), {}, captioned, labels=labels)


def _classes_of(label: str) -> list[str]:
    """Return the classes of a label: of each row of the photo, and of each number among several."""
    rows = filter(None, label.split(SEVERAL))
    several = (row.split(",") if prompts.NUMBERS.fullmatch(row) else [row] for row in rows)
    return [name for names in several for name in names]


def in_class_folders(rows: Iterable[tuple[str, str]]) -> bool:
    """Return whether every image lies in a folder that is called by its label."""
    return all(f"/{label}/" in f"/{image}" for image, label in rows)


def _names(
    labels: Sequence[str], classes: Sequence[str], request: Request, in_folders: bool
) -> dict[str, str]:
    """Return what captions call classes, by what the data call them."""
    place, spec = Path(request.spec), request.spec
    folder = place if place.is_dir() else place.parent
    index = folder / "index.json"
    names: dict[str, str] = {}
    if place.is_dir() and index.is_file():
        every = dict.fromkeys((*labels, *classes))
        names = (
            prompts.names_by_index(index, every, folder)
            if in_folders
            else prompts.read_index(index)  # shards may have some of the classes
        )
    reference = prompts.published(request.templates or "").classes
    stated = {label: label for label in labels if label not in names}
    listed = () if prompts.are_numbers(classes) else classes
    numbers = [label for label in stated if prompts.are_numbers([label]) and label not in listed]
    names_file = prompts.list_of_names(folder) or folder / prompts.CLASS_NAMES
    remedy = f"put their names in the order of the numbers into {names_file}"
    places = [int(number) for number in numbers]  # names that the data state count from 0
    if numbers and not listed and len(numbers) == len(stated):
        listed = prompts.listed_names(folder) or tuple(aliases[0] for aliases in reference)
        if not listed:
            raise CompoclipError(
                f"{spec}: classes are called by numbers ({', '.join(numbers[:3])}, ...), which no "
                f'caption can use; {remedy}, or take the templates of their set ("cifar-10")'
            )
        places = prompts.numbered(numbers, len(listed)) or places
    if numbers and listed:
        by_number = dict(enumerate(listed))
        for label, number in zip(numbers, places):
            if not by_number.get(number):
                raise CompoclipError(
                    f"{spec}: label {label} has no name among {len(listed)}; {remedy}"
                )
            stated[label] = by_number[number]
    published, stated_names = prompts.class_places(reference), tuple(dict.fromkeys(stated.values()))
    spoken = prompts.spoken_among(stated_names, classes, spec)
    if changed := prompts.say_renamed(stated_names, [spoken[name] for name in stated_names]):
        note_once(f"{spec}: {changed}")
    for label, name in stated.items():
        number_there = published.get(prompts.plain_name(name))
        names[label] = spoken[name] if number_there is None else reference[number_there][0]
    return names
