"""Find training photos that are in a held-out set: COCO's photos under all their names.

COCO gave its photos other file names and other splits in 2014 and 2017 but kept their numbers:
COCO_val2014_000000391895.jpg and 000000391895.jpg are one photo. Sets made of train2017 hold most
of val2014, photos of the Karpathy test among them, so that retrieval on COCO is then
contaminated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from compoclip.data.folders import image_files
from compoclip.data.split_names import TEST, members_of
from compoclip.errors import CompoclipError, require
from compoclip.files import read_json

if TYPE_CHECKING:
    from compoclip.data.sources import Source

_NUMBER = re.compile(r"(?:.*_)?(\d{12})(?:\.\w+)?")
_REMEDY = "pass Karpathy's or COCO's JSON, or a folder of COCO's photos"


def coco_number(name: str) -> int | None:
    """Return the number of a COCO photo; None for a name of another form.

    name: a file name or path, with or without folder, ending and "#row".
    """
    match = _NUMBER.fullmatch(PurePosixPath(name.replace("\\", "/").partition("#")[0]).name)
    return None if match is None else int(match[1])


def held_out_photos(path: Path) -> frozenset[int]:
    """Return the numbers of the photos of a held-out set.

    path: Karpathy's original JSON (its split "test"), rows [{"image", ...}] as BLIP's
    coco_karpathy_test.json, COCO's captions or instances ("images" with file_name), or a folder of
    photos at any depth. Raises CompoclipError for a file of another form, or one that names no COCO
    photo.
    """
    names: list[str] = []
    if path.is_dir():
        names += image_files(path, Counter())
    else:
        data = read_json(path, damaged="fetch the file again")
        rows: Any = data.get("images") if isinstance(data, dict) else data
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise CompoclipError(f"{path}: no list of photos; {_REMEDY}")
        test = members_of(TEST, {str(row["split"]) for row in rows if "split" in row})
        splits = any("split" in row for row in rows)
        for number, row in enumerate(rows, 1):
            if splits and str(row.get("split")) not in test:
                continue
            name = next((row[k] for k in ("file_name", "filename", "image") if k in row), None)
            if not isinstance(name, str):
                raise CompoclipError(f"{path}, photo {number}: has no file name; {_REMEDY}")
            names.append(str(name))
    numbers = frozenset(n for name in names if (n := coco_number(name)) is not None)
    require(numbers, path, f"names no photo of COCO; {_REMEDY}")
    return numbers


def overlap(
    source: Source, held_out: Mapping[str, frozenset[int]]
) -> tuple[dict[str, list[str]], int]:
    """Return the ids of the samples whose photo, or negative photo, is in each held-out set.

    Also return the number of samples without a COCO number in file name or id. source: images are
    not read. held_out: name -> numbers of the photos of each set.
    """
    ids: dict[str, list[str]] = {name: [] for name in held_out}
    unknown = 0
    for index in range(len(source)):
        sample = source.bare(index)
        names = [str(i) for i in (sample.image, sample.negative_image) if isinstance(i, Path)]
        numbers = {n for name in (*names, sample.id) if (n := coco_number(name)) is not None}
        unknown += not numbers
        for name, photos in held_out.items():
            if not photos.isdisjoint(numbers):
                ids[name].append(sample.id)
    return ids, unknown
