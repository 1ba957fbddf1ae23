"""The world's zero-shot set with several true classes an image: which kinds of thing are there."""

from __future__ import annotations

from compoclip_world.export.part import Part, Photos, SuiteSpec
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import with_article
from official._forms import world_part

WRITES = ("tagging",)
_SLOT = 15
_FOLDER = "elevater/things"
_TEMPLATES = ("{}", "there is {}", "a picture of {}")


def build(spec: SuiteSpec) -> list[Part]:
    """`elevater/things/test.txt` in the format of the ELEVATER toolkit, labels counted from 0.

    Classes are the kinds that some images show and some do not, so that each has a curve.
    """
    photos = Photos(spec, f"{_FOLDER}/photos", _SLOT, {"objects": (0.0, 0.5, 0.3, 0.2)})
    scenes = photos.chosen(range(spec.items))
    shown = {path: _kinds(scene) for path, scene in scenes.items()}
    kinds = [
        kind
        for kind in spec.config.known_kinds
        if 0 < sum(kind in each for each in shown.values()) < len(shown)
    ]
    kept = {path: each & set(kinds) for path, each in shown.items() if each & set(kinds)}
    lines = [
        f"{path.removeprefix(f'{_FOLDER}/')} "
        + ",".join(str(label) for label, kind in enumerate(kinds) if kind in each)
        for path, each in kept.items()
    ]
    names = [with_article(kind) for kind in kinds]
    files = {
        f"{_FOLDER}/test.txt": lines,
        f"{_FOLDER}/labels.txt": names,
        f"{_FOLDER}/templates.json": list(_TEMPLATES),
    }
    images = {path: scenes[path] for path in kept}
    options = {"metric": "map11", "templates": f"{_FOLDER}/templates.json"}
    return [
        world_part("zero_shot:things", files, images, dict.fromkeys(names, len(kept)), **options)
    ]


def _kinds(scene: Scene) -> set[str]:
    return {thing.kind for thing in scene.things}
