"""What a page may send, checked before anything is computed."""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Mapping
from typing import Any

from PIL import Image

from compoclip.data.decode import FORMATS, decode
from compoclip.errors import UsageError

MAX_IMAGE = 8_000_000  # bytes of an encoded image
MAX_PIXELS = 24_000_000  # of a decoded one
MAX_TEXT = 300  # characters of a caption
MAX_BODY = MAX_IMAGE * 4 // 3 + 20_000  # of a request: the image in base64, and the rest
_DATA_URI = re.compile(r"data:image/[\w.+-]+;base64,")


def read_request(body: bytes) -> dict[str, Any]:
    """The JSON object in a request. Raises UsageError when it is none."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("the request is not JSON; send an object with image and caption") from None
    if not isinstance(data, dict):
        raise UsageError("the request is not a JSON object; send image and caption")
    return data


def caption_of(data: Mapping[str, Any]) -> str:
    """The caption, blanks tidied. Raises UsageError when there is none or it is too long."""
    text = data.get("caption")
    if not isinstance(text, str):
        raise UsageError("'caption' is missing: send the caption as a string")
    if len(text) > MAX_TEXT:
        raise UsageError(f"the caption has {len(text)} characters; at most {MAX_TEXT} are allowed")
    tidy = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not tidy:
        raise UsageError("the caption is empty; type one")
    return tidy


def image_of(data: Mapping[str, Any]) -> Image.Image:
    """The RGB image in "image": an encoded image file in base64, or a data URI of one.

    Raises UsageError when it is missing, too large in bytes or pixels, or no image. Pixels are
    counted in the header, before any is decoded.
    """
    text = data.get("image")
    if not isinstance(text, str):
        raise UsageError("'image' is missing: send the image file in base64")
    head = _DATA_URI.match(text)
    try:
        raw = base64.b64decode(text[head.end() :] if head else text, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("'image' is not base64; send the bytes of an image file so") from None
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
