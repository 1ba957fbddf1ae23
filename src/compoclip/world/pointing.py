"""Scenes of two unlike things with captions that name both, and the box of each."""

from __future__ import annotations

from dataclasses import replace

from PIL import Image

from compoclip.analysis.pointing import Pointed, PointedWord
from compoclip.world.logic import Attribute, NounPhrase
from compoclip.world.render import render
from compoclip.world.sampling import generator, scene_for
from compoclip.world.scene import Thing, WorldConfig
from compoclip.world.wording import Wording


def pointing_scenes(world: WorldConfig, count: int, size: int, seed: int = 0) -> list[Pointed]:
    """`count` test scenes, `size` pixels wide: "a red star and a blue mug", nothing hidden.

    The words "red" (kind "colour") and "star" (kind "noun") name the star's box, and so on.
    """
    config = replace(
        world, objects=(0.0, 1.0), unlike=True, repeat=0.0, same_colour=0.0, inside=0.0,
        occlusion=0.0,
    )  # fmt: skip
    wording = Wording(generator("pointing", seed), synonyms=0.0, variants=0.0)
    found = []
    for index in range(count):
        scene = scene_for(config, seed, "test", index)
        phrases = [
            wording.noun_phrase(
                NounPhrase(frozenset((t.kind,)), t.kind, (Attribute("colour", t.colour),))
            ).split()
            for t in scene.things
        ]
        boxes = [box_of(thing, size) for thing in scene.things]
        targets = []
        start = 0
        for k, words in enumerate(phrases):
            others = tuple(box for j, box in enumerate(boxes) if j != k)
            last = start + len(words) - 1
            targets.append(PointedWord(start + 1, "colour", boxes[k], others))
            targets.append(PointedWord(last, "noun", boxes[k], others))
            start = last + 2  # "and" stands between
        caption = " and ".join(" ".join(words) for words in phrases)
        image = Image.fromarray(render(scene, size))
        found.append(Pointed(image, caption, tuple(targets)))
    return found


def box_of(thing: Thing, size: int) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) of a thing in a picture `size` pixels wide, in pixels."""
    edges = (
        thing.x - thing.radius,
        thing.y - thing.radius,
        thing.x + thing.radius,
        thing.y + thing.radius,
    )
    left, upper, right, lower = (min(1.0, max(0.0, edge)) * size for edge in edges)
    return left, upper, right, lower
