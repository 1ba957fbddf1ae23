"""Sentences about results: numbers and verdicts are those of the comparison; bounds are named."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from compoclip.benchmarks.case import Benchmark
from compoclip.errors import CompoclipError
from compoclip.evaluation.closing import bound_scores, closing_sentences, giveaways
from compoclip.evaluation.grounded import ground_all
from compoclip.evaluation.groups import like_groups, skill_groups
from compoclip.evaluation.results import Results, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap
from evaluation_helpers import Scripted, choice_benchmark
from report_study import make_study


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


def test_one_model_is_read_against_chance(results: dict[str, list[Results]]) -> None:
    first, mean, low = closing_sentences(results["base"], "base", bootstrap=Bootstrap(300))
    assert first == "Measured 1 model on 1 benchmark, 100 items."
    assert mean == (
        "base: compositionality 55.0 (95 % interval 45.2 to 64.4), not significantly different "
        "from chance (50.0) on 100 photos."
    )
    assert low == "base: not significantly above chance on 2 of 2 skills: binding 50.0, order 60.0."


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


def test_the_mean_grounded_gain_comes_first(results: dict[str, list[Results]]) -> None:
    models = {name: results[name] for name in ("base", "tuned")}
    grounded = ground_all(models, bootstrap=Bootstrap(300))
    every = [*results["base"], *results["tuned"]]
    said = closing_sentences(every, "base", bootstrap=Bootstrap(300), grounded=grounded)
    assert said[1].startswith("tuned: mean grounded gain 5.0 -> 20.0 (+15.0, 95 % interval ")
    alone = ground_all({"base": results["base"]}, bootstrap=Bootstrap(300))
    said = closing_sentences(results["base"], "base", bootstrap=Bootstrap(300), grounded=alone)
    assert said[1].startswith("base: mean grounded gain 5.0 (95 % interval ")
    assert said[1].endswith(") above chance alone.")


def test_sub_tasks_that_differ_are_said_one_by_one(tmp_path: Path) -> None:
    toy: Benchmark = choice_benchmark(
        tmp_path / "p", n=100, skills={"even": "negation", "odd": "negation"}
    )
    base, tuned = (
        evaluate(name, Scripted(name, range(0, last, 2)), [toy], tmp_path, Options(resamples=50))
        for name, last in (("base", 2), ("tuned", 80))
    )
    said = closing_sentences([*base, *tuned], "base", bootstrap=Bootstrap(300))
    assert said[1].startswith("tuned: negation: even 2.0 -> 80.0 (+78.0")
    assert not any("tuned: negation " in line for line in said)
    assert like_groups([base]).keys() == {"negation"}  # alike as long as both are low


def test_both_directions_of_retrieval_stand_in_one_sentence(tmp_path: Path) -> None:
    folder = make_study(tmp_path, photos=12, models=("base", "clip-ft"), resamples=20)
    said = closing_sentences(load_results(folder), "base", bootstrap=Bootstrap(50))
    (line,) = (line for line in said if "R@1" in line)
    assert re.fullmatch(
        r"clip-ft: retrieval_flickr8k R@1, text to image [\d.]+ -> [\d.]+ \([^)]*\), "
        r"image to text [\d.]+ -> [\d.]+ \([^)]*\)\.",
        line,
    )
    of_one = closing_sentences(load_results(folder / "base"), "base", bootstrap=Bootstrap(50))
    assert sum("R@1, text to image" in line or "R@1, image to text" in line for line in of_one) == 2
