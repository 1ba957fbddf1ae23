"""From benchmarks to result files: coverage, intervals, resuming, malformed files."""

from __future__ import annotations

import json
from dataclasses import replace

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
from compoclip.evaluation.results import load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import percentile_interval, wilson
from evaluation_helpers import FakeEncoder, all_forms, bootstrap_means, choice_benchmark, photos

QUICK = Options(resamples=200)


def test_scores_match_a_plain_loop_over_the_items(tmp_path):
    benchmark = choice_benchmark(
        tmp_path / "p",
        aggregates={"paper": Aggregate(("even", "odd"))},
        headline="paper",
        skills={"even": "object", "odd": "attribute"},
    )
    (result,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path / "out", QUICK)
    rows = load_items(result).to_pylist()
    means = {}
    for subtask in ("even", "odd"):
        right = [r["scores"][0] > r["scores"][1] for r in rows if r["subtask"] == subtask]
        score = result.scores[subtask]["accuracy"]
        means[subtask] = score.value
        assert score.value == pytest.approx(np.mean(right))
        assert (score.low, score.high) == pytest.approx(wilson(sum(right), 15))
        assert (score.n, score.expected, score.interval) == (15, 15, "wilson")
        assert score.chance == pytest.approx(1 / 2)
        positive = np.mean([r["scores"][0] for r in rows if r["subtask"] == subtask])
        assert result.scores[subtask]["positive_score"].value == pytest.approx(positive)
    assert result.aggregates["paper"].value == pytest.approx(sum(means.values()) / 2)
    assert result.aggregates["paper"].interval == "bootstrap"
    assert result.aggregates["micro"].interval == "wilson"
    assert result.headline == "paper"
    assert not result.partial
    assert result.skills == {"even": "object", "odd": "attribute"}
    assert load_results(tmp_path / "out") == [result]


def test_repeated_images_get_a_bootstrap_over_photos(tmp_path):
    benchmark = choice_benchmark(tmp_path / "p", n=40, shared=10)
    (result,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path / "out", QUICK)
    table = load_items(result)
    micro = result.aggregates["micro"]
    assert micro.interval == "bootstrap"
    draws = bootstrap_means(np.array(table["used.accuracy"]), np.array(table["cluster"]), 200)
    assert (micro.low, micro.high) == pytest.approx(percentile_interval(draws, 10))


def test_one_number_has_one_interval(tmp_path):
    rules = {
        "nested": Aggregate((Aggregate(("all",)),)),
        "by_label": Aggregate(("all",), macro_by="kind", exclude=("b",)),
    }
    for shared in (0, 10):
        made = choice_benchmark(tmp_path / "p", n=40, shared=shared)
        cases = tuple(replace(c, subtask="all", labels={"kind": "a"}) for c in made.content)
        made = replace(made, content=cases, aggregates=rules, headline="nested")
        (result,) = evaluate("m", FakeEncoder(), [made], tmp_path / f"out{shared}", QUICK)
        scores = [result.aggregates[name] for name in ("nested", "by_label")]
        own = result.scores["all"]["accuracy"]
        assert scores == [own, own]
        assert own.interval == ("bootstrap" if shared else "wilson")
        (same,) = evaluate(
            "m", FakeEncoder(), [replace(made, aggregates={}, headline="macro")],
            tmp_path / f"plain{shared}", QUICK,
        )  # fmt: skip
        assert same.aggregates["micro"] == same.aggregates["macro"] == own


def test_a_split_by_label_counts_its_own_items(tmp_path):
    made = choice_benchmark(tmp_path / "p", n=40)
    cases = tuple(
        replace(case, subtask="all", labels={"tag": "rare" if k < 10 else "often"})
        for k, case in enumerate(made.content)
    )
    rules = {
        tag: Aggregate(("all",), macro_by="tag", exclude=tuple({"rare", "often"} - {tag}))
        for tag in ("rare", "often")
    }
    rules |= {"both": Aggregate(("all",), macro_by="tag"), "micro": Aggregate(("all",), "micro")}
    benchmark = replace(made, content=cases, aggregates=rules, headline="micro")
    for k in (1, 4, 8, 30):
        cases[k].images[0].path.unlink()
    options = replace(QUICK, allow_partial=True)
    (result,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path / "out", options)
    counts = {name: (s.n, s.expected) for name, s in result.aggregates.items() if name in rules}
    assert counts == {"rare": (7, 10), "often": (29, 30), "both": (36, 40), "micro": (36, 40)}
    # of two items that the files do not list nobody knows the label
    (result,) = evaluate(
        "n", FakeEncoder(), [replace(benchmark, expected={"all": 42})], tmp_path / "out", options
    )
    assert [result.aggregates[name].expected for name in ("rare", "often", "both")] == [12, 32, 42]


def test_every_form_gets_all_its_metrics_and_chance(tmp_path):
    refs = photos(tmp_path / "p", [f"{x}{k}" for x in "ij" for k in range(8)])
    cases = tuple(
        replace(case, images=tuple(refs[i.path.stem] for i in case.images)) for case in all_forms(8)
    )
    (result,) = evaluate("m", FakeEncoder(), [Benchmark("all", cases, "d")], tmp_path / "o", QUICK)
    for case in cases[:5]:
        metrics = result.scores[case.subtask]
        assert tuple(metrics) == (*FORMS[case.form].metrics, "positive_score")
        assert all(score.n == 8 for score in metrics.values())
    assert result.scores["group"]["group"].chance == pytest.approx(1 / 6)
    mains = [result.scores[c.subtask][FORMS[c.form].metrics[0]].value for c in cases[:5]]
    assert result.aggregates["macro"].value == pytest.approx(np.mean(mains))
    assert result.aggregates["macro"].metric == "accuracy+augmented+group"
    triple = result.scores["triple"]
    rows = [row["scores"] for row in load_items(result).to_pylist() if row["form"] == "triple"]
    tied = np.mean([scores[2] in scores[:2] for scores in rows])
    total = triple["augmented"].value + triple["brittleness"].value + triple["both_below"].value
    assert total + tied == pytest.approx(1)


def test_ties_are_counted_with_strict_and_fractional_values(tmp_path):
    refs = photos(tmp_path / "p", ["a", "b"])
    cases = (
        Case("1", Form.CHOOSE_TEXT, (refs["a"],), ("same words", "SAME words"), "s"),
        Case("2", Form.CHOOSE_TEXT, (refs["b"],), ("same words", "SAME words"), "s"),
    )
    values = {}
    for policy in TiePolicy:
        benchmark = Benchmark("tie", cases, "d", ties={"s": policy})
        (result,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path / policy, QUICK)
        score = result.scores["s"]["accuracy"]
        assert (score.ties, score.strict, score.fractional) == (2, 0, 0.5)
        assert result.tie_policy["s"] == policy
        values[policy] = score.value
    assert values == {TiePolicy.STRICT: 0, TiePolicy.FIRST: 1}


def test_partial_data_is_refused_then_flagged(tmp_path):
    benchmark = choice_benchmark(tmp_path / "p", n=10, expected={"even": 5, "odd": 6})
    with pytest.raises(CompoclipError, match=r"only 10 of 11 items .*annotation files"):
        evaluate("m", FakeEncoder(), [benchmark], tmp_path / "out", QUICK)
    gone = benchmark.content[3].images[0].path
    gone.unlink()
    with pytest.raises(CompoclipError, match=f"only 9 of 11 .*{gone.name}.*--allow-partial"):
        evaluate("m", FakeEncoder(), [benchmark], tmp_path / "out", QUICK)
    options = replace(QUICK, allow_partial=True)
    (result,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path / "out", options)
    assert result.partial
    assert (result.missing, result.missing_count) == ((str(gone),), 1)
    odd, micro = result.scores["odd"]["accuracy"], result.aggregates["micro"]
    assert (odd.n, odd.expected) == (4, 6)
    assert (micro.n, micro.expected) == (9, 11)
    assert result.scores["even"]["accuracy"].expected == 5


def test_nothing_to_score_is_an_error(tmp_path):
    benchmark = choice_benchmark(tmp_path / "p", n=3)
    for case in benchmark.content:
        case.images[0].path.unlink()
    with pytest.raises(CompoclipError, match=r"only 0 of 3 items .*\(3 images missing"):
        evaluate(
            "m", FakeEncoder(), [benchmark], tmp_path / "o", replace(QUICK, allow_partial=True)
        )


def test_results_are_reused_only_for_the_same_model_data_and_protocol(tmp_path, capsys):
    benchmark = choice_benchmark(tmp_path / "p", n=6)
    out = tmp_path / "out"
    (first,) = evaluate("m", FakeEncoder(), [benchmark], out, QUICK)
    again = FakeEncoder()
    assert evaluate("m", again, [benchmark], out, QUICK) == [first]
    assert not again.images_seen
    assert "already measured" in capsys.readouterr().err
    for model, data, changes in (
        (FakeEncoder("other"), benchmark, {}),
        (FakeEncoder(), replace(benchmark, data_hash="d2"), {}),
        (FakeEncoder(), replace(benchmark, protocol=2), {}),
        (FakeEncoder(), replace(benchmark, aggregates={"x": Aggregate(("odd",))}), {}),
        (FakeEncoder(), benchmark, {"resamples": 60}),
        (FakeEncoder(), benchmark, {"resamples": 60, "seed": 3}),
        (FakeEncoder(), benchmark, {"resamples": 60, "seed": 3, "fresh": True}),
    ):
        options = replace(QUICK, **changes)
        (found,) = evaluate("m", model, [data], out, options)
        assert model.images_seen
        assert (found.resamples, found.seed) == (options.resamples, options.seed)
        assert load_results(out) == [found]


def test_a_damaged_result_is_measured_again(tmp_path):
    benchmark = choice_benchmark(tmp_path / "p", n=6)
    (first,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path / "o", QUICK)
    (tmp_path / "o/m/toy.json").write_text("{")
    (second,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path / "o", QUICK)
    assert replace(second, seconds=0) == replace(first, seconds=0)


def test_several_benchmarks_share_encoding_and_results_keep_their_order(tmp_path):
    one = choice_benchmark(tmp_path / "p", n=6, name="b")
    two = choice_benchmark(tmp_path / "p", n=6, name="a/c")
    encoder = FakeEncoder()
    results = evaluate("my model", encoder, [one, two], tmp_path / "out", QUICK)
    assert [r.benchmark for r in results] == ["b", "a/c"]
    assert len(encoder.images_seen) == 6
    assert sorted(p.name for p in (tmp_path / "out/my_model").iterdir()) == [
        "a_c.json",
        "a_c.parquet",
        "b.json",
        "b.parquet",
    ]
    with pytest.raises(UsageError, match="is named twice"):
        evaluate("m", encoder, [one, one], tmp_path / "out", QUICK)


def test_equal_names_of_items_are_refused(tmp_path):
    benchmark = choice_benchmark(tmp_path / "p", n=3)
    twice = replace(benchmark, content=(*benchmark.content, benchmark.content[0]))
    with pytest.raises(CompoclipError, match="two items of sub-task 'even' are called '0'"):
        evaluate("m", FakeEncoder(), [twice], tmp_path / "o", QUICK)


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
    ret, zs = evaluate(
        "m",
        encoder,
        [Benchmark("ret", retrieval, "d"), Benchmark("zs", zero_shot, "d")],
        tmp_path / "o",
        QUICK,
    )
    assert tuple(ret.scores["i2t"]) == ("r1", "r5", "r10", "positive_score")
    assert ret.scores["i2t"]["r1"].value == 1
    assert (ret.scores["i2t"]["r1"].n, ret.scores["t2i"]["r1"].n) == (14, 7)
    assert ret.headline == "r1"
    assert ret.tie_policy == {"": "first"}
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
    benchmark = choice_benchmark(tmp_path / "p", n=4)
    (result,) = evaluate("m", FakeEncoder(), [benchmark], tmp_path / "o", QUICK)
    path = tmp_path / "o/m/toy.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps({**good, "items": "../../x.parquet"}))
    with pytest.raises(CompoclipError, match=r"toy\.json: .*its items file must lie beside it"):
        load_results(path)
    (tmp_path / "o/m/toy.parquet").write_bytes(b"PAR1")
    with pytest.raises(CompoclipError, match=r"toy\.parquet: cannot be read .*evaluate m on toy"):
        load_items(result)
    with pytest.raises(CompoclipError, match="no such file or folder"):
        load_results(tmp_path / "nowhere")
    with pytest.raises(CompoclipError, match="holds no results"):
        load_results(tmp_path / "p")
