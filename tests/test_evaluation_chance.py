"""What a constant and the oracle get on every benchmark that the world can make."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import (
    Benchmark,
    Classification,
    Form,
    ImageRef,
    Retrieval,
    TiePolicy,
)
from compoclip.benchmarks.targets import parse_targets
from compoclip.evaluation import run
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.run import Options, evaluate
from compoclip_world.export.part import SuiteSpec
from compoclip_world.export.suite import write_suite
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.scene import Scene, WorldConfig
from compoclip_world.vocabulary import KINDS
from evaluation_helpers import FakeEncoder
from official import BUILDERS

ITEMS = 8
ORACLE = Oracle()
QUICK = Options(resamples=0)
NAMES = tuple({builder: name for name, builder in BUILDERS.items()}.values())
"""A benchmark of every exporter."""


class Suite:
    """The benchmarks of one exporter."""

    def __init__(self, root: Path, maker: str) -> None:
        spec = SuiteSpec(WorldConfig(size=32), ITEMS)
        made = write_suite(root, spec, benchmarks=(maker,), builders=BUILDERS)
        self.scenes = {root / path: scene for part in made for path, scene in part.images.items()}
        self.benchmarks = [target.load() for target in parse_targets([str(root)], root)]


@pytest.fixture(autouse=True)
def nothing_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are all that is asked here; their files have tests of their own."""
    monkeypatch.setattr(run, "save_results", lambda results, items, folder: results)


@pytest.fixture(scope="module", params=NAMES)
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return Suite(tmp_path_factory.mktemp("world"), request.param)


class Constant(FakeEncoder):
    def encode_texts(self, texts: Sequence[object]) -> np.ndarray:
        return np.tile(np.eye(self.width, dtype=np.float32)[0], (len(texts), 1))

    encode_images = encode_texts


def main_scores(result: Results) -> dict[str, tuple[str, Score]]:
    """Sub-task -> its main metric."""
    return {part: next(iter(metrics.items())) for part, metrics in result.scores.items()}


def test_a_constant_gets_what_the_tie_rule_gives(suite: Suite, tmp_path: Path) -> None:
    results = evaluate("same", Constant(), suite.benchmarks, tmp_path, QUICK)
    for benchmark, result in zip(suite.benchmarks, results):
        for subtask, (_, score) in main_scores(result).items():
            if score.metric == "ap11":
                # one step of the curve: the share of images that show the class
                assert score.strict == score.fractional < score.chance, (benchmark.name, subtask)
                continue
            assert (score.strict, score.ties) == (0.0, score.n), (benchmark.name, subtask)
            assert score.fractional == pytest.approx(score.chance), (benchmark.name, subtask)
            if isinstance(benchmark.content, Retrieval | Classification):
                continue
            policy = benchmark.ties.get(subtask, benchmark.ties.get("", TiePolicy.STRICT))
            cases = [case for case in benchmark.content if case.subtask == subtask]
            if cases[0].form is Form.BINARY:
                assert score.value == 0.5
            elif policy is TiePolicy.STRICT:
                assert score.value == 0.0
            else:
                assert score.value == np.mean([case.truth == 0 for case in cases])
        head = result.aggregates[result.headline]
        if "ap11" not in head.metric:
            assert head.strict == 0.0
            assert head.fractional == pytest.approx(head.chance)


def truth(text: str, scene: Scene) -> bool:
    """Whether the oracle calls a text true; of a dialogue ("a mug. is the mug red? yes.") whether
    its description and its answer are."""
    told, mark, answer = text.rpartition("? ")
    if not mark:
        return ORACLE.verdict(text, scene).truth is Truth.TRUE
    described, _, question = told.partition(". is ")
    words = question.split()
    noun = next(k for k, word in enumerate(words) if word in KINDS) + 1
    claim = " ".join([*words[:noun], "is", *words[noun:]])
    right = (ORACLE.verdict(claim, scene).truth is Truth.TRUE) == (answer == "yes.")
    return right and ORACLE.verdict(described, scene).truth is Truth.TRUE


class Knowing(FakeEncoder):
    """s(image, text) is above 0 where the oracle says TRUE of a pair that is asked, else 0.

    All texts are as long, so that a text's score depends on nothing else. Where no image is asked
    for, texts are alike as far as they are true of the same scenes.
    """

    def __init__(self, benchmark: Benchmark, scenes: dict[Path, Scene]) -> None:
        super().__init__("oracle")
        content = benchmark.content
        self.alone = isinstance(content, tuple) and not any(case.images for case in content)
        pairs: dict[str, set[Path]] = {}
        if isinstance(content, Retrieval | Classification):
            shown = {ref.path for ref in content.images}
            pairs = dict.fromkeys(content.texts, shown)
        else:
            for case in content:
                asked = {ref.path for ref in case.images} or set(scenes)
                for text in case.texts:
                    pairs.setdefault(text, set()).update(asked)
        self.place = {
            path: k for k, path in enumerate(sorted({p for s in pairs.values() for p in s}))
        }
        self.true = {
            text: [self.place[path] for path in paths if truth(text, scenes[path])]
            for text, paths in pairs.items()
        }

    def encode_images(self, images: Sequence[ImageRef]) -> np.ndarray:
        rows = [self.place[ref.path] for ref in images]
        return np.eye(len(self.place) + 1, dtype=np.float32)[rows]

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        out = np.zeros((len(texts), len(self.place) + 1), dtype=np.float32)
        for row, text in zip(out, texts):
            row[self.true[text]] = 1.0
            row[-1] = not row.any() if self.alone else np.sqrt(len(row) - row.sum())
        return out / np.linalg.norm(out, axis=1, keepdims=True)


def test_the_oracle_gets_everything(suite: Suite, tmp_path: Path) -> None:
    for benchmark in suite.benchmarks:
        encoder = Knowing(benchmark, suite.scenes)
        (result,) = evaluate("oracle", encoder, [benchmark], tmp_path, QUICK)
        for subtask, (_, score) in main_scores(result).items():
            assert score.value == 1.0, (benchmark.name, subtask)
        assert result.aggregates[result.headline].value == pytest.approx(1.0)
