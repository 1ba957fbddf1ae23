"""Flickr30k-Positions and positions of own boxes: mirrored photos, pairs, what the world says."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from benchmark_files import expect_one_line, write_json
from compoclip.archives import Members
from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy, image_key, present
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.solvability import rules_of_thumb
from compoclip.data.decode import decode
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encode import image_content_key
from compoclip.evaluation.encoder import ImageReader
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.preprocess import Preprocess
from compoclip.report.looks import Album
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.sampling import draw_scene
from compoclip_world.scene import Scene, WorldConfig
from evaluation_helpers import FakeEncoder, features_from, score_items

OWN = "a dog is to the left of a man"
OTHER = "a dog is to the right of a man"


def write_official(root: Path, name: str, rows: list[tuple[str, ...]], columns: Any = None) -> Path:
    path = root / "flickr30k_positions" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    head = columns or ("", "captions", "images", "neg_captions", "neg_images")
    lines = ["\t".join(map(str, line)) for line in [head, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_flickr30k_positions(tmp_path: Path) -> None:
    row = ("0", OWN, "flickr30k-images/7.jpg", OTHER, "flipped/7.jpg")
    write_official(tmp_path, "test_left_right_.csv", [row])
    with pytest.raises(CompoclipError, match=r"up_down_.csv: no such file; .*left_right\*"):
        load_benchmark("flickr30k_positions", tmp_path)
    up = ("0", "a cup above a hat", "x/8.jpg", "a cup below a hat", "y/8_made.png")
    write_official(tmp_path, "test_up_down_.csv", [up])
    found = load_benchmark("flickr30k_positions", tmp_path)
    photo = ImageRef(tmp_path / "flickr30k" / "images" / "7.jpg")
    mirrored = replace(photo, mirror=True)
    assert found.content[:3] == (
        Case("left_right/1/own", Form.CHOOSE_TEXT, (photo,), (OWN, OTHER), "left_right"),
        Case("left_right/1/other", Form.CHOOSE_TEXT, (mirrored,), (OTHER, OWN), "left_right"),
        Case("left_right/1", Form.GROUP, (photo, mirrored), (OWN, OTHER), "left_right_pairs"),
    )
    made = tmp_path / "flickr30k_positions" / "up_down" / "8_made.png"
    assert found.content[4].images == (ImageRef(made),)
    assert (found.headline, found.ties) == ("accuracy", {"": TiePolicy.STRICT})
    assert found.aggregates["accuracy"].subtasks() == {"left_right", "up_down"}
    assert found.aggregates["micro"].subtasks() == {"left_right", "up_down"}
    assert found.aggregates["group"].subtasks() == {"left_right_pairs", "up_down_pairs"}
    part = load_benchmark("flickr30k_positions:left_right_pairs", tmp_path)
    assert [case.form for case in part.content] == [Form.GROUP]
    assert set(meta("flickr30k_positions").skills) == {"left_right", "up_down"}


def test_the_official_accuracy_by_hand(tmp_path: Path) -> None:
    """The mean over both pictures of "its own caption beats the other"; and Winoground's scores."""
    row = ("0", OWN, "7.jpg", OTHER, "7.jpg")
    write_official(tmp_path, "test_left_right_.csv", [row])
    found = load_benchmark("flickr30k_positions:left_right*", tmp_path)
    refs = list(dict.fromkeys(found.content.images))

    def got(table: list[list[float]]) -> dict[str, float]:
        scores = {str(k): dict(zip((OWN, OTHER), line)) for k, line in enumerate(table)}
        features = features_from(scores)
        features = replace(features, image_rows={ref: k for k, ref in enumerate(refs)})
        items = score_items(found.content, features, ties=found.ties)
        return {name: float(np.nanmean(each.used)) for name, each in items.outcomes.items()}

    # One caption wins for both pictures, as with an encoder that does not see places.
    assert got([[0.5, 0.4], [0.5, 0.4]]) == {"accuracy": 0.5, "group": 0, "text": 0, "image": 0}
    assert got([[0.5, 0.4], [0.3, 0.6]]) == {"accuracy": 1, "group": 1, "text": 1, "image": 1}
    assert got([[0.5, 0.5], [0.3, 0.6]]) == {"accuracy": 0.5, "group": 0, "text": 0, "image": 1}


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([("0", OWN, "7.jpg", "", "7.jpg")], None, "row 1: 'neg_captions' is empty"),
        ([("0", OWN, "..", OTHER, "7.jpg")], None, "leads outside"),
        ([("0", OWN, "7.jpg")], None, "line 2 has 3 cells, the header has 5"),
        ([("0", OWN)], ("", "captions"), "no column 'images'"),
        ([], None, "no rows of left_right"),
    ],
)
def test_malformed_official_files(tmp_path: Path, rows: Any, columns: Any, message: str) -> None:
    path = write_official(tmp_path, "test_left_right_.csv", rows, columns)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("flickr30k_positions:left_right", tmp_path)
    expect_one_line(caught.value, str(path))


# --- Mirrored photos. ---


def test_a_mirrored_photo_is_the_photo_mirrored(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, size=(20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels[:, ::-1]).save(tmp_path / "b.png")
    ref = ImageRef(tmp_path / "a.png")
    read = ImageReader(Preprocess(size=(16, 16)))
    mirrored, by_hand = read(replace(ref, mirror=True)), read(ImageRef(tmp_path / "b.png"))
    assert np.array_equal(mirrored, by_hand)
    assert not np.array_equal(mirrored, read(ref))
    # boxes are those of the photo as it is stored
    box = (1.0, 2.0, 11.0, 12.0)
    cut = read(ImageRef(tmp_path / "a.png", box, mirror=True))
    assert np.array_equal(cut, read(ImageRef(tmp_path / "b.png", (19.0, 2.0, 29.0, 12.0))))
    members = Members()
    keys = {image_content_key(each, members) for each in (ref, replace(ref, mirror=True))}
    assert len(keys) == 2
    key = image_key(replace(ref, box=box, mirror=True))
    assert key == f"{tmp_path / 'a.png'}#1,2,11,12#mirrored"
    shown = Album().photo(key)
    assert shown is not None
    assert np.array_equal(np.asarray(shown), pixels[2:12, 1:11][:, ::-1])
    assert Album().photo(f"{tmp_path / 'none.png'}#mirrored") is None


# --- Boxes of one's own. ---


def boxed(image: str = "1.jpg", **changes: Any) -> dict[str, Any]:
    boxes = [
        {"label": "orange", "box": [10, 50, 20, 20]},
        {"label": "plate", "box": [50, 10, 20, 20]},
    ]
    return {"image": image, "width": 100, "height": 100, "boxes": boxes, **changes}


def write_lines(root: Path, rows: list[Any]) -> Path:
    path = root / "own.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    return path


def test_items_of_boxes(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [boxed()])
    found = load_benchmark("positions_own", tmp_path, tmp_path, annotations=path)
    kinds = [(case.id, case.form, case.subtask) for case in found.content]
    assert kinds == [
        ("left_right/1.jpg/own", Form.CHOOSE_TEXT, "left_right"),
        ("left_right/1.jpg/other", Form.CHOOSE_TEXT, "left_right"),
        ("left_right/1.jpg", Form.GROUP, "left_right_pairs"),
        ("above_below/1.jpg/own", Form.CHOOSE_TEXT, "above_below"),
    ]
    own, other, pair, above = found.content
    true = {"an orange to the left of a plate", "a plate to the right of an orange"}
    assert own.texts[0] in true
    assert other.texts == own.texts[::-1]
    assert pair.images == (own.images[0], replace(own.images[0], mirror=True))
    assert above.texts[0] in {"a plate above an orange", "an orange below a plate"}
    assert own.labels["relation"] in own.texts[0]
    assert {rule.value for rule in rules_of_thumb(found)} == {0.5}


@pytest.mark.parametrize(
    ("boxes", "kept"),
    [
        ([("a", 0, 0, 20, 20), ("b", 15, 0, 20, 20)], set()),  # overlap on both axes
        ([("a", 0, 0, 20, 20), ("b", 20, 0, 20, 20)], {"left_right"}),
        ([("a", 0, 0, 20, 20), ("b", 0, 20, 20, 20)], {"above_below"}),
        ([("a", 0, 0, 20, 20), ("b", 30, 0, 9, 11)], set()),  # less than 1 % of the photo
        ([("a", 0, 0, 20, 20), ("b", 30, 0, 20, 20), ("b", 60, 0, 20, 20)], set()),  # two of b
        ([("a", 0, 0, 20, 20), ("a", 30, 0, 20, 20)], set()),
    ],
)
def test_which_things_are_asked_about(tmp_path: Path, boxes: Any, kept: set[str]) -> None:
    things = [{"label": label, "box": box} for label, *box in boxes]
    path = write_lines(tmp_path, [boxed(boxes=things), boxed("2.jpg")])
    found = load_benchmark("positions_own", tmp_path, tmp_path, annotations=path)
    of_first = {case.subtask for case in found.content if case.images[0].path.name == "1.jpg"}
    assert {name for name in of_first if not name.endswith("_pairs")} == kept
    for part in {"left_right", "above_below"} - kept:
        assert found.left_out[f"photos without two single things apart for {part}"] == 1


def coco(*annotations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = {
        "images": [{"id": 9, "file_name": "9.jpg", "width": 100, "height": 100}],
        "categories": [{"id": 1, "name": "umbrella"}, {"id": 2, "name": "skis"}],
        "annotations": [
            {"id": 1, "image_id": 9, "category_id": 1, "bbox": [0, 0, 20, 20], "iscrowd": 0},
            {"id": 2, "image_id": 9, "category_id": 2, "bbox": [30.5, 0, 20, 20], "iscrowd": 0},
            *annotations,
        ],
    }
    return {**made, **changes}


def test_cocos_instances(tmp_path: Path) -> None:
    path = tmp_path / "positions_own" / "boxes.json"
    write_json(path, coco())
    found = load_benchmark("positions_own", tmp_path)
    texts = {"an umbrella to the left of skis", "skis to the right of an umbrella"}
    assert found.content[0].texts[0] in texts
    assert found.content[0].images[0].path == tmp_path / "positions_own" / "images" / "9.jpg"
    more = {"id": 3, "image_id": 9, "category_id": 2, "bbox": [60, 0, 0, 20], "iscrowd": 1}
    write_json(path, coco(more))  # a second one of that category, be it a crowd without an area
    with pytest.raises(CompoclipError, match="no photo shows two single things apart"):
        load_benchmark("positions_own", tmp_path)


def test_at_most_so_many_photos_by_the_seed(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [boxed(f"{k}.jpg") for k in range(40)])
    options: dict[str, Any] = {"annotations": path, "most": 10}
    first, again = (
        load_benchmark("positions_own", tmp_path, tmp_path, **options) for _ in range(2)
    )
    assert first == again
    assert first.content.counts() == {
        "left_right": 20,
        "left_right_pairs": 10,
        "above_below": 10,
    }
    assert first.left_out["photos beyond the first 10 of left_right"] == 30
    both = {case.labels["relation"] for case in first.content if case.subtask == "above_below"}
    assert both == {"above", "below"}
    other = load_benchmark("positions_own", tmp_path, tmp_path, seed=7, **options)
    assert other.content != first.content
    assert other.data_hash != first.data_hash
    with pytest.raises(UsageError, match="most must be at least 1"):
        load_benchmark("positions_own", tmp_path, annotations=path, most=0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected a JSON object, found a list"),
        ({}, "no key 'categories'"),
        (
            coco({"image_id": 8, "category_id": 1, "bbox": [0, 0, 1, 1]}),
            "annotation 2: of no image",
        ),
        (coco({"image_id": 9, "category_id": 3, "bbox": [0, 0, 1, 1]}), "category 3 is not listed"),
        (coco({"image_id": 9, "category_id": 1, "bbox": [0, 0, 1]}), "expected .* found 3"),
        (coco({"image_id": 9, "category_id": 1, "bbox": [0, 0, -1, 1]}), "a box -1 x 1 pixels"),
        (coco({"image_id": 9, "category_id": 1, "bbox": [0, 0, "1", 1]}), "must be a number"),
        (coco(images=[{"id": 9, "file_name": "9.jpg"}]), "no key 'width'"),
        (coco(images=[{"id": 9, "file_name": "9", "width": 0, "height": 1}]), "photo of 0 x 1"),
        (coco(categories=[{"id": 1, "name": "a"}] * 2), "categories 1: 'id' 1 occurs twice"),
    ],
)
def test_malformed_instances(tmp_path: Path, value: Any, message: str) -> None:
    path = write_json(tmp_path / "positions_own" / "boxes.json", value)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("positions_own", tmp_path)
    expect_one_line(caught.value, str(path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([boxed(), boxed()], "line 2: the same as .*line 1"),
        ([boxed(boxes=[{"label": "", "box": [0, 0, 1, 1]}])], "box 0: 'label' is empty"),
        ([boxed(boxes=[{"label": "a"}])], "box 0: no key 'box'"),
        ([boxed(image="../1.jpg")], "leads outside"),
        ([boxed(width="100")], "'width' must be a number"),
    ],
)
def test_malformed_lines(tmp_path: Path, rows: Any, message: str) -> None:
    path = write_lines(tmp_path, rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark("positions_own", tmp_path, tmp_path, annotations=path)
    expect_one_line(caught.value, str(path))


def test_the_world_confirms_every_caption(tmp_path: Path) -> None:
    """Captions hold for their picture and not for the other, by scenes that are fully known."""
    scenes = {f"{k}.png": draw_scene(WorldConfig(), random.Random(k)) for k in range(90)}
    known = {name: scene for name, scene in scenes.items() if scene is not None}
    rows = [
        {
            "image": name,
            "width": 1,
            "height": 1,
            "boxes": [
                {"label": t.kind, "box": [t.x - t.radius, t.y - t.radius, *[2 * t.radius] * 2]}
                for t in scene.things
            ],
        }
        for name, scene in known.items()
    ]
    path = write_lines(tmp_path, rows)
    found = load_benchmark("positions_own", tmp_path, tmp_path, annotations=path)
    oracle = Oracle()
    asked = [case for case in found.content if case.form is Form.CHOOSE_TEXT]
    assert len(asked) > 40
    for case in asked:
        (image,) = case.images
        scene = known[image.path.name]
        if image.mirror:
            scene = mirrored(scene)
        told = tuple(oracle.verdict(text, scene).truth for text in case.texts)
        assert told == (Truth.TRUE, Truth.FALSE), (case.id, case.texts)


def mirrored(scene: Scene) -> Scene:
    return replace(scene, things=tuple(replace(each, x=1 - each.x) for each in scene.things))


def test_real_photos(shared_data: Path, tmp_path: Path) -> None:
    """Photos of COCO val2017, mirrored: twice is the original, and the pair is scored."""
    photos = shared_data / "photos" / "sugarcrepe_coco" / "images"
    rows = []
    for path in sorted(photos.glob("*.jpg"))[:12]:
        image = decode(path)
        assert np.array_equal(ImageOps.mirror(ImageOps.mirror(image)), image)
        left = {"label": "left half", "box": [0, 0, image.width / 2, image.height]}
        right = {"label": "right half", "box": [image.width / 2, 0, image.width / 2, image.height]}
        rows.append(boxed(path.name, width=image.width, height=image.height, boxes=[left, right]))
    lines = write_lines(tmp_path, rows)
    found = load_benchmark("positions_own", tmp_path, photos, annotations=lines)
    assert found.content.counts() == {"left_right": 24, "left_right_pairs": 12}
    assert present(found)[1] == ()
    (result,) = evaluate("m", Seeing(), [found], tmp_path / "out", Options(resamples=20))
    assert (result.headline, result.aggregates["accuracy"].n) == ("accuracy", 24)
    assert result.aggregates["group"].chance == pytest.approx(1 / 6)


class Seeing(FakeEncoder):
    """Features of the pixels that an evaluation reads."""

    def encode_images(self, images: Any) -> np.ndarray:
        read = ImageReader(Preprocess(size=(16, 16)))
        return np.stack([self._feature(read(each).tobytes().hex()) for each in images])
