"""Rewrites must keep their promise: the world's oracle judges them on its own true captions."""

from __future__ import annotations

import pytest
from rewrite_truth import Judged, judge_rewrites

from compoclip.rewrites.base import rewrite_names
from compoclip.rewrites.cross_swap import NAME as CROSS_SWAP
from compoclip_world.oracle import Truth, Verdict
from rewrite_facts import facts_of

BOUND = 0.02


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    return judge_rewrites(600, seed=11, split="train")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*rewrite_names(), CROSS_SWAP])
def test_at_most_two_percent_are_wrong(name: str, judged: dict[str, Judged]) -> None:
    count = judged[name]
    assert count.captions > 400
    assert count.judged >= facts_of(name).get("judged", 50)
    assert count.made == count.true + count.false + count.unknown
    if "excused" not in facts_of(name):
        assert count.rate <= BOUND, count.examples[:5]


def test_what_is_wrong_depends_on_what_was_promised() -> None:
    negative, positive = Judged(keeps_meaning=False), Judged(keeps_meaning=True)
    verdicts = [
        Verdict(Truth.TRUE),
        Verdict(Truth.FALSE),
        Verdict(Truth.FALSE, foreign=True),
        Verdict(Truth.UNKNOWN),
    ]
    for count in (negative, positive):
        for place, verdict in enumerate(verdicts):
            count.add(verdict, str(place))
        assert (count.made, count.judged, count.unknown, count.foreign) == (4, 3, 1, 1)
    assert (negative.wrong, negative.examples) == (1, ["0"])
    assert (positive.wrong, positive.examples) == (2, ["1", "2"])
    assert negative.rate == pytest.approx(1 / 3)
    assert Judged(keeps_meaning=True).rate == 0.0
