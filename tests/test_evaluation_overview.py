"""The table of several models: base first, marks where the paired test says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.tables import overview_table
from evaluation_helpers import Scripted, choice_benchmark

NAMES = ("worse", "near", "base", "better")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    folder = tmp_path_factory.mktemp("overview")
    toy = choice_benchmark(folder / "p", n=100)
    few = choice_benchmark(folder / "q", n=100, shared=5, name="few")
    found: list[Results] = []
    for name, skill in zip(NAMES, (20, 52, 50, 62)):
        encoder = Scripted(name, range(skill))
        found += evaluate(name, encoder, [toy, few], folder / "out", Options(resamples=100))
    return found


def test_marks_are_the_verdicts_of_compare(results: list[Results]) -> None:
    header, _, headline, *rest = str(overview_table(results, base="base")).splitlines()
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


def test_ties_show_the_strict_and_the_fractional_value(results: list[Results]) -> None:
    one, other = (r for r in results if r.model in ("near", "base") and r.benchmark == "toy")
    assert "tie" not in str(overview_table([one, other], base="near"))
    tied = replace(other.aggregates["micro"], ties=12, strict=0.45, fractional=0.512)
    other = replace(other, aggregates={**other.aggregates, "micro": tied})
    last = str(overview_table([one, other], base="near")).splitlines()[-1]
    assert last == "  toy, base: 12 ties (strict 45.0, fractional 51.2)"


def test_a_benchmark_one_model_lacks_is_a_dash(results: list[Results], tmp_path: Path) -> None:
    (base,) = (r for r in results if r.model == "base" and r.benchmark == "toy")
    (other,) = (r for r in results if r.model == "better" and r.benchmark == "few")
    text = str(overview_table([base, other], base="base"))
    assert next(line for line in text.splitlines() if line.startswith("few")).split()[2] == "-"
