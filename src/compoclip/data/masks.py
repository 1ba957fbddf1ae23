"""The hidden parts of a pair in a masked second pass: words of its caption, places of its image."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from compoclip.data.transform import ImageTransform

Box = tuple[float, float, float, float]
"""Left, upper, right, lower, as fractions of what is shown of an image."""


@dataclass(frozen=True)
class Mask:
    """The hidden parts of a pair.

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
        """The mask with boxes as fractions of what a transform shows of a photo of a size.

        crop: what is shown of it. A picture of every box goes the way of the photo; a box of which
        nothing is shown is left out.
        """
        if self.shown:
            return self
        boxes: list[Box] = []
        for left, upper, right, lower in (map(round, box) for box in self.boxes):
            drawn = Image.new("RGB", stored)
            drawn.paste((255, 255, 255), (left, upper, max(right, left + 1), max(lower, upper + 1)))
            seen = transform.pixels(drawn, stored, crop)[0].numpy() > 127
            rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
            if len(rows):
                height, width = seen.shape
                first, last = (columns[0], rows[0]), (columns[-1] + 1, rows[-1] + 1)
                boxes.append(
                    (first[0] / width, first[1] / height, last[0] / width, last[1] / height)
                )
        return replace(self, boxes=tuple(boxes), shown=True)


NOTHING = Mask()
