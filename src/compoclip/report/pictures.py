"""Small copies of benchmark photos as data URIs."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from compoclip.data.decode import decode
from compoclip.data.members import SUFFIXES, Members
from compoclip.errors import CompoclipError

SIDE = 160
BUDGET = 2_200_000  # bytes of all pictures together, so that a page stays well below 5 MB
_BOX = re.compile(r"(.+)#(-?[\d.e+]+),(-?[\d.e+]+),(-?[\d.e+]+),(-?[\d.e+]+)", re.DOTALL)
_MEMBER = re.compile(rf"(.+(?:{'|'.join(re.escape(each) for each in SUFFIXES)}))@(.+)", re.DOTALL)


@dataclass(frozen=True)
class Picture:
    """One photo, with the size to show it at.

    uri: "" when it is not embedded, and `why` then says why. number: of its first use; later uses
    point there.
    """

    number: int
    uri: str
    width: int
    height: int
    why: str = ""


@dataclass
class Album:
    """Embeds every photo at most once, within the budget."""

    budget: int = BUDGET
    seen: dict[str, Picture] = field(default_factory=dict)
    unreadable: int = 0
    over_budget: int = 0
    members: Members = field(default_factory=Members)

    def add(self, key: str) -> Picture:
        """The photo with this key (`benchmarks.names.image_key`)."""
        if key in self.seen:
            first = self.seen[key]
            why = first.why or "shown before"
            return Picture(first.number, "", first.width, first.height, why)
        picture = self._read(key, len(self.seen) + 1)
        self.seen[key] = picture
        return picture

    def photo(self, key: str) -> Image.Image | None:
        """The photo with this key in full, cut to its box; None when it cannot be read."""
        found = _BOX.fullmatch(key)
        photo = found[1] if found else key
        try:
            inside = None if Path(photo).is_file() else _MEMBER.fullmatch(photo)
            data = self.members(Path(inside[1]), inside[2]) if inside else Path(photo)
            if not found:
                return decode(data, name=photo)
            left, upper, right, lower = (float(value) for value in found.groups()[1:])
            return decode(data, box=(left, upper, right, lower), name=photo)
        except (CompoclipError, ValueError):
            return None

    def _read(self, key: str, number: int) -> Picture:
        image = self.photo(key)
        if image is None:
            self.unreadable += 1
            return Picture(number, "", SIDE, SIDE, "photo not found or not readable")
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        uri = data_uri(image)
        if len(uri) > self.budget:
            self.over_budget += 1
            return Picture(number, "", SIDE, SIDE, "left out to keep the page small")
        self.budget -= len(uri)
        larger = max(1, SIDE // max(image.size))  # thumbnails and icons are shown enlarged
        return Picture(number, uri, larger * image.width, larger * image.height)


def data_uri(image: Image.Image) -> str:
    """The image as JPEG or PNG, whichever is smaller."""
    choices = []
    for kind, options in (("jpeg", {"quality": 82}), ("png", {"optimize": True})):
        buffer = io.BytesIO()
        image.save(buffer, format=kind, **options)
        choices.append((len(buffer.getvalue()), kind, buffer.getvalue()))
    _, kind, data = min(choices)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
