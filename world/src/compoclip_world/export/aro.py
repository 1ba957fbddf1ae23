"""The world's ARO: relations and attributes with their two sides exchanged, and word order."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from compoclip.benchmarks.files import same
from compoclip.benchmarks.shuffles import WORDS, shuffled
from compoclip.captions.chunks import pre_caption
from compoclip.captions.parser import parse as parse_caption
from compoclip_world.captions import facts_of
from compoclip_world.export.part import Part, Photos, SuiteSpec, collect
from compoclip_world.export.retrieval import captioned
from compoclip_world.export.sugarcrepe import photos
from compoclip_world.export.texts import (
    changed_words,
    foil,
    phrases_of,
    seemly,
    with_synonym,
)
from compoclip_world.geometry import PLACINGS
from compoclip_world.oracle import is_false, is_true
from compoclip_world.parser import parse
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import FAMILIES, RELATION_PHRASES, usual

_FOLDER = "aro/images"
_OPEN = (*PLACINGS, "bigger", "smaller")
_LAYERED = ("front", "behind")
_ORDER_WORDS = 7  # shuffles of fewer words are often as true as the caption
_CANDIDATES = 64  # captions to choose from, many of which have a shuffle that is no other text
_ORDER_SHARE = 5  # captions per image, so that the order tasks have the wanted number of cases


Binding = tuple[str, str, str, str]
"""A caption of two things with a property each; the same told the other way round, still true; the
properties exchanged; what property it is."""


def build(spec: SuiteSpec) -> list[Part]:
    """Two Visual Genome files in `aro/` and the two caption files of the order tasks."""
    relations, images = _relations(spec)
    crops, bindings = _bindings(spec)
    images |= crops.chosen(index for index, _ in bindings)
    attribution = [
        _boxed(
            crops,
            index,
            true_caption=true,
            false_caption=false,
            attributes=[family, family],
        )
        for index, (true, _, false, family) in bindings
    ]
    count = max(1, spec.items // _ORDER_SHARE)
    rows = {"vg_relation": relations, "vg_attribution": attribution}
    for subtask, pool, prefix in (
        ("coco_order", photos(spec), "val2017/"),
        ("flickr30k_order", Photos(spec, "flickr30k/images", slot=5), "flickr30k-images/"),
    ):
        apart = partial(_shuffled_apart, subtask)
        rows[subtask], more = captioned(pool, count, prefix, _CANDIDATES, apart)
        images |= more
    return [
        Part(
            "aro",
            "world-aro",
            {
                "aro/visual_genome_relation.json": relations,
                "aro/visual_genome_attribution.json": attribution,
                "aro/coco_order.json": rows["coco_order"],
                "flickr30k/flickr30k_test.json": rows["flickr30k_order"],
            },
            images,
            {
                name: sum(len(row.get("caption", [""])) for row in each)
                for name, each in rows.items()
            },
            {
                "vg_relation": "the two things of a relation exchanged, by relation",
                "vg_attribution": "properties of two things exchanged, by property",
                "coco_order": "the words of a caption shuffled",
                "flickr30k_order": "the words of a caption shuffled, other scenes",
            },
            {"coco_captions": "aro/coco_order.json"},
        )
    ]


def _shuffled_apart(subtask: str, scene: Scene, image: str, text: str, number: int) -> bool:
    """Return whether all shuffles that the reader will make of a caption are false other texts."""
    if len(text.split()) < _ORDER_WORDS:
        return False
    shuffles = shuffled(text, parse_caption(text).tokens, f"{subtask}/{image}#{number}")
    return not any(
        same(pre_caption(text, WORDS), pre_caption(shuffle, WORDS)) or is_true(shuffle, scene)
        for shuffle in shuffles
    )


def _bindings(spec: SuiteSpec) -> tuple[Photos, list[tuple[int, Binding]]]:
    """The scenes of VG-Attribution, and its items as (scene index, item)."""
    crops = Photos(spec, _FOLDER, slot=1)
    return crops, collect(crops, spec.items, "vg_attribution", partial(_binding, spec=spec))


def _row(pool: Photos, index: int, prefix: str = "") -> dict[str, Any]:
    return {"image_id": str(index), "image_path": prefix + pool.name(index)}


def _boxed(pool: Photos, index: int, **entries: Any) -> dict[str, Any]:
    """A row of a Visual Genome file, with the whole image as a box."""
    side = pool.spec.config.size
    box = {"bbox_x": 0, "bbox_y": 0, "bbox_w": side, "bbox_h": side}
    return {**_row(pool, index), **box, **entries}


def _relations(spec: SuiteSpec) -> tuple[list[dict[str, Any]], dict[str, Scene]]:
    """Rows of VG-Relation, the relations in equal shares, and their images."""
    several = {"objects": (0.0, 0.6, 0.4), "inside": 0.0}
    pools = {
        name: Photos(spec, _FOLDER, slot, shape)
        for names, slot, shape in (
            (_OPEN, 2, {**several, "occlusion": 0.0}),
            (_LAYERED, 4, {**several, "occlusion": 1.0, "repeat": 0.0}),
        )
        for name in names
    }
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    for k, (name, pool) in enumerate(pools.items()):
        share = (spec.items + k) // len(pools)
        if not share:
            continue
        make = partial(_exchanged, spec=spec, name=name)
        items = collect(pool, share, f"vg_relation {name}", make)
        images |= pool.chosen(index for index, _ in items)
        rows += [
            _boxed(
                pool,
                index,
                true_caption=true,
                false_caption=false,
                relation_name=RELATION_PHRASES[name][0],
            )
            for index, (true, false) in items
        ]
    return rows, images


def _exchanged(scene: Scene, rng: Random, spec: SuiteSpec, name: str) -> tuple[str, str] | None:
    facts = [(i, j) for relation, i, j in facts_of(scene).relations if relation == name]
    if not facts:
        return None
    i, j = rng.choice(facts)
    a, b = (f"the {scene.things[k].kind}" for k in (i, j))
    phrase = RELATION_PHRASES[name][0]
    true, false = f"{a} is {phrase} {b}", f"{b} is {phrase} {a}"
    fine = a != b and is_true(true, scene) and is_false(false, scene)
    return (true, false) if fine and seemly(parse(false), spec.config) else None


def _binding(scene: Scene, rng: Random, spec: SuiteSpec) -> Binding | None:
    things = [t for t in scene.things if sum(o.kind == t.kind for o in scene.things) == 1]
    choices = [
        (a, b, family)
        for a in things
        for b in things
        for family in FAMILIES
        if a is not b and getattr(a, family) != getattr(b, family)
    ]
    rng.shuffle(choices)
    for a, b, family in choices:
        first, second = (_named(t.kind, getattr(t, family)) for t in (a, b))
        mixed = _named(a.kind, getattr(b, family)), _named(b.kind, getattr(a, family))
        true, false = f"{first} and {second}", " and ".join(mixed)
        if is_true(true, scene) and is_false(false, scene) and seemly(parse(false), spec.config):
            return true, f"{second} and {first}", false, family
    return None


def _named(kind: str, value: str) -> str:
    return f"the {usual(value)} {kind}"


# --- The world's Hard Positives: a caption, the same with a synonym, and a false one. ---

_HARD_POSITIVES_FOLDER = "vg/VG_100K"
_NAMES = {"attribute": "vl_checklist_attributes", "relation": "vl_checklist_relations"}


def hard_positives_build(spec: SuiteSpec) -> list[Part]:
    """Three aligned files in `hard_positives/data` and three in `hard_positives/swapped_data`."""
    pool = Photos(spec, _HARD_POSITIVES_FOLDER, slot=3)
    files: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    for task, name in _NAMES.items():
        make = partial(_attribute if task == "attribute" else _relation, spec=spec)
        triples = collect(pool, spec.items, f"hard positive {task}", make)
        images |= pool.chosen(index for index, _ in triples)
        rows = [
            (_row(pool, index, "data/VG_100K/") | {"false_caption": wrong}, first, second)
            for index, (first, second, wrong) in triples
        ]
        files |= _twins(name, rows)
    crops, swaps = _bindings(spec)
    images |= crops.chosen(index for index, _ in swaps)
    rows = [
        (_boxed(crops, index, false_caption=false, attributes=[family, family]), first, second)
        for index, (first, second, false, family) in swaps
    ]
    files |= _twins("visual_genome_attribution", rows)
    about = {
        "attribute": "a property replaced by a synonym (true) or by another (false)",
        "relation": "a relation in other words (true) or turned round (false)",
        "swap": "two things told in the other order (true) or their properties exchanged (false)",
    }
    items = dict.fromkeys(about, spec.items)
    return [Part("hard_positives", "world-hard-positives", files, images, items, about)]


def _twins(name: str, rows: list[tuple[dict[str, Any], str, str]]) -> dict[str, Any]:
    """The two files of a name, joined by position."""
    return {
        f"hard_positives/data/{name}.json": [{**r, "true_caption": c} for r, c, _ in rows],
        f"hard_positives/swapped_data/{name}.json": [{**r, "true_caption": p} for r, _, p in rows],
    }


def _attribute(scene: Scene, rng: Random, spec: SuiteSpec) -> tuple[str, str, str] | None:
    base = foil(scene, rng, spec.config, "replace_att")
    if base is None:
        return None
    word, _ = changed_words(base.caption, base.negative)
    second = with_synonym(base.caption, word, rng)
    if second is None or not is_true(second, scene):
        return None
    return base.caption, second, base.negative


def _relation(scene: Scene, rng: Random, spec: SuiteSpec) -> tuple[str, str, str] | None:
    base = foil(scene, rng, spec.config, "replace_rel")
    if base is None:
        return None
    words, _ = changed_words(base.caption, base.negative)
    for phrases in RELATION_PHRASES.values():
        phrase = phrases_of(phrases, base.caption)
        others = [other for other in phrases if other != phrase]
        if phrase is None or words not in phrase or not others:
            continue
        second = f" {base.caption} ".replace(f" {phrase} ", f" {rng.choice(others)} ", 1).strip()
        if is_true(second, scene):
            return base.caption, second, base.negative
    return None
