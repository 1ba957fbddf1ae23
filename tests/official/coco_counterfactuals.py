"""The world's COCO-Counterfactuals: pairs that differ in one thing, all in one gallery."""

from __future__ import annotations

from typing import Any

from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.oracle import is_false
from compoclip_world.pairs import WorldPair, pair
from compoclip_world.scene import Scene
from official._forms import world_part

WRITES = ("coco_counterfactuals",)
_FIRST = 16_000_000
_FOLDER = "coco_counterfactuals"
_SOURCES = ("swap-colour", "swap-object", "swap-size", "swap-pattern", "count", "relation")
"""Skills of `world.pairs` whose captions say enough to be false of other scenes, in turns."""
_PATIENCE = 40


def build(spec: SuiteSpec) -> list[Part]:
    """`coco_counterfactuals/examples.jsonl`: a caption is true of its own picture and false of
    every other one in the gallery."""
    count = max(1, spec.items * 2 // 5)
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    for index, made in enumerate(_choose(spec, count)):
        names = [f"{index:06d}_{side}" for side in (0, 1)]
        for name, scene in zip(names, (made.scene_a, made.scene_b)):
            images[f"{_FOLDER}/images/{name}.png"] = scene
        rows.append(
            {
                "id": index,
                "image_0": names[0],
                "image_1": names[1],
                "caption_0": made.caption_a,
                "caption_1": made.caption_b,
            }
        )
    items = {"i2t": 2 * count, "t2i": 2 * count}
    return [world_part("retrieval:coco_cf", {f"{_FOLDER}/examples.jsonl": rows}, images, items)]


def _choose(spec: SuiteSpec, count: int) -> list[WorldPair]:
    """The first pairs of which no caption is true of an image of another pair."""
    found: list[WorldPair] = []
    for number in range(_PATIENCE * count + _PATIENCE):
        source = _SOURCES[number % len(_SOURCES)]
        made = pair(spec.config, spec.seed, _FIRST + number, source, spec.split)
        if all(_apart(made, other) and _apart(other, made) for other in found):
            found.append(made)
        if len(found) == count:
            break
    return found


def _apart(one: WorldPair, other: WorldPair) -> bool:
    """Whether both captions of one pair are false of both images of the other."""
    return all(
        is_false(text, scene)
        for text in (one.caption_a, one.caption_b)
        for scene in (other.scene_a, other.scene_b)
    )
