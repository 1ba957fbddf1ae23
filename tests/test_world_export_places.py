"""The world's What'sUp, SPEC, ColorSwap, BiVLC, MMVP-VLM, COLA and VSR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import Benchmark, Case, Form, ImageRef, TiePolicy, present
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import parse_targets
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.export.suite import write_suite
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.sampling import held_out_in
from compoclip_world.scene import Scene, WorldConfig
from evaluation_helpers import FakeEncoder
from official import BUILDERS

NAMES = ("bivlc", "cola", "colorswap", "mmvp_vlm", "spec", "vsr", "whatsup")
ITEMS = 8
CONFIG = WorldConfig(size=32)
ORACLE = Oracle()


class Made:
    def __init__(self, root: Path) -> None:
        made = write_suite(root, SuiteSpec(CONFIG, ITEMS), benchmarks=NAMES, builders=BUILDERS)
        self.root = root
        self.parts: dict[str, Part] = {part.spec: part for part in made}
        self.scenes: dict[Path, Scene] = {
            root / path: scene for part in made for path, scene in part.images.items()
        }
        loaded = [target.load() for target in parse_targets([str(root)], Path("unused"))]
        self.benchmarks: dict[str, Benchmark] = {
            name: next(b for b in loaded if b.name == self.parts[name].id) for name in NAMES
        }

    def cases(self, name: str) -> tuple[Case, ...]:
        content = self.benchmarks[name].content
        assert isinstance(content, tuple)
        return content


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("world") / "suite")


class OracleEncoder(FakeEncoder):
    """s(image, text) is one value above 0 where the oracle says TRUE, else 0."""

    def __init__(self, made: Made) -> None:
        super().__init__("oracle")
        self.scenes = made.scenes
        self.place = {path: k for k, path in enumerate(made.scenes)}
        self.asked: dict[str, set[Path]] = {}
        for case in (case for name in NAMES for case in made.cases(name)):
            for text in case.texts:
                self.asked.setdefault(text, set()).update(ref.path for ref in case.images)

    def encode_images(self, images: Sequence[ImageRef]) -> np.ndarray:
        rows = [self.place[ref.path] for ref in images]
        return np.eye(len(self.scenes) + 1, dtype=np.float32)[rows]

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        out = np.zeros((len(texts), len(self.scenes) + 1), dtype=np.float32)
        for row, text in zip(out, texts):
            for path in self.asked[text]:
                truth = ORACLE.verdict(text, self.scenes[path]).truth
                row[self.place[path]] = truth is Truth.TRUE
            row[-1] = np.sqrt(len(self.scenes) + 1 - row.sum())  # all texts get the same length
        return out / np.linalg.norm(out, axis=1, keepdims=True)


class ConstantEncoder(FakeEncoder):
    def encode_images(self, images: Sequence[ImageRef]) -> np.ndarray:
        return np.tile(np.eye(self.width, dtype=np.float32)[0], (len(images), 1))

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return np.tile(np.eye(self.width, dtype=np.float32)[0], (len(texts), 1))


def measured(made: Made, encoder: FakeEncoder, out: Path) -> dict[str, Results]:
    found = evaluate("m", encoder, list(made.benchmarks.values()), out, Options(resamples=20))
    return dict(zip(made.benchmarks, found))


@pytest.mark.parametrize("name", NAMES)
def test_the_official_reader_finds_all_items_and_images(made: Made, name: str) -> None:
    benchmark, part = made.benchmarks[name], made.parts[name]
    assert benchmark.content.counts() == dict(part.items) == dict(benchmark.expected)
    assert present(benchmark) == (benchmark.content, ())
    assert set(part.about) == set(part.items)
    assert set(benchmark.skills) <= set(meta(name).skills)
    default = load_benchmark(name, made.root)
    assert default.name == f"{name}@world"
    assert present(default)[1] == ()
    assert all(count >= ITEMS // 4 for count in part.items.values())


def test_pictures_are_all_used_distinct_and_ordinary(made: Made) -> None:
    written = set(made.root.rglob("*.png"))
    assert written == set(made.scenes)
    assert len({path.read_bytes() for path in written}) == len(written)
    assert not any(any(held_out_in(scene, CONFIG)) for scene in made.scenes.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_agrees_with_every_item(made: Made, name: str) -> None:
    for case in made.cases(name):
        verdicts = [
            [ORACLE.verdict(text, made.scenes[ref.path]).truth for text in case.texts]
            for ref in case.images
        ]
        flat = [truth for row in verdicts for truth in row]
        if case.form is Form.GROUP:
            assert flat == [Truth.TRUE, Truth.FALSE, Truth.FALSE, Truth.TRUE], case
        elif case.form is Form.BINARY:
            assert flat == [Truth.TRUE if case.truth else Truth.FALSE], case
        else:
            expected = [Truth.FALSE] * len(flat)
            expected[case.truth] = Truth.TRUE
            assert flat == expected, case


def test_an_oracle_scorer_is_perfect(made: Made, tmp_path: Path) -> None:
    for name, result in measured(made, OracleEncoder(made), tmp_path).items():
        for rule, score in result.aggregates.items():
            assert rule == "positive_score" or (score.value, score.strict) == (1.0, 1.0), name
            assert score.ties == 0
            assert score.n == score.expected


def test_a_constant_scorer_gets_nothing_where_ties_are_wrong(made: Made, tmp_path: Path) -> None:
    results = measured(made, ConstantEncoder(), tmp_path)
    for name, result in results.items():
        headline = result.aggregates[result.headline]
        assert headline.strict == 0.0
        assert headline.fractional == pytest.approx(headline.chance, abs=1e-9)
        first = made.benchmarks[name].ties.get("") is TiePolicy.FIRST
        if name == "vsr":
            assert headline.value == 0.5
            assert result.aggregates["balanced_accuracy"].value == 0.5
        else:
            assert (headline.value > 0) == first
    assert results["whatsup"].aggregates["pair"].value == 1.0
    assert results["whatsup"].aggregates["pair"].fractional == pytest.approx(1 / 16)
    assert results["spec"].aggregates["vl_compo"].value == 0.5


def test_the_place_of_the_truth_tells_nothing(made: Made) -> None:
    places = [case.truth for case in made.cases("spec")]
    assert sum(places) * 2 == len(places)
    kinds = [case.truth for case in made.cases("vsr") if case.subtask == "random"]
    assert sum(kinds) * 2 == len(kinds)


def test_controlled_pictures_come_in_whole_sets(made: Made) -> None:
    for part in ("controlled_a", "controlled_b"):
        cases = [case for case in made.cases("whatsup") if case.subtask == part]
        sets = [case.labels["set"] for case in cases]
        assert all(sets.count(name) == 4 for name in sets)
        pairs = [case.labels["pair"] for case in cases]
        assert all(pairs.count(name) == 2 for name in pairs)
