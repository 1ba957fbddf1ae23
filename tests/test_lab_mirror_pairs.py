"""Training rows made of photos with boxes."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.mirror_pairs import NOT_APART, main, mirror_rows
from lab.own_boxes import BoxedPhoto, BoxedThing, named


def photo(name: str = "1.jpg", **boxes: tuple[float, float, float, float]) -> BoxedPhoto:
    things = tuple(BoxedThing(label.replace("_", " "), box) for label, box in boxes.items())
    return BoxedPhoto(name, 100 * 100, things)


BESIDE = {"cup": (0.0, 0.0, 20.0, 20.0), "scissors": (30.0, 0.0, 60.0, 20.0)}
STACKED = {"cup": (0.0, 0.0, 20.0, 20.0), "scissors": (0.0, 40.0, 20.0, 80.0)}
FIRST, SECOND = ("left", "above", "higher up", "top"), ("right", "below", "lower down", "bottom")
OPPOSITE = dict(zip(FIRST + SECOND, SECOND + FIRST))
SIDES = re.compile("|".join(OPPOSITE))


@pytest.mark.parametrize(("boxes", "wordings"), [(BESIDE, 10), (STACKED, 8)])
def test_every_wording_says_what_is_so(boxes: Any, wordings: int) -> None:
    """The side of the subject, the thing named first; the negative has the opposite side."""
    told = Counter()
    for seed in range(200):
        (row,) = mirror_rows([photo(**boxes)], {}, seed)
        assert row.get("mirror", False) is (boxes is BESIDE)
        text = row["caption"]
        assert row["neg_caption"] == SIDES.sub(lambda match: OPPOSITE[match[0]], text)
        first = SIDES.search(text)
        assert first is not None
        assert (first[0] in FIRST) == (text.index("a cup") < text.index("scissors"))
        told[text] += 1
    assert len(told) == wordings  # each with either subject
    assert min(told.values()) >= 5
    assert named("apple") == "an apple"


def test_what_people_wrote_is_behind_half_of_the_rows_unless_it_says_left_or_right() -> None:
    photos = [photo(f"{i}.jpg", **BESIDE) for i in range(300)]
    written = {each.image: ("A dog looks left.", "A busy desk.") for each in photos}
    rows = list(mirror_rows(photos, written, 0))
    having = [row for row in rows if row["caption"].endswith(". A busy desk.")]
    assert 110 < len(having) < 190
    assert all(row["neg_caption"].endswith(". A busy desk.") for row in having)
    assert not any("looks" in row["caption"] for row in rows)
    assert not any("desk" in row["caption"] for row in mirror_rows(photos, written, 0, human=0))
    only = {each.image: ("A rightward sign.", "Left-hand traffic") for each in photos}
    assert all("." not in row["caption"] for row in mirror_rows(photos, only, 0, human=1))


def test_photos_without_two_single_things_apart_are_counted() -> None:
    crowd = photo(**BESIDE)
    crowd = replace(crowd, things=(replace(crowd.things[0], crowd=True), crowd.things[1]))
    small = photo(cup=(0, 0, 5, 5), dog=(30, 0, 60, 20))
    twice = photo(**BESIDE)
    twice = replace(twice, things=(*twice.things, twice.things[0]))
    over = photo(cup=(0, 0, 50, 50), dog=(40, 40, 90, 90))
    left_out: Counter[str] = Counter()
    assert list(mirror_rows([crowd, small, twice, over], {}, 0, left_out=left_out)) == []
    assert left_out == {NOT_APART: 4}


def test_captions_and_held_out_photos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["COCO_train2014_000000000001.jpg", "COCO_train2014_000000000002.jpg"]
    boxes = [(1, [0, 0, 20, 20]), (2, [40, 0, 20, 20])]
    data = {
        "images": [
            {"id": i, "file_name": n, "width": 64, "height": 32} for i, n in enumerate(names)
        ],
        "categories": [{"id": 1, "name": "cup"}, {"id": 2, "name": "dog"}],
        "annotations": [
            {"image_id": i, "category_id": k, "bbox": box} for i in range(2) for k, box in boxes
        ],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(data))
    told = {**data, "annotations": [{"image_id": i, "caption": "A tidy room."} for i in range(2)]}
    captions = tmp_path / "captions.json"
    captions.write_text(json.dumps(told))
    held = tmp_path / "val2017"
    held.mkdir()
    (held / "000000000002.jpg").touch()
    out = tmp_path / "pairs.jsonl"
    asked = [str(path), f"--out={out}"]
    more = [f"--captions={captions}", "--human=1", "--without", str(held)]
    assert main([*asked, *more]) == 0
    said = capsys.readouterr()
    assert "1 left_right, 0 above_below" in said.out
    assert f"photo held out by {held}: 1" in said.err
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["image"] == names[0]
    assert row["caption"].endswith(". A tidy room.")
    assert main([*asked, "--without", str(tmp_path / "none.json")]) == 1
    path.write_text(json.dumps({**data, "annotations": []}))
    assert main(asked) == 1
    assert "no photo shows two single things apart" in capsys.readouterr().err
