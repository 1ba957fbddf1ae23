"""Parts of the report against hand-made cases."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from build.photos import noise
from build.tables import write_jsonl, write_text
from compoclip.benchmarks.case import Benchmark
from compoclip.errors import CompoclipError
from compoclip.evaluation.comparison import Difference, ScorePart
from compoclip.evaluation.groups import (
    BRITTLENESS,
    COMPOSITION,
    MATCH,
    RECOGNITION,
    RETRIEVAL,
    against_chance,
    chance_flag,
    chance_flags,
    group_scores,
)
from compoclip.evaluation.results import Score, load_items, load_results, save_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap, wilson
from compoclip.evaluation.tables import remarks
from compoclip.report.findings import (
    direction,
    findings,
    overall_rows,
    score_lines,
    skill_rows,
)
from compoclip.report.looks import PHOTO_SIDE, Album, word_diff
from compoclip.report.plotting import place_labels
from compoclip.report.study import Study, read_study
from compoclip.report.training import POINTS, read_run
from compoclip.report.wording import interval, listed, percent
from compoclip.report.write import write_report, write_tables
from evaluation_helpers import FakeEncoder, choice_benchmark, measured
from report_study import make_run, make_study


def changed(pieces) -> list[str]:
    return [piece.text for piece in pieces if piece.changed]


@pytest.mark.parametrize(
    ("one", "two", "left", "right"),
    [
        ("a red cup", "a blue cup", ["red"], ["blue"]),
        ("a cup left of it", "a cup right of it", ["left"], ["right"]),
        ("A man's dog", "a man's big dog", [], ["big"]),
        ("two dogs run", "one cat runs", ["two dogs run"], ["one cat runs"]),
        ("same text", "same text", [], []),
        ("", "word", [], ["word"]),
    ],
)
def test_word_diff(one, two, left, right):
    first, second = word_diff(one, two)
    assert (changed(first), changed(second)) == (left, right)
    assert "".join(p.text for p in first) == one
    assert "".join(p.text for p in second) == two


def difference(name="x", verdict="higher", p=0.01) -> Difference:
    return Difference("b", name, 0.5, 0.6, 0.1, 0.0, 0.2, 10, 10, p, p, verdict)


def test_direction_knows_what_is_good():
    assert direction(difference()) == "better"
    assert direction(difference(verdict="lower")) == "worse"
    assert direction(difference(verdict="not significant")) == "same"
    assert direction(difference(verdict="too few photos: 3")) == "same"
    assert direction(difference(BRITTLENESS)) == "worse"
    assert direction(difference(BRITTLENESS, "lower")) == "better"
    assert direction(difference(MATCH)) == "same"


@pytest.mark.parametrize(
    ("verdict", "p", "said"),
    [
        ("higher", 0.01, ""),
        ("lower", 0.01, "below chance"),
        ("not significant", 0.2, "at chance"),
        ("equivalent within 1 point", 0.9, "at chance"),
        ("too few photos: 9", None, "too few photos: 9"),
    ],
)
def test_standing_against_chance(verdict, p, said):
    score = Score("accuracy", 0.0, 30, 30, 0.0, 0.1, "wilson", 0.5, 30, ties=29)
    assert chance_flag(difference(verdict=verdict, p=p), score) == said
    score = replace(score, ties=30)
    tied = said if p is None else "all items tie"
    assert chance_flag(difference(verdict=verdict, p=p), score) == tied


def test_flags_are_decided_by_the_test_and_not_by_the_interval(study):
    for model, benchmark in product(study.models, study.common):
        results = study.results[model][benchmark]
        flags = chance_flags(results)
        parts = {key: (ScorePart(benchmark, *key),) for key in flags if key[0]}
        decided = against_chance([results], parts)
        scores = results.scores
        expected = {key: chance_flag(d, scores[key[0]][key[1]]) for key, d in decided.items()}
        assert expected.items() <= flags.items()
        assert not {metric for _, metric in flags} & {"brittleness", "positive_score"}


def test_wording():
    assert percent(-0.123, "+") == "−12.3"
    assert percent(-0.0001, "+") == percent(0.0, "+") == "0.0"
    assert interval(0.1, 0.256) == "10.0 to 25.6"
    assert interval(-0.01, 0.2, "+") == "−1.0 to +20.0"
    assert interval(None, None) == interval(None, None, "+") == "–"
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b and c"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of three models on 40 photos."""
    models = ("base", "fsc-clip", "negclip")
    return make_study(tmp_path_factory.mktemp("study"), photos=40, models=models, resamples=40)


@pytest.fixture(scope="module")
def study(results):
    return read_study([results / "base", results / "fsc-clip"], None, Bootstrap(60))


def test_the_base_is_the_model_that_others_come_from(tmp_path):
    results = make_study(tmp_path, photos=4, models=("clip-ft", "base"), resamples=10)
    assert read_study([results], None, Bootstrap(10)).base == "base"
    assert read_study([results], "clip-ft", Bootstrap(10)).models == ("clip-ft", "base")


def test_groups_hold_the_benchmarks_of_their_kind(study):
    names = {n: {p.benchmark for p in parts} for n, parts in study.profile.groups.items()}
    assert names[COMPOSITION] == {"foils@world", "sugarcrepe"}
    assert names[RECOGNITION] == {"zero_shot_shapes"}
    assert names[RETRIEVAL] == {"retrieval_flickr8k"}
    assert set(study.triples) == {"hard_positives"}


def test_scores_are_the_stored_ones_or_their_means(study):
    for model in study.models:
        results, scores = study.results[model], study.skills.scores[model]
        foils = results["foils@world"].scores
        assert scores["spatial"] == foils["spatial"]["accuracy"]
        two = [foils["binding"]["accuracy"], results["sugarcrepe"].scores["swap_att"]["accuracy"]]
        n = sum(s.n for s in two)
        assert scores["binding"].value == pytest.approx(np.mean([s.value for s in two]))
        assert (scores["binding"].n, scores["binding"].expected) == (n, n + 6)


def test_one_sentence_a_model_has_gain_and_cost(study):
    (said,) = findings(study).values()
    assert said.startswith("fsc-clip ")
    assert said.count(". ") == 0
    changes = study.skills.differences["fsc-clip"].values()
    gains = [
        d
        for d in changes
        if direction(d) == "better"
        and study.grounded.needs_image(study.skills.groups[d.name], d.other)
    ]
    best = max(gains, key=lambda d: d.difference)
    values = f"{best.name} ({percent(best.base)} to {percent(best.other)})"
    assert re.search(rf"gains( most)? in {re.escape(values)}", said)
    losses = [d for d in changes if direction(d) == "worse"]
    assert bool(re.search(r"loses( most)? in ", said)) == bool(losses)
    assert ("loses significantly nowhere" in said) != bool(losses)
    mean = study.grounded.differences["fsc-clip"]
    assert f"{percent(mean.base)} to {percent(mean.other)} points" in said


def test_a_gain_that_needs_no_image_is_none(study):
    change = max(study.skills.differences["fsc-clip"].values(), key=lambda d: d.difference)
    parts = {(p.benchmark, p.name) for p in study.skills.groups[change.name]}
    base = study.grounded.models[0]

    def with_columns(**values):
        columns = tuple(
            replace(c, **values) if (c.part.benchmark, c.part.name) in parts else c
            for c in base.columns
        )
        models = (replace(base, columns=columns), *study.grounded.models[1:])
        return replace(study, grounded=replace(study.grounded, models=models))

    group = study.skills.groups[change.name]
    assert study.grounded.needs_image(group, change.other)
    for columns in ({"apart": "needs no image"}, {"blind": change.other}):
        assert not with_columns(**columns).grounded.needs_image(group, change.other)
    assert change.name not in findings(with_columns(blind=change.other))["fsc-clip"]


def test_the_first_table_has_gain_and_both_directions(study):
    first, *rest = overall_rows(study)
    names = [row.name for row in rest]
    assert first.name == "Mean grounded gain"
    assert [s.value for s in first.scores] == [m.mean().value for m in study.grounded.models]
    assert names.count(RECOGNITION) == 1
    assert len({first.name, *names}) == 1 + len(names)
    assert RETRIEVAL not in names  # a mean over styles
    ways = ("text to image", "image to text")
    assert {name for name in names if "R@1" in name} == {
        f"retrieval_flickr8k R@1, {way}" for way in ways
    }


def test_sub_tasks_that_differ_have_a_row_each(tmp_path):
    toy = choice_benchmark(tmp_path / "p", n=60, skills={"even": "role", "odd": "role"})
    measured(tmp_path, "base", (), toy)
    measured(tmp_path, "other", range(0, 60, 2), toy)
    rows = skill_rows(read_study([tmp_path / "out"], "base", Bootstrap(30)))
    assert [row.name for row in rows] == ["role: even", "role: odd"]
    assert [row.scores[1].value for row in rows] == [1.0, 0.0]
    alike = read_study([tmp_path / "out" / "base"], "base", Bootstrap(30))
    assert [row.name for row in skill_rows(alike)] == ["role"]


def test_rows_without_room_to_gain_are_one_line(tmp_path):
    toy = choice_benchmark(tmp_path / "p", n=60, skills={"even": "role", "odd": "order"})
    measured(tmp_path, "base", range(60), toy)
    measured(tmp_path, "other", range(1, 60), toy)
    page = written(tmp_path)
    assert "At least 99.5 for every model: order.</p>" in page
    assert '<span class="name">role</span>' in page
    assert '<span class="name">order</span>' not in page


def test_bounds_are_badges_where_they_give_something_away(results, tmp_path):
    shown, bounds = [results / "base", results / "fsc-clip"], [results / "negclip"]
    study = read_study(shown, "base", Bootstrap(60), bounds=bounds)
    assert study.models == ("base", "fsc-clip")
    reached = study.skills.reached["negclip"]
    for row in skill_rows(study):
        assert ("negclip" in row.giveaways) == (row.name in reached)
    assert all(s.chance < s.value < 1 for s in reached.values())
    page = write_report(shown, tmp_path / "r.html", bootstrap=Bootstrap(40), bounds=bounds)
    assert '<th scope="col" class="num bound">negclip</th>' in page.read_text()


def test_the_interval_of_a_mean_of_constants_is_not_a_point(results, tmp_path):
    (foils,) = load_results(results / "base" / "foils@world.json")
    items = load_items(foils)
    for name in items.column_names:  # every item right
        if name.endswith(".accuracy"):
            column = pa.array([1.0] * items.num_rows)
            items = items.set_column(items.column_names.index(name), name, column)
    scores = {
        part: {**metrics, "accuracy": replace(metrics["accuracy"], value=1.0)}
        for part, metrics in foils.scores.items()
    }
    right = replace(foils, scores=scores, items=Path(foils.items).name)
    groups = {"all": tuple(ScorePart("foils@world", part) for part in ("object", "spatial"))}
    whole = save_results(right, items, tmp_path)
    score = group_scores([whole], groups, Bootstrap(50))["all"]
    assert (score.low, score.high) == wilson(score.photos, score.photos)
    assert score.interval == "wilson"
    assert score.low < 1


def test_tables_flag_partial_and_chance(study):
    lines = score_lines(study, "sugarcrepe", aggregates=False)
    assert {score.items() for _, _, score, _ in lines} == {"40 of 46"}
    rows = {row.name: row for row in skill_rows(study)}
    assert rows["spatial"].flags[0] == "at chance"
    assert len(rows["spatial"].parts) == 0
    assert [part.name for part in rows["binding"].parts] == ["binding", "swap_att"]
    assert "cut: longer than the model's context" in remarks(study.measured("hard_positives"))[0]


def test_pictures_are_small_once_and_within_budget(tmp_path):
    for number, name in enumerate("ab"):
        noise(number, (400, 300)).save(tmp_path / f"{name}.png")
    album = Album(budget=20_000)
    first = album.add(f"{tmp_path}/a.png")
    assert max(first.width, first.height) == PHOTO_SIDE
    assert album.add(f"{tmp_path}/a.png").reason == "shown before"
    crop = album.add(f"{tmp_path}/b.png#0,0,40,20")
    assert (crop.width, crop.height) == (160, 80)
    assert album.add(f"{tmp_path}/b.png").reason == "left out to keep the page small"
    assert album.add(f"{tmp_path}/none.png").reason == "photo not found or not readable"
    assert (album.unreadable, album.over_budget) == (1, 1)


def test_labels_keep_apart():
    points = [(100.0, 100.0), (104.0, 102.0), (98.0, 99.0)]
    corners = place_labels(points, [(60.0, 14.0)] * 3, (300.0, 200.0))
    boxes = [(x, y, x + 60, y + 14) for x, y in corners]
    for k, a in enumerate(boxes):
        assert a[0] >= 0
        assert a[2] <= 300
        for b in boxes[k + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_runs_are_thinned_and_smoothed(tmp_path):
    run = read_run(make_run(tmp_path, "long", steps=1000))
    loss = run.curves["loss"]
    assert len(loss.steps) == len(loss.values) == len(loss.smooth) <= POINTS
    assert loss.steps[-1] == 10_000
    assert run.curves["images per second"].values == pytest.approx([160] * 250, rel=0.2)
    assert run.facts["method"] == "long"
    assert "batch size 64" in run.facts["settings"]


def test_odd_logs(tmp_path):
    log = tmp_path / "train.jsonl"
    lines = [
        {"step": 1, "loss": 2.0, "images": 8, "seconds": 1.0},
        {"step": 2, "skipped": "loss is not finite"},
        {"step": 3, "loss": 1.0, "images": 24, "seconds": 1.0},
    ]
    write_jsonl(log, lines)
    with log.open("a") as file:
        file.write('{"step": 4, "lo')
    run = read_run(tmp_path)
    assert run.curves["loss"].values == (2.0, 1.0)
    assert "images per second" not in run.curves
    assert run.facts["steps skipped, loss or gradient not finite"] == "1"
    assert run.facts["state"] == "unfinished"
    log.write_text("")
    with pytest.raises(CompoclipError, match="no logged steps"):
        read_run(tmp_path)
    write_jsonl(log, lines[:1])
    write_text(tmp_path / "model" / "compoclip.json", "[]")
    with pytest.raises(CompoclipError, match="expected a JSON object"):
        read_run(tmp_path)


def evaluated(folder: Path, quality: float, *benchmarks: Benchmark) -> Study:
    """A base that guesses, and another model that does not."""
    for name, skill in (("base", 0.0), ("other", quality)):
        encoder = FakeEncoder(name, quality=skill)
        evaluate(name, encoder, benchmarks, folder / "out", Options(resamples=30))
    return read_study([folder / "out"], "base", Bootstrap(30))


def written(folder: Path) -> str:
    page = write_report([folder / "out"], folder / "r.html", bootstrap=Bootstrap(30))
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("number", "photos"), [(1, 1), (4, 2)])  # a sub-task has every other one
def test_a_page_about_too_few_photos_says_so(tmp_path, number, photos):
    toy = choice_benchmark(tmp_path / "p", n=24, shared=number, skills={"even": "role"})
    study = evaluated(tmp_path, 3.0, toy)
    (said,) = findings(study).values()
    assert said == "other was measured on too few photos to judge it: fewer than 10."
    page = written(tmp_path)
    assert f"too few photos: {photos}" in page
    assert ('<span class="small">–</span>' in page) == (number == 1)
    tables = {path.name: path.read_text() for path in write_tables(study, tmp_path / "tables")}
    for text in tables.values():
        assert "nan" not in text
        assert "None" not in text
    assert f"too few photos: {photos}" in tables["compare-other.md"]


def test_a_lead_tells_what_was_not_judged(tmp_path):
    many = choice_benchmark(tmp_path / "p", n=60, skills={"even": "role", "odd": "order"})
    few = choice_benchmark(tmp_path / "q", n=8, name="few", skills={"even": "size", "odd": "size"})
    (said,) = findings(evaluated(tmp_path, 9.0, many, few)).values()
    assert " gains in role " in said or " gains in order " in said
    assert re.search(r"is not judged on [12] skills? of fewer than 10 photos\.$", said)
