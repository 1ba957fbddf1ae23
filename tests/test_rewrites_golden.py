"""Parses and rewrites of real captions stay what they are until their version is raised, and the
oracle of the world judges rewrites of its captions.

A digest that differs means other texts for the same caption and seed: raise the version of what
changed, on purpose, and record its new digest with COMPOCLIP_WRITE_GOLDEN=1.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from rewrite_truth import Judged, judge_rewrites

from compoclip.captions.parser import PARSER_VERSION, parse
from compoclip.captions.store import decode, encode
from compoclip.captions.types import Caption
from compoclip.rewrites.base import get_rewrite, rewrite_names, rng_for
from compoclip.rewrites.cross_swap import NAME as CROSS_SWAP
from compoclip_world.oracle import Truth, Verdict
from real_captions import negclip
from rewrite_facts import GOLDEN, facts_of

RECORD = (
    "raise its version, and record: "
    "COMPOCLIP_WRITE_GOLDEN=1 pytest -n0 tests/test_rewrites_golden.py -k NAME"
)
ODD = (
    "",
    "A A A",
    "\ud800 dog",
    "the man's dog isn't on a café table 😀 &amp; x",
    "It's NOT a RED car, or a blue one; no dog!",
    "12:30 3.5 a-b 'quoted' U.S. flags",
    "dog\non a mat\x00 here",
    "Ünïcödé straße ﬁne",
    "a dog " * 60,
)


@pytest.fixture(scope="module")
def captions(shared_data: Path) -> list[Caption]:
    titles = [row["title"].strip() for row in negclip(shared_data)[::12]]
    return [parse(text) for text in (*titles, *ODD)]


def digest(results: Iterable[str]) -> str:
    text = "\n".join(results).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def recorded() -> list[str]:
    """The rewrites with a digest; all of them when digests are written."""
    if os.environ.get("COMPOCLIP_WRITE_GOLDEN"):
        return list(rewrite_names())
    return sorted({path.stem for path in GOLDEN.glob("*.json")} - {"parser"})


def expect(name: str, version: str, current: str) -> None:
    """The digest recorded under `name`, or record it."""
    path = GOLDEN / f"{name}.json"
    now = {**facts_of(name), "version": version, "digest": current}
    if os.environ.get("COMPOCLIP_WRITE_GOLDEN"):
        path.write_text(json.dumps(now) + "\n")
    assert now == facts_of(name), RECORD


def test_every_digest_belongs_to_a_rewrite() -> None:
    assert recorded()
    assert set(recorded()) <= set(rewrite_names())


def test_parses(captions: list[Caption]) -> None:
    records = [encode(caption) for caption in captions]
    expect("parser", PARSER_VERSION, digest(record[8:] for record in records))  # without checksums
    assert [decode(c.text, record) for c, record in zip(captions, records)] == captions


@pytest.mark.parametrize("name", recorded())
def test_rewrites(name: str, captions: list[Caption]) -> None:
    rewrite = get_rewrite(name)
    results = [repr(rewrite(c, rng_for(0, str(i), 0, name))) for i, c in enumerate(captions)]
    expect(name, rewrite.version, digest(results))


# --- What rewrites promise, judged by the oracle of the world. ---


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
    if "excused" not in facts_of(name):
        assert count.rate <= BOUND, count.examples[:5]


def test_what_is_wrong_depends_on_what_was_promised() -> None:
    negative, positive = Judged(keeps_meaning=False), Judged(keeps_meaning=True)
    verdicts = [Verdict(each) for each in (Truth.TRUE, Truth.FALSE, Truth.FALSE, Truth.UNKNOWN)]
    for count in (negative, positive):
        for place, verdict in enumerate(verdicts):
            count.add(verdict, str(place))
        assert (count.judged, count.unknown) == (3, 1)
    assert (negative.wrong, negative.examples) == (1, ["0"])
    assert (positive.wrong, positive.examples) == (2, ["1", "2"])
    assert negative.rate == pytest.approx(1 / 3)
    assert Judged(keeps_meaning=True).rate == 0.0
