"""The hidden parts of a pair in a masked second pass: words of its caption, places of its image."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from compoclip.data.transform import ImageTransform

Box = tuple[float, float, float, float]
"""Left, upper, right, lower, as fractions of the visible part of an image."""


@dataclass(frozen=True)
class Mask:
    """The hidden parts of a pair.

    words: of the caption, in lower case, wherever they stand in it. boxes: in pixels of the stored
    image or, if `relative`, as fractions of its visible part.
    """

    words: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    relative: bool = True

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of the words in a text."""
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
        """Return the mask with boxes as fractions of the part of a photo that a transform shows.

        stored: the size of the photo; crop: its visible part. A picture of each box is transformed
        as the photo is; boxes outside the visible part are left out.
        """
        if self.relative:
            return self
        boxes: list[Box] = []
        for left, upper, right, lower in (map(round, box) for box in self.boxes):
            picture = Image.new("RGB", stored)
            picture.paste(
                (255, 255, 255), (left, upper, max(right, left + 1), max(lower, upper + 1))
            )
            inside = transform.pixels(picture, stored, crop)[0].numpy() > 127
            rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
            if len(rows):
                (height, width), (top, left) = inside.shape, (rows[0], columns[0])
                edges = left / width, top / height
                boxes.append((*edges, (columns[-1] + 1) / width, (rows[-1] + 1) / height))
        return replace(self, boxes=tuple(boxes), relative=True)
