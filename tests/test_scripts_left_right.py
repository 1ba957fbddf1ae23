"""The study of left and right: what it asks, and the matrix that it fits."""

from __future__ import annotations

import json
from pathlib import Path

import measure_left_right
import pytest
import torch

from compoclip.errors import CompoclipError
from compoclip_world.dataset import read_world_config
from compoclip_world.vocabulary import KINDS

WORLD = Path(__file__).parents[1] / "recipes" / "base" / "world.json"


def test_captions_tell_which_thing_is_on_the_left() -> None:
    config = read_world_config(WORLD)
    pairs: dict[bool, set[frozenset[str]]] = {}
    for held in (False, True):
        rows = measure_left_right.told(config, 0, "val", 40, held)
        assert len(rows) == 40
        for each in rows:
            left, right = sorted(each.scene.things, key=lambda thing: thing.x)
            assert each.left == list(KINDS).index(left.kind)
            first = left if " left of " in each.right else right
            assert each.right.split()[1] == first.kind.split()[0]
            assert sorted(each.right.split()) == sorted(each.wrong.split()) or "an " in each.right
            pairs.setdefault(held, set()).add(frozenset((left.kind, right.kind)))
    assert pairs[True].isdisjoint(pairs[False])


def test_lessons_tell_nothing_of_the_pairs_that_are_asked_about(tmp_path: Path) -> None:
    # Of the numbers of the kinds 1 + 3 is no multiple of 5, 1 + 4 is one.
    kinds = list(KINDS)
    told, held = f"a {kinds[1]} left of a {kinds[3]}", f"a {kinds[1]} left of a {kinds[4]}"
    rows = [json.dumps({"caption": text, "neg_caption": "x"}) + "\n" for text in (told, held, told)]
    (tmp_path / "pairs.jsonl").write_text("".join(rows))
    assert measure_left_right.write_lessons(tmp_path) == (2, 1)
    assert (tmp_path / "lessons.jsonl").read_text() == rows[0] + rows[2]
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"caption": f"a {kinds[1]}"}))
    with pytest.raises(CompoclipError, match=f"not of two kinds: 'a {kinds[1]}'"):
        measure_left_right.write_lessons(tmp_path)


def test_the_matrix_finds_what_a_turn_of_the_texts_would_show() -> None:
    draw = torch.Generator().manual_seed(0)
    image = torch.nn.functional.normalize(torch.randn(600, 8, generator=draw), dim=1)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=draw))[0]
    difference = image @ turn + 0.1 * torch.randn(600, 8, generator=draw)
    matrix = measure_left_right._matrix(image[:400], difference[:400])
    above = (image[400:] * (difference[400:] @ matrix)).sum(1) > 0
    assert above.float().mean() > 0.95
    untouched = (image[400:] * difference[400:]).sum(1) > 0
    assert untouched.float().mean() < 0.8
