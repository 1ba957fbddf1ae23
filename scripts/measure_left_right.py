"""Where left and right are lost: in the image, in the text, or between the two.

    python scripts/measure_left_right.py bundled [MODEL ...]
    python scripts/measure_left_right.py --lessons PAIRS

Scenes of two unlike things, and of each a caption that tells which is left of which, true by the
oracle, beside the same with the things exchanged, which is false. One pair of kinds in five is in
no caption that anything is fitted on; all numbers are of those pairs, on scenes of the test split,
with 95 % intervals.

image, text: a logistic regression on the embedding is asked which kind stands on the left (of 24).
as it is: how often the true caption scores higher for the picture (chance 50). one matrix: the same
after a linear map of the text embeddings that was fitted for nothing else.

--lessons writes PAIRS/lessons.jsonl: what `compoclip world pairs` wrote to PAIRS, without the pairs
of kinds that are asked about. recipes/left-right/teach.sh trains on it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from measure_base import embed, fitted

import compoclip
from compoclip.console import end_with, note, table
from compoclip.errors import CompoclipError
from compoclip.evaluation.statistics import wilson
from compoclip.files import read_text, write_text
from compoclip_world.dataset import read_world_config
from compoclip_world.export.texts import is_false, is_true
from compoclip_world.sampling import scene_for
from compoclip_world.scene import Scene, WorldConfig
from compoclip_world.vocabulary import KINDS, with_article

_HELD = 5  # one pair of kinds in so many
_MATRIX_STEPS, _DECAY = 400, 1e-3


@dataclass(frozen=True)
class Told:
    """A scene, what is true of its two things, the same exchanged, and the kind on the left."""

    scene: Scene
    right: str
    wrong: str
    left: int


def told(config: WorldConfig, seed: int, split: str, count: int, held: bool) -> list[Told]:
    """The first `count` scenes of a split whose kinds are held out, or are not."""
    world = replace(config, objects=(0.0, 1.0))
    found: list[Told] = []
    index = 0
    while len(found) < count:
        scene = scene_for(world, seed, split, index)
        rng, index = random.Random(index), index + 1
        left, other = sorted(scene.things, key=lambda thing: thing.x)
        if left.kind == other.kind or _is_held({left.kind, other.kind}) != held:
            continue
        kinds = [left.kind, other.kind]
        relation = rng.choice(("left of", "right of"))
        ordered = kinds if relation == "left of" else kinds[::-1]
        right, wrong = (
            f"{with_article(first)} {relation} {with_article(second)}"
            for first, second in (ordered, ordered[::-1])
        )
        if is_true(right, scene) and is_false(wrong, scene):
            found.append(Told(scene, right, wrong, list(KINDS).index(left.kind)))
    return found


def _is_held(kinds: set[str]) -> bool:
    """Whether this pair of kinds is only asked about."""
    return sum(list(KINDS).index(kind) for kind in kinds) % _HELD == 0


def write_lessons(folder: Path) -> tuple[int, int]:
    """Write lessons.jsonl beside pairs.jsonl; returns how many rows it has, and how many are held.

    Raises CompoclipError when a caption does not name two kinds.
    """
    rows = read_text(folder / "pairs.jsonl").splitlines(keepends=True)
    kept = []
    for row in rows:
        caption = json.loads(row)["caption"]
        kinds = {kind for kind in KINDS if re.search(rf"\b{kind}\b", caption)}
        if len(kinds) != 2:
            raise CompoclipError(f"{folder}: not of two kinds: '{caption}'; draw other pairs")
        if not _is_held(kinds):
            kept.append(row)
    write_text(folder / "lessons.jsonl", "".join(kept))
    return len(kept), len(rows) - len(kept)


def measure(
    model: compoclip.Model, known: Sequence[Told], asked: Sequence[Told], size: int
) -> dict[str, tuple[int, int]]:
    """Column -> right answers, and how many were asked for."""
    sides = []
    for rows in (known, asked):
        texts = [[each.right for each in rows], [each.wrong for each in rows]]
        sides.append(
            [torch.from_numpy(embed(model, [each.scene for each in rows], size))]
            + [torch.from_numpy(np.asarray(model.encode_texts(part))) for part in texts]
        )
    labels, truth = (torch.tensor([each.left for each in rows]) for rows in (known, asked))
    (image, right, wrong), (image_of, right_of, wrong_of) = sides
    found = {
        "image": int((fitted(image, labels)(image_of).argmax(1) == truth).sum()),
        "text": int((fitted(right, labels)(right_of).argmax(1) == truth).sum()),
        "as it is": int(((image_of * (right_of - wrong_of)).sum(1) > 0).sum()),
    }
    matrix = _matrix(image, right - wrong)
    above = (image_of * ((right_of - wrong_of) @ matrix)).sum(1) > 0
    found["one matrix"] = int(above.sum())
    return {name: (number, len(asked)) for name, number in found.items()}


def _matrix(image: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """M (D, D) for which u . (t - t') M is above zero, by logistic regression from the identity."""
    matrix = torch.eye(image.shape[1]).requires_grad_()
    scale = 1 / (image * difference).sum(1).abs().mean()
    optimiser = torch.optim.AdamW([matrix], lr=1e-2, weight_decay=_DECAY)
    for _ in range(_MATRIX_STEPS):
        optimiser.zero_grad()
        F.softplus(-scale * (image * (difference @ matrix)).sum(1)).mean().backward()
        optimiser.step()
    return matrix.detach()


def main() -> int:
    """Print a row a model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="what `compoclip evaluate` takes")
    parser.add_argument("--lessons", type=Path, metavar="PAIRS", help="write lessons instead")
    parser.add_argument("--world", type=Path, default=Path("recipes/base/world.json"))
    parser.add_argument("--known", type=int, default=12_000, help="scenes to fit on")
    parser.add_argument("--items", type=int, default=2_000, help="scenes to ask about")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if (options.lessons is None) == (not options.models):
        parser.error("name models to measure, or the pairs that --lessons is to take")
    if options.lessons is not None:
        kept, held = write_lessons(options.lessons)
        print(f"{kept} lessons, {held} of the pairs of kinds that are asked about left out")
        return 0
    rows = []
    for spec in options.models:
        model = compoclip.load(spec)
        size = model.loaded.preprocess.size[0]
        config = replace(read_world_config(options.world), size=size)
        known = told(config, options.seed, "val", options.known, held=False)
        asked = told(config, options.seed, "test", options.items, held=True)
        note(f"{spec}: {len(known)} scenes to fit on, {len(asked)} to ask about")
        cells = []
        for right, total in measure(model, known, asked, size).values():
            low, high = wilson(right, total)
            cells.append(f"{right / total:.1%} [{low:.1%}, {high:.1%}]")
        rows.append([spec, *cells])
    print(table(rows, ["model", "image", "text", "as it is", "one matrix"]))
    return 0


if __name__ == "__main__":
    end_with(main, "measure_left_right")
