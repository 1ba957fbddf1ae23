"""Which class each label of a zero-shot set means, and what the class is called in prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from typing import Any

from compoclip.benchmarks.imagenet_names import imagenet_prompts
from compoclip.benchmarks.parts import close
from compoclip.benchmarks.photo_set import PhotoSet
from compoclip.benchmarks.zero_shot_sets import IMAGENET, SETS, SHIFTS
from compoclip.errors import CompoclipError

SHIPPED = "data/zero_shot.json"
TOOLKIT = "data/elevater_labels.json"


@dataclass(frozen=True)
class Published:
    """Class names and templates behind the published scores of a set, () for an unknown set.

    classes: in label order, each a name and then its other names (directories, WordNet ids).
    toolkit: the class of each label in the index files of the ELEVATER toolkit, where these are
    numbered otherwise.
    """

    classes: tuple[tuple[str, ...], ...] = ()
    templates: tuple[str, ...] = ()
    toolkit: tuple[int, ...] = ()


def published(name: str) -> Published:
    """What is known of a set: ImageNet's from installed libraries, others from `data`."""
    if name in IMAGENET or name in SHIFTS:
        synsets, names, templates = imagenet_prompts(name)
        return Published(tuple(zip(names, synsets)), templates)
    if name not in SETS:
        return Published()
    own = _shipped(SHIPPED)[name]
    classes = tuple((each,) if isinstance(each, str) else tuple(each) for each in own["classes"])
    places = _places(classes)
    toolkit = tuple(places[_plain(each)] for each in _shipped(TOOLKIT).get(name, ()))
    return Published(classes, tuple(own["templates"]), toolkit)


def _shipped(file: str) -> dict[str, Any]:
    text = resources("compoclip.benchmarks").joinpath(file).read_text(encoding="utf-8")
    sets: dict[str, Any] = json.loads(text)["sets"]
    return sets


def _places(classes: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Class by any of its names, as compared; the first of two classes with one name."""
    place: dict[str, int] = {}
    for k, aliases in enumerate(classes):
        for alias in aliases:
            place.setdefault(_plain(alias), k)
    return place


def match(photos: PhotoSet, known: Published, where: str) -> list[int] | None:
    """The published class of each label; None when what the data call the classes fits none.

    Names fit when they are equal but for case and punctuation. Numbers count from 0, or from 1 when
    they end at the number of classes. Where no name fits, the classes of an ELEVATER index are
    those that the toolkit gives its numbers, and data that do not name their classes have them in
    the published order. Raises CompoclipError when only some names fit, or there are more labels
    than classes.
    """
    total = len(known.classes)
    if not total:
        return None
    if photos.classes > total:
        raise CompoclipError(
            f"{where}: {photos.classes} classes, where the published set has {total}; name yours "
            "with the option index or classes"
        )
    by_number = list(known.toolkit) if photos.toolkit and known.toolkit else list(range(total))
    if not photos.names:
        return by_number
    place = _places(known.classes)
    found = [place.get(_plain(name)) for name in photos.names]
    fitting = [each for each in found if each is not None]
    if len(set(fitting)) == len(found):
        return fitting
    numbers = _numbers(photos.names, total)
    if numbers is not None:
        return numbers
    if fitting:
        odd = next(
            name for name, k in zip(photos.names, found) if k is None or fitting.count(k) > 1
        )
        names = [each[0] for each in known.classes]
        raise CompoclipError(
            f"{where}: class {odd!r:.80} is not one of the set's, or is there twice "
            f"({close(odd, names)}); rename it, make directories that lack (they may be empty), or "
            "name all classes with the option index"
        )
    return by_number if photos.toolkit and len(photos.names) == total else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _numbers(names: Sequence[str], total: int) -> list[int] | None:
    if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        return None
    found = [int(name) for name in names]
    if total in found and 0 not in found:
        found = [each - 1 for each in found]
    distinct = len(set(found)) == len(found)
    return found if distinct and max(found) < total else None
