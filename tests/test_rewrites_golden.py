"""Parses and rewrites of real captions stay what they are until their version is raised.

A digest that differs means other texts for the same caption and seed: raise the version of what
changed, on purpose, and write down its new digest (the failure shows it).
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from compoclip.captions.parse import PARSER_VERSION, parse
from compoclip.captions.store import decode, encode
from compoclip.captions.types import Caption
from compoclip.rewrites.base import get_rewrite, rewrite_names, rng_for

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
DIGESTS = {
    "parser 4": "e094ae21535edd47",
    "and-swap 2": "913341751a44eb3e",
    "bigram-shuffle 2": "b36a93ae9d8b9cca",
    "ce-adj 2": "19557ac241de92f6",
    "ce-noun 2": "3fb1b54ef2fcccaa",
    "ce-swap 2": "4a7c272f2f9b262e",
    "ce-verb 2": "d98e531f886cf51f",
    "crepe-atom 2": "f99280fb43f0a0c9",
    "crepe-negate 2": "702c07c6c1516c48",
    "crepe-swap 2": "7ddd3fd75ead3c2a",
    "graph-attr 2": "42c546c859ac7382",
    "graph-obj 2": "8bee4896bcc2c4b0",
    "graph-positive 2": "ef56f4c2b38036fd",
    "graph-rel 2": "af3e6dfa71354124",
    "negclip 2": "7a5287ea1a33f2b8",
    "replace 2": "7a209c851f8779e2",
    "synonym 2": "ca8204eb84e75f7c",
    "synonym-strict 2": "a68e37f71420b5d1",
    "tsvlc-rb 2": "806f281d7aab004f",
    "tsvlc-rb-released 2": "e6f7e7390b7f457f",
    "tsvlc-rb-spatial 2": "4162121365384304",
}


@pytest.fixture(scope="module")
def captions(shared_data: Path) -> list[Caption]:
    path = shared_data / "annotations" / "negclip" / "valid_neg_clip.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row["title"].strip() for row in csv.DictReader(file, delimiter="\t")]
    return [parse(text) for text in (*rows[::12], *ODD)]


def digest(results: Iterable[str]) -> str:
    text = "\n".join(results).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def test_parses(captions: list[Caption]) -> None:
    records = [encode(caption) for caption in captions]
    assert {f"parser {PARSER_VERSION}": digest(records)}.items() <= DIGESTS.items()
    assert [decode(c.text, record) for c, record in zip(captions, records)] == captions


@pytest.mark.parametrize("name", rewrite_names())
def test_rewrites(name: str, captions: list[Caption]) -> None:
    rewrite = get_rewrite(name)
    made = [repr(rewrite(c, rng_for(0, str(i), 0, name))) for i, c in enumerate(captions)]
    assert {f"{name} {rewrite.version}": digest(made)}.items() <= DIGESTS.items()


def test_rewrites_of_one_caption_do_not_depend_on_those_before(captions: list[Caption]) -> None:
    few = captions[:40]
    for name in ("negclip", "replace", "crepe-swap", "bigram-shuffle", "ce-noun"):
        rewrite = get_rewrite(name)

        def draw(caption: Caption, rewrite=rewrite, name=name) -> str:  # type: ignore[no-untyped-def]
            return repr(rewrite(caption, rng_for(3, "x", 0, name)))

        alone = [draw(caption) for caption in few]
        mixed = []
        for caption in few:
            for other in ("crepe-swap", "negclip", "replace", "tsvlc-rb", "synonym"):
                get_rewrite(other)(caption, rng_for(5, "y", 0, other))
            mixed.append(draw(caption))
        assert alone == mixed == [draw(caption) for caption in reversed(few)][::-1]
