"""Pages of what was found: small photos with captions and links, in HTML without scripts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from PIL import Image

from compoclip.console import counted
from compoclip.data.decode import data_uri, decode
from compoclip.errors import CompoclipError
from compoclip.search.index import PhotoIndex
from compoclip.search.query import Found

_SIDE = 320  # pixels of the longer side of a small photo
FOUND_CSS = (files("compoclip.search") / "found.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class FoundPhoto:
    """A photo on a page.

    Args:
        source: A small copy as a data URI; "" for a photo that cannot be read.
        name: Its path or id.
        caption: Its caption, if the data has one.
        link: Address of the photo itself, if it has one.
        play: Address that scores it in the playground, on a page of the playground.
    """

    source: str
    name: str
    caption: str = ""
    link: str = ""
    play: str = ""


def small_copy(photo: Path | bytes, upright: bool = True) -> str:
    """Return a small copy of a photo as a data URI; "" for one that cannot be read."""
    try:
        small = decode(photo, min_size=(_SIDE, _SIDE), upright=upright)
    except CompoclipError:
        return ""
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return data_uri(small, "jpeg", quality=80)


def pictures_of(
    index: PhotoIndex, answers: Sequence[Found], images: Path | None = None
) -> dict[int, FoundPhoto]:
    """Return the pictures of all that was found, by row of the index.

    images: the folder that the photos have moved to.
    """
    pictures = {}
    for row in {hit.row for answer in answers for hit in answer.hits}:
        source = link = ""
        try:
            photo = index.photo(row, images)
        except CompoclipError:  # of a table or shard that has changed
            pass
        else:
            source = small_copy(photo, index.about["upright"])
            link = photo.absolute().as_uri() if source and isinstance(photo, Path) else ""
        pictures[row] = FoundPhoto(source, index.names[row], index.captions[row], link)
    return pictures


def found_html(answers: Sequence[Found], pictures: Mapping[int, FoundPhoto]) -> str:
    """Return the part of a page that shows answers; `FOUND_CSS` is its style."""
    return rendered("found.html.j2", answers=answers, pictures=pictures)


def results_page(
    answers: Sequence[Found], pictures: Mapping[int, FoundPhoto], about: str, again: str = ""
) -> str:
    """Return a page of some answers: HTML that needs no other file.

    Args:
        answers: What `search` returned.
        pictures: The photos, by row.
        about: What was searched, in words.
        again: The command that serves a page to search on.
    """
    values = {"about": about, "again": again, "css": FOUND_CSS}
    return rendered("page.html.j2", answers=answers, pictures=pictures, **values)


def index_page(
    index: PhotoIndex, answers: Sequence[Found], path: Path, images: Path | None = None
) -> str:
    """Return the page of answers from an index; see `results_page`.

    Args:
        index: The photos.
        answers: What `search` returned.
        path: The file of the index.
        images: The folder that the photos have moved to.
    """
    again = shlex.join(["compoclip", "play", "--index", str(path)])
    return results_page(answers, pictures_of(index, answers, images), described(index), again)


def described(index: PhotoIndex) -> str:
    """Return in words how many photos an index holds, where from, and whose features they have."""
    folder = Path(index.about["source"]["spec"]).name
    model = Path(index.about["model"])
    short = "/".join(model.parts[-2:]) if model.is_absolute() else model
    return f"{counted(len(index.names), 'photo')} of {folder}, searched with {short}"


def rendered(template: str, **values: Any) -> str:
    """Return a template of this room, filled; texts are escaped."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("compoclip.search", ""), autoescape=True)
