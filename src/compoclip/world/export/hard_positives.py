"""The world's Hard Positives: a caption, the same with a synonym, and a false one."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from compoclip.world.export.aro import attribute_photos, collect_bindings, full_box
from compoclip.world.export.part import Part, Photos, SuiteSpec, collect
from compoclip.world.export.texts import changed_words, foil, is_true, phrases_of, with_synonym
from compoclip.world.scene import Scene
from compoclip.world.wording import RELATION_PHRASES

Triple = tuple[str, str, str]
_FOLDER = "vg/VG_100K"
_NAMES = {"attribute": "vl_checklist_attributes", "relation": "vl_checklist_relations"}


def build(spec: SuiteSpec) -> list[Part]:
    """Three aligned files in `hard_positives/data` and three in `hard_positives/swapped_data`."""
    pool = Photos(spec, _FOLDER, slot=3)
    crops = attribute_photos(spec)
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    for task, name in _NAMES.items():
        make = partial(_attribute if task == "attribute" else _relation, spec=spec)
        found = collect(pool, spec.items, f"hard positive {task}", make)
        images |= pool.chosen(index for index, _ in found)
        rows = [
            (_row(pool, index, "data/VG_100K/") | {"false_caption": wrong}, first, second)
            for index, (first, second, wrong) in found
        ]
        files |= _twins(name, rows)
    swaps = collect_bindings(crops)
    images |= crops.chosen(index for index, _ in swaps)
    files |= _twins(
        "visual_genome_attribution",
        [
            (
                _row(crops, index, "")
                | full_box(spec)
                | {"false_caption": made.negative, "attributes": list(made.families)},
                made.caption,
                made.reordered,
            )
            for index, made in swaps
        ],
    )
    about = {
        "attribute": "a property replaced by a synonym (true) or by another (false)",
        "relation": "a relation in other words (true) or turned round (false)",
        "swap": "two things told in the other order (true) or their properties exchanged (false)",
    }
    items = dict.fromkeys(about, spec.items)
    return [Part("hard_positives", "world-hard-positives", files, images, items, about)]


def _row(pool: Photos, index: int, prefix: str) -> dict[str, Any]:
    return {"image_id": str(index), "image_path": prefix + pool.name(index)}


def _twins(name: str, rows: list[tuple[dict[str, Any], str, str]]) -> dict[str, Any]:
    """The two files of a name, joined by position."""
    return {
        f"hard_positives/data/{name}.json": [{**r, "true_caption": c} for r, c, _ in rows],
        f"hard_positives/swapped_data/{name}.json": [{**r, "true_caption": p} for r, _, p in rows],
    }


def _attribute(scene: Scene, rng: Random, spec: SuiteSpec) -> Triple | None:
    made = foil(scene, spec.config, "replace_att", rng)
    if made is None:
        return None
    word, _ = changed_words(made.caption, made.negative)
    second = with_synonym(made.caption, word, rng)
    if second is None or not is_true(second, scene):
        return None
    return made.caption, second, made.negative


def _relation(scene: Scene, rng: Random, spec: SuiteSpec) -> Triple | None:
    made = foil(scene, spec.config, "replace_rel", rng)
    if made is None:
        return None
    words, _ = changed_words(made.caption, made.negative)
    for phrases in RELATION_PHRASES.values():
        said = phrases_of(phrases, made.caption)
        others = [each for each in phrases if each != said]
        if said is None or words not in said or not others:
            continue
        second = f" {made.caption} ".replace(f" {said} ", f" {rng.choice(others)} ", 1).strip()
        if is_true(second, scene):
            return made.caption, second, made.negative
    return None
