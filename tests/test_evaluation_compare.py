"""Paired comparison on synthetic outcomes, and the tables of several models."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from scipy.stats import binomtest

from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Retrieval
from compoclip.errors import CompoclipError
from compoclip.evaluation.comparison import Difference, compare_all, corrected, one_model
from compoclip.evaluation.results import Results, load_items
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap, holm, percentile_interval, sign_flip
from compoclip.evaluation.tables import (
    comparison_table,
    overview_table,
    results_table,
    without_prefix,
)
from evaluation_helpers import (
    FakeEncoder,
    bootstrap_means,
    choice_benchmark,
    compare,
    measured,
    photos,
)

QUICK = Options(resamples=50)
PARTIAL = replace(QUICK, allow_partial=True)


def test_counts_p_values_and_intervals_match_the_outcomes(tmp_path):
    toy = choice_benchmark(tmp_path / "p", n=60, shared=20)
    base = measured(tmp_path, "base", range(40), toy)
    other = measured(tmp_path, "other", range(10, 60), toy)
    found = compare(base, other, resamples=300, seed=4)
    (headline,) = found.headlines
    assert headline.name == "micro"
    assert (headline.base, headline.other) == pytest.approx((40 / 60, 50 / 60))
    a, b = (np.array(load_items(r[0])["used.accuracy"]) for r in (other, base))
    clusters = np.array(load_items(base[0])["cluster"])
    draws = bootstrap_means(a - b, clusters, 300, 4 + crc32(b"toy"))
    adds = np.bincount(np.unique(clusters, return_inverse=True)[1], weights=(a - b) / 60)
    expected = ((a - b).mean(), *percentile_interval(draws, 20), sign_flip(adds))
    assert (headline.difference, headline.low, headline.high, headline.p) == pytest.approx(expected)
    assert headline.photos == 20
    even, odd = found.subtasks
    assert (even.name, even.n, even.base_only, even.other_only) == ("even", 30, 5, 10)
    assert [even.p_holm, odd.p_holm] == holm([even.p, odd.p])
    assert [rule.name for rule in found.rules] == ["macro"]
    assert found.overall is None


def test_items_without_a_photo_in_common_make_mcnemars_test(tmp_path):
    apart = choice_benchmark(tmp_path / "p", n=60)
    base = measured(tmp_path, "base", range(40), apart)
    found = compare(base, measured(tmp_path, "other", range(10, 60), apart), resamples=50)
    few, all_ = (pytest.approx(binomtest(n, 3 * n).pvalue) for n in (5, 10))
    assert [(d.photos, d.p) for d in found.subtasks] == [(30, few)] * 2
    assert found.headlines[0].p == all_


def test_subtasks_of_items_that_share_photos_are_judged_by_the_photos(tmp_path):
    # 40 items only the other model gets right, all of them of 4 photos
    shared = choice_benchmark(tmp_path / "p", n=120, shared=12)
    base = measured(tmp_path, "base", (k for k in range(120) if k % 12 not in (0, 2, 4, 6)), shared)
    found = compare(base, measured(tmp_path, "other", range(120), shared), resamples=50)
    even, odd = found.subtasks
    assert (even.base_only, even.other_only) == (0, 40)
    assert (even.photos, odd.photos) == (6, 6)
    (headline,) = found.headlines
    assert (headline.photos, headline.p, headline.verdict) == (12, 2 * 2**-4, "not significant")


@pytest.mark.parametrize("number", [1, 2, 9, 10])
def test_few_photos_are_not_judged(tmp_path, number):
    toy = choice_benchmark(tmp_path / "p", n=80, shared=number, name="toy")
    whole = choice_benchmark(tmp_path / "q", n=80, name="whole")
    base = measured(tmp_path, "base", (), toy, whole)
    other = measured(tmp_path, "other", range(80), toy, whole)
    found = compare(base, other, resamples=50)
    few, enough = found.headlines
    assert (few.photos, enough.verdict, few.difference) == (number, "higher", 1)
    if number == 10:
        assert (few.verdict, few.p_holm) == ("higher", 2**-9)
        return
    assert few.verdict == found.overall.verdict == f"too few photos: {number}"
    assert (few.p, few.p_holm) == (None, None)
    assert enough.p_holm == enough.p  # a family of one
    row = re.split(r"  +", str(comparison_table(found)).splitlines()[3])
    assert row[-3:] == ["-", "-", f"too few photos: {number}"]
    plain = json.loads(json.dumps(asdict(found)))["headlines"][0]
    assert plain["verdict"] == few.verdict
    assert (row[4] == "-") == (few.low is None) == (plain["high"] is None) == (number == 1)


def test_several_models_are_one_family(tmp_path):
    toy = choice_benchmark(tmp_path / "p", n=80)
    base, *others = (
        measured(tmp_path, name, range(right), toy)
        for name, right in (("base", 40), ("one", 47), ("two", 46), ("three", 40))
    )
    alone = [compare(base, other, 50) for other in others]
    found = compare_all(base, others, Bootstrap(50))
    assert [each.headlines[0].verdict for each in alone[:2]] == ["higher", "higher"]
    assert [each.headlines[0].verdict for each in found[:2]] == ["higher", "not significant"]
    for kind in ("headlines", "subtasks"):
        family = [d for each in found for d in getattr(each, kind)]
        assert [d.p_holm for d in family] == holm([d.p for d in family])
        single = [d for each in alone for d in getattr(each, kind)]
        assert [(d.p, d.low) for d in single] == [(d.p, d.low) for d in family]
    assert "of 3 models" in str(comparison_table(found[0], models=3))


@pytest.mark.parametrize(
    ("low", "high", "p", "verdict"),
    [
        (0.029, 0.148, 0.01, "higher"),
        (-0.148, -0.029, 0.01, "lower"),
        (0.029, 0.148, 0.159, "not significant"),
        (-0.009, 0.009, 0.5, "equivalent within 1 point"),
        (-0.0101, 0.009, 0.5, "not significant"),
        (0.001, 0.009, 0.01, "higher"),
        (None, None, 0.5, "not significant"),
        (-0.009, 0.009, None, "too few photos: 50"),
    ],
)
def test_only_what_lies_within_the_margin_is_equivalent(low, high, p, verdict):
    value = 0.0 if low is None else (low + high) / 2
    found = Difference("b", "x", 0.5, 0.5 + value, value, low, high, 90, 50, p)
    assert corrected([found])[0].verdict == verdict


def test_several_benchmarks_are_averaged_and_unmatched_ones_named(tmp_path):
    one = choice_benchmark(tmp_path / "p", n=60, shared=20, name="one")
    rules = {"paper": Aggregate(("odd",))}
    two = choice_benchmark(
        tmp_path / "p", n=30, shared=20, name="two", aggregates=rules, headline="paper"
    )
    base = measured(tmp_path, "base", range(20), one, two, replace(one, name="three"))
    other = measured(tmp_path, "other", range(10, 56), one, two)
    found = compare(base, other, resamples=200)
    assert found.unmatched == ("three",)
    assert [d.name for d in found.headlines] == ["micro", "paper"]
    gains = [d.difference for d in found.headlines]
    assert found.overall.difference == pytest.approx(np.mean(gains))
    assert found.overall.low < found.overall.difference < found.overall.high
    text = str(comparison_table(found))
    assert "mean of headlines" in text
    assert "measured for one of them only: three" in text
    # numbers do not depend on what else is compared
    among, (alone,) = found.headlines[1], compare(base[1:2], other[1:], resamples=200).headlines
    assert (alone.low, alone.high, alone.p) == (among.low, among.high, among.p)


def test_only_common_items_count(tmp_path):
    toy = choice_benchmark(tmp_path / "p", n=20)
    base = measured(tmp_path, "base", range(20), toy)
    toy.content[7].images[0].path.unlink()
    found = compare(base, measured(tmp_path, "other", (), toy, allow_partial=True))
    assert found.headlines[0].n == 19
    assert found.partial == ("toy",)
    assert "PARTIAL data: toy" in str(comparison_table(found))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_hash": "other"}, r"different annotations \(d1 and other\)"),
        ({"protocol": 2}, "different versions of the protocol"),
        ({"tie_policy": {"": "first"}}, "different tie policies"),
        ({"rules": {}}, "different aggregate rules; evaluate both again"),
        ({"benchmark": "elsewhere"}, "no benchmark in common: base has toy; other has elsewhere"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, changes, message):
    toy = choice_benchmark(tmp_path / "p", n=4)
    base = measured(tmp_path, "base", [0], toy)
    (other,) = measured(tmp_path, "other", [1], toy)
    with pytest.raises(CompoclipError, match=message):
        compare(base, [replace(other, **changes)])


def test_retrieval_over_different_galleries_is_refused(tmp_path):
    refs = tuple(photos(tmp_path / "p", ["a", "b", "c"]).values())
    benchmark = Benchmark("ret", Retrieval(refs, tuple("xyz"), ((0, 0), (1, 1), (2, 2))), "d")
    base, full = (
        evaluate(name, FakeEncoder(name), [benchmark], tmp_path, QUICK) for name in ("base", "full")
    )
    assert compare(base, full).headlines[0].n == 6
    refs[0].path.unlink()
    part = evaluate("part", FakeEncoder("3"), [benchmark], tmp_path, PARTIAL)
    with pytest.raises(CompoclipError, match=r"galleries differ \(6 and 4 queries\)"):
        compare(base, part)


def test_names_of_gallery_items_do_not_move_when_an_image_is_missing(tmp_path):
    refs = tuple(photos(tmp_path / "p", ["a", "b"]).values())
    same = ImageRef(refs[1].path)
    content = Retrieval((*refs, same), tuple("xyz"), ((0, 0), (1, 1), (2, 2)))
    (full,) = evaluate("full", FakeEncoder(), [Benchmark("r", content, "d")], tmp_path, PARTIAL)
    names = load_items(full)["item"].to_pylist()
    assert names[:3] == ["p/a.jpg", "p/b.jpg", "p/b.jpg (2)"]
    assert names[3:] == ["p/a.jpg text 0", "p/b.jpg text 0", "p/b.jpg (2) text 0"]
    refs[0].path.unlink()
    (part,) = evaluate("part", FakeEncoder(), [Benchmark("r", content, "d")], tmp_path, PARTIAL)
    assert set(load_items(part)["item"].to_pylist()) < set(names)


def test_folders_with_several_models_and_double_results_are_refused(tmp_path):
    toy = choice_benchmark(tmp_path / "p", n=4)
    base, other = (measured(tmp_path, name, [0], toy) for name in ("base", "other"))
    assert one_model(base, Path("x")) == base
    with pytest.raises(CompoclipError, match=r"several models \(base, other\)"):
        one_model(base + other, Path("x"))
    with pytest.raises(CompoclipError, match="base: two results for toy"):
        compare(base + base, other)


def test_the_table_shows_chance_ties_coverage_and_flags(tmp_path):
    refs = photos(tmp_path / "p", ["a", "b"])
    cases = tuple(
        Case(f"{k}", Form.CHOOSE_TEXT, (refs["a"],), ("Same", "same"), "s") for k in range(2)
    )
    benchmark = Benchmark("tie", cases, "d", expected={"s": 5}, left_out={"no caption": 3})
    (result,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path, PARTIAL)
    text = str(results_table(result))
    assert "2 (strict 0.0, fractional 50.0)" in text
    assert "2 of 5" in text
    assert text.splitlines()[3].split("  ")[-1] == "too few photos: 1"
    assert " - " in text  # one photo has no interval
    assert (result.aggregates["micro"].low, result.aggregates["micro"].interval) == (None, "none")
    assert "PARTIAL" in text
    assert "left out, no caption: 3" in text
    assert "micro (headline)" in text


# --- The table of several models. ---

Measured = dict[tuple[str, str], Results]
RIGHT = {"worse": 20, "near": 52, "base": 50, "better": 62}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Results by model and benchmark."""
    folder = tmp_path_factory.mktemp("overview")
    toy = choice_benchmark(folder / "p", n=100)
    few = choice_benchmark(folder / "q", n=100, shared=5, name="few")
    return {
        (name, result.benchmark): result
        for name, number in RIGHT.items()
        for result in measured(folder, name, range(number), toy, few)
    }


def test_marks_are_the_verdicts_of_compare(results: Measured) -> None:
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


def test_ties_show_the_strict_and_the_fractional_value(results: Measured) -> None:
    near, base = results["near", "toy"], results["base", "toy"]
    assert "tie" not in str(overview_table([near, base], base="near"))
    tied = replace(base.aggregates["micro"], ties=12, strict=0.45, fractional=0.512)
    base = replace(base, aggregates={**base.aggregates, "micro": tied})
    last = str(overview_table([near, base], base="near")).splitlines()[-1]
    assert last == "  toy, base: 12 ties (strict 45.0, fractional 51.2)"


def test_a_benchmark_that_one_model_lacks_is_a_dash(results: Measured) -> None:
    table = overview_table([results["base", "toy"], results["better", "few"]], base="base")
    (row,) = (line for line in str(table).splitlines() if line.startswith("few"))
    assert row.split()[2] == "-"


def test_what_names_of_all_benchmarks_begin_with_stands_in_the_header() -> None:
    names = ["world-strict-pairs", "world-strict-foils", "world-strict-more-words"]
    rows = [[f"  {name} R@1", "50.0"] for name in names]
    assert without_prefix(rows, names) == "world-strict-..."
    assert [row[0] for row in rows] == ["  pairs R@1", "  foils R@1", "  more-words R@1"]
    assert without_prefix(rows[:1], names[:1]) == ""
    assert rows[0] == ["  pairs R@1", "50.0"]
