"""The world's SPEC: size, place, existence and count, asked of pictures and of texts."""

from __future__ import annotations

from typing import Any

from compoclip_world.export.pairs import draw_pairs
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.scene import Scene
from official._forms import world_part

WRITES = ("spec",)
_FIRST = 14_000_000
_TASKS = {
    "absolute_size": "bind_size",
    "relative_size": "bigger_smaller",
    "absolute_spatial": "position",
    "relative_spatial": "left_right",
    "existence": "negation",
    "count": "count",
}
"""Folder -> task of `pairs`."""


def build(spec: SuiteSpec) -> list[Part]:
    """Two files in each of six folders, on the same pictures; every question has two candidates."""
    count = -(-spec.items // 2)
    drawn = draw_pairs(spec, count, tuple(_TASKS.values()), _FIRST)
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    for folder, task in _TASKS.items():
        i2t = files[f"spec/{folder}/image2text.json"] = []
        t2i = files[f"spec/{folder}/text2image.json"] = []
        for number, (_, made) in enumerate(drawn[task]):
            names = [f"images/{number:05d}_{side}.png" for side in "ab"]
            texts = [made.caption_a, made.caption_b]
            for name, scene in zip(names, (made.scene_a, made.scene_b)):
                images[f"spec/{folder}/{name}"] = scene
            turn = -1 if number % 2 else 1  # so that the truth is not always at one place
            for k in (0, 1):
                label = k ^ (number % 2)
                i2t.append({"query": names[k], "keys": texts[::turn], "label": label})
                t2i.append({"query": texts[k], "keys": names[::turn], "label": label})
    items = {f"{folder}_{way}": 2 * count for folder in _TASKS for way in ("i2t", "t2i")}
    return [world_part("spec", files, images, items)]
