"""The world's BiVLC: a caption with its picture, a false caption with a picture of its own.

Additions are left out: in the original the shorter caption is true of both pictures.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from compoclip_world.export.pairs import draw_pairs
from compoclip_world.export.part import Part, Photos, SuiteSpec, collect
from compoclip_world.oracle import is_false, is_true
from compoclip_world.pairs import WorldPair
from compoclip_world.sampling import held_out_in
from compoclip_world.scene import Scene, Thing
from compoclip_world.vocabulary import clashes, with_article
from official._forms import world_part

WRITES = ("bivlc",)
_FIRST = 11_000_000
_SLOT = 60
_TASKS = {
    "replace_obj": "object",
    "replace_rel": "left_right",
    "swap_obj": "role",
    "swap_att": "bind_colour",
}
_RECOLOURED = "replace_att"


def build(spec: SuiteSpec) -> list[Part]:
    """`bivlc/bivlc.jsonl` with the pictures as files."""
    drawn = draw_pairs(spec, spec.items, tuple(_TASKS.values()), _FIRST)
    found = {name: [made for _, made in drawn[task]] for name, task in _TASKS.items()}
    pool = Photos(spec, "bivlc/images", _SLOT)
    recoloured = collect(pool, spec.items, "bivlc replace_att", partial(_recoloured, spec=spec))
    found[_RECOLOURED] = [made for _, made in recoloured]
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    for name, pairs in found.items():
        kind, subtype = name.split("_")
        for number, made in enumerate(pairs):
            names = [f"{name}_{number:05d}{side}.png" for side in ("", "_negative")]
            for image, scene in zip(names, (made.scene_a, made.scene_b)):
                images[f"{pool.folder}/{image}"] = scene
            rows.append(
                {
                    "image": names[0],
                    "caption": made.caption_a,
                    "negative_caption": made.caption_b,
                    "negative_image": names[1],
                    "type": kind,
                    "subtype": subtype,
                }
            )
    items = dict.fromkeys(found, spec.items)
    return [world_part("bivlc", {"bivlc/bivlc.jsonl": rows}, images, items)]


def _recoloured(scene: Scene, rng: Random, spec: SuiteSpec) -> WorldPair | None:
    """The scene and the same with one thing in another colour, if both can be told apart."""
    place = rng.randrange(len(scene.things))
    thing = scene.things[place]
    fitting = [
        colour
        for colour in spec.config.known_colours
        if colour != thing.colour and not clashes(colour, scene.backdrop.colour)
    ]
    if not fitting:
        return None
    new = replace(thing, colour=rng.choice(fitting))
    things = (*scene.things[:place], new, *scene.things[place + 1 :])
    other = replace(scene, things=things)
    if any(held_out_in(other, spec.config)):
        return None
    first, second = _named(thing), _named(new)
    held = is_true(first, scene) and is_false(second, scene)
    if not (held and is_true(second, other) and is_false(first, other)):
        return None
    return WorldPair(scene, other, first, second, _RECOLOURED)


def _named(thing: Thing) -> str:
    return f"there is {with_article(f'{thing.colour} {thing.kind}')}"
