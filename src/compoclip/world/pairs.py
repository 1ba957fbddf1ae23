"""Minimal pairs of scenes: two pictures, two captions, each true of its own picture only."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from compoclip.errors import CompoclipError, UsageError
from compoclip.world.oracle import Oracle, Truth
from compoclip.world.pair_skills import SHAPES, TAUGHT_SKILLS
from compoclip.world.sampling import draw_scene
from compoclip.world.scene import Scene, WorldConfig
from compoclip.world.splits import ORDINARY, SPLITS, generator, held_out_in
from compoclip.world.wording import Wording

_ATTEMPTS = 3000
_ORACLE = Oracle()


@dataclass(frozen=True, slots=True)
class WorldPair:
    """caption_a is true of scene_a and false of scene_b; caption_b the other way round."""

    scene_a: Scene
    scene_b: Scene
    caption_a: str
    caption_b: str
    skill: str


def pair(config: WorldConfig, seed: int, index: int, skill: str, split: str = "test") -> WorldPair:
    """Pair `index` of a skill, a function of its arguments; the oracle has judged all four cases.

    In ordinary splits neither scene shows a held-out compound; in the others one of them may be
    all that does. Raises UsageError for an unknown skill or split, CompoclipError when the config
    leaves no such pair.
    """
    if skill not in TAUGHT_SKILLS:
        raise UsageError(f"world: unknown pair skill {skill!r}; known: {', '.join(TAUGHT_SKILLS)}")
    if split not in SPLITS:
        raise UsageError(f"world: unknown split {split!r}; known: {', '.join(SPLITS)}")
    rng = generator("pair", seed, split, skill, index)
    shaped = replace(config, **SHAPES.get(skill, {}))
    for _ in range(_ATTEMPTS):
        scene = draw_scene(shaped, rng, split)
        if scene is None or not scene.things:
            continue
        found = edited(scene, config, skill, rng, split)
        if found is not None:
            return found
    raise CompoclipError(
        f"world: no pair of skill {skill!r} fits split {split!r} of this configuration; "
        "allow more kinds, colours and objects"
    )


def edited(
    scene: Scene, config: WorldConfig, skill: str, rng: random.Random, split: str = "train"
) -> WorldPair | None:
    """The pair of a scene and one edit of it, judged by the oracle; None when none was found.

    One attempt with `rng`; the edited scene belongs to the split as `pair` says.
    """
    drafted = TAUGHT_SKILLS[skill](scene, rng)
    if drafted is None:
        return None
    other, *forms = drafted
    style, colour_first = rng.randrange(2**32), rng.random() < 0.4
    first, second = (
        Wording(random.Random(style), variants=0.5, colour_first=colour_first).caption(form)
        for form in forms
    )
    if not _known(other, config) or not _in_split(scene, other, config, split):
        return None
    if not _separates(scene, other, first, second):
        return None
    return WorldPair(scene, other, first, second, skill)


def _known(scene: Scene, config: WorldConfig) -> bool:
    """Whether the config has all kinds and colours of a scene."""
    kinds, colours = config.known_kinds, config.known_colours
    return all(t.kind in kinds and t.colour in colours for t in scene.things)


def _in_split(a: Scene, b: Scene, config: WorldConfig, split: str) -> bool:
    found = [held_out_in(scene, config) for scene in (a, b)]
    if split in ORDINARY:
        return not any(pairs or triples for pairs, triples in found)
    return any(found[i][split != "novel-attribute"] for i in (0, 1))


def _separates(a: Scene, b: Scene, first: str, second: str) -> bool:
    return all(
        _ORACLE.verdict(text, scene).truth is truth
        for text, scene, truth in (
            (first, a, Truth.TRUE),
            (second, b, Truth.TRUE),
            (first, b, Truth.FALSE),
            (second, a, Truth.FALSE),
        )
    )
