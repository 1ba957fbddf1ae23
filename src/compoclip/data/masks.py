"""What a masked second pass hides of a pair: words of its caption, places of its image."""

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
        """The mask with boxes as fractions of what a transform shows of a photo of a size.

        crop: what is shown of it. A box of which nothing is shown is left out.
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
