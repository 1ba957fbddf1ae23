"""The table of several models: base first, marks only for intervals that lie apart."""

from __future__ import annotations

from dataclasses import replace

from compoclip.evaluation.overview import overview_text
from compoclip.evaluation.results import Results, Score


def result(model: str, low: float, value: float, high: float) -> Results:
    score = Score("accuracy", value, 100, 100, low, high, "wilson", 0.5)
    return Results(
        model=model,
        benchmark="foils",
        protocol=1,
        identity={},
        data_hash="h",
        tie_policy={},
        scores={"a": {"accuracy": score}, "b": {"accuracy": score}},
        aggregates={"micro": score},
        headline="micro",
        skills={},
        items="foils.parquet",
    )


def test_marks_say_which_intervals_lie_apart() -> None:
    text = overview_text(
        [
            result("worse", 0.1, 0.2, 0.3),
            result("near", 0.5, 0.6, 0.7),
            result("base", 0.4, 0.5, 0.6),
            result("better", 0.61, 0.7, 0.8),
        ],
        base="base",
    )
    header, _, headline, part, *_ = text.splitlines()
    assert header.split() == ["base", "worse", "near", "better", "chance"]
    assert "20.0 [10.0, 30.0]-" in headline
    assert "70.0 [61.0, 80.0]+" in headline
    assert "60.0 [50.0, 70.0] " in headline
    assert part.split()[0] == "a"
    assert headline.split()[-1] == "50.0"


def test_ties_show_the_strict_and_the_fractional_value() -> None:
    one, other = result("one", 0.4, 0.5, 0.6), result("other", 0.4, 0.5, 0.6)
    assert "tie" not in overview_text([one, other], base="one")
    tied = replace(one.aggregates["micro"], ties=12, strict=0.45, fractional=0.512)
    other = replace(other, aggregates={"micro": tied})
    last = overview_text([one, other], base="one").splitlines()[-1]
    assert last == "foils, other: 12 ties (strict 45.0, fractional 51.2)"


def test_a_benchmark_one_model_lacks_is_a_dash() -> None:
    other = result("other", 0.1, 0.2, 0.3)
    text = overview_text([result("base", 0.4, 0.5, 0.6), other], base="base")
    assert "20.0" in text
    lacking = Results(**{**other.__dict__, "benchmark": "more"})
    row = next(
        line
        for line in overview_text(
            [result("base", 0.4, 0.5, 0.6), lacking], base="base"
        ).splitlines()
        if line.startswith("more")
    )
    assert row.split()[2] == "-"
