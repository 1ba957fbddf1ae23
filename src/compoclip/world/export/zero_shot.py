"""The world's zero-shot sets: one thing a picture, to be told by kind, by colour, or by both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compoclip.world.export.part import Part, Photos, SuiteSpec
from compoclip.world.sampling import NOVEL_ATTRIBUTE, generator, held_out_attributes
from compoclip.world.scene import Scene
from compoclip.world.vocabulary import with_article

_FIRST_SLOT = 10
_TEMPLATES = ("{}", "there is {}", "a picture of {}", "an image of {}", "a drawing of {}")
Pair = tuple[str, str]


def build(spec: SuiteSpec) -> list[Part]:
    """Sets `kinds`, `colours`, `compounds` (seen in training) and `novel-compounds` (not seen).

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
    parts = [
        _set(
            spec,
            "kinds",
            0,
            {k: {"kinds": (k,)} for k in kinds},
            {k: with_article(k) for k in kinds},
            _TEMPLATES,
            f"which of {len(kinds)} kinds of thing",
        ),
        _set(
            spec,
            "colours",
            1,
            {c: {"colours": (c,)} for c in colours},
            {c: c for c in colours},
            [f"the {kind} is {{}}" for kind in kinds],
            f"which of {len(colours)} colours",
        ),
    ]
    for slot, name, pairs, seenness in (
        (2, "compounds", sorted(seen[: len(held) or None]), "seen in training"),
        (3, "novel-compounds", held, "never seen in training"),
    ):
        if pairs:
            about = f"which of {len(pairs)} colours with kinds {seenness}"
            novel = NOVEL_ATTRIBUTE if name.startswith("novel") else ""
            parts.append(_compounds(spec, name, slot, pairs, about, novel))
    return parts


def _compounds(
    spec: SuiteSpec, name: str, slot: int, pairs: Sequence[Pair], about: str, split: str
) -> Part:
    shapes = {f"{c}_{k}": {"colours": (c,), "kinds": (k,)} for c, k in pairs}
    names = {f"{c}_{k}": with_article(f"{c} {k}") for c, k in pairs}
    return _set(spec, name, slot, shapes, names, _TEMPLATES, about, split)


def _set(
    spec: SuiteSpec,
    name: str,
    slot: int,
    shapes: Mapping[str, Mapping[str, tuple[str, ...]]],
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
