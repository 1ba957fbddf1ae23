"""The world's zero-shot sets: folders of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compoclip_world.export.part import Part, Photos, SuiteSpec
from compoclip_world.sampling import NOVEL_ATTRIBUTE, generator, held_out_attributes
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import PATTERNS, can_show, with_article

_FIRST_SLOT = 10
_TEMPLATES = ("{}", "there is {}", "a picture of {}", "an image of {}", "a drawing of {}")


def build(spec: SuiteSpec) -> list[Part]:
    """The world's zero-shot sets: one thing a picture, to be told by kind, by colour, or by both.

    Sets `kinds`, `colours`, `compounds` (seen in training), `novel-compounds` (not seen) and
    `looks` (by kind, colour and pattern, at most two classes per wanted item).

    The two compound sets have equally many classes. The classes of a set share half the wanted
    number of items, since every item is a picture of its own.
    """
    kinds = spec.config.known_kinds
    colours = spec.config.known_colours
    held = sorted(
        (c, k) for c, k in held_out_attributes(spec.config) if c in colours and k in kinds
    )
    seen = [(c, k) for c in colours for k in kinds if (c, k) not in set(held)]
    generator("zero-shot", spec.seed).shuffle(seen)
    parts = []
    for slot, (name, values, templates) in enumerate(
        (("kinds", kinds, _TEMPLATES), ("colours", colours, [f"the {k} is {{}}" for k in kinds]))
    ):
        shapes: dict[str, dict[str, Any]] = {value: {name: (value,)} for value in values}
        names = {value: with_article(value) if name == "kinds" else value for value in values}
        what = "kinds of thing" if name == "kinds" else name
        about = f"which of {len(values)} {what}"
        parts.append(_classes(spec, name, slot, shapes, names, templates, about))
    for slot, name, compounds, seenness in (
        (2, "compounds", sorted(seen[: len(held) or None]), "seen in training"),
        (3, "novel-compounds", held, "never seen in training"),
    ):
        if compounds:
            about = f"which of {len(compounds)} colours with kinds {seenness}"
            novel = NOVEL_ATTRIBUTE if name.startswith("novel") else ""
            shapes = {f"{c}_{k}": _only(c, k) for c, k in compounds}
            names = {f"{c}_{k}": with_article(f"{c} {k}") for c, k in compounds}
            parts.append(_classes(spec, name, slot, shapes, names, _TEMPLATES, about, novel))
    looks = [
        (pattern, *value)
        for pattern in PATTERNS
        for value in seen
        if pattern != "plain" and can_show(value[1], "large")
    ]
    generator("looks", spec.seed).shuffle(looks)
    looks = sorted(looks[: 2 * spec.items])
    shapes = {"_".join(value): _only(value[1], value[2], patterned=1.0) for value in looks}
    names = {"_".join(value): with_article(" ".join(value)) for value in looks}
    about = f"which of {len(looks)} patterns, colours and kinds"
    part = _classes(spec, "looks", 4, shapes, names, _TEMPLATES, about)
    images = {
        path: _patterned(scene, Path(path).parent.name.split("_")[0])
        for path, scene in part.images.items()
    }
    return [*parts, replace(part, images=images)]


def _only(colour: str, kind: str, **others: Any) -> dict[str, Any]:
    return {"colours": (colour,), "kinds": (kind,), **others}


def _patterned(scene: Scene, pattern: str) -> Scene:
    return replace(scene, things=(replace(scene.things[0], pattern=pattern),))


def _classes(
    spec: SuiteSpec,
    name: str,
    slot: int,
    shapes: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    templates: Sequence[str],
    about: str,
    split: str = "",
) -> Part:
    """One folder of classes. shapes: class directory -> what its scenes are limited to."""
    folder = f"elevater/{name}"
    images: dict[str, Scene] = {}
    first = 0
    for k, (directory, shape) in enumerate(shapes.items()):
        share = max(1, (spec.items // 2 + k) // len(shapes))
        single: dict[str, Any] = {"objects": (1.0,), **shape}
        pool = Photos(spec, f"{folder}/{directory}", _FIRST_SLOT + slot, single, split)
        images |= pool.chosen(range(first, first + share))
        first += share
    return Part(
        f"zero_shot:{name}",
        f"world-zero-shot-{name}",
        {f"{folder}/index.json": dict(names), f"{folder}/templates.json": list(templates)},
        images,
        {"zero_shot": len(images)},
        {"zero_shot": about},
    )
