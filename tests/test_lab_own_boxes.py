"""Positions of custom boxes: mirrored photos, pairs, what the world says of each caption."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ImageOps

from benchmark_files import refuses, write_json
from build.tables import write_jsonl
from compoclip.benchmarks.case import Benchmark, Form, present
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.solvability import rules_of_thumb
from compoclip.data.decode import decode
from compoclip.errors import UsageError
from compoclip.evaluation.encoder import ImageReader
from compoclip.models.preprocess import Preprocess
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.sampling import draw_scene
from compoclip_world.scene import WorldConfig
from evaluation_helpers import FakeEncoder, results_of
from lab_helpers import box_of, coco

SPEC = str(Path(__file__).parents[1] / "lab" / "own_boxes.py")
ORANGE, PLATE = ("orange", [10, 50, 20, 20]), ("plate", [50, 10, 20, 20])


def boxed(
    *boxes: tuple[str, list[float]], image: str = "1.jpg", size: tuple[int, int] = (100, 100)
) -> dict[str, Any]:
    """A row of a photo: an orange to the left of and below a plate, if not these boxes."""
    listed = [{"label": label, "box": box} for label, box in boxes or (ORANGE, PLATE)]
    return {"image": image, "width": size[0], "height": size[1], "boxes": listed}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Benchmark]:
    """Reads rows as the benchmark, with options."""

    def load(*rows: Any, images: Path = tmp_path, **options: Any) -> Benchmark:
        path = write_jsonl(tmp_path / "own.jsonl", rows)
        return load_benchmark(SPEC, tmp_path, images, annotations=path, **options)

    return load


def test_items_of_boxes(read: Callable[..., Benchmark]) -> None:
    benchmark = read(boxed())
    kinds = [(case.id, case.form, case.subtask) for case in benchmark.content]
    assert kinds == [
        ("left_right/1.jpg/own", Form.CHOOSE_TEXT, "left_right"),
        ("left_right/1.jpg/other", Form.CHOOSE_TEXT, "left_right"),
        ("left_right/1.jpg", Form.GROUP, "left_right_pairs"),
        ("above_below/1.jpg/own", Form.CHOOSE_TEXT, "above_below"),
    ]
    own, other, pair, above = benchmark.content
    assert own.texts[0] in {"an orange to the left of a plate", "a plate to the right of an orange"}
    assert other.texts == own.texts[::-1]
    assert pair.images == (own.images[0], replace(own.images[0], mirror=True))
    assert above.texts[0] in {"a plate above an orange", "an orange below a plate"}
    assert own.labels["relation"] in own.texts[0]
    assert {rule.value for rule in rules_of_thumb(benchmark)} == {0.5}


@pytest.mark.parametrize(
    ("boxes", "axes"),
    [
        ([("b", [15, 0, 20, 20])], set()),  # overlap on both axes
        ([("b", [20, 0, 20, 20])], {"left_right"}),
        ([("b", [0, 20, 20, 20])], {"above_below"}),
        ([("b", [30, 0, 9, 11])], set()),  # less than 1 % of the photo
        ([("b", [30, 0, 20, 20]), ("b", [60, 0, 20, 20])], set()),  # two of b
        ([("a", [30, 0, 20, 20])], set()),
    ],
)
def test_two_single_things_apart_are_asked_about(
    read: Callable[..., Benchmark], boxes: Any, axes: set[str]
) -> None:
    benchmark = read(boxed(("a", [0, 0, 20, 20]), *boxes), boxed(image="2.jpg"))
    parts = {case.subtask for case in benchmark.content if case.images[0].path.name == "1.jpg"}
    assert parts - {"left_right_pairs"} == axes
    assert ("left_right_pairs" in parts) == ("left_right" in axes)
    for part in {"left_right", "above_below"} - axes:
        assert benchmark.left_out[f"photos without two single things apart for {part}"] == 1


def test_instances_of_coco(tmp_path: Path) -> None:
    path = tmp_path / "positions_own" / "boxes.json"
    write_json(path, coco())
    case = load_benchmark(SPEC, tmp_path).content[0]
    assert case.texts[0] in {"an umbrella to the left of skis", "skis to the right of an umbrella"}
    assert case.images[0].path == tmp_path / "positions_own" / "images" / "9.jpg"
    # Skis a second time, be it a crowd without an area.
    write_json(path, coco(box_of([60, 0, 0, 20], 2, iscrowd=1)))
    refuses("no photo shows two single things apart", str(path), SPEC, tmp_path)


def test_at_most_so_many_photos_by_the_seed(read: Callable[..., Benchmark]) -> None:
    rows = [boxed(image=f"{k}.jpg") for k in range(40)]
    first, again = (read(*rows, most=10) for _ in range(2))
    assert first == again
    assert first.content.counts() == {"left_right": 20, "left_right_pairs": 10, "above_below": 10}
    assert first.left_out["photos beyond the first 10 of left_right"] == 30
    both = {case.labels["relation"] for case in first.content if case.subtask == "above_below"}
    assert both == {"above", "below"}
    other = read(*rows, most=10, seed=7)
    assert other.content != first.content
    assert other.data_hash != first.data_hash
    with pytest.raises(UsageError, match="most must be at least 1"):
        read(*rows, most=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "needs categories, images, annotations"),
        ({}, "needs categories, images, annotations"),
        (coco(box_of([0, 0, 1, 1], image_id=8)), "annotations 2: no image 8 in the file"),
        (coco(box_of([0, 0, 1, 1], 3)), "annotations 2: no category 3 in the file"),
        (coco(box_of([0, 0, 1])), "expected .* found 3"),
        (coco(box_of([0, 0, -1, 1])), "a box of -1 x 1 pixels"),
        (coco(box_of([0, 0, "1", 1])), "must be a number"),
        (coco(images=[{"id": 9, "file_name": "9.jpg"}]), "no key 'width'"),
        (coco(images=[{"id": 9, "file_name": "9", "width": 0, "height": 1}]), "photo of 0 x 1"),
        (coco(categories=[{"id": 1, "name": "a"}] * 2), "categories 1: 'id': 1 occurs twice"),
    ],
)
def test_malformed_instances(tmp_path: Path, content: Any, message: str) -> None:
    path = write_json(tmp_path / "positions_own" / "boxes.json", content)
    refuses(message, str(path), SPEC, tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([boxed(), boxed()], "line 2: the same as .*line 1"),
        ([boxed(("", [0, 0, 1, 1]))], "box 0: 'label' is empty"),
        ([{**boxed(), "boxes": [{"label": "a"}]}], "box 0: no key 'box'"),
        ([boxed(image="../1.jpg")], "leads outside"),
        ([{**boxed(), "width": "100"}], "'width' must be a number"),
    ],
)
def test_malformed_lines(tmp_path: Path, rows: Any, message: str) -> None:
    path = write_jsonl(tmp_path / "own.jsonl", rows)
    refuses(message, str(path), SPEC, tmp_path, tmp_path, annotations=path)


def test_the_world_confirms_every_caption(read: Callable[..., Benchmark]) -> None:
    """Captions hold for their picture and not for the other, by scenes that are fully known."""
    drawn = {f"{k}.png": draw_scene(WorldConfig(), random.Random(k)) for k in range(90)}
    scenes = {name: scene for name, scene in drawn.items() if scene is not None}
    rows = []
    for name, scene in scenes.items():
        boxes = [
            (t.kind, [t.x - t.radius, t.y - t.radius, *[2 * t.radius] * 2]) for t in scene.things
        ]
        rows.append(boxed(*boxes, image=name, size=(1, 1)))
    oracle = Oracle()
    cases = [case for case in read(*rows).content if case.form is Form.CHOOSE_TEXT]
    assert len(cases) > 40
    for case in cases:
        (image,) = case.images
        scene = scenes[image.path.name]
        if image.mirror:
            scene = replace(scene, things=tuple(replace(t, x=1 - t.x) for t in scene.things))
        verdicts = tuple(oracle.verdict(text, scene).truth for text in case.texts)
        assert verdicts == (Truth.TRUE, Truth.FALSE), (case.id, case.texts)


def test_real_photos(shared_data: Path, tmp_path: Path, read: Callable[..., Benchmark]) -> None:
    """Photos of COCO val2017, mirrored: twice is the original, and the pair is scored."""
    photos = shared_data / "photos" / "sugarcrepe_coco" / "images"
    rows = []
    for path in sorted(photos.glob("*.jpg"))[:12]:
        image = decode(path)
        assert np.array_equal(ImageOps.mirror(ImageOps.mirror(image)), image)
        half = image.width / 2
        left, right = (
            ("left half", [0, 0, half, image.height]),
            ("right half", [half, 0, half, image.height]),
        )
        rows.append(boxed(left, right, image=path.name, size=image.size))
    benchmark = read(*rows, images=photos)
    assert benchmark.content.counts() == {"left_right": 24, "left_right_pairs": 12}
    assert present(benchmark)[1] == ()
    result = results_of(benchmark, tmp_path / "out", Seeing(), allow_partial=False)
    assert (result.headline, result.aggregates["accuracy"].n) == ("accuracy", 24)
    assert result.aggregates["group"].chance == pytest.approx(1 / 6)


class Seeing(FakeEncoder):
    """Features of the pixels that an evaluation reads."""

    def encode_images(self, images: Any) -> np.ndarray:
        read = ImageReader(Preprocess(size=(16, 16)))
        return np.stack([self._feature(read(image).tobytes().hex()) for image in images])
