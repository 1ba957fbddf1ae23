"""Real captions kept beside the project, for tests that take the fixture `shared_data`."""

from __future__ import annotations

import csv
import json
from pathlib import Path


def coco(shared_data: Path) -> list[list[str]]:
    """The captions of each photo of COCO's test set."""
    path = shared_data / "annotations" / "coco_karpathy" / "coco_karpathy_test.json"
    return [row["caption"] for row in json.loads(path.read_text(encoding="utf-8"))]


def negclip(shared_data: Path) -> list[dict[str, str]]:
    """The rows of NegCLIP's validation set; "title" is the caption."""
    path = shared_data / "annotations" / "negclip" / "valid_neg_clip.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))
