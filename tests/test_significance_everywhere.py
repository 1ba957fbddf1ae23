"""One difference, one verdict: tables, overview, sentences, report and lab decide alike."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compoclip.evaluation.closing import closing_sentences
from compoclip.evaluation.results import Results
from compoclip.evaluation.statistics import Bootstrap
from compoclip.evaluation.tables import comparison_table, overview_table
from compoclip.report.findings import skill_rows
from compoclip.report.study import read_study
from evaluation_helpers import choice_benchmark, compare, measured
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
    "no change of 100 photos": Shape(100, 100, range(50), range(50), "not significant"),
    "no change of 400": Shape(400, 400, range(200), range(200), "equivalent within 1 point"),
    "as many other items": Shape(100, 100, range(50), range(50, 100), "not significant"),
    "a gain of five items": Shape(100, 100, range(50), range(55), "not significant"),
    "a gain of six items": Shape(100, 100, range(50), range(56), "higher"),
    "a loss of six items": Shape(100, 100, range(56), range(50), "lower"),
    "six items of two photos": Shape(100, 10, range(50), SIX_OF_TWO, "not significant"),
    "all of nine photos": Shape(9, 9, range(0), range(9), "too few photos: 9"),
    "all of ten photos": Shape(10, 10, range(0), range(10), "higher"),
}


def both_measured(folder: Path, shape: Shape) -> tuple[list[Results], list[Results]]:
    """The results of both models on one benchmark of one sub-task, which tests binding."""
    toy = choice_benchmark(
        folder / "p", n=2 * shape.items, shared=2 * shape.photos, skills={"even": "binding"}
    )
    cases = [case for case in toy.content.cases if case.subtask == "even"]
    toy = replace(toy, content=type(toy.content)(cases))
    base, other = (
        measured(folder, name, (2 * k for k in right), toy)
        for name, right in (("base", shape.base), ("other", shape.other))
    )
    return base, other


def row_of(table: object) -> str:
    return next(line for line in str(table).splitlines() if "toy" in line)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_every_place_says_the_same_of_a_difference(tmp_path: Path, shape: Shape) -> None:
    base, other = both_measured(tmp_path, shape)
    comparison = compare(base, other)
    verdict = comparison.headlines[0].verdict
    assert verdict == shape.verdict
    assert row_of(comparison_table(comparison)).rstrip().endswith(verdict)

    signs = [SIGNS[verdict]] if verdict in SIGNS else []
    row = row_of(overview_table([*base, *other], "base"))
    assert re.findall(r"(?<=[]0-9])[+-](?=\s)", row) == signs

    said = " ".join(closing_sentences([*base, *other], "base", bootstrap=Bootstrap(200)))
    assert ("significant)" in said.replace("not significant)", "")) == bool(signs)

    (skill,) = skill_rows(read_study([tmp_path / "out"], "base", Bootstrap(200)))
    assert [change.verdict for change in skill.changes if change is not None] == [verdict]

    column = Column("binding", ("binding",), "accuracy")
    difference = differences([base], [other, other], trained=False, columns=(column,))["binding"]
    assert difference.sign == {"higher": 1, "lower": -1}.get(verdict, 0)
