"""From benchmarks to result files: coverage, intervals, resuming, malformed files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Case,
    Classification,
    Form,
    Retrieval,
    TiePolicy,
)
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.groups import chance_flags
from compoclip.evaluation.results import Results, load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import percentile_interval, wilson
from compoclip.evaluation.tables import results_table
from evaluation_helpers import FakeEncoder, all_forms, bootstrap_means, choice_benchmark, photos

QUICK = Options(resamples=200)


def run(
    folder: Path, benchmark: Benchmark, encoder: FakeEncoder | None = None, **options: Any
) -> Results:
    """Measure one model on one benchmark, with the results in `folder`/out."""
    settings = replace(QUICK, **options)
    (result,) = evaluate("m", encoder or FakeEncoder(), [benchmark], folder / "out", settings)
    return result


def test_scores_match_a_plain_loop_over_the_items(tmp_path):
    benchmark = choice_benchmark(
        tmp_path / "p",
        aggregates={"paper": Aggregate(("even", "odd"))},
        headline="paper",
        skills={"even": "object", "odd": "attribute"},
    )
    result = run(tmp_path, benchmark)
    items = load_items(result).to_pylist()
    means = []
    for subtask in ("even", "odd"):
        rows = [row["scores"] for row in items if row["subtask"] == subtask]
        right = [scores[0] > scores[1] for scores in rows]
        score = result.scores[subtask]["accuracy"]
        means.append(score.value)
        assert score.value == pytest.approx(np.mean(right))
        assert (score.low, score.high) == pytest.approx(wilson(sum(right), 15))
        assert (score.n, score.expected, score.interval) == (15, 15, "wilson")
        assert score.chance == pytest.approx(1 / 2)
        positive = result.scores[subtask]["positive_score"].value
        assert positive == pytest.approx(np.mean([scores[0] for scores in rows]))
    assert result.aggregates["paper"].value == pytest.approx(np.mean(means))
    assert result.aggregates["paper"].interval == "bootstrap"
    assert result.aggregates["micro"].interval == "wilson"
    assert result.headline == "paper"
    assert not result.partial
    assert result.skills == {"even": "object", "odd": "attribute"}
    assert load_results(tmp_path / "out") == [result]


def test_repeated_images_get_a_bootstrap_over_photos(tmp_path):
    result = run(tmp_path, choice_benchmark(tmp_path / "p", n=40, shared=10))
    table, micro = load_items(result), result.aggregates["micro"]
    draws = bootstrap_means(np.array(table["used.accuracy"]), np.array(table["cluster"]), 200)
    assert micro.interval == "bootstrap"
    assert (micro.low, micro.high) == pytest.approx(percentile_interval(draws, 10))


@pytest.mark.parametrize(("shared", "interval"), [(0, "wilson"), (10, "bootstrap")])
def test_one_number_has_one_interval(tmp_path, shared, interval):
    rules = {
        "nested": Aggregate((Aggregate(("all",)),)),
        "by_label": Aggregate(("all",), macro_by="kind", exclude=("b",)),
    }
    made = choice_benchmark(tmp_path / "p", n=40, shared=shared, aggregates=rules)
    cases = tuple(replace(c, subtask="all", labels={"kind": "a"}) for c in made.content)
    made = replace(made, content=cases, headline="nested")
    result = run(tmp_path, made)
    alone = result.scores["all"]["accuracy"]
    assert [result.aggregates[name] for name in rules] == [alone, alone]
    assert alone.interval == interval
    plain = run(tmp_path, replace(made, aggregates={}, headline="macro"))
    assert plain.aggregates["micro"] == plain.aggregates["macro"] == alone


def test_a_split_by_label_counts_its_own_items(tmp_path):
    made = choice_benchmark(tmp_path / "p", n=40)
    cases = tuple(
        replace(case, subtask="all", labels={"tag": "rare" if k < 10 else "often"})
        for k, case in enumerate(made.content)
    )
    rules = {
        "rare": Aggregate(("all",), macro_by="tag", exclude=("often",)),
        "often": Aggregate(("all",), macro_by="tag", exclude=("rare",)),
        "both": Aggregate(("all",), macro_by="tag"),
        "micro": Aggregate(("all",), "micro"),
    }
    benchmark = replace(made, content=cases, aggregates=rules, headline="micro")
    for k in (1, 4, 8, 30):
        cases[k].images[0].path.unlink()
    aggregates = run(tmp_path, benchmark, allow_partial=True).aggregates
    counts = {name: (aggregates[name].n, aggregates[name].expected) for name in rules}
    assert counts == {"rare": (7, 10), "often": (29, 30), "both": (36, 40), "micro": (36, 40)}
    # of two items that the files do not list nobody knows the label
    benchmark = replace(benchmark, expected={"all": 42})
    result = run(tmp_path, benchmark, allow_partial=True, fresh=True)
    assert [result.aggregates[name].expected for name in ("rare", "often", "both")] == [12, 32, 42]


def test_every_form_gets_all_its_metrics_and_chance(tmp_path):
    refs = photos(tmp_path / "p", [f"{x}{k}" for x in "ij" for k in range(8)])
    cases = tuple(
        replace(case, images=tuple(refs[i.path.stem] for i in case.images)) for case in all_forms(8)
    )
    result = run(tmp_path, Benchmark("all", cases, "d"))
    mains = []
    for case in cases[:5]:
        scores, metrics = result.scores[case.subtask], FORMS[case.form].metrics
        assert tuple(scores) == (*metrics, "positive_score")
        assert all(score.n == 8 for score in scores.values())
        mains.append(scores[metrics[0]].value)
    assert result.scores["group"]["group"].chance == pytest.approx(1 / 6)
    assert result.aggregates["macro"].value == pytest.approx(np.mean(mains))
    assert result.aggregates["macro"].metric == "accuracy+augmented+group"
    triple = result.scores["triple"]
    rows = [row["scores"] for row in load_items(result).to_pylist() if row["form"] == "triple"]
    tied = np.mean([scores[2] in scores[:2] for scores in rows])
    total = sum(triple[name].value for name in ("augmented", "brittleness", "both_below"))
    assert total + tied == pytest.approx(1)


@pytest.mark.parametrize(("policy", "value"), [(TiePolicy.STRICT, 0), (TiePolicy.FIRST, 1)])
def test_ties_are_counted_with_strict_and_fractional_values(tmp_path, policy, value):
    refs = photos(tmp_path / "p", list("abcdefghij"))
    cases = tuple(
        Case(name, Form.CHOOSE_TEXT, (photo,), ("same words", "SAME words"), "s")
        for name, photo in refs.items()
    )
    result = run(tmp_path, Benchmark("tie", cases, "d", ties={"s": policy}))
    score = result.scores["s"]["accuracy"]
    assert (score.value, score.ties, score.strict, score.fractional) == (value, 10, 0, 0.5)
    assert result.tie_policy["s"] == policy
    assert set(chance_flags(result).values()) == {"all items tie"}
    assert [row[-1] for row in results_table(result).rows[:1]] == ["all items tie"]


def test_partial_data_is_refused_then_flagged(tmp_path):
    benchmark = choice_benchmark(tmp_path / "p", n=10, expected={"even": 5, "odd": 6})
    with pytest.raises(CompoclipError, match=r"only 10 of 11 items .*annotation files"):
        run(tmp_path, benchmark)
    places = [case.images[0].path for case in benchmark.content]
    places[3].unlink()
    with pytest.raises(CompoclipError, match=f"only 9 of 11 .*{places[3].name}.*--allow-partial"):
        run(tmp_path, benchmark)
    result = run(tmp_path, benchmark, allow_partial=True)
    assert result.partial
    assert (result.missing, result.missing_count) == ((str(places[3]),), 1)
    even, odd = (result.scores[name]["accuracy"] for name in ("even", "odd"))
    micro = result.aggregates["micro"]
    counts = [(score.n, score.expected) for score in (even, odd, micro)]
    assert counts == [(5, 5), (4, 6), (9, 11)]
    for place in places:
        place.unlink(missing_ok=True)
    with pytest.raises(CompoclipError, match=r"only 0 of 11 items .*\(10 images missing"):
        run(tmp_path, benchmark, allow_partial=True)


def test_results_are_reused_only_for_the_same_model_data_and_protocol(tmp_path, capsys):
    benchmark = choice_benchmark(tmp_path / "p", n=6)
    first, again = run(tmp_path, benchmark), FakeEncoder()
    assert run(tmp_path, benchmark, again) == first
    assert not again.images_seen
    assert "already measured" in capsys.readouterr().err
    (tmp_path / "out/m/toy.json").write_text("{")  # damaged
    assert replace(run(tmp_path, benchmark), seconds=0) == replace(first, seconds=0)
    lower = FakeEncoder()
    lower.precision = "bf16"
    for model, data, changes in (
        (FakeEncoder("other"), benchmark, {}),
        (lower, benchmark, {}),
        (FakeEncoder(), replace(benchmark, data_hash="d2"), {}),
        (FakeEncoder(), replace(benchmark, protocol=2), {}),
        (FakeEncoder(), replace(benchmark, aggregates={"x": Aggregate(("odd",))}), {}),
        (FakeEncoder(), benchmark, {"resamples": 60}),
        (FakeEncoder(), benchmark, {"seed": 3}),
        (FakeEncoder(), benchmark, {"fresh": True}),
    ):
        run(tmp_path, benchmark)
        options = replace(QUICK, **changes)
        found = run(tmp_path, data, model, **changes)
        assert model.images_seen
        assert (found.resamples, found.seed) == (options.resamples, options.seed)
        assert found.identity.get("precision") == ("bf16" if model is lower else None)
        assert load_results(tmp_path / "out") == [found]


def test_several_benchmarks_share_encoding_and_results_keep_their_order(tmp_path):
    one = choice_benchmark(tmp_path / "p", n=6, name="b")
    two = choice_benchmark(tmp_path / "p", n=6, name="a/c")
    encoder = FakeEncoder()
    results = evaluate("my model", encoder, [one, two], tmp_path / "out", QUICK)
    assert [r.benchmark for r in results] == ["b", "a/c"]
    assert len(encoder.images_seen) == 6
    assert sorted(p.name for p in (tmp_path / "out/my_model").iterdir()) == [
        *("a_c.json", "a_c.parquet", "b.json", "b.parquet"),
    ]
    with pytest.raises(UsageError, match=r"--on names .* twice; name it once"):
        evaluate("m", encoder, [one, one], tmp_path / "out", QUICK)
    twice = replace(one, content=(*one.content, one.content[0]))
    with pytest.raises(CompoclipError, match="two items of sub-task 'even' are called '0'"):
        run(tmp_path, twice)


def test_retrieval_and_classification_results(tmp_path):
    refs = tuple(photos(tmp_path / "p", [f"photo{k}_t{k % 7}" for k in range(14)]).values())
    retrieval = Retrieval(
        refs, tuple(f"c{k}_t{k}" for k in range(7)), tuple((k, k % 7) for k in range(14))
    )
    zero_shot = Classification(
        refs,
        tuple(k % 7 for k in range(14)),
        tuple(f"t{k}" for k in range(7)),
        tuple((f"a photo of a_t{k}", f"a drawing of a_t{k}") for k in range(7)),
        "mean-per-class",
    )
    encoder = FakeEncoder(quality=20.0)
    ret = run(tmp_path, Benchmark("ret", retrieval, "d"), encoder)
    zs = run(tmp_path, Benchmark("zs", zero_shot, "d"), encoder)
    assert tuple(ret.scores["i2t"]) == ("r1", "r5", "r10", "positive_score")
    assert ret.scores["i2t"]["r1"].value == 1
    assert (ret.scores["i2t"]["r1"].n, ret.scores["t2i"]["r1"].n) == (14, 7)
    assert (ret.headline, ret.tie_policy) == ("r1", {"": "first"})
    assert zs.scores["zero_shot"]["accuracy"].value == 1
    assert zs.headline == "mean-per-class"
    assert zs.scores["zero_shot"]["top5"].chance == pytest.approx(5 / 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON .*evaluate again"),
        ("[]", "schema None"),
        ('{"schema": 99}', "schema 99, expected 2"),
        ('{"schema": 2}', "no field 'model'; .*evaluate again"),
    ],
)
def test_malformed_results_are_named(tmp_path, text, message):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(CompoclipError, match=rf"bad\.json: .*{message}") as caught:
        load_results(tmp_path)
    assert "\n" not in str(caught.value)


def test_escaping_items_and_absent_tables_are_errors(tmp_path):
    result = run(tmp_path, choice_benchmark(tmp_path / "p", n=4))
    path = tmp_path / "out/m/toy.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps({**good, "items": "../../x.parquet"}))
    with pytest.raises(CompoclipError, match=r"toy\.json: .*its items file must lie beside it"):
        load_results(path)
    path.with_suffix(".parquet").write_bytes(b"PAR1")
    with pytest.raises(CompoclipError, match=r"toy\.parquet: cannot be read .*evaluate m on toy"):
        load_items(result)
    for folder, message in (("nowhere", "no such file or folder"), ("p", "holds no results")):
        with pytest.raises(CompoclipError, match=message):
            load_results(tmp_path / folder)
