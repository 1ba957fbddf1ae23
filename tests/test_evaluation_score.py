"""Outcomes of every case form against hand-computed values, ties and degenerate scorers."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy
from compoclip.benchmarks.registry import load_benchmark
from compoclip.errors import CompoclipError
from compoclip.evaluation.encode import Damaged, EncodeOptions
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.forms.cases import Comparisons
from compoclip.evaluation.items import Items, case_clusters, cosines, linked
from evaluation_helpers import all_forms, features_from, features_of, ref, score_items, unit

FIRST = {"": TiePolicy.FIRST}
GROUP = Case("x", Form.GROUP, (ref("i"), ref("j")), ("a", "b"), "s")


def one(case: Case, scores: dict[str, dict[str, float]], ties=None):
    return score_items([case], features_from(scores), ties=ties or {})


@pytest.mark.parametrize(
    ("scores", "truth", "strict", "fractional", "first"),
    [
        ((0.9, 0.1, 0.2), 0, 1, 1, 1),
        ((0.1, 0.9, 0.2), 0, 0, 0, 0),
        ((0.5, 0.5, 0.2), 0, 0, 1 / 2, 1),
        ((0.5, 0.5, 0.2), 1, 0, 1 / 2, 0),
        ((0.5, 0.5, 0.5), 0, 0, 1 / 3, 1),
        ((0.5, 0.2, 0.2), 0, 1, 1, 1),  # a tie among the losers changes nothing
    ],
)
def test_choose_text(scores, truth, strict, fractional, first):
    case = Case("x", Form.CHOOSE_TEXT, (ref("i"),), ("a", "b", "c"), "s", truth)
    table = {"i": dict(zip("abc", scores))}
    got = one(case, table).outcomes["accuracy"]
    assert (got.used[0], got.strict[0], got.fractional[0]) == pytest.approx(
        (strict, strict, fractional)
    )
    assert got.chance[0] == pytest.approx(1 / 3)
    assert one(case, table, FIRST).outcomes["accuracy"].used[0] == first
    assert bool(got.tied[0]) == (0 < fractional < 1)


def test_mixed_numbers_of_candidates():
    cases = [Case(name, Form.CHOOSE_TEXT, (ref("i"),), tuple(name), "s") for name in ("ab", "abc")]
    items = score_items(cases, features_from({"i": {"a": 0.5, "b": 0.1, "c": 0.9}}))
    assert items.outcomes["accuracy"].used.tolist() == [1, 0]
    assert items.outcomes["accuracy"].chance == pytest.approx([1 / 2, 1 / 3])


def used(items: Items) -> dict[str, float]:
    return {name: float(outcome.used[0]) for name, outcome in items.outcomes.items()}


def test_choose_image_takes_the_image_with_the_best_score():
    case = Case("x", Form.CHOOSE_IMAGE, (ref("i"), ref("j")), ("a",), "s", 1)
    items = one(case, {"i": {"a": 0.1}, "j": {"a": 0.3}})
    assert used(items) == {"accuracy": 1}
    assert items.positive[0] == pytest.approx(0.3)
    assert items.scores[0] == pytest.approx([0.1, 0.3])


def test_group_follows_the_winoground_definition():
    # each caption finds its image, but image i prefers caption b
    items = one(GROUP, {"i": {"a": 0.4, "b": 0.5}, "j": {"a": 0.1, "b": 0.6}})
    assert used(items) == {"group": 0, "text": 0, "image": 1}
    assert items.scores[0] == pytest.approx([0.4, 0.5, 0.1, 0.6])
    assert items.positive[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("other", "ties", "expected"),
    [
        ((0.1, 0.9), {}, (0, 0, 1)),
        ((0.1, 0.9), FIRST, (1, 1, 1)),
        ((0.5, 0.5), {}, (0, 0, 0)),
        ((0.5, 0.5), FIRST, (0, 0, 0)),  # the first is the wrong one for image j
    ],
)
def test_a_tie_for_the_first_helps_one_half_of_a_group(other, ties, expected):
    items = one(GROUP, {"i": {"a": 0.5, "b": 0.5}, "j": dict(zip("ab", other))}, ties)
    assert used(items) == dict(zip(("group", "text", "image"), expected))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((0.9, 0.8, 0.1), [1, 1, 1, 0, 0]),  # both above
        ((0.9, 0.1, 0.5), [0, 1, 0, 1, 0]),  # only first above
        ((0.1, 0.9, 0.5), [0, 0, 1, 1, 0]),  # only second above
        ((0.2, 0.1, 0.5), [0, 0, 0, 0, 1]),  # both below
        ((0.9, 0.5, 0.5), [0, 1, 0, 0, 0]),  # a tie
    ],
)
def test_triple_and_its_five_orders(scores, expected):
    case = Case("x", Form.TRIPLE, (ref("i"),), ("p", "q", "n"), "s")
    assert [*used(one(case, {"i": dict(zip("pqn", scores))})).values()] == expected


def test_text_only_needs_both_comparisons():
    texts = np.array([[1, 0, 0], [0.8, 0.6, 0], [0.9, 0, 0.3]], dtype=np.float32)
    case = Case("x", Form.TEXT_ONLY, (), ("p", "q", "n"), "s")
    items = score_items([case], features_of([case], np.empty((0, 3)), texts))
    # s(p,q) = .8, s(p,n) = .9, s(q,n) = .72
    assert items.scores[0] == pytest.approx([0.8, 0.9, 0.72], abs=1e-6)
    assert used(items) == {"augmented": 0, "original": 0, "second": 1}


@pytest.mark.parametrize(
    ("text", "scores", "strict", "first", "random", "chance"),
    [
        ("a>b", (2, 1), 1, 1, 1, 1 / 2),
        ("a>b", (1, 1), 0, 1, 1 / 2, 1 / 2),
        ("a>>b", (1, 1), 0, 0, 1 / 2, 1 / 2),
        ("b>a a>c", (1, 1, 0), 0, 1, 1 / 2, 1 / 6),
        ("a>b d>>c", (1, 1, 0, 2), 0, 1, 1 / 2, 1 / 4),
        ("a>b d>>c", (2, 1, 0, 0), 0, 0, 1 / 2, 1 / 4),
        ("a>>c c>>b | b>>c c>>a", (0, 2, 1), 1, 1, 1, 1 / 3),
        ("a>>c c>>b | b>>c c>>a", (1, 2, 1), 0, 0, 1 / 2, 1 / 3),
    ],
)
def test_comparisons_and_their_ties(text, scores, strict, first, random, chance):
    row = np.array([scores] * 2, dtype=np.float32)
    found = Comparisons(text).outcomes(row, np.array([False, True]))
    assert (found.used.tolist(), found.strict.tolist()) == ([strict, first], [strict] * 2)
    assert found.fractional == pytest.approx([random] * 2)
    assert found.chance == pytest.approx([chance] * 2)


@pytest.mark.parametrize("form", [Form.GROUP, Form.TRIPLE, Form.TEXT_ONLY])
def test_fractional_is_the_mean_over_all_ways_to_break_ties(form):
    """Oracle: order equal scores in every possible way and average the strict outcome."""
    width, shape = (4, (-1, 2, 2)) if form is Form.GROUP else (3, (-1, 3))

    def judged(rows):
        n = len(rows)
        return FORMS[form].judge(rows.reshape(shape), np.zeros(n, int), np.zeros(n, bool))

    orders = np.array([*itertools.permutations(range(width))], dtype=np.float32)
    for scores in itertools.product(range(width), repeat=width):
        row = np.array([scores], dtype=np.float32)
        broken = judged(row + orders / 100)
        for name, outcome in judged(row).items():
            expected = broken[name].used.mean()
            assert outcome.fractional[0] == pytest.approx(expected), (name, scores)


def test_order_of_the_cases_does_not_matter_to_the_last_bit():
    cases = all_forms(40)
    rng = np.random.default_rng(3)
    features = features_of(cases, unit(rng, 80, 37), unit(rng, 120, 37))
    order = rng.permutation(len(cases))
    straight = score_items(cases, features)
    shuffled = score_items([cases[k] for k in order], features)
    assert [straight.scores[k] for k in order] == shuffled.scores
    for name, each in straight.outcomes.items():
        assert np.array_equal(each.used[order], shuffled.outcomes[name].used, equal_nan=True), name


def test_equal_features_give_bit_equal_scores_wherever_they_stand():
    rng = np.random.default_rng(4)
    left, right = unit(rng, 1, 513), np.tile(unit(rng, 1, 513), (20_011, 1))
    rows = np.zeros(len(right), dtype=np.int64)
    scores = cosines(left, rows, right, np.arange(len(right)))
    assert len(np.unique(scores)) == 1
    assert scores[0] == pytest.approx(float(left[0] @ right[0]), abs=1e-6)


def test_cropped_images_share_their_photo_as_cluster():
    path = Path("photo.jpg")
    boxed = [ImageRef(path, (0, 0, 5.5, 5)), ImageRef(path, (1, 1, 5, 5))]
    cases = [Case(f"{k}", Form.CHOOSE_TEXT, (r,), ("a", "b"), "s") for k, r in enumerate(boxed)]
    items = score_items(cases, features_of(cases, np.eye(2), np.eye(2)))
    assert items.clusters == ["photo.jpg", "photo.jpg"]
    assert items.images == [("photo.jpg#0,0,5.5,5",), ("photo.jpg#1,1,5,5",)]


@pytest.mark.parametrize(
    "case",
    [
        Case("x", Form.CHOOSE_TEXT, (ref("i"),), ("a",), "s"),
        Case("x", Form.CHOOSE_TEXT, (ref("i"),), ("a", "b"), "s", 2),
        Case("x", Form.GROUP, (ref("i"),), ("a", "b"), "s"),
        Case("x", Form.TRIPLE, (), ("a", "b", "c"), "s"),
    ],
)
def test_a_case_that_does_not_fit_its_form_is_named(case):
    with pytest.raises(CompoclipError, match="item 'x' of sub-task 's'"):
        score_items([case], features_from({"i": {"a": 1.0, "b": 0.0, "c": 0.0}}))


def test_items_table_has_three_columns_a_metric_and_nulls_elsewhere():
    cases = all_forms(2)
    rng = np.random.default_rng(5)
    table = score_items(cases, features_of(cases, unit(rng, 4), unit(rng, 6))).to_arrow()
    assert table.num_rows == 10
    names = set(table.column_names)
    assert {"used.group", "strict.group", "fractional.group", "tie"} <= names
    group = table.column("used.group").to_pylist()
    assert [value is not None for value in group] == [c.form is Form.GROUP for c in cases]


def test_items_that_share_a_photo_are_one_cluster_wherever_it_stands():
    def group(name: str, *images: str) -> Case:
        return Case(name, Form.GROUP, tuple(map(ref, images)), ("a", "b"), "s")

    cases = [group("1", "a", "b"), group("2", "c", "b"), group("3", "d", "c"), group("4", "e", "f")]
    clusters = case_clusters(cases)
    assert clusters[0] == clusters[1] == clusters[2] != clusters[3]
    items = score_items(cases, features_from({name: {"a": 0.2, "b": 0.1} for name in "abcdef"}))
    assert items.clusters == clusters


def test_items_of_texts_alone_share_the_texts_that_belong_together():
    texts = {"1": ("p", "q", "n"), "2": ("r", "q", "m"), "3": ("s", "t", "n")}
    one, two, three = case_clusters(
        [Case(name, Form.TEXT_ONLY, (), words, f"part {name}") for name, words in texts.items()]
    )
    assert one == two != three


@pytest.mark.parametrize(
    ("items", "clusters"),
    [
        ("a:xy b:yx", "00"),  # a mirrored pair
        ("a:xy b:xy", "01"),  # the same question of two photos
        ("a:xy b:yx a:xz", "000"),  # through a photo as well
        ("a:xy b:xy c:yx d:yx", "0101"),  # texts of many photos: first with first
        ("a:xyz b:yxz c:zxy d:xy", "0001"),  # one of three texts each; another set of texts
    ],
)
def test_choices_among_the_same_texts_with_other_answers_are_one_cluster(items, clusters):
    made = [
        Case(item, Form.CHOOSE_TEXT, (ref(item[0]),), tuple(item[2:]), "s")
        for item in items.split()
    ]
    found = case_clusters(made)
    assert [found.index(each) == k for k, each in enumerate(found)] == [
        clusters.index(each) == k for k, each in enumerate(clusters)
    ]
    assert len({*zip(found, clusters)}) == len({*clusters})


def test_texts_that_chain_everything_together_leave_the_photos():
    chain = [
        Case(f"{k}", Form.CHOOSE_TEXT, (ref(f"p{(k + 1) // 2}"),), pair, "s")
        for k, pair in enumerate(
            pair for n in range(300) for pair in ((f"t{n}", f"u{n}"), (f"u{n}", f"t{n}"))
        )
    ]
    assert len(set(case_clusters(chain))) == 301


def test_photos_that_chain_everything_together_are_clusters_of_their_own():
    chain = [(f"{k}", f"{k + 1}") for k in range(300)]
    hub = [("7", f"x{k}") for k in range(5)]
    alone = [(f"y{k}", f"z{k}") for k in range(400)]
    found = linked([*chain, *hub, *alone])
    assert found[300:305] == ["7"] * 5
    assert len(set(found[:300])) > 140
    assert len(set(found[305:])) == 400
    short = linked([(f"{k}", f"{k + 1}") for k in range(90)])
    assert len(set(short)) == 1


def test_the_pairs_of_cola_make_88_clusters(shared_data: Path):
    path = shared_data / "annotations/cola/COLA_multiobjects_matching_benchmark.json"
    cases = load_benchmark("cola", Path("nowhere"), Path("photos"), annotations=path).content
    assert isinstance(cases, tuple)
    assert len({case.images[0].photo for case in cases}) == 115
    assert len(set(case_clusters(cases))) == 88


def test_a_long_name_of_a_cluster_makes_no_other_longer():
    """An array of texts holds each at the length of the longest."""
    names = ["b", "a", "b" * 50_000, "c", "a"]
    items = Items.of_cases([], [], np.empty(0), {}, {})
    items = replace(items, ids=[*"12345"] * 200, clusters=names * 200)
    tracemalloc.start()
    photos = items.photos
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert photos.tolist() == [1, 0, 2, 3, 0] * 200
    assert peak < 1e6


def test_damaged_photos_are_counted_one_by_one(monkeypatch):
    """Each damaged image counted all before it."""
    rows = {ref(f"{number}.png"): number for number in range(50)}
    photo, asked = ImageRef.photo, []
    monkeypatch.setattr(
        ImageRef, "photo", property(lambda ref: asked.append(ref) or photo.fget(ref))
    )
    damaged = Damaged(rows, EncodeOptions(max_bad=49))
    for row in range(49):
        damaged.add(row, "torn")
    assert len(asked) == 49
    with pytest.raises(CompoclipError, match="more than 49 damaged images; the next is torn"):
        damaged.add(49, "torn")
