"""The table of several models: base first, marks where the paired test says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compoclip.evaluation.results import Results
from compoclip.evaluation.tables import overview_table
from evaluation_helpers import choice_benchmark, measured

RIGHT = {"worse": 20, "near": 52, "base": 50, "better": 62}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Results]:
    """Results by model and benchmark."""
    folder = tmp_path_factory.mktemp("overview")
    toy = choice_benchmark(folder / "p", n=100)
    few = choice_benchmark(folder / "q", n=100, shared=5, name="few")
    return {
        (name, result.benchmark): result
        for name, number in RIGHT.items()
        for result in measured(folder, name, range(number), toy, few)
    }


def test_marks_are_the_verdicts_of_compare(results: dict[tuple[str, str], Results]) -> None:
    table = str(overview_table([*results.values()], base="base"))
    header, _, headline, *rest = table.splitlines()
    assert header.split() == ["base", "worse", "near", "better", "chance"]
    # the base, 30 points less, 2 more, and 12 more, though the intervals overlap
    assert [cell[:1] for cell in headline.split("]")[1:]] == [" ", "-", " ", "+"]
    assert "50.0 [40.4, 59.6]" in headline
    assert "62.0 [52.2, 70.9]+" in headline
    assert headline.split()[-1] == "50.0"
    assert rest[-2:] == [
        "  + / -: higher / lower than base (paired, p < 0.05, Holm's correction over all models)",
        "  not judged, too few photos: few 5",
    ]


def test_ties_show_the_strict_and_the_fractional_value(
    results: dict[tuple[str, str], Results],
) -> None:
    near, base = results["near", "toy"], results["base", "toy"]
    assert "tie" not in str(overview_table([near, base], base="near"))
    tied = replace(base.aggregates["micro"], ties=12, strict=0.45, fractional=0.512)
    base = replace(base, aggregates={**base.aggregates, "micro": tied})
    last = str(overview_table([near, base], base="near")).splitlines()[-1]
    assert last == "  toy, base: 12 ties (strict 45.0, fractional 51.2)"


def test_a_benchmark_that_one_model_lacks_is_a_dash(
    results: dict[tuple[str, str], Results],
) -> None:
    table = overview_table([results["base", "toy"], results["better", "few"]], base="base")
    (row,) = (line for line in str(table).splitlines() if line.startswith("few"))
    assert row.split()[2] == "-"
