"""Which class each label of a zero-shot set means, and what the class is called in prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from compoclip.benchmarks.imagenet_names import imagenet_prompts
from compoclip.benchmarks.parts import close
from compoclip.benchmarks.photo_set import PhotoSet
from compoclip.benchmarks.prompts import read_aliases, read_templates
from compoclip.benchmarks.zero_shot_sets import IMAGENET, SETS, SHIFTS
from compoclip.errors import CompoclipError

SHIPPED = "data/zero_shot.json"
PROMPTS = "prompts.md"


@dataclass(frozen=True)
class Published:
    """Class names and templates behind the published scores of a set.

    classes: in label order, each a name and then its other names (directories, WordNet ids), () if
    not known here. templates: () if not known here.
    """

    classes: tuple[tuple[str, ...], ...] = ()
    templates: tuple[str, ...] = ()


def published(name: str, folder: Path) -> Published:
    """What is known of a set: ImageNet's from installed libraries, others from the lists shipped
    with compoclip and, for what these lack, from `prompts.md` of the CLIP repository in `folder`.

    Raises CompoclipError when `prompts.md` is there but malformed.
    """
    if name in IMAGENET or name in SHIFTS:
        synsets, names, templates = imagenet_prompts(name)
        return Published(tuple(zip(names, synsets)), templates)
    if name not in SETS:
        return Published()
    own = _shipped().get(name, {})
    classes = tuple(
        (each,) if isinstance(each, str) else tuple(each) for each in own.get("classes", ())
    )
    templates = tuple(own.get("templates", ()))
    path, section = folder / PROMPTS, SETS[name].section
    if path.is_file():
        classes = classes or read_aliases(path, section)
        templates = templates or read_templates(path, section)
    return Published(classes, templates)


def _shipped() -> dict[str, Any]:
    text = resources("compoclip.benchmarks").joinpath(SHIPPED).read_text(encoding="utf-8")
    sets: dict[str, Any] = json.loads(text)["sets"]
    return sets


def match(photos: PhotoSet, known: Published, by_folder: bool, where: str) -> list[int] | None:
    """The published class of each label; None when what the data call the classes fits none.

    Names fit when they are equal but for case and punctuation. Numbers count from 0, or from 1 when
    they end at the number of classes. Data that do not name their classes have them in the
    published order, and so have (`by_folder`) directories in sorted order, when there is one for
    each class and no name says otherwise. Raises CompoclipError
    when only some names fit, or there are more labels than classes.
    """
    total = len(known.classes)
    if not total:
        return None
    if photos.classes > total:
        raise CompoclipError(
            f"{where}: {photos.classes} classes, where the published set has {total}; name yours "
            "with the option index or classes"
        )
    if not photos.names:
        return list(range(total))
    place: dict[str, int] = {}
    for k, aliases in enumerate(known.classes):
        for alias in aliases:
            place.setdefault(_plain(alias), k)
    found = [place.get(_plain(name)) for name in photos.names]
    fitting = [each for each in found if each is not None]
    if len(set(fitting)) == len(found):
        return fitting
    numbers = _numbers(photos.names, total)
    if numbers is not None:
        return numbers
    in_place = all(k in (None, own) for own, k in enumerate(found))
    if by_folder and photos.folders and len(found) == total and in_place:
        return list(range(total))
    if fitting:
        odd = next(
            name for name, k in zip(photos.names, found) if k is None or fitting.count(k) > 1
        )
        names = [each[0] for each in known.classes]
        raise CompoclipError(
            f"{where}: class {odd!r} is not one of the set's, or is there twice "
            f"({close(odd, names)}); rename it, make directories that lack (they may be empty), or "
            "name all classes with the option index"
        )
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _numbers(names: Sequence[str], total: int) -> list[int] | None:
    if not all(name.isascii() and name.isdigit() for name in names):
        return None
    found = [int(name) for name in names]
    if total in found and 0 not in found:
        found = [each - 1 for each in found]
    distinct = len(set(found)) == len(found)
    return found if distinct and max(found) < total else None
