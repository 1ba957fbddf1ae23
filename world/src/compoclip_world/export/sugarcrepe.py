"""The world's SugarCrepe and SugarCrepe++: a true caption and one that a single edit made false.

The false captions of the add tasks are longer than the true ones, as in the originals, so that
words alone give them away; the foils of `pairs` have no such leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from compoclip_world.export.part import Part, Photos, SuiteSpec, collect
from compoclip_world.export.texts import ADDITIONS, TASKS, Foil, foil, paraphrase
from compoclip_world.scene import Scene, WorldConfig

FOLDER = "coco/val2017"
ABOUT = {
    "replace_obj": "one kind replaced by another",
    "replace_att": "a colour, size or pattern replaced",
    "replace_rel": "a relation between two things replaced",
    "swap_obj": "the two things of a relation exchanged",
    "swap_att": "colours, sizes or patterns of two things exchanged",
    "add_obj": "a thing named that is not there",
    "add_att": "a property named that a thing does not have",
}


def photos(spec: SuiteSpec) -> Photos:
    """The scenes that play the role of COCO's photos."""
    return Photos(spec, FOLDER, slot=0)


def build(spec: SuiteSpec) -> list[Part]:
    """SugarCrepe (seven JSON objects) and SugarCrepe++ (five JSON lists, with photos and without).

    As with the originals, the items of SugarCrepe++ are those of SugarCrepe with a rewording.
    """
    pool = photos(spec)
    files: dict[str, Any] = {}
    more: dict[str, Any] = {}
    shown: dict[str, Scene] = {}
    shown_pp: dict[str, Scene] = {}
    for task in TASKS:
        drawn = collect(pool, spec.items, task, partial(_triple, config=spec.config, task=task))
        files[f"sugarcrepe/{task}.json"] = _rows(pool, [(i, base) for i, (base, _) in drawn])
        more[f"sugarcrepe_pp/{task}.json"] = [
            {
                "id": row,
                "filename": pool.name(index),
                "caption": base.caption,
                "caption2": second,
                "negative_caption": base.negative,
            }
            for row, (index, (base, second)) in enumerate(drawn)
        ]
        shown_pp |= pool.chosen(index for index, _ in drawn)
    for task in ADDITIONS:
        added = collect(pool, spec.items, task, partial(foil, config=spec.config, task=task))
        files[f"sugarcrepe/{task}.json"] = _rows(pool, added)
        shown |= pool.chosen(index for index, _ in added)
    items = dict.fromkeys(TASKS, spec.items)
    every = dict.fromkeys((*TASKS, *ADDITIONS), spec.items)
    seen = {task: f"{ABOUT[task]}; a rewording stays true" for task in TASKS}
    blind = {task: f"{ABOUT[task]}; texts alone" for task in TASKS}
    return [
        Part("sugarcrepe", "world-sugarcrepe", files, shown | shown_pp, every, ABOUT),
        Part("sugarcrepe_pp", "world-sugarcrepe-pp", more, shown_pp, items, seen),
        Part("sugarcrepe_pp_tot", "world-sugarcrepe-pp-tot", {}, {}, items, blind),
    ]


def _rows(pool: Photos, items: Sequence[tuple[int, Foil]]) -> dict[str, dict[str, str]]:
    return {
        str(row): {
            "filename": pool.name(index),
            "caption": base.caption,
            "negative_caption": base.negative,
        }
        for row, (index, base) in enumerate(items)
    }


def _triple(scene: Scene, rng: Random, config: WorldConfig, task: str) -> tuple[Foil, str] | None:
    base = foil(scene, rng, config, task)
    second = paraphrase(scene, base, rng) if base else None
    return (base, second) if base and second else None
