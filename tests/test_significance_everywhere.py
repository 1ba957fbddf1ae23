"""One difference, one verdict: tables, overview, sentences, report and lab decide alike."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from compoclip.evaluation.closing import closing_sentences
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap
from compoclip.evaluation.tables import comparison_table, overview_table
from compoclip.report.findings import skill_rows
from compoclip.report.study import read_study
from evaluation_helpers import Scripted, choice_benchmark, compare
from lab.columns import Column, differences

SIGNS = {"higher": "+", "lower": "-"}


@dataclass(frozen=True)
class Shape:
    """How many items there are, on how many photos, and which ones each model gets right."""

    items: int
    photos: int
    base: Collection[int]
    other: Collection[int]
    verdict: str


SIX_OF_TWO = (*range(50), 50, 60, 70, 51, 61, 71)

SHAPES = {
    "a clear gain": Shape(100, 100, range(40), range(80), "higher"),
    "a clear loss": Shape(100, 100, range(80), range(40), "lower"),
    "no change at all": Shape(100, 100, range(50), range(50), "equivalent within 1 point"),
    "as many other items": Shape(100, 100, range(50), range(50, 100), "not significant"),
    "a gain of five items": Shape(100, 100, range(50), range(55), "not significant"),
    "a gain of six items": Shape(100, 100, range(50), range(56), "higher"),
    "a loss of six items": Shape(100, 100, range(56), range(50), "lower"),
    "six items of two photos": Shape(100, 10, range(50), SIX_OF_TWO, "not significant"),
    "all of nine photos": Shape(9, 9, range(0), range(9), "too few photos: 9"),
    "all of ten photos": Shape(10, 10, range(0), range(10), "higher"),
}


def measured(folder: Path, shape: Shape) -> tuple[list[Results], list[Results]]:
    """The results of both models on one benchmark of one sub-task, which tests binding."""
    benchmark = choice_benchmark(
        folder / "p", n=2 * shape.items, shared=2 * shape.photos, skills={"even": "binding"}
    )
    cases = [case for case in benchmark.content.cases if case.subtask == "even"]
    benchmark = choice_benchmark(
        folder / "p", content=type(benchmark.content)(cases), skills={"even": "binding"}
    )
    base, other = (
        evaluate(
            name,
            Scripted(name, {2 * k for k in right}),
            [benchmark],
            folder / "out",
            Options(resamples=200),
        )
        for name, right in (("base", shape.base), ("other", shape.other))
    )
    return base, other


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_every_place_says_the_same_of_a_difference(tmp_path: Path, shape: Shape) -> None:
    base, other = measured(tmp_path, shape)
    comparison = compare(base, other)
    verdict = comparison.headlines[0].verdict
    assert verdict == shape.verdict
    significant = verdict in SIGNS

    row = next(line for line in str(comparison_table(comparison)).splitlines() if "toy" in line)
    assert row.rstrip().endswith(verdict)

    row = next(
        line for line in str(overview_table([*base, *other], "base")).splitlines() if "toy" in line
    )
    assert re.findall(r"(?<=[]0-9])[+-](?=\s)", row) == ([SIGNS[verdict]] if significant else [])

    said = " ".join(closing_sentences([*base, *other], "base", bootstrap=Bootstrap(200)))
    assert ("significant)" in said.replace("not significant)", "")) == significant

    study = read_study([tmp_path / "out"], "base", Bootstrap(200))
    (skill,) = skill_rows(study)
    changes = [change for change in skill.changes if change is not None]
    assert [change.verdict for change in changes] == [verdict]

    column = Column("binding", ("binding",), "accuracy")
    difference = differences([base], [other, other], trained=False, columns=(column,))["binding"]
    assert difference.sign == {"higher": 1, "lower": -1}.get(verdict, 0)
