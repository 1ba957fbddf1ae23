"""URLs, e-mail addresses and names of files in captions: one token each, which no rewrite edits."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from compoclip.captions.parser import parse
from compoclip.captions.types import addresses, word_spans
from compoclip.rewrites.base import Refused, get_rewrite
from compoclip.rewrites.base import rewrite_names as names
from compoclip.rewrites.cross_swap import cross_swap

FOUND = [
    ("a dog at www.red.com/dog?q=1&color=blue near a man", ["www.red.com/dog?q=1&color=blue"]),
    ("a red car photo_small_dog.jpg and a blue house", ["photo_small_dog.jpg"]),
    ("john.smith@dog-house.com with a white cat on a table", ["john.smith@dog-house.com"]),
    ("a man with a red bag (http://dogs.com/small_cat.png).", ["http://dogs.com/small_cat.png"]),
    ("see HTTPS://flickr.com/red_car/: a horse, a fence.", ["HTTPS://flickr.com/red_car/"]),
    ("cat.com?q=1 a girl in a pink dress on a bench", ["cat.com?q=1"]),
    (
        "two dogs images\\white_dog.PNG, ./a/red.car.tiff on grass",
        ["images\\white_dog.PNG", "./a/red.car.tiff"],
    ),
    ("the U.S. flag at 3.5 or 12:30...a dog.A man's cat and/or x", []),
    ("a cat sits.it is black @home e.g. a@b and file .jpg", []),
]


@pytest.mark.parametrize(("text", "found"), FOUND)
def test_addresses_are_one_token_and_no_node(text: str, found: list[str]) -> None:
    assert [text[start:end] for start, end in addresses(text)] == found
    caption = parse(text)
    assert [t.text for t in caption.tokens if t.text in found] == found
    assert all(t.pos == "SYM" for t in caption.tokens if t.text in found)
    assert caption.graph is not None
    nodes = " ".join(each.name for each in caption.graph.objects)
    assert not any(each.lower() in nodes.lower() for each in found)
    assert word_spans(text) == [(t.start, t.end) for t in caption.tokens]


def test_no_rewrite_edits_them() -> None:
    """What a rewrite gives holds an address as it was, or nothing of it."""
    captions = [(parse(text), found) for text, found in FOUND if found]
    made = 0
    for name in names():
        for caption, found in captions:
            for seed in range(6):
                result = get_rewrite(name)(caption, random.Random(seed))
                if not isinstance(result, Refused):
                    made += 1
                    assert_whole(result.text, found)
    for (first, a), (second, b) in pairwise(captions):
        pair = cross_swap(first, second, random.Random(0))
        for result in () if isinstance(pair, Refused) else pair:
            assert_whole(result.text, a + b)
    assert made > 300


def assert_whole(text: str, found: list[str]) -> None:
    for address in found:
        text = text.replace(address, "")
    assert not any(
        sign in text for sign in ("@", "?q", "www", "://", ".jpg", ".PNG", "_", "Http")
    ), text
