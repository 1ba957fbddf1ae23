"""True-or-false cases and metrics of groups, from scores to comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, TiePolicy
from compoclip.errors import CompoclipError
from compoclip.evaluation.comparison import ScorePart
from compoclip.evaluation.curves import weighted_auc
from compoclip.evaluation.forms.cases import groups_by_part, with_joint
from compoclip.evaluation.groups import group_differences, group_scores
from compoclip.evaluation.results import load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap, percentile_interval
from compoclip.evaluation.summary import summarise
from compoclip.evaluation.tables import comparison_table, results_table
from evaluation_helpers import FakeEncoder, compare, features_from, photos, ref, score_items

RULES = {
    "auc": Aggregate(("test",)),
    "balanced_accuracy": Aggregate(("test",), macro_by="label", metric="accuracy"),
    "relations": Aggregate(("test",), macro_by="relation"),
}


def binary(
    name: str, truth: int, part: str = "test", relation: str = "on", photo: str = ""
) -> Case:
    labels = {"label": ("false", "true")[truth], "relation": relation}
    return Case(name, Form.BINARY, (ref(photo or name),), (f"text {name}",), part, truth, labels)


def scored(rows: list[tuple[Case, float]], tuned_on=None):
    table: dict[str, dict[str, float]] = {}
    for case, score in rows:
        table.setdefault(case.images[0].path.name, {})[case.texts[0]] = score
    return score_items([case for case, _ in rows], features_from(table), tuned_on=tuned_on or {})


ROWS = [
    (binary("a", 1), 0.8),
    (binary("b", 1, relation="in"), 0.4),
    (binary("c", 0), 0.6),
    (binary("d", 0, relation="in"), 0.1),
    (binary("e", 0, relation="in"), 0.2),
    (binary("v", 1, "dev"), 0.9),
    (binary("w", 0, "dev"), 0.5),
]


def test_scores_by_hand():
    items = scored(ROWS, {"test": "dev"})
    assert items.ids == ["a", "b", "c", "d", "e"]
    assert items.truth == [1, 1, 0, 0, 0]
    # dev: the threshold lies half-way between .5 and .9
    assert items.extra["threshold"] == pytest.approx([0.7] * 5)
    assert items.outcomes["accuracy"].used.tolist() == [1, 0, 1, 1, 1]
    # true items beat 3/3 and 2/3 of the false ones; false ones lie below 1/2, 2/2 and 2/2 true ones
    assert items.outcomes["auc"].used == pytest.approx([1, 2 / 3, 1 / 2, 1, 1])
    assert items.positive[:2] == pytest.approx([0.8, 0.4])
    assert np.isnan(items.positive[2:]).all()
    scores, aggregates = summarise(items, RULES, {"test": 6, "dev": 3}, Bootstrap(200))
    assert scores["test"]["auc"].value == pytest.approx(5 / 6)
    assert (scores["test"]["auc"].n, scores["test"]["auc"].expected) == (5, 6)
    assert scores["test"]["positive_score"].value == pytest.approx(0.6)
    assert list(scores) == ["test"]
    # balanced accuracy: 1/2 of the true, all false ones
    assert aggregates["balanced_accuracy"].value == pytest.approx(3 / 4)
    # on: .8 > .6; in: .4 > .1, .2
    assert aggregates["relations"].value == pytest.approx(1.0)
    assert aggregates["auc"].metric == "auc"
    assert {s.chance for s in aggregates.values()} == {0.5, 0.0}  # 0: positive_score
    # to say "false" of all five is right for three
    assert scores["test"]["accuracy"].chance == 3 / 5


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_chance_of_plain_accuracy_is_what_one_answer_reaches(share):
    n, tuned_on = 40, {"test": "dev"}
    rows = [(binary(f"{part}{k}", int(k < share * n), part), 0.3) for k in range(n)
            for part in ("test", "dev")]  # fmt: skip
    scores, aggregates = summarise(scored(rows, tuned_on), RULES, None, Bootstrap(20))
    accuracy = scores["test"]["accuracy"]
    assert accuracy.chance == max(share, 1 - share)
    assert accuracy.value == share  # a constant is called true: its threshold lies below it
    assert aggregates["balanced_accuracy"].chance == aggregates["auc"].chance == 0.5
    rng, guesses = np.random.default_rng(0), []
    for _ in range(60):
        items = scored([(case, rng.random()) for case, _ in rows], tuned_on)
        guesses.append(items.outcomes["accuracy"].used.mean())
    assert np.mean(guesses) == pytest.approx(0.5, abs=0.05)  # a random score has no more than 1/2


def test_ties_count_only_where_a_true_and_a_false_item_are_equal():
    rows = ROWS[:5]
    rows[1] = (rows[1][0], 0.2)
    items = scored([*rows, (binary("f", 1), 0.8)])
    rules = {name: RULES[name] for name in ("relations", "auc")}
    _, aggregates = summarise(items, rules, None, Bootstrap(50))
    score = aggregates["auc"]
    assert score.ties == 2  # b and e
    assert score.value == score.fractional == pytest.approx((3 + 3 + 1.5) / 9)
    assert score.strict == pytest.approx(7 / 9)
    assert "accuracy" not in items.outcomes


def test_interval_is_the_bootstrap_of_the_area_itself():
    rng = np.random.default_rng(0)
    n, shots = 60, 15
    truth = rng.integers(0, 2, size=n)
    scores = rng.integers(0, 9, size=n) / 10 + 0.2 * truth
    rows = [
        (binary(f"i{k}", int(truth[k]), photo=f"p{k % shots:02d}"), float(scores[k]))
        for k in range(n)
    ]
    scores_by_part, _ = summarise(scored(rows), {}, None, Bootstrap(300, 4))
    got = scores_by_part["test"]["auc"]
    draws = []
    for drawn in np.random.default_rng(4).integers(shots, size=(300, shots)):
        kept = np.concatenate([np.flatnonzero(np.arange(n) % shots == photo) for photo in drawn])
        once = np.ones((1, len(kept)))
        drawn = weighted_auc(scores[kept].astype(np.float32), truth[kept] == 1, once)
        draws.append(float(drawn[0]))
    assert (got.low, got.high) == pytest.approx(percentile_interval(np.array(draws), shots))


@pytest.mark.parametrize(
    ("cases", "tuned_on", "message"),
    [
        ([binary("a", 1), binary("b", 1)], {}, "'test': among the 2 items there must be true"),
        ([binary("a", 1), binary("b", 0)], {"test": "dev"}, "'dev': among the 0 items, which set"),
        (
            [binary("a", 1), Case("t", Form.CHOOSE_TEXT, (ref("i"),), ("x", "y"), "s")],
            {},
            "'t' of sub-task 's': a choose-text item among binary",
        ),
        ([replace(binary("a", 1), truth=2)], {}, "no binary item"),
        ([replace(binary("a", 1), texts=("x", "y"))], {}, "no binary item"),
    ],
)
def test_what_cannot_be_judged_is_named(cases, tuned_on, message):
    features = features_from({"a": {"text a": 0.1}, "b": {"text b": 0.2}, "i": {"x": 0, "y": 0}})
    with pytest.raises(CompoclipError, match=message) as caught:
        score_items(cases, features, tuned_on=tuned_on)
    assert "\n" not in str(caught.value)


def binary_benchmark(folder: Path, **changes) -> Benchmark:
    refs = list(photos(folder, [f"photo{k}_t{k}" for k in range(40)]).values())
    cases = []
    for k, photo in enumerate(refs):
        labels = {"label": ("false", "true")[k % 2], "relation": f"r{k // 2 % 4}"}
        for part in ("test", "dev"):
            text = f"{part} {k}_{'t' if k % 2 else 'x'}{k}"
            cases.append(Case(f"{part}{k}", Form.BINARY, (photo,), (text,), part, k % 2, labels))
    made = Benchmark(
        "bin",
        tuple(cases),
        "d",
        tuned_on={"test": "dev"},
        expected={"test": 40, "dev": 40},
        skills={"test": "spatial"},
        aggregates=RULES | {"micro": Aggregate(("test",), "micro")},
        headline="auc",
    )
    return replace(made, **changes)


def test_from_evaluation_to_comparison_and_tables(tmp_path):
    benchmark = binary_benchmark(tmp_path / "photos")
    options = Options(resamples=200)
    for name, quality in (("one", 0.0), ("two", 1.0)):
        evaluate(name, FakeEncoder(name, quality=quality), [benchmark], tmp_path / "out", options)
    one, two = (load_results(tmp_path / "out" / name) for name in ("one", "two"))
    assert list(one[0].scores) == ["test"]
    assert not one[0].partial
    assert list(one[0].scores["test"]) == ["auc", "accuracy", "positive_score"]
    assert one[0].aggregates["auc"].expected == 40
    assert "auc" in str(results_table(one[0]))
    found = compare(one, two, 200)
    (headline,), (subtask,) = found.headlines, found.subtasks
    assert headline.difference == pytest.approx(headline.other - headline.base)
    assert headline.low <= headline.difference <= headline.high
    assert (subtask.base_only, subtask.difference) == (None, pytest.approx(headline.difference))
    for change in (headline, *found.rules):
        assert change.base == pytest.approx(one[0].aggregates[change.name].value)
    assert {"balanced_accuracy", "relations"} <= {change.name for change in found.rules}
    assert "bin auc" in str(comparison_table(found))
    same = compare(one, one, 50)  # 40 photos that agree are too few for "equivalent"
    assert {d.verdict for d in (*same.headlines, *same.subtasks)} == {"not significant"}
    assert same.headlines[0].low == pytest.approx(-0.0876, abs=1e-4)
    groups = {"s": (ScorePart("bin", "test"),), "a": (ScorePart("bin", "test", "accuracy"),)}
    scores = group_scores(one, groups)
    assert scores["s"].value == one[0].scores["test"]["auc"].value
    both = group_differences(one, two, groups, Bootstrap(100))
    assert both[0].base_only is None
    assert both[1].base_only is not None
    pair = {"mean": (ScorePart("bin", "test"), ScorePart("bin", "auc", ""))}
    assert group_scores(one, pair, Bootstrap(50))["mean"].value == pytest.approx(scores["s"].value)


def test_dev_items_count_for_coverage(tmp_path):
    extra = binary_benchmark(tmp_path / "photos", expected={"test": 40, "dev": 50})
    with pytest.raises(CompoclipError, match="only 80 of 90 items"):
        evaluate("m", FakeEncoder(), [extra], tmp_path / "out")
    options = Options(allow_partial=True, resamples=50)
    (found,) = evaluate("m", FakeEncoder(), [extra], tmp_path / "out", options)
    assert found.partial
    assert found.aggregates["auc"].expected == found.aggregates["auc"].n == 40


def choice(name: str, pair: str, whole: str, photo: str = "") -> Case:
    texts, labels = (f"{name} r", f"{name} w"), {"pair": pair, "set": whole}
    return Case(name, Form.CHOOSE_TEXT, (ref(photo or name),), texts, "part", labels=labels)


def test_a_group_is_right_when_all_its_items_are():
    cases = [choice(f"{s}{k}", f"{s}{k // 2}", s) for s in "xyz" for k in range(4)]
    wrong = {"x3", "y1", "y2"}
    tied = {"z0"}
    table = {
        c.id: {c.texts[0]: 0.2 if c.id in wrong else 0.5, c.texts[1]: 0.5 if c.id in tied else 0.4}
        for c in cases
    }
    benchmark = Benchmark("made", tuple(cases), "0", joint={"pair": "pair", "set": "set"})
    assert groups_by_part(benchmark) == {"part/pair": 6, "part/set": 3}
    items = score_items(cases, features_from(table), ties={"": TiePolicy.FIRST})
    rules = {"set": Aggregate(("part",), metric="set")}
    scores, aggregates = summarise(with_joint(items, benchmark), rules)
    pairs, sets = scores["part"]["pair"], scores["part"]["set"]
    assert next(iter(scores["part"])) == "accuracy"
    # right pairs: x0, z0 (by the tie rule), z1; only set z is right
    assert (pairs.value, pairs.n, pairs.chance) == (3 / 6, 6, 1 / 4)
    assert (pairs.strict, pairs.fractional, pairs.ties) == pytest.approx((2 / 6, 2.5 / 6, 1))
    assert (sets.value, sets.n, sets.chance) == (pytest.approx(1 / 3), 3, 1 / 16)
    assert aggregates["set"].value == sets.value
    assert sets.interval == "wilson"
    # without y0 the pair y0 and the set y cannot be judged
    part = [case for case in cases if case.id != "y0"]
    items = score_items(part, features_from(table), ties={"": TiePolicy.FIRST})
    expected = {"part": 12, **groups_by_part(benchmark)}
    scores, _ = summarise(with_joint(items, benchmark), {}, expected)
    less = scores["part"]
    assert (less["pair"].value, less["pair"].n, less["pair"].expected) == (3 / 5, 5, 6)
    assert (less["set"].value, less["set"].n, less["set"].expected) == (1 / 2, 2, 3)
    assert (less["accuracy"].n, less["accuracy"].expected) == (11, 12)


def test_no_interval_is_a_point_because_all_items_are_wrong():
    cases = [choice(f"x{k}", "", "", f"p{k // 2}") for k in range(8)]
    table = {f"p{k}": {} for k in range(4)}
    for case in cases:
        right, wrong = case.texts
        table[case.images[0].path.name] |= {right: 0.1, wrong: 0.2}
    items = score_items(cases, features_from(table))
    scores, aggregates = summarise(items, {"macro": Aggregate(("part",))}, None, Bootstrap(50))
    for score in (aggregates["macro"], scores["part"]["accuracy"]):
        assert (score.value, score.low, score.interval) == (0.0, 0.0, "wilson")
        assert score.high == pytest.approx(0.4899, abs=1e-4)  # none of 4 photos
