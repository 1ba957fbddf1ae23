"""Training rows made of photos with boxes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from build.tables import read_jsonl, write_json
from lab.mirror_pairs import NOT_APART, main, mirror_rows
from lab.own_boxes import Box, BoxedPhoto, BoxedThing, named
from lab_helpers import coco


def photo(name: str = "1.jpg", **boxes: Box) -> BoxedPhoto:
    return BoxedPhoto(name, 100 * 100, tuple(BoxedThing(*item) for item in boxes.items()))


BESIDE = {"cup": (0.0, 0.0, 20.0, 20.0), "scissors": (30.0, 0.0, 60.0, 20.0)}
STACKED = {"cup": (0.0, 0.0, 20.0, 20.0), "scissors": (0.0, 40.0, 20.0, 80.0)}
FIRST, SECOND = ("left", "above", "higher up", "top"), ("right", "below", "lower down", "bottom")
OPPOSITE = dict(zip(FIRST + SECOND, SECOND + FIRST))
SIDES = re.compile("|".join(OPPOSITE))


@pytest.mark.parametrize(("boxes", "wordings"), [(BESIDE, 10), (STACKED, 8)])
def test_every_wording_says_what_is_so(boxes: dict[str, Box], wordings: int) -> None:
    """The side of the subject, the thing named first; the negative has the opposite side."""
    counts = Counter()
    for seed in range(200):
        (row,) = mirror_rows([photo(**boxes)], {}, seed)
        assert row.get("mirror", False) is (boxes is BESIDE)
        text = row["caption"]
        assert row["neg_caption"] == SIDES.sub(lambda match: OPPOSITE[match[0]], text)
        first = SIDES.search(text)
        assert first is not None
        assert (first[0] in FIRST) == (text.index("a cup") < text.index("scissors"))
        counts[text] += 1
    assert len(counts) == wordings  # each with either subject
    assert min(counts.values()) >= 5
    assert named("apple") == "an apple"


def test_what_people_wrote_is_behind_half_of_the_rows_unless_it_says_left_or_right() -> None:
    photos = [photo(f"{i}.jpg", **BESIDE) for i in range(300)]
    captions = {photo.image: ("A dog looks left.", "A busy desk.") for photo in photos}
    rows = list(mirror_rows(photos, captions, 0))
    longer = [row for row in rows if row["caption"].endswith(". A busy desk.")]
    assert 110 < len(longer) < 190
    assert all(row["neg_caption"].endswith(". A busy desk.") for row in longer)
    assert not any("looks" in row["caption"] for row in rows)
    assert not any("desk" in row["caption"] for row in mirror_rows(photos, captions, 0, human=0))
    sided = {photo.image: ("A rightward sign.", "Left-hand traffic") for photo in photos}
    assert all("." not in row["caption"] for row in mirror_rows(photos, sided, 0, human=1))


def test_photos_without_two_single_things_apart_are_counted() -> None:
    cup, scissors = photo(**BESIDE).things
    photos = [
        replace(photo(), things=(replace(cup, crowd=True), scissors)),
        photo(cup=(0, 0, 5, 5), dog=(30, 0, 60, 20)),  # too small
        replace(photo(), things=(cup, scissors, cup)),
        photo(cup=(0, 0, 50, 50), dog=(40, 40, 90, 90)),  # overlapping
    ]
    left_out: Counter[str] = Counter()
    assert list(mirror_rows(photos, {}, 0, left_out=left_out)) == []
    assert left_out == {NOT_APART: 4}


def test_captions_and_held_out_photos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["COCO_train2014_000000000001.jpg", "COCO_train2014_000000000002.jpg"]
    images = [{"id": 9 + i, "file_name": n, "width": 64, "height": 32} for i, n in enumerate(names)]
    beside = coco()["annotations"]
    data = coco(*({**row, "image_id": 10} for row in beside), images=images)
    path = write_json(tmp_path / "instances.json", data)
    told = [{"image_id": image["id"], "caption": "A tidy room."} for image in images]
    captions = write_json(tmp_path / "captions.json", {**data, "annotations": told})
    held_out = tmp_path / "val2017"
    held_out.mkdir()
    (held_out / "000000000002.jpg").touch()
    out = tmp_path / "pairs.jsonl"
    words = [str(path), f"--out={out}"]
    with_captions = [f"--captions={captions}", "--human=1"]
    assert main([*words, *with_captions, "--without", str(held_out)]) == 0
    printed = capsys.readouterr()
    assert "1 left_right, 0 above_below" in printed.out
    assert f"photo held out by {held_out}: 1" in printed.err
    (row,) = read_jsonl(out)
    assert row["image"] == names[0]
    assert row["caption"].endswith(". A tidy room.")
    assert main([*words, "--without", str(tmp_path / "none.json")]) == 1
    write_json(path, {**data, "annotations": []})
    assert main(words) == 1
    assert "no photo shows two single things apart" in capsys.readouterr().err
