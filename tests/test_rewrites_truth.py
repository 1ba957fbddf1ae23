"""Hard negatives must be false: the world's oracle judges rewrites of its own true captions."""

from __future__ import annotations

from collections import Counter

import pytest

from compoclip.captions.parse import parse
from compoclip.rewrites.base import Refused, rng_for
from compoclip.rewrites.registry import get_rewrite
from compoclip.world.captions import captions_for
from compoclip.world.oracle import Oracle, Truth
from compoclip.world.sampling import scene_for
from compoclip.world.scene import WorldConfig


@pytest.mark.parametrize(("name", "enough"), [("negclip", 300), ("replace", 700)])
def test_at_most_two_percent_of_negatives_are_true(name: str, enough: int) -> None:
    config, oracle, rewrite = WorldConfig(), Oracle(), get_rewrite(name)
    truth: Counter[Truth] = Counter()
    for index in range(300):
        scene = scene_for(config, 11, "train", index)
        for place, caption in enumerate(captions_for(scene, config, 11, index, 5)):
            result = rewrite(parse(caption.text), rng_for(0, f"{index}-{place}", 0, name))
            if not isinstance(result, Refused):
                truth[oracle.verdict(result.text, scene).truth] += 1
    decided = truth[Truth.TRUE] + truth[Truth.FALSE]
    assert decided > enough
    assert truth[Truth.TRUE] / decided <= 0.02
