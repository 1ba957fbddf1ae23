"""Measure binding, places and relations of models on minimal pairs of the world's test split.

    python scripts/measure_relations.py bundled runs/*/model

Two pictures and two captions, each true of one picture alone; chance is 50 % for each of the four
choices. Skills with places and relations are told apart by axis: left and right, top and bottom. A
number is the share of pictures whose own caption scores strictly higher, then that of captions
whose own picture does.
"""

from __future__ import annotations

import io
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image

import compoclip
from compoclip.console import table
from compoclip.evaluation.statistics import wilson
from compoclip_world.dataset import png_bytes, read_world_config
from compoclip_world.pairs import pair

WORLD = Path(__file__).parents[1] / "recipes" / "relations" / "pairs.json"
SKILLS = ("object", "swap-colour", "position", "swap-place", "relation", "swap-object")
PAIRS = 400
AT_ONCE = 20


def measure(model: compoclip.Model, skill: str, count: int) -> dict[str, tuple[int, int, int]]:
    """Axis ("" for skills without) -> right choices of captions, of pictures, and how many each."""
    config = read_world_config(WORLD)
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    pairs = [pair(config, 0, index, skill, "test") for index in range(count)]
    for start in range(0, count, AT_ONCE):
        some = pairs[start : start + AT_ONCE]
        scenes = [scene for each in some for scene in (each.scene_a, each.scene_b)]
        images = [Image.open(io.BytesIO(png_bytes(scene, config.size))) for scene in scenes]
        captions = [text for each in some for text in (each.caption_a, each.caption_b)]
        scores = np.asarray(model.score(images, captions))
        for i, each in enumerate(some):
            (aa, ab), (ba, bb) = scores[2 * i : 2 * i + 2, 2 * i : 2 * i + 2]
            tally = found[axis(skill, each.caption_a)]
            tally[0] += int(aa > ab) + int(bb > ba)
            tally[1] += int(aa > ba) + int(bb > ab)
            tally[2] += 2
    return {name: (own, image, total) for name, (own, image, total) in sorted(found.items())}


def axis(skill: str, caption: str) -> str:
    """Which way a caption tells things apart, for the skills that are about places."""
    if skill in ("object", "swap-colour"):
        return ""
    return "left-right" if {"left", "right"} & set(caption.split()) else "top-bottom"


def main(models: list[str]) -> None:
    """Print a row a skill and axis, a column a model."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for spec in models:
        model = compoclip.load(spec)
        for skill in SKILLS:
            for side, (captions, images, total) in measure(model, skill, PAIRS).items():
                low, high = wilson(captions, total)
                rows[skill, side].append(
                    f"{captions / total:.0%} [{low:.0%}, {high:.0%}], {images / total:.0%}"
                )
    print(
        table([[*row, *cells] for row, cells in rows.items()], ["skill", "axis", *models], left=2)
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
