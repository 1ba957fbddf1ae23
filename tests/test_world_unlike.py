"""Scenes of unlike things, and captions that hold with the right binding alone."""

from __future__ import annotations

from dataclasses import replace

from compoclip_world.captions import WorldCaption, captions_for
from compoclip_world.dataset import bundled_world, crowded
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.sampling import scene_for
from compoclip_world.scene import Scene, WorldConfig

ORACLE = Oracle()
PAIRS = WorldConfig(objects=(0.0, 0.6, 0.4), unlike=True, repeat=0.0, synonyms=0.0)


def captioned(config: WorldConfig, count: int = 60) -> list[tuple[Scene, WorldCaption]]:
    scenes = [scene_for(config, 0, "train", i) for i in range(count)]
    return [(s, captions_for(s, config, 0, i, 1)[0]) for i, s in enumerate(scenes)]


def test_unlike_things_differ_in_kind_and_colour() -> None:
    for i in range(150):
        things = scene_for(PAIRS, 0, "train", i).things
        assert len({t.kind for t in things}) == len({t.colour for t in things}) == len(things)
    mixed = [scene_for(replace(PAIRS, unlike=False), 0, "train", i).things for i in range(150)]
    assert any(len({t.colour for t in things}) < len(things) for things in mixed)


def test_what_a_crowded_world_says_is_false_with_the_colours_exchanged() -> None:
    judged = refuted = 0
    for scene, caption in captioned(crowded(bundled_world()), 100):
        if len(scene.things) != 2:
            continue
        a, b = scene.things
        exchanged = (replace(a, colour=b.colour), replace(b, colour=a.colour))
        verdict = ORACLE.verdict(caption.text, replace(scene, things=exchanged))
        if len(caption.form) == 2:
            refuted += verdict.truth is Truth.FALSE
            judged += 1
        assert a.kind != b.kind
        assert a.colour != b.colour
    assert judged > 60
    assert refuted >= 0.95 * judged  # the others name sizes only
