"""The world's VL-CheckList: short texts with one word replaced, in the 56 official files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from compoclip.benchmarks.entries import entries, files_of
from compoclip_world import edits
from compoclip_world.captions import mention
from compoclip_world.export.part import Part, Photos, SuiteSpec, collect
from compoclip_world.export.texts import seemly
from compoclip_world.logic import Attribute, Exists, Form, NounPhrase, Relation
from compoclip_world.scene import Scene, Thing
from official._forms import foils, form_of, world_part

_ENTRY = entries()["vl_checklist"]
LAYOUT = {
    part: {each.place: each.names["source"] for each in files_of(_ENTRY, part)}
    for part in _ENTRY["parts"]
}
"""Sub-task -> file below the data folder -> source: hake, swig, vg, or vaw (photos of vg)."""

WRITES = ("vl_checklist",)

Edit = Callable[[Form], Iterable[Form]]
_SHARE = 8  # items of a file are this part of those of other sub-tasks: there are 56 files
_FOLDERS = {"hake": "hake/world", "swig": "swig", "vg": "vg/VG_100K", "vaw": "vg/VG_100K"}
_NEAR, _FAR = 0.17, 0.3
_PLACED = {"center": (0.0, _NEAR), "mid": (_NEAR, _FAR), "margin": (_FAR, 1.0)}
_SEVERAL = {"objects": (0.0, 0.6, 0.3, 0.1), "patterned": 0.6, "inside": 0.2, "occlusion": 0.2}


def _relations(*names: str) -> Edit:
    """Other relations, in those forms only that hold one of these."""

    def edited(form: Form) -> Iterable[Form]:
        phrases = (node for node in edits.nodes_of(form) if isinstance(node, NounPhrase))
        said = {each.name for p in phrases for each in p.modifiers if isinstance(each, Relation)}
        if said.intersection(names):
            yield from edits.replacements_of_relations(form)

    return edited


_VALUED = ("object", "predicate")
_TASKS: dict[str, tuple[tuple[str, ...], Edit]] = {
    "attribute_action": (("position",), edits.replacements_of_positions),
    "attribute_color": (_VALUED, partial(edits.replacements_of_values, family="colour")),
    "attribute_material": (_VALUED, partial(edits.replacements_of_values, family="pattern")),
    "attribute_size": (_VALUED, partial(edits.replacements_of_values, family="size")),
    "attribute_state": (("background",), edits.replacements_of_backgrounds),
    "relation_action": (("relation",), _relations("inside", "around", "front", "behind")),
    "relation_spatial": (("relation",), _relations("left", "right", "above", "below")),
}
"""Sub-task -> the caption types it starts from, and its edit."""


def build(spec: SuiteSpec) -> list[Part]:
    """All files below `vl_checklist/data`, an eighth of the wanted items each."""
    share = max(1, spec.items // _SHARE)
    pools = {
        source: Photos(spec, folder, 50 + slot, _SEVERAL)
        for slot, (source, folder) in enumerate(_FOLDERS.items())
    }
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    for subtask, listed in LAYOUT.items():
        for file, source in listed.items():
            pool = pools[source]
            make = partial(_item, spec=spec, subtask=subtask, file=file)
            found = collect(pool, share, file, make)
            images |= pool.chosen(index for index, _ in found)
            below = pool.path(0).split("/", 1)[0]
            files[f"vl_checklist/data/{file}"] = [
                [pool.path(index).removeprefix(f"{below}/"), {"POS": [true], "NEG": [false]}]
                for index, (true, false) in found
            ]
    items = {subtask: share * len(listed) for subtask, listed in LAYOUT.items()}
    return [world_part("vl_checklist", files, images, items)]


def _item(
    scene: Scene, rng: Random, spec: SuiteSpec, subtask: str, file: str
) -> tuple[str, str] | None:
    """A true text and a false one."""
    edit: Edit = edits.replacements_of_kinds
    if subtask.startswith("object_"):
        form = _named(scene, rng, subtask, file)
    else:
        types, edit = _TASKS[subtask]
        form = form_of(scene, spec.config, types, rng)
    if form is None or not seemly(form, spec.config):
        return None
    made = foils(scene, spec.config, form, edit, 1, rng)
    return (made[0], made[1][0]) if made else None


def _named(scene: Scene, rng: Random, subtask: str, file: str) -> Form | None:
    """A thing of the wanted place or size, by its kind, with its colour in the files of HAKE."""
    value = subtask.rpartition("_")[2]
    fitting = [thing for thing in scene.things if _is(thing, value)]
    if not fitting:
        return None
    thing = rng.choice(fitting)
    phrase = mention(thing, rng, 0)
    if "hake" in file:
        phrase = replace(phrase, modifiers=(Attribute("colour", thing.colour),))
    return (Exists(phrase),)


def _is(thing: Thing, value: str) -> bool:
    """Whether the thing has the size, or lies at the distance from the centre, that is named."""
    if value in _PLACED:
        low, high = _PLACED[value]
        return low <= math.hypot(thing.x - 0.5, thing.y - 0.5) < high
    return thing.size == value
