"""Pages of what was found: small photos with captions and links, in HTML without scripts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader
from PIL import Image

from compoclip.console import counted
from compoclip.data.decode import data_uri, decode
from compoclip.errors import CompoclipError
from compoclip.search.index import PhotoIndex
from compoclip.search.query import Found

if TYPE_CHECKING:
    from compoclip.archives import Members
    from compoclip.benchmarks.case import ImageRef

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


def small_copy_of(ref: ImageRef, members: Members) -> str:
    """Return a small copy of a benchmark's image, which may lie in an archive, as `small_copy`."""
    return small_copy(ref.stored(members), ref.upright)


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


def scores_explained(index: PhotoIndex) -> list[str]:
    """Return paragraphs that say what the scores of an index mean, and what they do not."""
    about, number = index.about, counted(len(index.names), "photo")
    paragraphs = [
        f"A score is the cosine of the photo and the query. The photos shown have the highest of "
        f"{number}. 1 would be the same direction, and 0 a right angle. A text and a photo never "
        "come near 1, because CLIP models keep texts and photos apart: if they match, scores from "
        "0.1 to 0.35 are usual. A photo compared with a photo reaches higher scores.",
        "If the query denies something, a part of the cosine with it is subtracted. Re-ranked "
        "photos have the score that they were re-ranked by.",
        "Compare scores within one query, not between queries. A long or unusual text has lower "
        "scores for all photos, also for the right one. So the rank says more than the score.",
    ]
    if calibration := about["calibration"]:
        paragraphs.append(
            f"Below {calibration['threshold']:.3f} the page says that nothing matches. Of "
            f"{counted(calibration['captions'], 'caption')} of these photos, "
            f"{calibration['missed']:.0%} fall below it, and {calibration['noticed']:.0%} if their "
            "photo is taken away. So a score above it does not show that a photo matches."
        )
    else:
        paragraphs.append(
            "This index does not know from which score on a photo matches. compoclip index "
            "--calibrate finds a threshold from captions of its photos."
        )
    scale, bias = about["scale"], about["bias"]
    paragraphs.append(
        f"The model was trained with cosines multiplied by {scale:.0f}: there, 0.01 more makes "
        f"a photo {math.exp(min(scale / 100, 50)):.1f} times as likely to be the right one. "
        "This is no probability that a photo matches. A softmax over the index always adds up "
        "to one, also when nothing matches."
    )
    if bias is not None:
        paragraphs.append(
            f"The model also has a bias of {bias:.1f}, so that a cosine of {-bias / scale:.3f} "
            "stands for even odds among the pairs of its training. How often photos of your index "
            "match may differ from that."
        )
    return paragraphs


def found_html(
    answers: Sequence[Found],
    pictures: Mapping[int, FoundPhoto],
    explained: Sequence[str] = (),
) -> str:
    """Return the part of a page that shows answers; `FOUND_CSS` is its style.

    explained: paragraphs on the scores, which are folded.
    """
    return rendered("found.html.j2", answers=answers, pictures=pictures, explained=explained)


def results_page(
    answers: Sequence[Found],
    pictures: Mapping[int, FoundPhoto],
    about: str,
    again: str = "",
    explained: Sequence[str] = (),
) -> str:
    """Return a page of some answers: HTML that needs no other file.

    Args:
        answers: What `search` returned.
        pictures: The photos, by row.
        about: What was searched, in words.
        again: The command that serves a page to search on.
        explained: Paragraphs on the scores.
    """
    values = {"about": about, "again": again, "css": FOUND_CSS, "explained": explained}
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
    pictures = pictures_of(index, answers, images)
    return results_page(answers, pictures, described(index), again, scores_explained(index))


def described(index: PhotoIndex) -> str:
    """Return in words how many photos an index holds, where from, and whose features they have."""
    folder = Path(index.about["source"]["spec"]).name
    model = Path(index.about["model"])
    short = "/".join(model.parts[-2:]) if model.is_absolute() else model
    return f"{counted(len(index.names), 'photo')} from “{folder}”, searched with {short}"


def rendered(template: str, **values: Any) -> str:
    """Return a template of this room, filled; texts are escaped."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("compoclip.search", ""), autoescape=True)
