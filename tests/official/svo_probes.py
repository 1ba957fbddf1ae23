"""The world's SVO-Probes: a sentence, its picture, and one where a single word of it is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compoclip.benchmarks.hooks_photos import url_key
from compoclip_world.captions import facts_of
from compoclip_world.export.part import Part, Photos, SuiteSpec
from compoclip_world.oracle import is_false, is_true
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import RELATION_PHRASES, with_article
from official._forms import world_part

WRITES = ("svo_probes",)
_FOLDER = "svo_probes/images"
_VERBS = ("left", "right", "above", "below")
_KINDS = 10  # few kinds, so that pictures that differ in one word are frequent
_PATIENCE = 60
_PLACES = {"subj": 0, "verb": 1, "obj": 2}
Triplet = tuple[str, str, str]


@dataclass(frozen=True)
class _Shown:
    """A picture, and the triplet (subject, relation, object) of its two things."""

    index: int
    scene: Scene
    triplet: Triplet


def build(spec: SuiteSpec) -> list[Part]:
    """`svo_probes/svo_probes.csv`, photos named by the md5 of an address that was never live."""
    kinds = spec.config.known_kinds[:_KINDS]
    shape = {"objects": (0.0, 1.0), "inside": 0.0, "occlusion": 0.0, "repeat": 0.0, "kinds": kinds}
    pool = Photos(spec, _FOLDER, slot=25, shape=shape)
    rows: list[dict[str, Any]] = []
    images: dict[str, Scene] = {}
    made = dict.fromkeys(_PLACES, 0)
    seen: list[_Shown] = []
    for index in range(_PATIENCE * spec.items + 10 * _PATIENCE):
        if min(made.values()) == spec.items:
            break
        scene = pool.scene(index)
        triplet = _triplet(scene)
        if triplet is None:
            continue
        for task, place in _PLACES.items():
            if made[task] == spec.items:
                continue
            other = _differing(triplet, place, seen)
            if other is not None:
                made[task] += 1
                shown = _Shown(index, scene, triplet)
                rows.append(_row(task, shown, other))
                for each in (shown, other):
                    images[f"{_FOLDER}/{url_key(_url(each))}.png"] = each.scene
        seen.append(_Shown(index, scene, triplet))
    return [world_part("svo_probes", {"svo_probes/svo_probes.csv": rows}, images, made)]


def _url(shown: _Shown) -> str:
    return f"https://world.invalid/{shown.index}.png"


def _triplet(scene: Scene) -> Triplet | None:
    """Subject, relation, object of the scene's two things; None when they are in no clear one."""
    for name, i, j in facts_of(scene).relations:
        a, b = scene.things[i].kind, scene.things[j].kind
        if name in _VERBS and i == 0 and is_true(_sentence((a, name, b)), scene):
            return a, name, b
    return None


def _sentence(triplet: Triplet) -> str:
    subject, relation, other = triplet
    return f"{with_article(subject)} {RELATION_PHRASES[relation][0]} {with_article(other)}"


def _differing(triplet: Triplet, place: int, seen: list[_Shown]) -> _Shown | None:
    """The latest picture that differs in one word of the sentence, which is false of it."""
    for other in reversed(seen):
        differs = [k for k in range(3) if other.triplet[k] != triplet[k]]
        if differs == [place] and is_false(_sentence(triplet), other.scene):
            return other
    return None


def _row(task: str, shown: _Shown, other: _Shown) -> dict[str, Any]:
    return {
        "sentence": _sentence(shown.triplet),
        "pos_triplet": ",".join(shown.triplet),
        "neg_triplet": ",".join(other.triplet),
        "pos_url": _url(shown),
        "neg_url": _url(other),
        "pos_image_id": shown.index,
        "neg_image_id": other.index,
        **{f"{name}_neg": name == task for name in _PLACES},
    }
