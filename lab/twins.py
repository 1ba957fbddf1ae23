"""Twins of photos: two photos side by side, exchanged, and a caption that is true of one of them.

Such twins need no generator and no annotation beyond captions. Which photo is on the left can only
be seen, so a model without the image is at chance.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from PIL import Image

TWINS = "twins"
"""The training table, and the folder of the images and items of each split."""
EXAMPLES = "examples.jsonl"
_WORDINGS = (
    "{left} on the left and {right} on the right",
    "on the left {left}, on the right {right}",
    "{left}, and to the right of it {right}",
)
_QUALITY = 65


def twin_captions(first: str, second: str, wording: int) -> tuple[str, str]:
    """Return the captions of the twins: of the first photo on the left, and on the right."""
    first, second = map(_inside_a_sentence, (first, second))
    form = _WORDINGS[wording % len(_WORDINGS)]
    return form.format(left=first, right=second), form.format(left=second, right=first)


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Return a square image with the middle halves of two square images of one size."""
    side = left.width
    image = Image.new("RGB", (side, side))
    for place, half in ((0, left), (side // 2, right)):
        begin = side // 4
        image.paste(half.crop((begin, 0, begin + side // 2, side)), (place, 0))
    return image


def write_twins(folder: Path, split: str, photos: Mapping[str, Sequence[str]]) -> list[str]:
    """Write the twins of a split's photos below `folder`, each photo in one pair.

    photos: name in folder/images -> captions. The items, in Winoground's form, are in
    folder/twins/SPLIT/examples.jsonl. Returns the rows of a training table.
    """
    rng = Random(f"twins of {split}")
    names = rng.sample(sorted(photos), len(photos))
    place = Path(TWINS) / split
    (folder / place / "images").mkdir(parents=True)
    rows, items = [], []
    for number, (first, second) in enumerate(zip(names[::2], names[1::2])):
        texts = twin_captions(rng.choice(photos[first]), rng.choice(photos[second]), number)
        stems = [f"{number:05d}_{k}" for k in range(2)]
        with (
            Image.open(folder / "images" / first) as left,
            Image.open(folder / "images" / second) as right,
        ):
            images = [beside(left, right), beside(right, left)]
        for stem, image in zip(stems, images):
            stream = io.BytesIO()
            image.save(stream, "WEBP", quality=_QUALITY)
            (folder / place / "images" / f"{stem}.webp").write_bytes(stream.getvalue())
        image_names = [f"{place}/images/{stem}.webp" for stem in stems]
        row = {"image": image_names[0], "caption": texts[:1], "neg_caption": texts[1:]}
        rows.append(json.dumps({**row, "neg_image": image_names[1]}) + "\n")
        item = {"id": number, "caption_0": texts[0], "caption_1": texts[1]}
        item |= {f"image_{k}": f"{stem}.webp" for k, stem in enumerate(stems)}
        items.append(json.dumps(item) + "\n")
    (folder / place / EXAMPLES).write_text("".join(items), encoding="utf-8")
    return rows


def _inside_a_sentence(caption: str) -> str:
    """Return a caption without its final stop and its initial capital."""
    text = caption.strip().rstrip(".").strip()
    return text[:1].lower() + text[1:]
