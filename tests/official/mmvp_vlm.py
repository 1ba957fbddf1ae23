"""The world's MMVP-VLM: pairs of pictures for the visual patterns that the world can show."""

from __future__ import annotations

from typing import Any

from compoclip_world.export.pairs import draw_pairs
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.scene import Scene
from official._forms import world_part

WRITES = ("mmvp_vlm",)
_FIRST = 13_000_000
_PATTERNS = {
    "orientation": ("Orientation and Direction", "position"),
    "presence": ("Presence of Specific Features", "object"),
    "state": ("State and Condition", "inside"),
    "quantity": ("Quantity and Count", "count"),
    "position": ("Positional and Relational Context", "left_right"),
    "color": ("Color and Appearance", "bind_colour"),
    "structure": ("Structural Characteristics", "bind_pattern"),
    "viewpoint": ("Viewpoint and Perspective", "front_behind"),
}
"""Sub-task -> pattern as the file names it and task of `pairs`. The world has no texts to read."""


def build(spec: SuiteSpec) -> list[Part]:
    """`mmvp_vlm/Questions.csv` and a folder of pictures for each pattern."""
    count = max(1, spec.items * 2 // 5)
    drawn = draw_pairs(spec, count, tuple(task for _, task in _PATTERNS.values()), _FIRST)
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    for pattern, task in _PATTERNS.values():
        for _, made in drawn[task]:
            for text, scene in ((made.caption_a, made.scene_a), (made.caption_b, made.scene_b)):
                number = len(rows) + 1
                rows.append({"Question ID": number, "Type": pattern, "Statement": text})
                images[f"mmvp_vlm/MLLM_VLM Images/{pattern}/{number}.png"] = scene
    items = dict.fromkeys(_PATTERNS, count)
    return [world_part("mmvp_vlm", {"mmvp_vlm/Questions.csv": rows}, images, items, prompt="{}")]
