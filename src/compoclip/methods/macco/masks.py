"""The words and places that MACCO hides: of scene graphs at random, or found beforehand.

Words and boxes that were found beforehand are read from MACCO's table, NegCLIP's with more columns:

    title, relation_list, attribute_list: the caption, and Python lists of its words;
    relation_attribute_phrase_bbox_list: [{phrase: [[left, upper, right, lower], ...], ...}], or [],
    pixels of the photo as it is stored.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa

from compoclip.bounds import MAX_BOX_CHARACTERS
from compoclip.captions.types import Caption
from compoclip.data.caption_plan import Texts
from compoclip.data.drawing import Drawing
from compoclip.data.masks import Box, Mask
from compoclip.errors import CompoclipError
from compoclip.tables import delimited_header, literal, read_delimited, text_list
from compoclip.typed import Within, is_a

MASK = "mask"  # what masked captions are counted as
NO_CONCEPT = "nothing-to-hide"
_WORDS, _BOXES = ("relation_list", "attribute_list"), "relation_attribute_phrase_bbox_list"
_NEVER = "the"
_TOLERANCE = 0.25  # of the area that a rectangle is to have
_CELLS = 1000  # a rectangle's sides are drawn in these parts of the image
_REMEDY = "is this MACCO's table?"
_PHRASES = pa.large_list(pa.large_list(pa.list_(pa.float64(), 4)))
_LISTED = list[dict[str, list[list[float] | tuple[float, ...]]]]
Phrases = tuple[tuple[Box, ...], ...]
"""The boxes of each phrase of a caption."""


@dataclass(frozen=True)
class MaskPlan(Texts):
    """Masks for a second pass over each pair (MACCO): attribute and relation words of the caption,
    and a part of the image.

    Args:
        images: Whether images are masked too.
        file: Words and boxes in the format of MACCO's training data, by caption; "" takes words
            from the scene graph, and rectangles anywhere for boxes.
        rectangles: With a file, how often a rectangle is masked instead of boxes.
        area: Area of a rectangle as a fraction of the image, give or take a quarter of it.
    """

    images: bool = True
    file: str = ""
    rectangles: Annotated[float, Within(0, 1)] = 0.1
    area: Annotated[float, Within(0.01, 1)] = 0.75

    name: ClassVar[str] = "masks"
    label: ClassVar[str] = "masked captions"
    from_file: ClassVar = ("file", lambda file: ConceptFile(file))

    @property
    def needs_parsing(self) -> bool:
        """Return whether words come from the scene graph, not from a file."""
        return not self.file

    @property
    def hides(self) -> frozenset[str]:
        """Return "words", and "patches" unless images are left whole."""
        return frozenset({"words", "patches"} if self.images else {"words"})

    def draw_texts(self, drawing: Drawing, loaded: ConceptFile | None) -> None:
        """Draw what is hidden of the caption and its image."""
        caption = drawing.caption
        if loaded is None:
            mask = self.mask(graph_words(drawing.parse(caption)), None, drawing.rng(MASK))
        else:
            mask = self.mask(*loaded.find(caption), drawing.rng(MASK))
        drawing.texts[0] = replace(drawing.texts[0], mask=mask)
        if mask.spans(drawing.texts[0].text):
            drawing.counts.count(MASK)
        else:
            drawing.refuse(MASK, NO_CONCEPT)

    def mask(self, words: tuple[str, ...], phrases: Phrases | None, rng: random.Random) -> Mask:
        """Hide words, and of the image the boxes of a phrase or a rectangle.

        phrases: the boxes of each, from the file. Images without a file, and some others, have a
        rectangle hidden.
        """
        if not self.images:
            return Mask(words)
        boxes = rng.choice(phrases) if phrases else ()
        if rng.random() < self.rectangles or phrases is None:
            return Mask(words, (rectangle(self.area, rng),))
        return Mask(words, boxes, relative=False)


def graph_words(caption: Caption) -> tuple[str, ...]:
    """Return the words of relations and attributes of a caption, each once, in lower case."""
    graph = caption.graph
    if graph is None:
        return ()
    spans = [relation.span for relation in graph.relations]
    spans += [attribute.span for thing in graph.objects for attribute in thing.attributes]
    return _usable(
        token.text
        for token in caption.tokens
        if any(span.start <= token.start and token.end <= span.end for span in spans)
    )


def _usable(words: Iterable[str]) -> tuple[str, ...]:
    lower = dict.fromkeys(word.strip().lower() for word in words)
    return tuple(word for word in lower if word != _NEVER and any(map(str.isalnum, word)))


def rectangle(area: float, rng: random.Random) -> Box:
    """Return a rectangle of an area, within a quarter of it, anywhere in the unit square.

    Sides are drawn uniformly until the area fits, then its place.
    """
    while True:
        width, height = (rng.randint(1, _CELLS) / _CELLS for _ in range(2))
        if abs(width * height - area) <= _TOLERANCE * area:
            left, upper = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
            return left, upper, left + width, upper + height


# --- Words and boxes that were found beforehand. ---


class ConceptFile:
    """Words and boxes by caption, in Arrow arrays.

    Raises CompoclipError for a file that is malformed.
    """

    def __init__(self, path: Path) -> None:
        header = delimited_header(path)
        missing = [name for name in ("title", *_WORDS) if name not in header]
        if missing:
            raise CompoclipError(f"{path}: lacks the column {missing[0]!r}; {_REMEDY}")
        self._index: dict[str, int] = {}
        words: list[list[str]] = []
        boxes: list[list[list[Any]]] = []
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

    def find(self, caption: str) -> tuple[tuple[str, ...], Phrases]:
        """Return the words of a caption and the boxes of each phrase; none if the file lacks it."""
        row = self._index.get(caption.strip())
        if row is None:
            return (), ()
        boxes = tuple(tuple(map(tuple, phrase)) for phrase in self._boxes[row].as_py())
        return _usable(self._words[row].as_py()), boxes


def _words(cell: str | None, name: str, origin: str) -> Sequence[str]:
    if not (cell or "").strip():
        return ()
    words = text_list(cell or "")
    if words is None:
        raise CompoclipError(f"{origin}: {name} is not a list of words; {_REMEDY}")
    return words


def _phrases(cell: str | None, origin: str) -> list[list[Any]]:
    """The boxes of each phrase that has any."""
    if not (cell or "").strip():
        return []
    listed = literal(cell or "", MAX_BOX_CHARACTERS)
    typed = is_a(listed, _LISTED)
    phrases = [boxes for row in listed[:1] for boxes in row.values()] if typed else []
    sized = all(len(box) == 4 and max(map(abs, box)) < 1e6 for boxes in phrases for box in boxes)
    if not (typed and sized):
        raise CompoclipError(
            f"{origin}: {_BOXES} is not a list of phrases with boxes of four numbers, left, upper, "
            f"right, lower; {_REMEDY}"
        )
    return [[list(map(float, box)) for box in boxes] for boxes in phrases if boxes]
