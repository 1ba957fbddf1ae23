"""What a base model knows of the world, and what its image tower carries beyond that.

    python scripts/measure_base.py bundled --world recipes/base/world.json

All scenes are of the val split, so that a base chosen by these numbers has not been chosen on the
scenes that the demo reports. Single changes: a short true caption against one with one thing
changed, judged by the oracle; chance is 50 %. Zero-shot: pictures of one thing, "a KIND" for all
kinds and "a COLOUR thing" for all colours. Retrieval: scenes with five captions each that are true
of that scene alone. Probes: logistic regressions on the image embedding, fitted on other scenes
of the split; what a text tower could ask for if it had learned to.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

import compoclip
from compoclip.console import end_with, note
from compoclip.evaluation.statistics import wilson
from compoclip.printed import Table
from compoclip_world.captions import captions_for
from compoclip_world.dataset import read_world_config
from compoclip_world.edits import NEGATIVE_SKILLS, hard_negative
from compoclip_world.export.part import Photos, SuiteSpec
from compoclip_world.export.retrieval import captioned
from compoclip_world.render import render
from compoclip_world.sampling import scene_for
from compoclip_world.scene import Scene, Thing, WorldConfig
from compoclip_world.vocabulary import COLOURS, KINDS, with_article

SPLIT = "val"
Features = NDArray[np.float32]
SHORT = (("long", 0.0), ("background", 0.12), ("kind", 0.1), ("conjunction", 0.3), ("count", 0.2))
ATTRIBUTES = (0.1, 0.45, 0.45, 0.0)  # of a thing mentioned, so that there is something to exchange
_MOST = 60_000  # scenes to look at for items
_SLOT = 9  # of retrieval's scenes, so that they are no other test's


def embed(model: compoclip.Model, scenes: Sequence[Scene], size: int) -> Features:
    """(N, D) unit-length features of the scenes' pictures."""
    parts = []
    for start in range(0, len(scenes), 500):
        some = [Image.fromarray(render(scene, size)) for scene in scenes[start : start + 500]]
        parts.append(np.asarray(model.encode_images(some)))
    return np.concatenate(parts)


@lru_cache(1)
def changed(config: WorldConfig, seed: int, items: int) -> dict[str, list[tuple[Scene, str, str]]]:
    """Skill -> at most `items` scenes, with a true caption and one that a change made false."""
    told = replace(config, caption_weights=SHORT, synonyms=0.0, attributes=ATTRIBUTES)
    found: dict[str, list[tuple[Scene, str, str]]] = {skill: [] for skill in NEGATIVE_SKILLS}
    index = 0
    while index < _MOST and any(len(each) < items for each in found.values()):
        scene = scene_for(config, seed, SPLIT, index)
        rng = random.Random(index)
        for caption in captions_for(scene, told, seed, index, 2):
            for skill, each in found.items():
                if len(each) < items and (texts := hard_negative(scene, caption.form, skill, rng)):
                    each.append((scene, *texts))
        index += 1
    note(f"single changes: {index} scenes looked at")
    return found


def single_changes(
    model: compoclip.Model, config: WorldConfig, seed: int, items: int
) -> list[tuple[str, int, int]]:
    """(skill, items whose true caption scores higher, items) for every single change."""
    rows = []
    for skill, each in changed(config, seed, items).items():
        if not each:
            continue
        scenes, right, wrong = zip(*each, strict=True)
        images = embed(model, scenes, config.size)
        ours, theirs = (np.asarray(model.encode_texts(list(texts))) for texts in (right, wrong))
        above = (images * ours).sum(1) > (images * theirs).sum(1)
        rows.append((skill, int(above.sum()), len(each)))
    return rows


def zero_shot(
    model: compoclip.Model, config: WorldConfig, seed: int, items: int
) -> list[tuple[str, int, int]]:
    """The same of pictures of one thing, by kind and by colour."""
    alone = replace(config, objects=(1.0,))
    scenes = [scene_for(alone, seed, SPLIT, index) for index in range(items)]
    images = embed(model, scenes, config.size)
    rows = []
    asked: tuple[tuple[str, list[str], list[str], Callable[[Scene], str]], ...] = (
        ("kinds", list(config.known_kinds), ["{}"], lambda scene: scene.things[0].kind),
        ("colours", list(config.known_colours), ["{} thing"], lambda scene: scene.things[0].colour),
    )
    for name, words, (template,), truth in asked:
        texts = [with_article(template.format(word)) for word in words]
        said = (images @ np.asarray(model.encode_texts(texts)).T).argmax(1)
        right = sum(words[i] == truth(scene) for i, scene in zip(said, scenes, strict=True))
        rows.append((f"zero-shot {name} (of {len(words)})", right, items))
    return rows


def retrieval(
    model: compoclip.Model, config: WorldConfig, seed: int, items: int
) -> list[tuple[str, int, int]]:
    """Recall at 1 over `items` scenes, both ways."""
    pool = Photos(SuiteSpec(config, items, seed, SPLIT), "", _SLOT)
    rows, shown = captioned(pool, items, "")
    images = embed(model, list(shown.values()), config.size)
    texts = [text for row in rows for text in row["caption"]]
    owner = np.repeat(np.arange(items), [len(row["caption"]) for row in rows])
    scores = images @ np.asarray(model.encode_texts(texts)).T
    found = int((owner[scores.argmax(1)] == np.arange(items)).sum())
    back = int((scores.argmax(0) == owner).sum())
    return [("image to text R@1", found, items), ("text to image R@1", back, len(texts))]


def probes(
    model: compoclip.Model, config: WorldConfig, seed: int, items: int
) -> list[tuple[str, int, int]]:
    """What a linear map reads off the embedding."""
    two = replace(config, objects=(0.0, 1.0))
    kinds, colours = list(KINDS), list(COLOURS)
    asked: tuple[tuple[str, WorldConfig, Callable[[Scene], int]], ...] = (
        (
            "probe: place of a thing (4 corners)",
            replace(config, objects=(1.0,)),
            lambda scene: 2 * (scene.things[0].x > 0.5) + (scene.things[0].y > 0.5),
        ),
        ("probe: colour of the left thing", two, lambda s: colours.index(_left(s).colour)),
        ("probe: kind of the left thing", two, lambda s: kinds.index(_left(s).kind)),
        ("probe: count", replace(config, objects=(1.0,) * 4), lambda s: len(s.things) - 1),
    )
    rows = []
    for name, world, answer in asked:
        sets = []
        for indices in (range(items, 7 * items), range(items)):
            scenes = [scene_for(world, seed, SPLIT, index) for index in indices]
            targets = torch.tensor([answer(scene) for scene in scenes])
            sets.append((torch.from_numpy(embed(model, scenes, config.size)), targets))
        (known, labels), (asked_of, truth) = sets
        said = fitted(known, labels)(asked_of).argmax(1)
        rows.append((name, int((said == truth).sum()), len(truth)))
    return rows


def _left(scene: Scene) -> Thing:
    return min(scene.things, key=lambda thing: thing.x)


def fitted(known: torch.Tensor, labels: torch.Tensor) -> torch.nn.Linear:
    """A logistic regression of the features, lightly regularised."""
    probe = torch.nn.Linear(known.shape[1], int(labels.max()) + 1)
    optimiser = torch.optim.LBFGS(probe.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(probe(known), labels) + 1e-6 * probe.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return probe


def main() -> int:
    """Print a table of everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="what `compoclip evaluate` takes")
    parser.add_argument("--world", type=Path, required=True, help="what scenes are drawn from")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: dict[str, list[str]] = {}
    for spec in options.models:
        model = compoclip.load(spec)
        size = model.loaded.preprocess.size[0]
        config = replace(read_world_config(options.world), size=size)
        for part in (single_changes, zero_shot, retrieval, probes):
            for name, right, total in part(model, config, options.seed, options.items):
                low, high = wilson(right, total)
                said = f"{right / total:.1%} [{low:.1%}, {high:.1%}] of {total}"
                rows.setdefault(name, []).append(said)
    header = ["", *options.models]
    print(Table([[name, *cells] for name, cells in rows.items()], header))
    return 0


if __name__ == "__main__":
    end_with(main, "measure_base")
