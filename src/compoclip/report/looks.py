"""Photos on cards: small copies, and maps of the words that differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

from compoclip.archives import SUFFIXES, Members
from compoclip.benchmarks.case import MIRRORED, UPRIGHT, ImageRef
from compoclip.data.decode import data_uri
from compoclip.errors import CompoclipError
from compoclip.report.study import Study

if TYPE_CHECKING:  # a report without maps needs no torch
    from torch import Tensor

    from compoclip.analysis.maps import PatchMaps
    from compoclip.models.checkpoint import LoadedModel
    from compoclip.models.preprocess import Preprocess

# --- Small copies of benchmark photos as data URIs. ---

PHOTO_SIDE = 160
PHOTO_BUDGET = 2_200_000  # bytes of all pictures together, so that a page stays well below 5 MB
_KEY = re.compile(rf"(.*?)(?:#([-\d.e+]+(?:,[-\d.e+]+){{3}}))?({UPRIGHT})?({MIRRORED})?", re.DOTALL)
_MEMBER = re.compile(rf"(.+(?:{'|'.join(map(re.escape, SUFFIXES))}))@(.+)", re.DOTALL)


def ref_of_key(key: str) -> ImageRef:
    """Return the image that `case.image_key` names; raise ValueError for a malformed box."""
    match = _KEY.fullmatch(key)
    assert match is not None
    photo, sides, upright, mirrored = match.groups()
    inside = None if Path(photo).is_file() else _MEMBER.fullmatch(photo)
    path, member = inside.groups() if inside else (photo, "")
    box = None
    if sides:
        left, upper, right, lower = map(float, sides.split(","))
        box = left, upper, right, lower
    return ImageRef(Path(path), box, member, mirror=bool(mirrored), upright=bool(upright))


@dataclass(frozen=True)
class Picture:
    """One photo, with the size to show it at.

    uri: "" when it is not embedded, and `reason` then says why. number: of its first use; later
    uses point there.
    """

    number: int
    uri: str
    width: int
    height: int
    reason: str = ""


SIDE = 80  # of a map
MAP_BUDGET = 800_000  # bytes of all maps together
_RUNS, _WORDS = 2, 3  # runs of changed words a card, and words a run, that maps are drawn for

Look = tuple[str, tuple[tuple[str, str], ...]]
"""Some words of a card and where models look for them: (model, data URI)."""


ImageTower = tuple[str, "Preprocess"]
"""The hash of an image tower and its preprocessing, on which the features of an image depend."""


@dataclass
class Album:
    """The pictures of a page: every photo at most once, and token-patch maps, within budgets.

    models: by name as in the results; only these have maps. strips_over_budget: maps of some words
    left out. refused: model -> why it has no maps. root: where photos (or archives) that have moved
    are, under the longest end of their path that is there.
    image_towers: of the models that have had maps; those of equal towers see the same patches.
    """

    models: Mapping[str, LoadedModel] = field(default_factory=dict)
    budget: int = PHOTO_BUDGET
    map_budget: int = MAP_BUDGET
    pictures: dict[str, Picture] = field(default_factory=dict)
    unreadable: int = 0
    over_budget: int = 0
    strips_over_budget: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    members: Members = field(default_factory=Members)
    root: Path | None = None
    image_towers: dict[str, ImageTower] = field(default_factory=dict)

    def add(self, key: str) -> Picture:
        """The photo with this key (`benchmarks.case.image_key`)."""
        if key in self.pictures:
            first = self.pictures[key]
            return replace(first, uri="", reason=first.reason or "shown before")
        number, image = len(self.pictures) + 1, self.photo(key)
        picture = Picture(number, "", PHOTO_SIDE, PHOTO_SIDE, "photo not found or not readable")
        if image is None:
            self.unreadable += 1
        else:
            image.thumbnail((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.LANCZOS)
            uri = smallest_uri(image)
            if len(uri) > self.budget:
                self.over_budget += 1
                picture = replace(picture, reason="left out to keep the page small")
            else:
                self.budget -= len(uri)
                larger = max(1, PHOTO_SIDE // max(image.size))  # thumbnails are shown enlarged
                picture = Picture(number, uri, larger * image.width, larger * image.height)
        self.pictures[key] = picture
        return picture

    def photo(self, key: str) -> Image.Image | None:
        """The photo with this key in full, cut to its box, mirrored if it says so; None when it
        cannot be read."""
        try:
            ref = ref_of_key(key)
            if self.root is not None and not ref.path.is_file():
                parts = ref.path.parts
                ends = (self.root.joinpath(*parts[k:]) for k in range(1, len(parts)))
                moved = next((end for end in ends if end.is_file()), ref.path)
                ref = replace(ref, path=moved)
            return ref.decoded(self.members)
        except (CompoclipError, ValueError):
            return None

    def looks(self, key: str, pieces: Sequence[Piece]) -> tuple[Look, ...]:
        """Maps of the first runs of changed words of a text on a photo, of every model that has
        any."""
        runs, photo = changed_runs(pieces)[:_RUNS], self.photo(key)
        if photo is None or not runs or not self.models:
            return ()
        text = "".join(piece.text for piece in pieces)
        from compoclip.analysis.maps import image_patches, patch_maps, small_overlay
        from compoclip.evaluation.encoder import ModelEncoder

        by_model: dict[str, PatchMaps] = {}
        patches: dict[ImageTower, Tensor] = {}
        for name, model in self.models.items():
            if name not in self.refused:
                try:
                    if name not in self.image_towers:
                        weights = ModelEncoder(model).tower_weights("image")
                        self.image_towers[name] = weights, model.preprocess
                    tower = self.image_towers[name]
                    if tower not in patches:
                        patches[tower] = image_patches(model, photo)
                    maps = patch_maps(model, photo, text, patches[tower])
                except CompoclipError as error:
                    self.refused[name] = str(error)
                else:
                    if len(maps.words) + len(maps.left_out) == len(text.split()):
                        by_model[name] = maps
        looks: list[Look] = []
        for words, places in runs:
            uris = []
            for name, maps in by_model.items():
                attentions = [maps.words[k].attention for k in places if k < len(maps.words)]
                if attentions:
                    overlay = small_overlay(photo, np.mean(attentions, axis=0), maps.region, SIDE)
                    uris.append((name, smallest_uri(overlay)))
            size = sum(len(uri) for _, uri in uris)
            if size > self.map_budget:
                self.strips_over_budget += 1
            elif uris:
                self.map_budget -= size
                looks.append((words, tuple(uris)))
        return tuple(looks)


def smallest_uri(image: Image.Image) -> str:
    """Return the image as JPEG or PNG, whichever is smaller."""
    return min(data_uri(image, "jpeg", quality=82), data_uri(image, "png", optimize=True), key=len)


# --- Which words differ between two texts. ---

_PIECE = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


class Piece(NamedTuple):
    """A run of text; changed: the other text does not have it here."""

    text: str
    changed: bool


def word_diff(text: str, other: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Both texts cut into runs that are common and runs that are not, case ignored.

    The runs of a text joined give the text. Blanks between two changed words are changed too.
    """
    one, two = ([m.span() for m in _PIECE.finditer(string)] for string in (text, other))
    words, others = [text[a:b].lower() for a, b in one], [other[a:b].lower() for a, b in two]
    changed = [True for _ in one], [True for _ in two]
    for a, b, size in SequenceMatcher(None, words, others, autojunk=False).get_matching_blocks():
        for k in range(size):
            changed[0][a + k] = changed[1][b + k] = False
    return _pieces(text, one, changed[0]), _pieces(other, two, changed[1])


def _pieces(text: str, spans: list[tuple[int, int]], changed: list[bool]) -> tuple[Piece, ...]:
    marks = [False for _ in text]
    for number, ((start, end), is_changed) in enumerate(zip(spans, changed)):
        if is_changed:
            joined = number + 1 < len(spans) and changed[number + 1]
            stop = spans[number + 1][0] if joined else end
            for place in range(start, stop):
                marks[place] = True
    runs = groupby(zip(text, marks), key=lambda pair: pair[1])
    return tuple(Piece("".join(character for character, _ in run), mark) for mark, run in runs)


def changed_runs(pieces: Sequence[Piece]) -> list[tuple[str, tuple[int, ...]]]:
    """Short runs of changed words: their text, and their places among the words of the text."""
    text = "".join(piece.text for piece in pieces)
    marks = [piece.changed for piece in pieces for _ in piece.text]
    words = list(re.finditer(r"\S+", text))
    changed = [any(marks[word.start() : word.end()]) for word in words]
    runs = [
        tuple(run) for marked, run in groupby(range(len(words)), lambda k: changed[k]) if marked
    ]
    return [
        (text[words[run[0]].start() : words[run[-1]].end()], run)
        for run in runs
        if len(run) <= _WORDS
    ]


def require_measured(models: Mapping[str, LoadedModel], study: Study) -> None:
    """Raises CompoclipError unless each is the model of that name that was measured."""
    for name, model in models.items():
        if name not in study.results:
            raise CompoclipError(
                f"--maps {name}: no results of that model; there are {', '.join(study.models)}"
            )
        measured = next(iter(study.results[name].values())).identity.get("weights")
        if measured not in (None, "", model.identity.weights):
            raise CompoclipError(
                f"--maps {name}: {model.name} has weights {model.identity.weights}, but the "
                f"results of {name} are of {measured}; name the checkpoint that was measured"
            )
