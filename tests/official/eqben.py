"""The world's EqBen: pairs of scenes that differ in one thing, frames of one part as arrays."""

from __future__ import annotations

from typing import Any

from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.pairs import pair
from compoclip_world.scene import Scene

WRITES = ("eqben",)
_FIRST = 5_000_000  # pairs of this and higher indices are shown nowhere else
_SOURCES = {
    "ag": ("relation", "left of, right of, above or below"),
    "youcook2": ("object", "which kind of thing, frames as arrays with blue first"),
    "gebc": ("swap-object", "which of two things is left of (above) the other"),
    "kubric_loc": ("position", "where in the picture a thing is"),
    "kubric_cnt": ("count", "how many there are"),
    "kubric_attr": ("swap-colour", "which of two things has which colour"),
    "sd": ("background", "which background"),
}
"""Sub-task -> skill of `world.pairs` and what it asks."""


def build(spec: SuiteSpec) -> list[Part]:
    """`eqben/annotation.json`, one list over the seven sub-tasks."""
    count = max(1, spec.items * 2 // 5)
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    for name, (skill, _) in _SOURCES.items():
        suffix = "npy" if name == "youcook2" else "png"
        for index in range(count):
            made = pair(spec.config, spec.seed, _FIRST + index, skill, spec.split)
            paths = [f"eqben{name}/{index:05d}/frame_{side}.{suffix}" for side in (0, 1)]
            for path, scene in zip(paths, (made.scene_a, made.scene_b)):
                images[f"eqben/images/{path}"] = scene
            texts: list[Any] = [made.caption_a, made.caption_b]
            if name == "ag":  # officially a list of captions, of which the first counts
                texts = [[text] for text in texts]
            rows.append(
                {
                    "image0": paths[0],
                    "image1": paths[1],
                    "caption0": texts[0],
                    "caption1": texts[1],
                }
            )
    return [
        Part(
            "eqben",
            "world-eqben",
            {"eqben/annotation.json": rows},
            images,
            dict.fromkeys(_SOURCES, count),
            {name: about for name, (_, about) in _SOURCES.items()},
        )
    ]
