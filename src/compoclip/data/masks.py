"""What a masked second pass hides of a pair: words of its caption, places of its image (MACCO).

Words and boxes that were found beforehand are read from MACCO's table, NegCLIP's with more columns:

    title, relation_list, attribute_list: the caption, and Python lists of its words;
    relation_attribute_phrase_bbox_list: [{phrase: [[left, upper, right, lower], ...], ...}], or [],
    pixels of the photo as it is stored.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from compoclip.captions.types import Caption
from compoclip.data.caption_plan import MaskPlan
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError
from compoclip.tables import delimited_header, read_delimited, text_list

Box = tuple[float, float, float, float]
"""Left, upper, right, lower, as fractions of what is shown of an image."""
_WORDS, _BOXES = ("relation_list", "attribute_list"), "relation_attribute_phrase_bbox_list"
_LITERAL_LIMIT = 100_000  # characters of a cell; a photo has a few boxes
_NEVER = "the"
_TOLERANCE = 0.25  # of the area that a rectangle is to have
_CELLS = 1000  # a rectangle's sides are drawn in these parts of the image
_REMEDY = "is this MACCO's table?"
_PHRASES = pa.large_list(pa.large_list(pa.list_(pa.float64(), 4)))


@dataclass(frozen=True)
class Mask:
    """What is hidden of a pair.

    Args:
        words: Of the caption, in lower case, wherever they stand in it.
        boxes: Of the image, (left, upper, right, lower) in pixels as it is stored, or fractions of
            what is shown if `shown`.
        shown: See `boxes`.
    """

    words: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    shown: bool = True

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the words stand in a text, from each first character to after the last."""
        if not self.words:
            return []
        longest = sorted(self.words, key=len, reverse=True)
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)"
        return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]

    def as_shown(
        self,
        stored: tuple[int, int],
        crop: tuple[int, int, int, int] | None,
        transform: ImageTransform,
    ) -> Mask:
        """The mask with boxes as fractions of what a transform shows of a photo.

        Args:
            stored: Width and height of the photo.
            crop: What is shown of it, see `ImageTransform.box`.
            transform: What becomes of the photo.

        Returns:
            The mask; a box of which nothing is shown is left out.
        """
        if self.shown:
            return self
        boxes = (_where(box, stored, crop, transform) for box in self.boxes)
        return replace(self, boxes=tuple(box for box in boxes if box is not None), shown=True)


NOTHING = Mask()


def _where(
    box: Box,
    stored: tuple[int, int],
    crop: tuple[int, int, int, int] | None,
    transform: ImageTransform,
) -> Box | None:
    """Where a box ends up: a picture of it goes the way of the photo, however that leads."""
    drawn = Image.new("RGB", stored)
    left, upper, right, lower = (round(edge) for edge in box)
    drawn.paste((255, 255, 255), (left, upper, max(right, left + 1), max(lower, upper + 1)))
    seen = transform.pixels(drawn, stored, crop)[0].numpy() > 127
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    if not len(rows):
        return None
    height, width = seen.shape
    return (
        columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height,
    )  # fmt: skip


def draw_mask(
    plan: MaskPlan, caption: Caption | None, found: FoundConcepts | None, rng: random.Random
) -> Mask:
    """Draw what is hidden of a pair.

    Args:
        plan: How.
        caption: The caption with its scene graph, for a plan without a file.
        found: What the file has of the caption, None for nothing.
        rng: Makes all draws.

    Returns:
        The mask. Images whose boxes are not known, and some others, have a rectangle hidden.
    """
    words: tuple[str, ...] = () if found is None else found.words
    if caption is not None:
        words = graph_words(caption)
    if not plan.images:
        return Mask(words)
    boxes = rng.choice(found.boxes) if found is not None and found.boxes else ()
    if rng.random() < plan.rectangles or (not plan.file):
        return Mask(words, (rectangle(plan.area, rng),))
    return Mask(words, boxes, shown=False)


def graph_words(caption: Caption) -> tuple[str, ...]:
    """The words of relations and attributes of a caption, each once, in lower case."""
    graph = caption.graph
    if graph is None:
        return ()
    spans = [each.span for each in graph.relations]
    spans += [each.span for thing in graph.objects for each in thing.attributes]
    return _usable(
        token.text
        for token in caption.tokens
        if any(span.start <= token.start and token.end <= span.end for span in spans)
    )


def _usable(words: Iterable[str]) -> tuple[str, ...]:
    lower = dict.fromkeys(word.strip().lower() for word in words)
    return tuple(word for word in lower if word != _NEVER and any(map(str.isalnum, word)))


def rectangle(area: float, rng: random.Random) -> Box:
    """A rectangle of about an area, anywhere in the unit square.

    Args:
        area: What its own is within a quarter of.
        rng: Draws it: sides uniformly until the area fits, then its place.

    Returns:
        Left, upper, right, lower.
    """
    while True:
        width, height = (rng.randint(1, _CELLS) / _CELLS for _ in range(2))
        if abs(width * height - area) <= _TOLERANCE * area:
            left, upper = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
            return left, upper, left + width, upper + height


# --- Words and boxes that were found beforehand. ---


@dataclass(frozen=True)
class FoundConcepts:
    """What the file has of a caption: words, and the boxes of each phrase."""

    words: tuple[str, ...]
    boxes: tuple[tuple[Box, ...], ...]


class ConceptFile:
    """Words and boxes by caption, held compactly.

    Raises CompoclipError for a file that is malformed.
    """

    def __init__(self, path: Path) -> None:
        header = delimited_header(path)
        missing = [name for name in ("title", *_WORDS) if name not in header]
        if missing:
            raise CompoclipError(f"{path}: lacks the column {missing[0]!r}; {_REMEDY}")
        self._index: dict[str, int] = {}
        words: list[list[str]] = []
        boxes: list[list[list[Box]]] = []
        for number, row in read_delimited(path):
            origin = f"{path}, row {number}"
            if self._index.setdefault(row["title"].strip(), len(words)) != len(words):
                continue  # the same caption has the same words
            words.append([word for name in _WORDS for word in _words(row.get(name), name, origin)])
            boxes.append(_phrases(row.get(_BOXES), origin))
        self._words = pa.array(words, pa.large_list(pa.large_string()))
        self._boxes = pa.array(boxes, _PHRASES)

    def __len__(self) -> int:
        return len(self._index)

    def find(self, caption: str) -> FoundConcepts | None:
        """What the file has of a caption; None when it does not have it."""
        row = self._index.get(caption.strip())
        if row is None:
            return None
        boxes = tuple(tuple(map(tuple, phrase)) for phrase in self._boxes[row].as_py())
        return FoundConcepts(_usable(self._words[row].as_py()), boxes)


def _words(cell: str | None, name: str, origin: str) -> Sequence[str]:
    if not (cell or "").strip():
        return ()
    found: Any = text_list(cell or "")
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise CompoclipError(f"{origin}: {name} is not a list of words; {_REMEDY}")
    return found


def _phrases(cell: str | None, origin: str) -> list[list[Box]]:
    """The boxes of each phrase that has any."""
    if not (cell or "").strip():
        return []
    try:
        found: Any = (
            ast.literal_eval((cell or "").strip()) if len(cell or "") < _LITERAL_LIMIT else 0
        )
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        found = 0
    if found == []:
        return []
    if not (isinstance(found, list) and isinstance(found[0], Mapping)):
        raise CompoclipError(f"{origin}: {_BOXES} is not a list of phrases with boxes; {_REMEDY}")
    phrases = list(found[0].values())
    if not all(isinstance(each, list) and all(map(_is_box, each)) for each in phrases):
        raise CompoclipError(
            f"{origin}: {_BOXES}: a box is four numbers, left, upper, right, lower; {_REMEDY}"
        )
    return [[_box(*box) for box in each] for each in phrases if each]


def _box(*edges: float) -> Box:
    left, upper, right, lower = map(float, edges)
    return left, upper, right, lower


def _is_box(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 4
        and all(isinstance(edge, int | float) and abs(edge) < 1e6 for edge in value)
    )
