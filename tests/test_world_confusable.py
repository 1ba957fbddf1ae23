"""The confusable gallery: four neighbours per group, captions true of one image alone."""

from __future__ import annotations

import pytest

from compoclip_world.dataset import bundled_world
from compoclip_world.export.confusable import build
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.oracle import Oracle, Truth


@pytest.fixture(scope="module")
def part() -> Part:
    return build(SuiteSpec(bundled_world(), items=24))[0]


def test_captions_are_true_of_one_image_alone(part: Part) -> None:
    rows = part.files["flickr8k/flickr8k_test.json"]
    scenes = [part.images[f"flickr8k/images/{row['image']}"] for row in rows]
    assert len(rows) == 24
    assert part.items == {"i2t": 24, "t2i": 24}
    oracle = Oracle()
    for at, row in enumerate(rows):
        verdicts = [oracle.verdict(row["caption"][0], scene).truth for scene in scenes]
        assert verdicts == [Truth.TRUE if at == i else Truth.FALSE for i in range(24)]


def test_neighbours_differ_in_one_thing(part: Part) -> None:
    scenes = list(part.images.values())
    for start in range(0, 24, 4):
        first, exchanged, mirrored, other = scenes[start : start + 4]
        looks = [sorted((t.kind, t.colour) for t in scene.things) for scene in scenes[start:][:4]]
        assert [t.kind for t in first.things] == [t.kind for t in exchanged.things]
        assert looks[0] != looks[1]
        assert looks[0] == looks[2]
        assert [(t.x, t.y) for t in first.things] == [(t.x, t.y) for t in exchanged.things]
        assert [(t.x, t.y) for t in first.things] != [(t.x, t.y) for t in mirrored.things]
        assert {t.kind for t in first.things} - {t.kind for t in other.things}
