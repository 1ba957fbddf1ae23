"""The world's ColorSwap: two pictures that differ in which of two things has which colour."""

from __future__ import annotations

from typing import Any

from compoclip_world.export.pairs import draw_pairs
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.scene import Scene
from official._forms import world_part

WRITES = ("colorswap",)
_FIRST = 10_000_000


def build(spec: SuiteSpec) -> list[Part]:
    """`colorswap/test.json` and its pictures."""
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    (found,) = draw_pairs(spec, spec.items, ("bind_colour",), _FIRST).values()
    for number, (_, made) in enumerate(found):
        names = [f"images/img_{number}_{side}.png" for side in (1, 2)]
        for name, scene in zip(names, (made.scene_a, made.scene_b)):
            images[f"colorswap/{name}"] = scene
        rows.append(
            {
                "id": number,
                "caption_1": made.caption_a,
                "caption_2": made.caption_b,
                "image_1": names[0],
                "image_2": names[1],
                "image_source": "world",
                "caption_source": "world",
            }
        )
    return [
        world_part("colorswap", {"colorswap/test.json": rows}, images, {"colorswap": len(rows)})
    ]
