"""Write training rows about the relative position of two things in photos with boxes.

    python -m lab.mirror_pairs instances_train2014.json --captions captions_train2014.json \\
        --without coco_karpathy_test.json val2017 --out pairs.jsonl

The boxes are in the format of COCO's instances. A row needs two things that the photo shows once
each (no crowds), of at least 1 % of its area, with boxes that do not overlap on an axis. For left
and right, the mirrored photo is the counterpart for the opposite caption; above and below have only
the opposite caption. Rows name photos without a folder: train with --images. COCO's val2017 and the
Karpathy test split occur in benchmarks: leave them out with --without.

The texts vary: several wordings, either thing as subject, and in half of the rows an appended
caption written by people, which ties them to ordinary language. Captions with "left" or "right" are
not appended: they would be false of the mirrored photo. Writing and clocks are mirrored with the
photo. Rule of the boxes: Zhang et al., CounterCurate (Findings of ACL 2024).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compoclip.data.overlap import coco_number, held_out_photos
from compoclip.data.sources.open import Request
from compoclip.data.sources.published import open_coco
from compoclip.errors import CompoclipError
from compoclip.files import read_json, write_jsonl
from compoclip.rewrites.base import rng_for
from lab.own_boxes import BoxedPhoto, coco_boxes, named

# Axis -> wordings of the position of X, the subject, and Y: with X first on the axis, and second.
_WORDINGS = {
    "left_right": (
        ("{x} to the left of {y}", "{x} to the right of {y}"),
        ("{x} is left of {y}", "{x} is right of {y}"),
        ("{x} is to the left of {y}", "{x} is to the right of {y}"),
        ("{x} on the left and {y} on the right", "{x} on the right and {y} on the left"),
        ("on the left {x}, on the right {y}", "on the right {x}, on the left {y}"),
    ),
    "above_below": (
        ("{x} above {y}", "{x} below {y}"),
        ("{x} is above {y}", "{x} is below {y}"),
        ("{x} is higher up than {y}", "{x} is lower down than {y}"),
        ("{x} at the top and {y} at the bottom", "{x} at the bottom and {y} at the top"),
    ),
}
_SIDES = re.compile(r"\b(?:left|right)(?:most|wards?|-hand)?\b|\bmirror", re.IGNORECASE)
NOT_APART = "photo without two single things apart"


def mirror_rows(
    photos: Sequence[BoxedPhoto],
    captions: Mapping[str, Sequence[str]],
    seed: int = 0,
    human: float = 0.5,
    left_out: Counter[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield training rows of photos with boxes, at most one per photo and axis.

    A row, to be read by `open_tables`, is {"image", "caption", "neg_caption"} and, for left and
    right, "mirror": true. captions: file name -> captions by people, appended to a share `human` of
    the rows. left_out: counts photos without a row.
    """
    for photo in photos:
        made = 0
        for axis, (name, wordings) in enumerate(_WORDINGS.items()):
            pairs = photo.apart(axis)
            if not pairs:
                continue
            made += 1
            rng = rng_for(seed, photo.image, 0, name)
            first, second = map(named, rng.choice(pairs))
            subject = rng.randrange(2)  # whether the second thing is the subject
            x, y = (second, first) if subject else (first, second)
            wording = rng.choice(wordings)
            texts = [each.format(x=x, y=y) for each in (wording[subject], wording[1 - subject])]
            fitting = [text for text in captions.get(photo.image, ()) if not _SIDES.search(text)]
            if fitting and rng.random() < human:
                said = rng.choice(fitting).strip()
                texts = [f"{text}. {said}" for text in texts]
            row = {"image": photo.image, "caption": texts[0], "neg_caption": texts[1]}
            yield {**row, "mirror": True} if name == "left_right" else row
        if not made and left_out is not None:
            left_out[NOT_APART] += 1


def main(argv: list[str] | None = None) -> int:
    """Write the table, print what it holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("boxes", type=Path, help="file in the format of COCO's instances")
    parser.add_argument("--out", type=Path, required=True, help="table to write, .jsonl")
    parser.add_argument("--captions", type=Path, help="COCO's captions of these photos")
    parser.add_argument("--without", type=Path, nargs="+", default=(), help="held-out photos")
    parser.add_argument("--human", type=float, default=0.5, help="share with an appended caption")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices")
    options = parser.parse_args(argv)
    try:
        counts, left_out = write_pairs(**vars(options))
    except CompoclipError as error:
        print(error, file=sys.stderr)
        return 1
    for why, number in left_out.items():
        print(f"left out, {why}: {number:,}", file=sys.stderr)
    print(f"{options.out}: {', '.join(f'{number:,} {name}' for name, number in counts.items())}")
    return 0


def write_pairs(
    boxes: Path,
    out: Path,
    captions: Path | None = None,
    without: Sequence[Path] = (),
    human: float = 0.5,
    seed: int = 0,
) -> tuple[dict[str, int], Counter[str]]:
    """Write the table; return its rows per axis and what is left out. See the options of `main`.

    Raises CompoclipError for malformed files, and when no photo gives a row.
    """
    photos, left_out = coco_boxes(boxes), Counter[str]()
    for path in without:
        held_out = held_out_photos(path)
        others = [photo for photo in photos if coco_number(photo.image) not in held_out]
        left_out[f"photo held out by {path}"] = len(photos) - len(others)
        photos = others
    written: dict[str, tuple[str, ...]] = {}
    if captions is not None:
        annotations = read_json(captions, damaged="fetch the file again")
        source = open_coco(captions, annotations, Request(str(captions)))
        written = dict(zip(source.column("id"), source.column("captions")))
    rows = list(mirror_rows(photos, written, seed, human, left_out))
    if not rows:
        raise CompoclipError(
            f"{boxes}: no photo shows two single things apart; are there boxes of several "
            "categories?"
        )
    write_jsonl(out, rows)
    mirrored = sum("mirror" in row for row in rows)
    return {"left_right": mirrored, "above_below": len(rows) - mirrored}, left_out


if __name__ == "__main__":
    sys.exit(main())
