"""The world's VSR: statements about where things are, half of them false."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from compoclip_world.captions import facts_of
from compoclip_world.export.part import Part, Photos, SuiteSpec, collect
from compoclip_world.export.texts import seemly
from compoclip_world.geometry import CONVERSE
from compoclip_world.oracle import is_false, is_true
from compoclip_world.parser import parse
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import RELATION_PHRASES
from official._forms import world_part

WRITES = ("vsr",)
_FOLDER = "coco/val2017"
_SLOT = 61
_RELATIONS = ("left", "right", "above", "below", "front", "behind")
_SHAPE = {"objects": (0.0, 0.7, 0.3), "occlusion": 0.3, "inside": 0.0, "repeat": 0.0}
_FEWEST = 4  # statements of a file: true and false ones are needed


def build(spec: SuiteSpec) -> list[Part]:
    """Dev and test file of both splits in `vsr/`; the splits differ in their scenes alone."""
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    items: dict[str, int] = {}
    for number, split in enumerate(("random", "zeroshot")):
        for part in ("dev", "test"):
            slot = _SLOT + 2 * number + (part == "test")
            pool = Photos(spec, _FOLDER, slot, _SHAPE)
            count = max(_FEWEST, spec.items if part == "test" else spec.items // 2)
            rows: list[dict[str, Any]] = []
            for true in (True, False):
                share = (count + true) // 2
                task = f"vsr {part} {true}"
                found = collect(pool, share, task, partial(_statement, spec=spec, true=true))
                images |= pool.chosen(index for index, _ in found)
                rows += [_row(pool, index, made, true) for index, made in found]
            files[f"vsr/{split}_{part}.jsonl"] = rows
            items[split if part == "test" else f"{split}_dev"] = len(rows)
    return [world_part("vsr", files, images, items)]


def _row(pool: Photos, index: int, made: tuple[str, str], true: bool) -> dict[str, Any]:
    name, relation = pool.name(index), made[1]
    return {
        "image": name,
        "image_link": f"https://world.invalid/val2017/{name}",
        "caption": made[0],
        "label": int(true),
        "relation": relation,
    }


def _statement(scene: Scene, rng: Random, spec: SuiteSpec, true: bool) -> tuple[str, str] | None:
    """(statement, relation); a false one claims the opposite of what is."""
    facts = [fact for fact in facts_of(scene).relations if fact[0] in _RELATIONS]
    if not facts:
        return None
    name, i, j = rng.choice(facts)
    relation = RELATION_PHRASES[name if true else CONVERSE[name]][0]
    text = f"the {scene.things[i].kind} is {relation} the {scene.things[j].kind}"
    fine = is_true(text, scene) if true else is_false(text, scene)
    return (text, relation) if fine and seemly(parse(text), spec.config) else None
