"""Means over parts of several benchmarks against plain loops over the items."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compoclip.errors import CompoclipError
from compoclip.evaluation.comparison import ScorePart
from compoclip.evaluation.groups import (
    group_differences,
    group_scores,
    part_score,
    skill_groups,
)
from compoclip.evaluation.results import load_items
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap, sign_flip
from evaluation_helpers import FakeEncoder, choice_benchmark, compare


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    sets = [
        choice_benchmark(folder / "a", n=30, name="one", skills={"even": "role", "odd": "order"}),
        choice_benchmark(folder / "b", n=48, shared=24, name="two", skills={"even": "role"}),
    ]
    return [
        evaluate(name, FakeEncoder(name, quality=q), sets, folder / "out", Options(resamples=60))
        for name, q in (("base", 0.2), ("other", 0.9))
    ]


def outcomes(results, subtask: str) -> dict[str, float]:
    rows = load_items(results).to_pylist()
    return {row["item"]: row["used.accuracy"] for row in rows if row["subtask"] == subtask}


def test_skills_gather_their_subtasks_and_others_stay_alone(models):
    assert skill_groups(models[0]) == {
        "role": (ScorePart("one", "even"), ScorePart("two", "even")),
        "order": (ScorePart("one", "odd"),),
        "two: odd": (ScorePart("two", "odd"),),
    }


def test_scores_are_plain_means_of_the_parts(models):
    one, two = models[0]
    groups = skill_groups(models[0])
    found = group_scores(models[0], groups, Bootstrap(200, 3))
    assert found["order"] == one.scores["odd"]["accuracy"]
    means = [np.mean(list(outcomes(each, "even").values())) for each in (one, two)]
    role = found["role"]
    assert role.value == pytest.approx(np.mean(means))
    assert (role.n, role.photos, role.chance) == (15 + 24, 12, 0.5)
    assert role.low <= role.value <= role.high
    # an interval is the same in every group of these parts
    alone = group_scores(models[0], {"x": groups["role"]}, Bootstrap(200, 3))
    assert alone == {"x": role}


def test_differences_are_paired_and_corrected(models):
    groups = skill_groups(models[0])
    found = {d.name: d for d in group_differences(*models, groups, Bootstrap(400))}
    gaps = []
    for base, other in zip(*models):
        before, after = outcomes(base, "even"), outcomes(other, "even")
        gaps.append(np.mean([after[item] - before[item] for item in before]))
    assert found["role"].difference == pytest.approx(np.mean(gaps))
    assert found["role"].low <= found["role"].difference <= found["role"].high
    assert found["role"].other_only is None
    before, after = outcomes(models[0][0], "odd"), outcomes(models[1][0], "odd")
    assert found["order"].base_only == sum(before[i] > after[i] for i in before)
    assert found["order"].other_only == sum(before[i] < after[i] for i in before)
    p = {d.name: d.p for d in compare(*models, 50).subtasks if d.benchmark == "one"}
    assert found["order"].p == p["odd"]
    # photos of different benchmarks are different photos, and each counts by its weight
    adds = []
    for base, other in zip(*models):
        rows = zip(load_items(base).to_pylist(), load_items(other).to_pylist())
        own: dict[str, float] = {}
        for one, two in rows:
            if one["subtask"] == "even":
                own.setdefault(one["cluster"], 0.0)
                own[one["cluster"]] += two["used.accuracy"] - one["used.accuracy"]
        size = sum(row["subtask"] == "even" for row in load_items(base).to_pylist())
        adds += [value / size / 2 for value in own.values()]
    assert found["role"].p == pytest.approx(sign_flip(np.array(adds)))
    assert all(d.p_holm >= d.p for d in found.values())
    assert max(d.p_holm for d in found.values()) <= 1


def test_a_rule_is_the_headline(models):
    groups = {"all": (ScorePart("one", "micro", ""), ScorePart("two", "micro", ""))}
    comparison = compare(*models, 100)
    (found,) = group_differences(*models, groups, Bootstrap(100))
    assert found.difference == pytest.approx(comparison.overall.difference)
    value = np.mean([each.aggregates["micro"].value for each in models[1]])
    assert group_scores(models[1], groups, Bootstrap(100))["all"].value == pytest.approx(value)


def test_unknown_parts_are_named(models):
    named = {each.benchmark: each for each in models[0]}
    for names in (("one", "none"), ("one", "even", "r1"), ("one", "none", "")):
        part = ScorePart(*names)
        with pytest.raises(CompoclipError, match="evaluate again"):
            part_score(named, part)
        with pytest.raises(CompoclipError, match="evaluate again"):
            group_differences(*models, {"x": (part,)}, Bootstrap(20))
    renamed = [replace(each, data_hash="other") for each in models[1]]
    with pytest.raises(CompoclipError, match="different annotations"):
        group_differences(models[0], renamed, skill_groups(models[0]), Bootstrap(20))
