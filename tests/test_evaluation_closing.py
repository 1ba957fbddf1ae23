"""Sentences about results: numbers and verdicts are those of the comparison; bounds are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compoclip.benchmarks.case import Benchmark
from compoclip.errors import CompoclipError
from compoclip.evaluation.closing import bound_scores, closing_sentences, giveaways
from compoclip.evaluation.groups import skill_groups
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap
from evaluation_helpers import Scripted, choice_benchmark


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Results]]:
    """Two sub-tasks of 50 items: binding and order."""
    folder = tmp_path_factory.mktemp("closing")
    toy: Benchmark = choice_benchmark(
        folder / "p", n=100, skills={"even": "binding", "odd": "order"}
    )
    return {
        name: evaluate(name, Scripted(name, {*range(0, 2 * even, 2), *range(1, 2 * odd, 2)}), [toy],
                       folder / "out", Options(resamples=200))
        for name, (even, odd) in {
            "base": (25, 30), "tuned": (45, 12), "same": (26, 30), "text only": (25, 45)
        }.items()
    }  # fmt: skip


def test_gain_loss_and_means_with_their_verdicts(results: dict[str, list[Results]]) -> None:
    said = closing_sentences(
        [*results["base"], *results["tuned"]], "base", bootstrap=Bootstrap(300)
    )
    assert said[0] == "Measured 2 models on 1 benchmark, 100 items."
    assert [line.partition(", 95 %")[0] for line in said[1:]] == [
        "tuned: binding 50.0 -> 90.0 (+40.0",
        "tuned: order 60.0 -> 24.0 (-36.0",
        "tuned: compositionality 55.0 -> 57.0 (+2.0",
    ]
    assert [line.rpartition(", ")[2] for line in said[1:]] == [
        "significant).",
        "significant).",
        "not significant).",
    ]


def test_no_significant_change_is_one_sentence(results: dict[str, list[Results]]) -> None:
    said = closing_sentences([*results["base"], *results["same"]], "base", bootstrap=Bootstrap(300))
    assert said[1] == "same: no significant change on any of 2 skills."
    assert "binding" not in " ".join(said)


def test_one_model_is_read_against_chance_and_bounds(results: dict[str, list[Results]]) -> None:
    first, mean, low, *bound = closing_sentences(
        results["base"], "base", results["text only"], bootstrap=Bootstrap(300)
    )
    assert first == "Measured 1 model on 1 benchmark, 100 items."
    assert mean == (
        "base: compositionality 55.0 (95 % interval 45.2 to 64.4), not significantly different "
        "from chance (50.0) on 100 photos."
    )
    assert low == "base: not significantly above chance on 2 of 2 skills: binding 50.0, order 60.0."
    assert bound == ["text only: significantly above chance on 1 skill: order 90.0 (chance 50.0)."]


def test_bounds_have_what_they_were_measured_on(results: dict[str, list[Results]]) -> None:
    (base,), (bound,) = results["base"], results["text only"]
    groups = {**skill_groups([base]), "all": (*skill_groups([base])["order"],)}
    groups["elsewhere"] = tuple(replace(part, benchmark="other") for part in groups["order"])
    every = bound_scores([bound], [base], groups, bootstrap=Bootstrap(50))
    scores = every["text only"]
    assert scores.keys() == {"binding", "order", "all"}
    assert giveaways(every, [bound], groups)["text only"].keys() == {"order", "all"}
    assert scores["order"] == bound.scores["odd"]["accuracy"]
    with pytest.raises(CompoclipError, match="other annotations of toy"):
        bound_scores([replace(bound, data_hash="x")], [base], groups)


def test_partial_data_is_said(results: dict[str, list[Results]], tmp_path: Path) -> None:
    (base,) = results["base"]
    assert closing_sentences([replace(base, partial=True)], "base")[0].endswith(
        "100 items, 1 in part."
    )
