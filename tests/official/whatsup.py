"""The world's What'sUp: two things in four positions, and places in pictures of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from compoclip_world.captions import facts_of
from compoclip_world.export.pairs import draw_pairs
from compoclip_world.export.part import Part, Photos, SuiteSpec
from compoclip_world.oracle import is_false, is_true
from compoclip_world.sampling import apart, held_out_in
from compoclip_world.scene import Scene, Thing
from compoclip_world.vocabulary import RELATION_PHRASES, with_article
from official._forms import world_part

WRITES = ("whatsup",)
_FIRST = 15_000_000
_SLOT = 66
_PATIENCE = 200
_QUESTIONS = {
    "coco_one": ("coco_qa_one_obj", "coco/val2017", "position"),
    "coco_two": ("coco_qa_two_obj", "coco/val2017", "above_below"),
    "vg_one": ("vg_qa_one_obj", "whatsup/vg_images", "position"),
    "vg_two": ("vg_qa_two_obj", "whatsup/vg_images", "front_behind"),
}
"""Sub-task -> file, folder of its photos and task of `pairs`."""
_OVER = {"left_of": "left", "right_of": "right", "on": "above", "under": "below"}
_DEEP = {"left_of": "left", "right_of": "right", "in-front_of": "front", "behind": "behind"}
"""Position in a file's name -> relation."""
_TWO = {"objects": (0.0, 1.0), "inside": 0.0, "repeat": 0.0}


def build(spec: SuiteSpec) -> list[Part]:
    """The six files in `whatsup/`; the controlled ones hold whole sets of four."""
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    items: dict[str, int] = {}
    for slot, (name, file, folder, relations) in enumerate(
        (
            ("controlled_a", "controlled_images_dataset", "controlled_images", _OVER),
            ("controlled_b", "controlled_clevr_dataset", "controlled_clevr", _DEEP),
        ),
        start=_SLOT,
    ):
        pool = Photos(spec, f"whatsup/{folder}", slot, {**_TWO, "occlusion": float(slot - _SLOT)})
        rows = files[f"whatsup/{file}.json"] = []
        for scenes in _sets(pool, max(1, spec.items // 4), relations):
            a, b = scenes["left_of"].things
            texts = {k: _text(a, relation, b) for k, relation in relations.items()}
            for position, scene in scenes.items():
                photo = f"{a.kind}_{position}_{b.kind}.png".replace(" ", "-")
                images[f"{pool.folder}/{photo}"] = scene
                others = [text for k, text in texts.items() if k != position]
                rows.append(
                    {
                        "image_path": f"data/{folder}/{photo}",
                        "caption_options": [texts[position], *others],
                    }
                )
        items[name] = len(rows)
    for number, (name, (file, folder, task)) in enumerate(_QUESTIONS.items()):
        first = _FIRST + 100_000 * number
        (found,) = draw_pairs(spec, spec.items, (task,), first).values()
        question_rows: list[list[Any]] = []
        digits = 12 if name.startswith("coco") else 0
        for key, (_, made) in enumerate(found, start=first):
            images[f"{folder}/{str(key).zfill(digits)}.png"] = made.scene_a
            question_rows.append([key, made.caption_a, made.caption_b])
        files[f"whatsup/{file}.json"] = question_rows
        items[name] = len(question_rows)
    return [world_part("whatsup", files, images, items)]


def _text(a: Thing, relation: str, b: Thing) -> str:
    return f"{with_article(a.kind)} {RELATION_PHRASES[relation][0]} {with_article(b.kind)}"


def _sets(pool: Photos, count: int, relations: Mapping[str, str]) -> list[dict[str, Scene]]:
    """`count` sets of four scenes, one a position, of distinct pairs of kinds."""
    found: dict[tuple[str, ...], dict[str, Scene]] = {}
    for index in range(_PATIENCE * count):
        scene = pool.scene(index)
        kinds = tuple(thing.kind for thing in scene.things)
        if len(set(kinds)) == 2 and kinds not in found:
            made = _four(scene, relations, pool.spec)
            if made is not None:
                found[kinds] = made
        if len(found) == count:
            break
    return list(found.values())


def _four(scene: Scene, relations: Mapping[str, str], spec: SuiteSpec) -> dict[str, Scene] | None:
    """The scene's two things in each position; None unless the oracle tells all four apart."""
    a, b = scene.things
    facts = {name for name, i, _ in facts_of(scene).relations if i == 0}
    if "front" in relations.values():
        if "front" not in facts:
            return None
        beside = _beside(a, b)
        a = replace(a, x=b.x)  # neither left nor right of it
        made = {
            "left": beside,
            "right": _mirrored(beside),
            "front": (a, b),
            "behind": (replace(a, depth=b.depth), replace(b, depth=a.depth)),
        }
    else:
        if "left" not in facts:
            return None
        a = replace(a, y=b.y)
        made = {
            "left": (a, b),
            "right": _mirrored((a, b)),
            "above": _turned((a, b)),
            "below": _turned(_mirrored((a, b))),
        }
    scenes = {k: replace(scene, things=made[relation]) for k, relation in relations.items()}
    for position, shown in scenes.items():
        for k, relation in relations.items():
            fits = is_true if k == position else is_false
            if not fits(_text(a, relation, b), shown):
                return None
        if any(held_out_in(shown, spec.config)) or not _separate(shown.things, relations[position]):
            return None
    return scenes


def _separate(things: Sequence[Thing], relation: str) -> bool:
    """Whether things that are beside or above one another do not touch."""
    return relation in ("front", "behind") or apart(things[0], things[1])


def _beside(a: Thing, b: Thing) -> tuple[Thing, Thing]:
    return replace(a, x=a.radius + 0.02, y=0.5), replace(b, x=0.98 - b.radius, y=0.5)


def _mirrored(things: tuple[Thing, Thing]) -> tuple[Thing, Thing]:
    a, b = things
    return replace(a, x=1 - a.x), replace(b, x=1 - b.x)


def _turned(things: tuple[Thing, Thing]) -> tuple[Thing, Thing]:
    a, b = things
    return replace(a, x=a.y, y=a.x), replace(b, x=b.y, y=b.x)
