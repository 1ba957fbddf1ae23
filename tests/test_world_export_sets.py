"""The world's COCO-Counterfactuals and its set with several classes an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import Benchmark, Classification, ImageRef, Retrieval, present
from compoclip.benchmarks.targets import parse_targets
from compoclip.evaluation.items import EncodedFeatures
from compoclip.evaluation.summary import summarise
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.export.suite import write_suite
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.scene import Scene, WorldConfig
from evaluation_helpers import score_items
from official import BUILDERS

ITEMS = 15
ORACLE = Oracle()


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Part], dict[str, Benchmark], dict[Path, Scene]]:
    root = tmp_path_factory.mktemp("world") / "suite"
    spec = SuiteSpec(WorldConfig(size=32), ITEMS)
    parts = write_suite(
        root, spec, benchmarks=("coco_counterfactuals", "tagging"), builders=BUILDERS
    )
    loaded = [target.load() for target in parse_targets([str(root)], Path("unused"))]
    scenes = {root / path: scene for part in parts for path, scene in part.images.items()}
    return {p.id: p for p in parts}, {b.name: b for b in loaded}, scenes


def true_of(text: str, ref: ImageRef, scenes: dict[Path, Scene]) -> bool:
    return ORACLE.verdict(text, scenes[ref.path]).truth is Truth.TRUE


def knowing(images: list[ImageRef], texts: list[str], scenes: dict[Path, Scene]) -> EncodedFeatures:
    """Features whose cosine is 1 for what the oracle calls true, else 0."""
    right = np.array([[true_of(text, ref, scenes) for text in texts] for ref in images])
    rows = right / np.maximum(1, np.linalg.norm(right, axis=1, keepdims=True))
    return EncodedFeatures(
        rows.astype(np.float32),
        {ref: k for k, ref in enumerate(images)},
        np.eye(len(texts), dtype=np.float32),
        {text: k for k, text in enumerate(texts)},
        {},
        frozenset(),
    )


def test_both_parts_load_with_all_items_and_images(made) -> None:
    parts, benchmarks, _ = made
    assert set(parts) == set(benchmarks)
    for name, benchmark in benchmarks.items():
        part = parts[name]
        assert benchmark.content.counts() == dict(part.items) == dict(benchmark.expected)
        assert present(benchmark) == (benchmark.content, ())
        assert set(part.about) == set(part.items)


def test_counterfactual_captions_fit_one_image_of_the_gallery(made) -> None:
    _, benchmarks, scenes = made
    content = benchmarks["world-retrieval-coco-cf"].content
    assert isinstance(content, Retrieval)
    assert len(content.images) == len(content.texts) == 2 * (ITEMS * 2 // 5)
    for image, text in content.pairs:
        fitting = [
            k for k, ref in enumerate(content.images) if true_of(content.texts[text], ref, scenes)
        ]
        assert fitting == [image]
    features = knowing(list(content.images), list(content.texts), scenes)
    scores = summarise(score_items(content, features), {}, resamples=50).scores
    assert scores["i2t"]["r1"].value == scores["t2i"]["r1"].value == 1


def test_kinds_are_what_is_shown_and_an_oracle_ranks_them_first(made) -> None:
    parts, benchmarks, scenes = made
    benchmark = benchmarks["world-zero-shot-things"]
    content = benchmark.content
    assert isinstance(content, Classification)
    assert benchmark.headline == content.metric == "map11"
    assert not content.labels
    for ref, tags in zip(content.images, content.tags):
        shown = {thing.kind for thing in scenes[ref.path].things}
        named = {content.classes[tag].split(" ", 1)[1] for tag in tags}
        assert named <= shown
        for k, prompts in enumerate(content.prompts):
            assert all(true_of(prompt, ref, scenes) is (k in tags) for prompt in prompts)
    texts = [text for prompts in content.prompts for text in prompts]
    features = knowing(list(content.images), texts, scenes)
    found = summarise(score_items(content, features), benchmark.aggregates, resamples=50)
    # a picture of one class has a higher share of probability than one of three: order may vary,
    # but no picture without the class comes before one with it
    assert found.aggregates["map11"].value == 1
    assert set(found.scores) == set(parts["world-zero-shot-things"].items)
