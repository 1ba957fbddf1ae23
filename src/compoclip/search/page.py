"""A page of what was found: one HTML file with small photos, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader
from PIL import Image

from compoclip.data.decode import data_uri, decode
from compoclip.errors import CompoclipError
from compoclip.search.index import PhotoIndex
from compoclip.search.query import Found

SIDE = 200  # pixels of the longer side of a small photo


def thumbnail(index: PhotoIndex, row: int, images: Path | None = None) -> str:
    """Return a small copy of a photo as a data URI; "" for one that cannot be read."""
    try:
        photo = index.photo(row, images)
        small = decode(photo, least=(SIDE, SIDE), upright=index.about["upright"])
    except CompoclipError:
        return ""
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return data_uri(small, "jpeg", quality=80)


def results_page(index: PhotoIndex, found: Sequence[Found], images: Path | None = None) -> str:
    """Return a page of some answers: HTML that needs no other file.

    Args:
        index: The photos.
        found: What `search` returned.
        images: The folder that the photos have moved to.
    """
    rows = {hit.row for each in found for hit in each.hits}
    small = {row: thumbnail(index, row, images) for row in rows}
    environment = Environment(loader=PackageLoader("compoclip.search", ""), autoescape=True)
    template = environment.get_template("page.html.j2")
    return template.render(found=found, small=small, index=index)
