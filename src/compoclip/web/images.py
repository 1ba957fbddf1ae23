"""Pictures in requests: encoded image files in base64, checked before a pixel is decoded."""

from __future__ import annotations

import base64
import unicodedata
from itertools import islice

from PIL import Image

from compoclip.bounds import MAX_SENT_BYTES, MAX_SENT_PIXELS, MAX_SERVED_CHARACTERS, MAX_WORK
from compoclip.data.decode import opened
from compoclip.data.image_names import IMAGE_URI
from compoclip.errors import UsageError

_FILLERS = "\u115f\u1160\u3164\uffa0\u2800"  # letters and symbols that show nothing


def is_data_uri(text: str) -> bool:
    """Return whether a text reads as a data URI, also behind and between characters unseen."""
    begin = (
        char
        for char in text[:MAX_SERVED_CHARACTERS]
        if unicodedata.category(char)[0] not in "CMZ" and char not in _FILLERS
    )
    return "".join(islice(begin, 10)).lower().lstrip("\"'<(").startswith("data:")


class RequestImages:
    """Reads the images of one request, turned upright, within a bound on their total work."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def read(self, text: str, called: str = "'image'") -> Image.Image:
        """Return the RGB image in a text: an encoded image file in base64, or a data URI of one.

        Pixels and scans are counted before decoding. called: name of the text in messages. Raises
        UsageError when the text is not base64, the image has too many bytes or pixels or all images
        so far take too much work, CompoclipError when the image is damaged.
        """
        head = IMAGE_URI.match(text)
        try:
            raw = base64.b64decode(text[head.end() :] if head else text, validate=True)
        except ValueError:
            raise UsageError(
                f"{called} is not base64; encode the bytes of an image file in base64"
            ) from None
        with opened(raw, "the image", upright=True) as file:
            width, height = file.size
            for size, amount, limit in (
                (len(raw), f"{len(raw):,} bytes", MAX_SENT_BYTES),
                (width * height, f"{width} x {height} pixels", MAX_SENT_PIXELS),
            ):
                if size > limit:
                    raise UsageError(f"the image has {amount}; at most {limit:,} are allowed")
            if file.work > self._left:
                raise UsageError(
                    "the images of the request have too many pixels together; send fewer, or "
                    "smaller ones"
                )
            self._left -= file.work
            return file.rgb()
