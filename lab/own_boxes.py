"""Positions made from boxes of your own photos, by the rule of CounterCurate.

    compoclip evaluate MODEL --on lab/own_boxes.py,annotations=instances.json,images=photos

**positions_own** reads `<root>/positions_own/boxes.json` (option `annotations`: another file) with
photos `<root>/positions_own/images` (argument `images`), in the format of COCO's instances or, in
.jsonl, one photo per line:

    {"image": "1.jpg", "width": 640, "height": 480,
     "boxes": [{"label": "cup", "box": [x, y, width, height]}, ...]}

It takes two things of which the photo shows just one each (no crowds), of at least 1 % of its area,
whose boxes do not overlap on the axis: "a cup to the left of a plate" (or "a plate to the right of
a cup", sampled), with the mirrored photo for the negative; or "a cup above a plate", for which
there is only the negative caption. A photo gives at most one item of each axis, an axis has at most
`most` (1,000), sampled by `seed` (42). Photos with writing or clocks are mirrored like all others.

Headline `accuracy`: the plain mean of the single questions, as published; `text`, `image` and
`group` are of the pairs. Preferring one caption whatever the picture gets 1/2 where both pictures
are asked; "above_below" has no second picture, so look at its text-only baseline. Ties are wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Case, Form, ImageRef, Meta
from compoclip.benchmarks.hooks_photos import PAIRS, asked_of_pair, positions_rules
from compoclip.benchmarks.photo_set import coco_instances
from compoclip.benchmarks.reader import CaseReader, Loading
from compoclip.errors import CompoclipError
from compoclip.rewrites.base import rng_for
from compoclip.rewrites.edit import article_for
from compoclip.typed import Count

MEND = "fix the file"
LEAST_SHARE = 0.01  # of the photo's area
OPPOSITES = {
    "left_right": ("to the left of", "to the right of"),
    "above_below": ("above", "below"),
}
"""Of each axis the word for what comes first along it, and the word for what comes second."""
_PLURALS = frozenset({"scissors", "skis"})  # of COCO's categories; they take no article

Box = tuple[float, float, float, float]
"""Left, upper, right, lower edge in pixels."""


@dataclass(frozen=True)
class BoxedThing:
    """A thing of a photo. crowd: whether the box holds many of them."""

    label: str
    box: Box
    crowd: bool = False


@dataclass(frozen=True)
class BoxedPhoto:
    """A photo, by file name, with all its things and its area in pixels."""

    image: str
    area: float
    things: tuple[BoxedThing, ...]

    def apart(self, axis: int) -> list[tuple[str, str]]:
        """Return (first, second) labels of things that do not overlap on an axis, 0 for x."""
        seen = Counter(each.label for each in self.things)
        alone = []
        for each in self.things:
            left, upper, right, lower = each.box
            large = (right - left) * (lower - upper) >= LEAST_SHARE * self.area
            if large and seen[each.label] == 1 and not each.crowd:
                alone.append(each)
        return [
            (a.label, b.label)
            for a in alone
            for b in alone
            if a is not b and a.box[axis + 2] <= b.box[axis]
        ]


def named(label: str) -> str:
    """Return a label with its article: "a dog", "an apple", "scissors"."""
    return label if label in _PLURALS else f"{article_for(label)} {label}"


def coco_boxes(path: Path) -> list[BoxedPhoto]:
    """Return the photos, with their things in order, of a file like COCO's instances."""
    names, photos, annotations = coco_instances(path, MEND)
    things: dict[Any, list[BoxedThing]] = {key: [] for key in photos}
    for where, row in annotations:
        box = files.corners(files.field(row, "bbox", where), f"{where}: box", flat=True)
        crowd = row.get("iscrowd") not in (None, 0, False)
        things[row["image_id"]].append(BoxedThing(names[row["category_id"]], box, crowd))
    return [
        boxed_photo(row, "file_name", things[key], where) for key, (where, row) in photos.items()
    ]


def boxed_photo(
    row: Mapping[str, Any], key: str, things: Sequence[BoxedThing], where: str
) -> BoxedPhoto:
    """Return a photo whose row has its name (`key`), width and height."""
    width, height = (files.number(row, side, where) for side in ("width", "height"))
    if not min(width, height) > 0:
        raise CompoclipError(f"{where}: a photo of {width:g} x {height:g} pixels; {MEND}")
    return BoxedPhoto(files.text(row, key, where), width * height, tuple(things))


# --- The items. ---


def positions(
    data: Loading, *, annotations: Path | None = None, seed: int = 42, most: Count = 1000
) -> Iterator[Case]:
    """Yield items of boxes. most: photos of each axis. seed: of all that is drawn."""
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
            labels = {"relation": words[true]}
            for name, pictures, candidates in asked_of_pair(images, (texts[true], texts[1 - true])):
                form = Form.GROUP if len(pictures) == 2 else Form.CHOOSE_TEXT
                part_of = part if name else f"{part}{PAIRS}"
                key = f"{part}/{photo.image}{name}"
                yield Case(key, form, pictures, candidates, part_of, labels=labels)


def _lines(data: Loading, path: Path) -> list[BoxedPhoto]:
    found: list[BoxedPhoto] = []
    seen: dict[object, str] = {}
    for _, where, row in data.rows("boxes", path):
        things = []
        for k, each in enumerate(files.items(files.field(row, "boxes", where), f"{where}: boxes")):
            inner = f"{where}: box {k}"
            thing = files.record(each, inner)
            corners = files.corners(files.field(thing, "box", inner), inner, flat=True)
            things.append(BoxedThing(files.text(thing, "label", inner), corners))
        found.append(boxed_photo(row, "image", things, where))
        files.once(found[-1].image, where, seen, MEND)
    return found


POSITIONS = CaseReader(
    Meta(
        id="positions_own",
        title="Positions (your own boxes)",
        citation="Zhang et al., CounterCurate: Enhancing Physical and Semantic Visio-Linguistic "
        "Compositional Reasoning via Counterfactual Examples, Findings of ACL 2024; the boxes' own",
        source="any boxes: COCO's instances JSON, or .jsonl",
        licence="the data's own",
        access="open",
        files=("positions_own/boxes.json",),
        images=("positions_own/images",),
        parts=("left_right", "above_below", "left_right_pairs"),
        chance={
            "left_right": 1 / 2,
            "above_below": 1 / 2,
            "left_right_pairs/text": 1 / 4,
            "left_right_pairs/image": 1 / 4,
            "left_right_pairs/group": 1 / 6,
        },
        skills={"left_right": "spatial", "above_below": "spatial"},
    ),
    positions,
    rules=positions_rules,
    headline="accuracy",
    empty="no photo shows two single things apart; are there boxes of several labels?",
)
