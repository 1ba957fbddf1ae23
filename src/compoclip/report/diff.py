"""Which words differ between two texts."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import NamedTuple

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
