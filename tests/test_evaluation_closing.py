"""Sentences about results: numbers and verdicts are those of the comparison; bounds are named."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compoclip.errors import CompoclipError
from compoclip.evaluation.closing import bound_scores, closing_sentences, giveaways
from compoclip.evaluation.grounded import ground_all
from compoclip.evaluation.groups import like_groups, skill_groups
from compoclip.evaluation.results import Results, load_results
from compoclip.evaluation.statistics import Bootstrap
from compoclip.models.names import BLIND
from evaluation_helpers import choice_benchmark, measured, right_items
from report_study import make_study

RIGHT = {
    "base": (25, 30),
    "tuned": (45, 12),
    "same": (26, 30),
    "text only": (25, 45),
    "blind": (46, 25),
}
"""How many of the 50 items of each sub-task a model has right."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Results]]:
    folder = tmp_path_factory.mktemp("closing")
    toy = choice_benchmark(folder / "p", n=100, skills={"even": "binding", "odd": "order"})
    return {name: measured(folder, name, right_items(*right), toy) for name, right in RIGHT.items()}


def sentences(*results: list[Results], **options: Any) -> list[str]:
    every = [result for several in results for result in several]
    return closing_sentences(every, "base", bootstrap=Bootstrap(300), **options)


def test_gain_loss_and_means_with_their_verdicts(results: dict[str, list[Results]]) -> None:
    first, *rest = sentences(results["base"], results["tuned"])
    assert first == "Measured 2 models on 1 benchmark, 100 items."
    assert [(line.partition(", 95 %")[0], line.rpartition(", ")[2]) for line in rest] == [
        ("tuned: binding 50.0 -> 90.0 (+40.0", "significant)."),
        ("tuned: order 60.0 -> 24.0 (-36.0", "significant)."),
        ("tuned: compositionality 55.0 -> 57.0 (+2.0", "not significant)."),
    ]


def test_no_significant_change_is_one_sentence(results: dict[str, list[Results]]) -> None:
    said = sentences(results["base"], results["same"])
    assert said[1] == "same: no significant change on any of 2 skills."
    assert "binding" not in " ".join(said)


def test_one_model_is_read_against_chance(results: dict[str, list[Results]]) -> None:
    assert sentences(results["base"]) == [
        "Measured 1 model on 1 benchmark, 100 items.",
        "base: compositionality 55.0 (95 % interval 45.2 to 64.4), not significantly different "
        "from chance (50.0) on 100 photos.",
        "base: not significantly above chance on 2 of 2 skills: binding 50.0, order 60.0.",
    ]
    (base,) = results["base"]
    assert sentences([replace(base, partial=True)])[0].endswith("100 items, 1 in part.")


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


def test_the_mean_grounded_gain_comes_first(results: dict[str, list[Results]]) -> None:
    base, tuned = results["base"], results["tuned"]
    grounded = ground_all({"base": base, "tuned": tuned}, bootstrap=Bootstrap(300))
    said = sentences(base, tuned, grounded=grounded)
    assert said[1].startswith("tuned: mean grounded gain 5.0 -> 20.0 (+15.0, 95 % interval ")
    said = sentences(base, grounded=ground_all({"base": base}, bootstrap=Bootstrap(300)))
    assert said[1].startswith("base: mean grounded gain 5.0 (95 % interval ")
    assert said[1].endswith(") above chance alone.")


def test_a_gain_within_reach_without_an_image_is_called_so(
    results: dict[str, list[Results]],
) -> None:
    base, tuned = results["base"], results["tuned"]
    blind = [replace(result, identity={"architecture": BLIND}) for result in results["blind"]]
    models = {"base": base, "tuned": tuned}
    said = sentences(base, tuned, grounded=ground_all(models, blind, Bootstrap(300)))
    assert not any("binding 50.0 -> 90.0" in line for line in said)
    assert said[2].startswith("tuned: order 60.0 -> 24.0")
    assert said[3] == "tuned: significant gains within reach without an image: binding."


def test_sub_tasks_that_differ_are_said_one_by_one(tmp_path: Path) -> None:
    toy = choice_benchmark(tmp_path / "p", n=100, skills={"even": "negation", "odd": "negation"})
    base = measured(tmp_path, "base", right_items(1, 0), toy)
    said = sentences(base, measured(tmp_path, "tuned", right_items(40, 0), toy))
    assert said[1].startswith("tuned: negation: even 2.0 -> 80.0 (+78.0")
    assert not any("tuned: negation " in line for line in said)
    assert like_groups([base]).keys() == {"negation"}  # alike as long as both are low


def test_both_directions_of_retrieval_stand_in_one_sentence(tmp_path: Path) -> None:
    folder = make_study(tmp_path, photos=12, models=("base", "clip-ft"), resamples=20)
    (line,) = (line for line in sentences(load_results(folder)) if "R@1" in line)
    assert re.fullmatch(
        r"clip-ft: retrieval_flickr8k R@1, text to image [\d.]+ -> [\d.]+ \([^)]*\), "
        r"image to text [\d.]+ -> [\d.]+ \([^)]*\)\.",
        line,
    )
    of_one = sentences(load_results(folder / "base"))
    assert sum("R@1, text to image" in line or "R@1, image to text" in line for line in of_one) == 2
