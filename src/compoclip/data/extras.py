"""What a row may bring beside its image and captions: negatives, similar images, groups."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compoclip.data.textfiles import as_text, relative_image, text_list
from compoclip.errors import CompoclipError, shown

NEG_CAPTION, NEG_IMAGE, GROUP = "neg_caption", "neg_image", "group"
POS_CAPTION = "pos_caption"
SCORE, IMAGE_SCORE, MIRROR = "score", "image_score", "mirror"
EXTRA_COLUMNS = (NEG_CAPTION, POS_CAPTION, NEG_IMAGE, MIRROR, GROUP, SCORE, IMAGE_SCORE)

_EXTRAS_LITERAL_LIMIT = 1 << 16
_MOST_ROWS = 1 << 62


@dataclass(frozen=True)
class Extras:
    """The columns that only some methods read.

    negatives: hard-negative captions. neighbours: row numbers (from 0) of rows with similar images.
    negative_image: relative path of the image of the first negative, or "". group: what variations
    of one object share, or "". score: how well a variation matches its caption; image_score: how
    good it is as an image; None where the data does not say. positives: captions in other words.
    mirror: whether the image of the first negative is shown mirrored; without one of its own it is
    the row's image.
    """

    negatives: tuple[str, ...] = ()
    neighbours: tuple[int, ...] = ()
    negative_image: str = ""
    group: str = ""
    score: float | None = None
    image_score: float | None = None
    positives: tuple[str, ...] = ()
    mirror: bool = False


NOTHING = Extras()


def read_extras(row: Mapping[str, Any], root: Path, origin: str, *, lists: bool = False) -> Extras:
    """The extra columns of a row; those it has not, or that are empty, are at their default.

    neg_caption, pos_caption: a text, a list of texts, or such a list as Python text. neg_image: a
    list of row numbers (also as text), or the path of an image below `root`. mirror: true or false,
    yes or no, 1 or 0. group: text or number. score, image_score: numbers. lists: neg_caption may be
    a list only. Raises CompoclipError that names `origin` (file and row) when a cell is none of
    these.
    """
    if not any(row.get(name) not in (None, "") for name in EXTRA_COLUMNS):
        return NOTHING
    neighbours, image = _images(row.get(NEG_IMAGE), root, origin)
    group = as_text(row.get(GROUP))
    return Extras(
        negatives=_texts(row, NEG_CAPTION, origin, lists),
        positives=_texts(row, POS_CAPTION, origin),
        neighbours=neighbours,
        negative_image=image,
        group="" if group is None else str(group),
        score=_score(row, SCORE, origin),
        image_score=_score(row, IMAGE_SCORE, origin),
        mirror=_flag(row, MIRROR, origin),
    )


def _texts(
    row: Mapping[str, Any], column: str, origin: str, lists: bool = False
) -> tuple[str, ...]:
    cell = as_text(row.get(column))
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return ()
    texts: object = cell
    if isinstance(cell, str):
        listed = lists or cell.strip()[:1] in ("[", "{")
        texts = text_list(cell) if listed else [cell]
    texts = list(map(as_text, texts)) if isinstance(texts, list) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CompoclipError(f"{origin}: {column} is not a list of texts; mend the row")
    return tuple(texts)


def _images(cell: object, root: Path, origin: str) -> tuple[tuple[int, ...], str]:
    """The row numbers, or else the image, that a cell names."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return (), ""
    rows: object = cell
    if isinstance(cell, str):
        if not cell.strip().startswith("["):
            return (), relative_image(cell.strip(), root, origin)
        try:
            rows = ast.literal_eval(cell.strip()) if len(cell) < _EXTRAS_LITERAL_LIMIT else None
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            rows = None
    if not isinstance(rows, list) or not all(type(r) is int and 0 <= r < _MOST_ROWS for r in rows):
        raise CompoclipError(
            f"{origin}: {NEG_IMAGE} is neither a list of row numbers nor an image path; mend the "
            "row"
        )
    return tuple(rows), ""


_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _flag(row: Mapping[str, Any], column: str, origin: str) -> bool:
    cell = as_text(row.get(column))
    if cell is None or cell == "":
        return False
    flag = _FLAGS.get(str(cell).strip().lower())
    if flag is None:
        raise CompoclipError(f"{origin}: {column} {shown(cell)} is neither true nor false; mend it")
    return flag


def _score(row: Mapping[str, Any], column: str, origin: str) -> float | None:
    cell = row.get(column)
    if cell is None or cell == "":
        return None
    try:
        score = float(str(cell))
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise CompoclipError(f"{origin}: {column} {shown(cell)} is not a number; mend the row")
    return score
