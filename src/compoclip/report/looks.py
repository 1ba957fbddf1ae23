"""Token-patch maps on the cards: where each model looks for the words that make the difference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from PIL import Image

from compoclip.analysis.patch_maps import PatchMaps, patch_maps, small_overlay
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import LoadedModel
from compoclip.report.pictures import data_uri
from compoclip.report.study import Study

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
    spans = [[m.span() for m in _PIECE.finditer(each)] for each in (text, other)]
    words = [[t[a:b].lower() for a, b in own] for t, own in zip((text, other), spans)]
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)
    changed = [[True] * len(each) for each in words]
    for block in matcher.get_matching_blocks():
        for side, start in ((0, block.a), (1, block.b)):
            changed[side][start : start + block.size] = [False] * block.size
    first, second = (_pieces(t, s, c) for t, s, c in zip((text, other), spans, changed))
    return first, second


def _pieces(text: str, spans: list[tuple[int, int]], changed: list[bool]) -> tuple[Piece, ...]:
    marks = [False] * len(text)
    for number, ((start, end), is_changed) in enumerate(zip(spans, changed)):
        if is_changed:
            joined = number + 1 < len(spans) and changed[number + 1]
            stop = spans[number + 1][0] if joined else end
            marks[start:stop] = [True] * (stop - start)
    pieces: list[Piece] = []
    for character, mark in zip(text, marks):
        if pieces and pieces[-1].changed == mark:
            pieces[-1] = Piece(pieces[-1].text + character, mark)
        else:
            pieces.append(Piece(character, mark))
    return tuple(pieces)


# --- Token-patch maps on the cards: where each model looks for the words that make the
# difference. ---

SIDE = 80
BUDGET = 800_000  # bytes of all maps together
_RUNS, _WORDS = 2, 3  # runs of changed words a card, and words a run, that maps are drawn for


@dataclass(frozen=True)
class Look:
    """Some words of a card and where models look for them: (model, data URI)."""

    words: str
    maps: tuple[tuple[str, str], ...]


@dataclass
class Looker:
    """Draws maps within a budget. models: by name as in the results. over_budget: looks left out.
    refused: model -> why it has none."""

    models: Mapping[str, LoadedModel] = field(default_factory=dict)
    budget: int = BUDGET
    over_budget: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def looks(self, photo: Image.Image | None, pieces: Sequence[Piece]) -> tuple[Look, ...]:
        """Maps of the first runs of changed words of a text, of every model that has any."""
        runs = changed_runs(pieces)[:_RUNS]
        if photo is None or not runs or not self.models:
            return ()
        text = "".join(piece.text for piece in pieces)
        found: dict[str, PatchMaps] = {}
        for name, model in self.models.items():
            if name not in self.refused:
                try:
                    maps = patch_maps(model, photo, text)
                except CompoclipError as error:
                    self.refused[name] = str(error)
                else:
                    if len(maps.words) + len(maps.left_out) == len(text.split()):
                        found[name] = maps
        drawn = [self._drawn(photo, found, words, places) for words, places in runs]
        return tuple(each for each in drawn if each is not None)

    def _drawn(
        self,
        photo: Image.Image,
        found: Mapping[str, PatchMaps],
        words: str,
        places: Sequence[int],
    ) -> Look | None:
        uris = []
        for name, maps in found.items():
            seen = [maps.words[k].attention for k in places if k < len(maps.words)]
            if seen:
                attention = np.mean(seen, axis=0)
                uris.append((name, data_uri(small_overlay(photo, attention, maps.region, SIDE))))
        size = sum(len(uri) for _, uri in uris)
        if not uris:
            return None
        if size > self.budget:
            self.over_budget += 1
            return None
        self.budget -= size
        return Look(words, tuple(uris))


def changed_runs(pieces: Sequence[Piece]) -> list[tuple[str, tuple[int, ...]]]:
    """Short runs of changed words: as they stand, and their places among the words of the text."""
    text = "".join(piece.text for piece in pieces)
    marks = [piece.changed for piece in pieces for _ in piece.text]
    words = list(re.finditer(r"\S+", text))
    changed = [any(marks[word.start() : word.end()]) for word in words]
    runs: list[list[int]] = []
    for place, is_changed in enumerate(changed):
        if is_changed and place and changed[place - 1]:
            runs[-1].append(place)
        elif is_changed:
            runs.append([place])
    return [
        (text[words[run[0]].start() : words[run[-1]].end()], tuple(run))
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
        if measured and measured != model.identity.weights:
            raise CompoclipError(
                f"--maps {name}: {model.name} has weights {model.identity.weights}, but the "
                f"results of {name} are of {measured}; name the checkpoint that was measured"
            )
