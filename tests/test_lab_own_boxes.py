"""Positions of own boxes: mirrored photos, pairs, what the world says of each caption."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ImageOps

from benchmark_files import expect_one_line, write_json
from compoclip.benchmarks.case import Form, present
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.solvability import rules_of_thumb
from compoclip.data.decode import decode
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ImageReader
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.preprocess import Preprocess
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.sampling import draw_scene
from compoclip_world.scene import Scene, WorldConfig
from evaluation_helpers import FakeEncoder

SPEC = str(Path(__file__).parents[1] / "lab" / "own_boxes.py")


def boxed(image: str = "1.jpg", **changes: Any) -> dict[str, Any]:
    boxes = {"orange": [10, 50, 20, 20], "plate": [50, 10, 20, 20]}
    listed = [{"label": label, "box": box} for label, box in boxes.items()]
    return {"image": image, "width": 100, "height": 100, "boxes": listed, **changes}


def write_lines(root: Path, rows: list[Any]) -> Path:
    path = root / "own.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    return path


def test_items_of_boxes(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [boxed()])
    found = load_benchmark(SPEC, tmp_path, tmp_path, annotations=path)
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
    found = load_benchmark(SPEC, tmp_path, tmp_path, annotations=path)
    of_first = {case.subtask for case in found.content if case.images[0].path.name == "1.jpg"}
    assert {name for name in of_first if not name.endswith("_pairs")} == kept
    for part in {"left_right", "above_below"} - kept:
        assert found.left_out[f"photos without two single things apart for {part}"] == 1


def inside(box: list[Any], category: int = 1, **more: Any) -> dict[str, Any]:
    return {"image_id": 9, "category_id": category, "bbox": box, "iscrowd": 0, **more}


def coco(*annotations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = {
        "images": [{"id": 9, "file_name": "9.jpg", "width": 100, "height": 100}],
        "categories": [{"id": 1, "name": "umbrella"}, {"id": 2, "name": "skis"}],
        "annotations": [inside([0, 0, 20, 20]), inside([30.5, 0, 20, 20], 2), *annotations],
    }
    return {**made, **changes}


def test_cocos_instances(tmp_path: Path) -> None:
    path = tmp_path / "positions_own" / "boxes.json"
    write_json(path, coco())
    found = load_benchmark(SPEC, tmp_path)
    texts = {"an umbrella to the left of skis", "skis to the right of an umbrella"}
    assert found.content[0].texts[0] in texts
    assert found.content[0].images[0].path == tmp_path / "positions_own" / "images" / "9.jpg"
    write_json(
        path, coco(inside([60, 0, 0, 20], 2, iscrowd=1))
    )  # a second one of that category, be it a crowd without an area
    with pytest.raises(CompoclipError, match="no photo shows two single things apart"):
        load_benchmark(SPEC, tmp_path)


def test_at_most_so_many_photos_by_the_seed(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [boxed(f"{k}.jpg") for k in range(40)])
    options: dict[str, Any] = {"annotations": path, "most": 10}
    first, again = (load_benchmark(SPEC, tmp_path, tmp_path, **options) for _ in range(2))
    assert first == again
    assert first.content.counts() == {
        "left_right": 20,
        "left_right_pairs": 10,
        "above_below": 10,
    }
    assert first.left_out["photos beyond the first 10 of left_right"] == 30
    both = {case.labels["relation"] for case in first.content if case.subtask == "above_below"}
    assert both == {"above", "below"}
    other = load_benchmark(SPEC, tmp_path, tmp_path, seed=7, **options)
    assert other.content != first.content
    assert other.data_hash != first.data_hash
    with pytest.raises(UsageError, match="most must be at least 1"):
        load_benchmark(SPEC, tmp_path, annotations=path, most=0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "needs categories, images, annotations"),
        ({}, "needs categories, images, annotations"),
        (coco(inside([0, 0, 1, 1], image_id=8)), "annotations 2: no image 8 in the file"),
        (coco(inside([0, 0, 1, 1], 3)), "annotations 2: no category 3 in the file"),
        (coco(inside([0, 0, 1])), "expected .* found 3"),
        (coco(inside([0, 0, -1, 1])), "a box of -1 x 1 pixels"),
        (coco(inside([0, 0, "1", 1])), "must be a number"),
        (coco(images=[{"id": 9, "file_name": "9.jpg"}]), "no key 'width'"),
        (coco(images=[{"id": 9, "file_name": "9", "width": 0, "height": 1}]), "photo of 0 x 1"),
        (coco(categories=[{"id": 1, "name": "a"}] * 2), "categories 1: 'id': 1 occurs twice"),
    ],
)
def test_malformed_instances(tmp_path: Path, value: Any, message: str) -> None:
    path = write_json(tmp_path / "positions_own" / "boxes.json", value)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark(SPEC, tmp_path)
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
        load_benchmark(SPEC, tmp_path, tmp_path, annotations=path)
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
    found = load_benchmark(SPEC, tmp_path, tmp_path, annotations=path)
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
    found = load_benchmark(SPEC, tmp_path, photos, annotations=lines)
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
