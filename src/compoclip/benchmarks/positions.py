"""Positions: Flickr30k-Positions of CounterCurate, and the same made of any photos with boxes.

Options of **flickr30k_positions**: `annotations` (another folder of the tables), `up_down_images`.

**positions_own** makes such items from boxes, by the authors' rule: `<root>/positions_own/
boxes.json` with photos `<root>/positions_own/images` (option `annotations`: another file, argument
`images`: another folder), in the format of COCO's instances or, in .jsonl, one photo a line:

    {"image": "1.jpg", "width": 640, "height": 480,
     "boxes": [{"label": "cup", "box": [x, y, width, height]}, ...]}

Taken are two things of which the photo shows just one each (no crowds), of at least 1 % of its
area, whose boxes do not overlap on the axis: "a cup to the left of a plate" (or "a plate to the
right of a cup", drawn), with the mirrored photo for the negative; or "a cup above a plate", for
which there is only the negative caption. A photo gives at most one item of each axis, an axis has
at most `most` (1,000), drawn by `seed` (42). Photos with writing or clocks are mirrored like all
others.

Headline `accuracy`: the plain mean of the single questions, as published; `text`, `image` and
`group` are of the pairs. Preferring one caption whatever the picture gets 1/2 where both pictures
are asked; "above_below" has no second picture, so look at its text-only baseline. Ties are wrong.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef
from compoclip.benchmarks.reader import SCORES, Loading
from compoclip.data.boxes import OPPOSITES, BoxedPhoto, BoxedThing, named
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites.base import rng_for

PAIRS = "_pairs"
"""What the name of a sub-task of pairs ends with."""


def rules(data: Loading) -> dict[str, Aggregate]:
    """Return the means of single questions and, apart from them, of pairs."""
    single = tuple(part for part in data.parts if not part.endswith(PAIRS))
    pairs = tuple(part for part in data.parts if part.endswith(PAIRS))
    rules = {score: Aggregate(pairs, metric=score) for score in SCORES if pairs}
    if single:  # questions and pairs have no common mean
        rules |= {"accuracy": Aggregate(single), "macro": Aggregate(single)}
        rules["micro"] = Aggregate(single, "micro")
    return rules


def _asked(
    part: str, key: str, images: Sequence[ImageRef], texts: tuple[str, str], relation: str
) -> Iterator[Case]:
    """Each picture with both captions, its own first; and both together when there are two."""
    labels = {"relation": relation} if relation else {}
    for name, image, both in zip(("own", "other"), images, (texts, texts[::-1])):
        yield Case(f"{key}/{name}", Form.CHOOSE_TEXT, (image,), both, part, labels=labels)
    if len(images) == 2:
        pair = f"{part}{PAIRS}"
        yield Case(key, Form.GROUP, tuple(images), texts, pair, labels=labels)


# --- Flickr30k-Positions. ---

_FILES = {"left_right": "test_left_right_.csv", "up_down": "test_up_down_.csv"}
_COLUMNS = ("captions", "images", "neg_captions", "neg_images")
_REMEDY = "put it there or select the parts you have, e.g. flickr30k_positions:left_right*"


def official(
    data: Loading, *, annotations: Path | None = None, up_down_images: Path | None = None
) -> Iterator[Case]:
    """Yield the questions and pairs of the official tables."""
    photos = data.photos("flickr30k/images")
    made = up_down_images or data.root / "flickr30k_positions" / "up_down"
    for part, name in _FILES.items():
        if not {part, f"{part}{PAIRS}"} & {*data.parts}:
            continue
        path = data.files[part] = (annotations or data.root / "flickr30k_positions") / name
        rows = tables.read_rows(path, _COLUMNS, _REMEDY, delimiter="\t")
        for number, (where, row) in enumerate(rows, 1):
            caption, image, negative, other = files.texts(row, _COLUMNS, where)
            own = ImageRef(files.image_path(photos, _last(image), where))
            second = (
                replace(own, mirror=True)
                if part == "left_right"
                else ImageRef(files.image_path(made, _last(other), where))
            )
            yield from _asked(part, f"{part}/{number}", (own, second), (caption, negative), "")


def _last(path: str) -> str:
    return PurePosixPath(path.replace("\\", "/")).name


# --- Positions of your own boxes. ---

_MEND = "mend the file"


def own(
    data: Loading, *, annotations: Path | None = None, seed: int = 42, most: int = 1000
) -> Iterator[Case]:
    """Yield items of boxes. most: photos of each axis. seed: of all that is drawn."""
    if most < 1:
        raise UsageError(f"positions_own: most must be at least 1, not {most}")
    path = data.files["boxes"] = annotations or data.root / "positions_own" / "boxes.json"
    folder = data.photos("positions_own/images")
    data.stated += [f"seed {seed}", f"most {most}"]
    lines = path.suffix.lower() == ".jsonl"  # COCO's boxes refer to photos as they are stored
    data.stated += ["upright"] if lines else []
    photos = _lines(data, path) if lines else coco_boxes(path)
    order = random.Random(seed).sample(photos, len(photos))
    for axis, (part, words) in enumerate(OPPOSITES.items()):
        made = 0
        for place, photo in enumerate(order):
            if made == most:
                data.left_out[f"photos beyond the first {most} of {part}"] += len(order) - place
                break
            pairs = photo.apart(axis)
            if not pairs:
                data.left_out[f"photos without two single things apart for {part}"] += 1
                continue
            made += 1
            rng = rng_for(seed, photo.image, 0, part)
            first, second = rng.choice(pairs)
            true = rng.randrange(2)  # which of the two words the caption uses
            things = (second, first) if true else (first, second)
            texts = [f"{named(things[0])} {word} {named(things[1])}" for word in words]
            where = f"{path}: {photo.image!r:.80}"
            own = ImageRef(files.image_path(folder, photo.image, where), upright=lines)
            images = (own, replace(own, mirror=True)) if part == "left_right" else (own,)
            both = (texts[true], texts[1 - true])
            yield from _asked(part, f"{part}/{photo.image}", images, both, words[true])


def coco_boxes(path: Path) -> list[BoxedPhoto]:
    """The photos of a file in the format of COCO's instances.

    Args:
        path: The file.

    Returns:
        The photos with their things, in order.

    Raises:
        CompoclipError: For a file of another form, or one whose parts do not fit.
    """
    value = files.record(files.read_json(path, damaged=_MEND), str(path))
    names = {
        key: files.text(row, "name", where) for where, key, row in _by_id(value, "categories", path)
    }
    things: dict[object, list[BoxedThing]] = defaultdict(list)
    photos = list(_by_id(value, "images", path))
    known = {key for _, key, _ in photos}
    for k, each in enumerate(files.items(files.field(value, "annotations", str(path)), str(path))):
        where = f"{path}: annotation {k}"
        row = files.record(each, where)
        image, category = (files.field(row, key, where) for key in ("image_id", "category_id"))
        if not _is_key(image) or image not in known or not _is_key(category):
            raise CompoclipError(f"{where}: of no image or category of the file; {_MEND}")
        if category not in names:
            raise CompoclipError(f"{where}: category {category!r:.40} is not listed; {_MEND}")
        things[image].append(
            BoxedThing(
                names[category],
                _corners(files.field(row, "bbox", where), where),
                row.get("iscrowd") not in (None, 0, False),
            )
        )
    return [_boxed(row, "file_name", things[key], where) for where, key, row in photos]


def _by_id(
    value: Mapping[str, Any], name: str, path: Path
) -> Iterator[tuple[str, object, dict[str, Any]]]:
    """(for messages, id, row) of one of the lists of COCO's format."""
    seen: set[object] = set()
    for k, each in enumerate(files.items(files.field(value, name, str(path)), f"{path}: {name}")):
        where = f"{path}: {name} {k}"
        row = files.record(each, where)
        files.identifier(row, "id", where, seen, _MEND)
        yield where, row["id"], row


def _is_key(value: object) -> bool:
    return isinstance(value, int | str)


def _lines(data: Loading, path: Path) -> list[BoxedPhoto]:
    found: list[BoxedPhoto] = []
    seen: dict[object, str] = {}
    for _, where, row in data.lines("boxes", path):
        things = []
        for k, each in enumerate(files.items(files.field(row, "boxes", where), f"{where}: boxes")):
            inner = f"{where}: box {k}"
            thing = files.record(each, inner)
            corners = _corners(files.field(thing, "box", inner), inner)
            things.append(BoxedThing(files.text(thing, "label", inner), corners))
        found.append(_boxed(row, "image", things, where))
        files.once(found[-1].image, where, seen, _MEND)
    return found


def _boxed(
    row: Mapping[str, Any], key: str, things: Sequence[BoxedThing], where: str
) -> BoxedPhoto:
    width, height = (files.number(row, side, where) for side in ("width", "height"))
    if min(width, height) <= 0:
        raise CompoclipError(f"{where}: a photo of {width:g} x {height:g} pixels; {_MEND}")
    return BoxedPhoto(files.text(row, key, where), width * height, tuple(things))


def _corners(value: Any, where: str) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) of [x, y, width, height]."""
    row = files.items(value, f"{where}: box")
    if len(row) != 4:
        raise CompoclipError(f"{where}: expected [x, y, width, height], found {len(row)}")
    x, y, width, height = (
        files.number({"box": each}, "box", f"{where}: [x, y, width, height]") for each in row
    )
    if min(width, height) < 0:  # 0 occurs in COCO: a thing that counts and is too small to be asked
        raise CompoclipError(f"{where}: a box {width:g} x {height:g} pixels; {_MEND}")
    return (x, y, x + width, y + height)
