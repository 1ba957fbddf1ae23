"""Pictures in requests: encoded image files in base64, checked before a pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import io
import re

from PIL import Image

from compoclip.data.decode import FORMATS, decode
from compoclip.errors import UsageError

MAX_IMAGE = 8_000_000  # bytes of an encoded image
MAX_PIXELS = 24_000_000  # of a decoded one
_DATA_URI = re.compile(r"data:image/[\w.+-]+;base64,")


def read_image(text: str, called: str = "'image'") -> Image.Image:
    """An image that came as text.

    Pixels are counted in the header of the file, before any is decoded.

    Args:
        text: An encoded image file in base64, or a data URI of one.
        called: What to call it when it is not base64.

    Returns:
        The RGB image.

    Raises:
        UsageError: It is too large in bytes or pixels, or no image.
        CompoclipError: It is damaged.
    """
    head = _DATA_URI.match(text)
    try:
        raw = base64.b64decode(text[head.end() :] if head else text, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{called} is not base64; send the bytes of an image file so") from None
    if len(raw) > MAX_IMAGE:
        raise UsageError(f"the image has {len(raw):,} bytes; at most {MAX_IMAGE:,} are allowed")
    try:
        with Image.open(io.BytesIO(raw), formats=FORMATS) as opened:
            width, height = opened.size
    except Image.DecompressionBombError:
        raise UsageError("the image has far too many pixels; scale it down") from None
    except Exception:  # decoders fail on damaged files with errors of every kind
        raise UsageError(f"the file is no image of a known kind ({', '.join(FORMATS)})") from None
    if width * height > MAX_PIXELS or max(width, height) > 50 * min(width, height):
        raise UsageError(
            f"the image has {width} x {height} pixels; at most {MAX_PIXELS:,} are allowed, and no "
            "side more than 50 times the other"
        )
    return decode(raw, name="the image")
