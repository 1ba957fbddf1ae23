"""The world's SPEC: size, place, existence and count, asked of pictures and of texts."""

from __future__ import annotations

from typing import Any

from compoclip_world.export.pairs import TASKS, draw_pairs
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.pairs import WorldPair
from compoclip_world.scene import Scene

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
            names, texts = _shown(made, number)
            for name, scene in zip(names, (made.scene_a, made.scene_b)):
                images[f"spec/{folder}/{name}"] = scene
            turn = number % 2  # so that the truth is not always at one place
            for k in (0, 1):
                label = k ^ turn
                i2t.append({"query": names[k], "keys": _turned(texts, turn), "label": label})
                t2i.append({"query": texts[k], "keys": _turned(names, turn), "label": label})
    items = {f"{folder}_{way}": 2 * count for folder in _TASKS for way in ("i2t", "t2i")}
    about = {
        f"{folder}_{way}": f"{TASKS[task].about}; {what}"
        for folder, task in _TASKS.items()
        for way, what in (("i2t", "a picture and two texts"), ("t2i", "a text and two pictures"))
    }
    return [Part("spec", "world-spec", files, images, items, about)]


def _shown(made: WorldPair, number: int) -> tuple[list[str], list[str]]:
    names = [f"images/{number:05d}_{side}.png" for side in "ab"]
    return names, [made.caption_a, made.caption_b]


def _turned(pair: list[str], turn: int) -> list[str]:
    return pair[::-1] if turn else pair
