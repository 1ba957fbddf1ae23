"""The world's EqBen: pairs of scenes that differ in one thing, frames of one part as arrays."""

from __future__ import annotations

from typing import Any

from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.pairs import pair
from compoclip_world.scene import Scene
from official._forms import world_part

WRITES = ("eqben",)
_FIRST = 5_000_000  # pairs of this and higher indices are shown nowhere else
_SOURCES = {
    "ag": "relation",
    "youcook2": "object",
    "gebc": "swap-object",
    "kubric_loc": "position",
    "kubric_cnt": "count",
    "kubric_attr": "swap-colour",
    "sd": "background",
}
"""Sub-task -> skill of `world.pairs`."""


def build(spec: SuiteSpec) -> list[Part]:
    """`eqben/annotation.json`, one list over the seven sub-tasks."""
    count = max(1, spec.items * 2 // 5)
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    for name, skill in _SOURCES.items():
        suffix = "npy" if name == "youcook2" else "png"
        for index in range(count):
            made = pair(spec.config, spec.seed, _FIRST + index, skill, spec.split)
            paths = [f"eqben{name}/{index:05d}/frame_{side}.{suffix}" for side in (0, 1)]
            for path, scene in zip(paths, (made.scene_a, made.scene_b)):
                images[f"eqben/images/{path}"] = scene
            texts: list[Any] = [made.caption_a, made.caption_b]
            if name == "ag":  # officially a list of captions, of which the first counts
                texts = [[text] for text in texts]
            names = dict(zip(("image0", "image1"), paths))
            rows.append({**names, **dict(zip(("caption0", "caption1"), texts))})
    items = dict.fromkeys(_SOURCES, count)
    return [world_part("eqben", {"eqben/annotation.json": rows}, images, items)]
