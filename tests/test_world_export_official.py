"""The world in the official formats of CREPE, EqBen, ImageCoDe, SVO-Probes, VALSE, VL-CheckList.

The readers load what the exporters wrote, the oracle agrees with every item, and a scorer that
knows the oracle's verdicts gets everything right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import SKILLS, Benchmark, Case, Form, present
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.targets import parse_targets
from compoclip.data.decode import decode
from compoclip.errors import UsageError
from compoclip.evaluation.items import EncodedFeatures
from compoclip.evaluation.summary import summarise
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.export.suite import write_suite
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.render import render
from compoclip_world.sampling import held_out_in
from compoclip_world.scene import Scene, WorldConfig
from compoclip_world.vocabulary import KINDS
from evaluation_helpers import score_items
from official import BUILDERS

ITEMS = 8
CONFIG = WorldConfig(size=32)
NAMES = ("crepe_prod", "eqben", "imagecode", "svo_probes", "valse", "vl_checklist")
ORACLE = Oracle()


@dataclass(frozen=True)
class Suite:
    root: Path
    parts: dict[str, Part]
    benchmarks: dict[str, Benchmark]
    scenes: dict[Path, Scene]

    def cases(self, spec: str) -> tuple[Case, ...]:
        content = self.benchmarks[self.parts[spec].id].content
        assert isinstance(content, tuple)
        return content


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    root = tmp_path_factory.mktemp("world") / "suite"
    parts = write_suite(root, SuiteSpec(CONFIG, ITEMS), benchmarks=NAMES, builders=BUILDERS)
    loaded = [target.load() for target in parse_targets([str(root)], Path("unused"))]
    return Suite(
        root,
        {part.spec: part for part in parts},
        {benchmark.name: benchmark for benchmark in loaded},
        {root / path: scene for part in parts for path, scene in part.images.items()},
    )


def truth(text: str, scene: Scene) -> Truth:
    """The oracle's verdict; of a dialogue ("a mug. is the mug red? yes.") on what it claims."""
    told, mark, answer = text.rpartition("? ")
    if not mark:
        return ORACLE.verdict(text, scene).truth
    described, _, question = told.partition(". is ")
    assert ORACLE.verdict(described, scene).truth is Truth.TRUE, text
    words = question.split()
    noun = next(k for k, word in enumerate(words) if word in KINDS) + 1
    claim = " ".join([*words[:noun], "is", *words[noun:]])
    said = ORACLE.verdict(claim, scene).truth
    assert said is not Truth.UNKNOWN, text
    return Truth.TRUE if (said is Truth.TRUE) == (answer == "yes.") else Truth.FALSE


def oracle_features(cases: Sequence[Case], suite: Suite) -> EncodedFeatures:
    """Features with s(image, text) = 1 where the oracle says TRUE, 0 elsewhere, for every pair
    that occurs in a case: images are one-hot."""
    refs = list(dict.fromkeys(ref for case in cases for ref in case.images))
    texts = list(dict.fromkeys(text for case in cases for text in case.texts))
    row = {ref: k for k, ref in enumerate(refs)}
    matrix = np.zeros((len(texts), len(refs)), dtype=np.float32)
    column = {text: k for k, text in enumerate(texts)}
    for case in cases:
        for ref in case.images:
            for text in case.texts:
                verdict = truth(text, suite.scenes[ref.path])
                assert verdict is not Truth.UNKNOWN, (case, text)
                matrix[column[text], row[ref]] = verdict is Truth.TRUE
    return EncodedFeatures(
        np.eye(len(refs), dtype=np.float32), row, matrix, column, {}, frozenset()
    )


def test_every_part_loads_with_all_items_and_images(suite: Suite) -> None:
    assert set(suite.parts) == {*NAMES, "crepe_syst"}
    assert set(suite.benchmarks) == {part.id for part in suite.parts.values()}
    for part in suite.parts.values():
        benchmark = suite.benchmarks[part.id]
        assert benchmark.content.counts() == dict(part.items) == dict(benchmark.expected), part.id
        assert present(benchmark) == (benchmark.content, ())
        assert set(benchmark.skills) == set(part.items) == set(part.about)
        assert set(benchmark.skills.values()) <= set(SKILLS)
    written = {path for path in suite.root.rglob("*") if path.suffix in (".png", ".npy")}
    assert written == set(suite.scenes)


@pytest.mark.parametrize("spec", [*NAMES, "crepe_syst"])
def test_the_oracle_gets_everything_right(suite: Suite, spec: str) -> None:
    benchmark = suite.benchmarks[suite.parts[spec].id]
    cases = suite.cases(spec)
    items = score_items(cases, oracle_features(cases, suite), ties=benchmark.ties)
    summary = summarise(items, benchmark.aggregates, benchmark.expected, resamples=20)
    assert benchmark.headline in summary.aggregates
    scores = {name: s.value for name, s in summary.aggregates.items() if name != "positive_score"}
    assert scores == dict.fromkeys(scores, 1.0)
    assert set(benchmark.aggregates) <= set(scores)


def test_the_default_places_need_no_suite_file(suite: Suite) -> None:
    for spec in NAMES:
        assert load_benchmark(spec, suite.root).name == f"{spec}@world"
    found = load_benchmark("crepe_syst", suite.root, pretrained="world")
    assert found.name == "crepe_syst_world@world"
    assert load_benchmark("valse:counting-*", suite.root).headline == "micro"


def test_the_formats_that_bite(suite: Suite) -> None:
    text = "".join(path.read_text() for path in (suite.root / "crepe").rglob("prod*.csv"))
    assert "\"['" in text
    assert "\"{'" in text
    levels = {case.labels["complexity"] for case in suite.cases("crepe_prod")}
    assert {"4", "8"} <= levels
    assert suite.benchmarks["world-valse"].left_out == {
        "rows that fewer than two annotators found right": 11
    }
    frame = next(path for path in suite.scenes if path.suffix == ".npy")
    assert np.array_equal(np.asarray(decode(frame)), render(suite.scenes[frame], 32))


def test_a_swap_only_moves_words(suite: Suite) -> None:
    for case in suite.cases("crepe_prod"):
        if case.subtask == "swap":
            bags = {
                tuple(sorted(w for w in t.replace(",", "").split() if w not in ("a", "an")))
                for t in case.texts
            }
            assert len(bags) == 1, case.texts


def test_unseen_compounds_are_unseen(suite: Suite) -> None:
    for case in suite.cases("crepe_syst"):
        held = held_out_in(suite.scenes[case.images[0].path], CONFIG)[0]
        _, colour, kind = case.texts[0].split()
        assert ((colour, kind) in held) is case.subtask.endswith("unseen")


def test_the_described_picture_is_anywhere(suite: Suite) -> None:
    cases = suite.cases("imagecode")
    assert {case.form for case in cases} == {Form.CHOOSE_IMAGE}
    assert len({case.truth for case in cases}) > 3
    for case in cases:
        assert len({suite.scenes[ref.path] for ref in case.images}) == 10


def test_what_is_made_can_be_chosen(tmp_path: Path) -> None:
    parts = write_suite(
        tmp_path / "a", SuiteSpec(CONFIG, 2), benchmarks=("eqben",), builders=BUILDERS
    )
    assert [part.spec for part in parts] == ["eqben"]
    with pytest.raises(UsageError, match="no benchmark 'eqbem' is made here; did you mean eqben"):
        write_suite(tmp_path / "b", SuiteSpec(CONFIG, 2), benchmarks=("eqbem",), builders=BUILDERS)
    assert not (tmp_path / "b").exists()
    images = [
        write_suite(tmp_path / f"w{w}", SuiteSpec(CONFIG, 2), w, ("valse",), BUILDERS)
        for w in (1, 2)
    ]
    assert images[0] == images[1]
