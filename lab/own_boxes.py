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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Case, Form, ImageRef, Meta
from compoclip.benchmarks.hooks_photos import PAIRS, asked_of_pair, positions_rules
from compoclip.benchmarks.photo_set import MEND, boxed_photo, coco_boxes
from compoclip.benchmarks.reader import CaseReader, Loading
from compoclip.data.boxes import OPPOSITES, BoxedPhoto, BoxedThing, named
from compoclip.errors import UsageError
from compoclip.rewrites.base import rng_for


def positions(
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
            labels = {"relation": words[true]}
            for name, pictures, candidates in asked_of_pair(images, (texts[true], texts[1 - true])):
                form = Form.GROUP if len(pictures) == 2 else Form.CHOOSE_TEXT
                part_of = part if name else f"{part}{PAIRS}"
                key = f"{part}/{photo.image}{name}"
                yield Case(key, form, pictures, candidates, part_of, labels=labels)


def _lines(data: Loading, path: Path) -> list[BoxedPhoto]:
    found: list[BoxedPhoto] = []
    seen: dict[object, str] = {}
    for _, where, row in data.lines("boxes", path):
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
