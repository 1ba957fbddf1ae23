"""The world's ImageCoDe: a description that is true of one of ten pictures."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from compoclip_world.captions import captions_for
from compoclip_world.export.part import Part, Photos, SuiteSpec
from compoclip_world.export.retrieval import own_captions
from compoclip_world.export.texts import seemly
from compoclip_world.pairs import PAIR_SKILLS, drafted
from compoclip_world.sampling import generator, held_out_in
from compoclip_world.scene import Scene, WorldConfig
from official._forms import world_part

WRITES = ("imagecode",)
_FOLDER = "imagecode/image-sets"
_PICTURES = 10
_CANDIDATES = 8
_TRIES = 200
_PATIENCE = 20
_PREFIX = {"static": "open-images-", "video": "world-shots-"}
_SHAPES: dict[str, dict[str, Any]] = {
    "static": {},
    "video": {"objects": (0.0, 0.0, 0.7, 0.3), "repeat": 0.4},
}
_DETAILED = (("object", 0.0), ("negation", 0.0), ("predicate", 0.0), ("long", 0.7))


def build(spec: SuiteSpec) -> list[Part]:
    """`imagecode/valid_data.json`: one description a set of ten.

    Static sets are ten scenes of their own, video sets a scene and nine that differ from it in one
    thing.
    """
    data: dict[str, dict[str, str]] = {}
    images: dict[str, Scene] = {}
    for slot, name in enumerate(_PREFIX, start=23):
        pool = Photos(spec, _FOLDER, slot, _SHAPES[name])
        made = 0
        for index in range(_PATIENCE * spec.items + _PATIENCE):
            rng = generator("imagecode", name, spec.seed, spec.split, index)
            scenes = _scenes(pool, index, name, spec.config, rng)
            chosen = _description(scenes, spec, index, rng) if scenes else None
            if scenes and chosen:
                folder = f"{_PREFIX[name]}{index:06d}"
                data[folder] = {str(chosen[0]): chosen[1]}
                for k, scene in enumerate(scenes):
                    images[f"{_FOLDER}/{folder}/img{k}.png"] = scene
                made += 1
            if made == spec.items:
                break
    items = dict.fromkeys(_PREFIX, spec.items)
    return [world_part("imagecode", {"imagecode/valid_data.json": data}, images, items)]


def _scenes(
    pool: Photos, index: int, name: str, config: WorldConfig, rng: Random
) -> list[Scene] | None:
    """Ten different scenes, in an order that does not give the described one away."""
    if name == "static":
        return [pool.scene(_PICTURES * index + k) for k in range(_PICTURES)]
    base = pool.scene(index)
    found = [base]
    for _ in range(_TRIES):
        draft = drafted(base, rng.choice(tuple(PAIR_SKILLS)), rng)
        if draft and draft[0] not in found and not any(held_out_in(draft[0], config)):
            found.append(draft[0])
        if len(found) == _PICTURES:
            rng.shuffle(found)
            return found
    return None


def _description(
    scenes: list[Scene], spec: SuiteSpec, index: int, rng: Random
) -> tuple[int, str] | None:
    """(picture, caption): a caption that the oracle calls TRUE of this picture and FALSE of all
    others."""
    config = replace(spec.config, caption_weights=_DETAILED)
    for target in rng.sample(range(len(scenes)), 3):
        drawn = captions_for(scenes[target], config, spec.seed, index, _CANDIDATES)
        fitting = [caption for caption in drawn if seemly(caption.form, spec.config)]
        if own := own_captions(fitting, target, scenes):
            return target, own[0]
    return None
