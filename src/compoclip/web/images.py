"""Pictures in requests: encoded image files in base64, checked before a pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import re

from PIL import Image

from compoclip.data.decode import MAX_WORK, opened
from compoclip.errors import UsageError

MAX_IMAGE = 8_000_000  # bytes of an encoded image
MAX_PIXELS = 24_000_000  # of a decoded one
_UNSEEN = r"[\s\u200b-\u200d\u2060\ufeff]*"  # what a copied text may begin with
#: The start of any data URI, and of one that holds an image in base64.
DATA_URI = re.compile(f"{_UNSEEN}data:", re.IGNORECASE)
IMAGE_URI = re.compile(rf"{_UNSEEN}data:image/[\w.+-]+;base64,", re.IGNORECASE)


class RequestImages:
    """Reads the images of one request, upright; all of them together cost a bounded work."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def read(self, text: str, called: str = "'image'") -> Image.Image:
        """Read an image that came as text.

        Pixels and scans are counted before any is decoded.

        Args:
            text: An encoded image file in base64, or a data URI of one.
            called: What to call it when it is not base64.

        Returns:
            The RGB image.

        Raises:
            UsageError: It is too large in bytes or pixels, too much with those before it, or no
                image in base64.
            CompoclipError: It is damaged or no image.
        """
        head = IMAGE_URI.match(text)
        try:
            raw = base64.b64decode(text[head.end() :] if head else text, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(
                f"{called} is not base64; send the bytes of an image file so"
            ) from None
        if len(raw) > MAX_IMAGE:
            raise UsageError(f"the image has {len(raw):,} bytes; at most {MAX_IMAGE:,} are allowed")
        with opened(raw, "the image", upright=True) as file:
            width, height = file.size
            if width * height > MAX_PIXELS:
                raise UsageError(
                    f"the image has {width} x {height} pixels; at most {MAX_PIXELS:,} are allowed"
                )
            if file.work > self._left:
                raise UsageError(
                    "the images of the request have too many pixels together; send fewer, or "
                    "smaller ones"
                )
            self._left -= file.work
            return file.rgb()
