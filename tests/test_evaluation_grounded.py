"""Grounded gain by hand: floor, columns that stand apart, repeats, pairs of images, the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import Benchmark, Case, Form
from compoclip.benchmarks.registry import by_others
from compoclip.errors import CompoclipError
from compoclip.evaluation.grounded import (
    CHANCE,
    ColumnGain,
    Grounded,
    exchange_test,
    gain_differences,
    ground,
    ground_all,
    is_blind,
)
from compoclip.evaluation.items import BOTH_IMAGES, Values
from compoclip.evaluation.results import Results
from compoclip.evaluation.statistics import Bootstrap
from compoclip.evaluation.tables import overview_table
from compoclip.models.names import BLIND
from evaluation_helpers import (
    choice_benchmark,
    features_from,
    measured,
    photos,
    ref,
    right_items,
    score_items,
)

Measured = Mapping[str, list[Results]]
# Items of the sub-tasks "even" and "odd", 20 each, that a model has right.
RIGHT = {"model": (18, 7), "better": (20, 7), "blind": (12, 19), "worse": (4, 7)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Results on two benchmarks: "toy", and "again", which has its sub-task "even" too."""
    folder = tmp_path_factory.mktemp("grounded")
    toy = choice_benchmark(folder / "p", n=40)
    even = tuple(case for case in toy.content.cases if case.subtask == "even")
    swapped = tuple(replace(case, texts=case.texts[::-1], truth=1, subtask="x") for case in even)
    again = Benchmark("again", swapped, "d2")
    return {
        name: measured(folder, name, right_items(*right), toy, again)
        for name, right in RIGHT.items()
    }


def grounded(
    results: Sequence[Results], blind: Sequence[Results] = ()
) -> tuple[Grounded, dict[str, ColumnGain]]:
    """The gains of a model, and its columns by sub-task."""
    gains = ground(results, blind, Bootstrap(50))
    return gains, {column.part.name: column for column in gains.columns}


def test_blind_is_the_better_of_chance_and_the_blind_model(results: Measured) -> None:
    alone, columns = grounded(results["model"])
    assert {(c.blind, c.blind_by) for c in columns.values()} == {(0.5, CHANCE)}
    assert [column.credited for column in alone.counted()] == pytest.approx([0.4, 0.0])
    gains, columns = grounded(results["model"], results["blind"])
    even, odd = columns["even"], columns["odd"]
    assert (even.score, even.blind, even.blind_by) == pytest.approx((0.9, 0.6, "blind"))
    assert even.gain.value == pytest.approx(0.3)
    assert even.gain.low < 0.3 < even.gain.high
    assert odd.apart == "needs no image"
    assert odd.blind == pytest.approx(0.95)
    # the same items count once
    assert columns["x"].apart == "repeats toy even"
    assert [column.part.name for column in gains.counted()] == ["even"]
    mean = gains.mean()
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.3, even.gain.low, even.gain.high))
    assert gains.mean(others=True) is None
    renamed = [replace(result, known_as="sugarcrepe") for result in results["model"]]
    gains, _ = grounded(renamed, results["blind"])
    assert gains.mean(others=True) == gains.mean()


def test_a_model_below_blind_counts_as_zero_and_is_no_blind_reference(results: Measured) -> None:
    gains, columns = grounded(results["worse"], results["blind"])
    even = columns["even"]
    assert even.below_blind
    assert even.credited == 0.0
    assert even.gain.value == pytest.approx(-0.4)
    assert gains.mean().value == 0.0
    _, columns = grounded(results["model"], results["worse"])
    assert columns["even"].blind_by == CHANCE


def test_a_further_true_text_of_the_same_words_makes_no_other_question(tmp_path: Path) -> None:
    shown = tuple(photos(tmp_path / "p", ["photo1"]).values())
    true, false = "right 1 cup and plate", "wrong 1 cup and plate"
    questions = {
        "plain": (Form.CHOOSE_TEXT, shown, (true, false)),
        "swap": (Form.TRIPLE, shown, (true, "right 1 plate and cup", false)),
        "other": (Form.TRIPLE, shown, (true, "right 1 mug and plate", false)),
        "texts": (Form.TEXT_ONLY, (), (true, "right 1 plate and cup", false)),
    }
    benchmarks = [
        Benchmark(name, (Case("1", form, images, texts, name),), "d")
        for name, (form, images, texts) in questions.items()
    ]
    _, columns = grounded(measured(tmp_path, "m", {1}, *benchmarks))
    assert {name: column.apart for name, column in columns.items()} == {
        "plain": "",
        "swap": "repeats plain plain",
        "other": "",
        "texts": "has no images",
    }


def test_blind_models_are_recognised_and_must_fit(results: Measured) -> None:
    (toy, _) = results["blind"]
    assert not is_blind(toy)
    assert is_blind(replace(toy, identity={"architecture": BLIND}))
    with pytest.raises(CompoclipError, match="different annotations"):
        ground(results["model"], [replace(toy, data_hash="other")], bootstrap=Bootstrap(0))


def test_official_items_of_others_are_known_by_name() -> None:
    assert all(by_others(name) for name in ("sugarcrepe", "valse", "retrieval_coco"))
    made = ("sugarcrepe@world", "world-foils", "foils", "rewrites_captions.csv", "retrieval_x.csv")
    assert not any(by_others(name) for name in made)


def test_both_images_right_by_hand() -> None:
    answers = [0, 1, 0, 1, 1]  # items 0 and 1 are a pair, and 2 and 3; item 4 has no partner
    cases = [
        Case(f"{k}", Form.CHOOSE_TEXT, (ref(f"i{k}.jpg"),), ("a", "b"), "s", truth)
        for k, truth in enumerate(answers)
    ]
    prefer_a = {f"i{k}.jpg": {"a": 1.0, "b": 0.0} for k in range(5)}
    items = score_items(cases, features_from({**prefer_a, "i3.jpg": {"a": 0.0, "b": 1.0}}))
    assert items.outcomes["accuracy"].used.tolist() == [1, 0, 1, 1, 0]
    assert np.array_equal(items.both_images, [0, np.nan, 1, np.nan, np.nan], equal_nan=True)


def test_pairs_have_chance_of_a_quarter_and_count_in_no_mean(tmp_path: Path) -> None:
    shown = photos(tmp_path / "p", [f"photo{k}" for k in range(40)])
    cases = tuple(
        Case(name, Form.CHOOSE_TEXT, (image,), (f"right {k // 2}", f"wrong {k // 2}"), "s", k % 2)
        for k, (name, image) in enumerate(shown.items())
    )
    gains, columns = grounded(measured(tmp_path, "m", range(40), Benchmark("b", cases, "d")))
    (pair,) = gains.pairs
    assert pair.part.metric == BOTH_IMAGES
    assert (pair.score, pair.blind, pair.blind_by) == (0.0, 0.25, CHANCE)  # always the same text
    assert columns["s"].score == 0.5


def test_a_difference_of_mean_gains(results: Measured) -> None:
    gains = {name: ground(each, results["blind"], Bootstrap(200)) for name, each in results.items()}
    found = gain_differences(gains["model"], [gains["better"], gains["worse"]])
    up, down = found["better"], found["worse"]
    assert up.difference == pytest.approx(0.1)  # 0.4 - 0.3
    assert down.difference == pytest.approx(-0.3)  # the floor: not 0.4 - 0.9 + ...
    assert (up.verdict, down.verdict) == ("not significant", "lower")
    assert (up.p_holm, down.p_holm) == pytest.approx((up.p, 2 * down.p))
    apart = replace(gains["better"], columns=())
    assert gain_differences(gains["model"], [apart]) == {}


def test_the_exchange_test_lists_all_choices_of_photos() -> None:
    rng = np.random.default_rng(5)
    adds = rng.normal(size=(8, 2)) / 8
    base = np.array([0.1, -0.05])
    other = base + adds.sum(axis=0)

    def gap(choice: Sequence[int]) -> float:
        moved = np.asarray(choice) @ adds
        gains = [np.maximum(each, 0) for each in (other - moved, base + moved)]
        return abs(float((gains[0] - gains[1]).mean()))

    every = [gap(choice) for choice in product((0, 1), repeat=8)]
    exact = np.mean([each >= gap([0] * 8) - 1e-12 for each in every])
    p = exchange_test(base, other, adds, draws=20_000)
    assert p == pytest.approx(exact, abs=0.01)
    assert exchange_test(base, base, np.zeros((8, 2))) == 1.0


def test_the_exchange_test_keeps_its_level() -> None:
    """Two equally good models, one column above blind, one at it: few tests say they differ."""
    rng, rejected = np.random.default_rng(0), 0
    for number in range(300):
        outcomes: Values = (rng.random((2, 40, 2)) < [0.7, 0.5]).astype(float)
        base, other = outcomes.mean(axis=1) - 0.5
        adds = (outcomes[1] - outcomes[0]) / 40
        rejected += exchange_test(base, other, adds, 199, number) <= 0.05
    assert rejected / 300 < 0.08


def test_the_table_of_several_models(results: Measured) -> None:
    blind = [replace(each, identity={"architecture": BLIND}) for each in results["blind"]]
    several = {name: results[name] for name in ("model", "worse", "better")}
    gains = ground_all(several, blind, Bootstrap(50))
    header, _, even, mean, others, *lines = gains.table().text().splitlines()
    assert header.split() == ["grounded", "gain", *several, "blind"]
    assert even.startswith("toy even")
    assert even.endswith("60.0 (blind)")
    assert [cell.split()[0] for cell in mean.split("  ") if "[" in cell] == ["30.0", "0.0", "40.0"]
    assert mean.count("]-") == 1  # "worse" is significantly lower
    assert others.split()[-3:] == ["-", "-", "-"]
    assert [line.strip() for line in lines] == [
        "mean grounded gain: score - blind, in points; blind: the better of chance and blind",
        "1 column in the mean of model, 0 below blind; 2 count in no mean",
        "needs no image, in no mean: toy odd (95.0)",
        "repeats toy even, in no mean: again x (60.0)",
        "below blind, counted as 0: toy even (worse)",
    ]
    every = [each for measured in several.values() for each in measured]
    overview = str(overview_table(every, "model", grounded=gains))
    assert "in no mean: toy" not in overview
    row = next(line for line in overview.splitlines() if line.startswith("mean grounded gain "))
    assert row.split("]")[0].split("[")[0].split()[-1] == "30.0"
    alone = ground_all({"model": results["model"]}, bootstrap=Bootstrap(50)).notes()
    assert alone[0].endswith("blind: chance alone; measure blind:CAPTIONS beside the model")
