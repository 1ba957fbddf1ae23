"""The world's COLA: two pictures of the same things with properties or places exchanged."""

from __future__ import annotations

from compoclip_world.export.pairs import draw_pairs
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.scene import Scene
from official._forms import world_part

WRITES = ("cola",)
_FIRST = 12_000_000
_TASKS = ("bind_size", "bind_pattern", "role")


def build(spec: SuiteSpec) -> list[Part]:
    """`cola/COLA_multiobjects_matching_benchmark.json`, photos named by ids of their own."""
    rows: list[list[str]] = []
    images: dict[str, Scene] = {}
    count = -(-spec.items // len(_TASKS))
    drawn = [made for found in draw_pairs(spec, count, _TASKS, _FIRST).values() for made in found]
    for number, (_, made) in enumerate(drawn[: spec.items]):
        names = [f"{_FIRST + 2 * number + side}.png" for side in (0, 1)]
        for name, scene in zip(names, (made.scene_a, made.scene_b)):
            images[f"vg/VG_100K/{name}"] = scene
        addresses = [f"https://world.invalid/vg_gqa_images/{name}" for name in names]
        rows.append([addresses[0], made.caption_a, addresses[1], made.caption_b])
    files = {"cola/COLA_multiobjects_matching_benchmark.json": rows}
    return [world_part("cola", files, images, {"multi_object": len(rows)})]
