"""Training sets of minimal pairs: every image has a twin that its caption is false of."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from compoclip.console import track
from compoclip.files import new_folder
from compoclip.world.dataset import png_bytes
from compoclip.world.pairs import pair
from compoclip.world.processes import mapper
from compoclip.world.scene import WorldConfig

TABLE = "pairs.jsonl"
_AT_ONCE = 100


@dataclass(frozen=True)
class PairSet:
    """What to write: pairs 0 .. count-1 of every (skill, count)."""

    config: WorldConfig
    skills: tuple[tuple[str, int], ...]
    seed: int = 0
    split: str = "train"


def write_pair_set(out: Path, spec: PairSet, workers: int = 1) -> int:
    """Write `out`/pairs.jsonl, `out`/images and `out`/world.json (the parameters).

    A row is an image: image, caption, neg_caption and neg_image (those of its twin), group (equal
    for both). So the table serves methods that take given negatives, negative images or groups.
    The bytes depend on `spec` alone, not on `workers`. `out` appears when everything is written, or
    not at all. Returns the number of rows. Raises UsageError for an unknown skill, CompoclipError
    when `out` exists and is not empty, when it cannot be written, or when the config leaves too
    few such pairs.
    """
    jobs = [
        (skill, start, min(start + _AT_ONCE, count))
        for skill, count in spec.skills
        for start in range(0, count, _AT_ONCE)
    ]
    record = asdict(spec)
    with new_folder(out) as folder:
        (folder / "images").mkdir()
        (folder / "world.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        rows = 0
        with mapper(workers) as draw, (folder / TABLE).open("w", encoding="utf-8") as table:
            parts = draw(_write, jobs, repeat(folder), repeat(spec))
            for part in track(parts, "drawing pairs", len(jobs), "parts"):
                table.writelines(f"{json.dumps(row)}\n" for row in part)
                rows += len(part)
    return rows


def _write(job: tuple[str, int, int], folder: Path, spec: PairSet) -> list[dict[str, Any]]:
    """Write the images of some pairs of a skill; their rows."""
    skill, start, end = job
    rows = []
    for index in range(start, end):
        made = pair(spec.config, spec.seed, index, skill, spec.split)
        scenes, captions = (made.scene_a, made.scene_b), (made.caption_a, made.caption_b)
        names = [f"images/{skill}-{index:06d}-{which}.png" for which in "ab"]
        for own, twin in ((0, 1), (1, 0)):
            image = png_bytes(scenes[own], spec.config.size)
            (folder / names[own]).write_bytes(image)
            rows.append(
                {
                    "image": names[own],
                    "caption": captions[own],
                    "neg_caption": captions[twin],
                    "neg_image": names[twin],
                    "group": f"{skill}-{index}",
                }
            )
    return rows
