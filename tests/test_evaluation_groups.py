"""Means over parts of several benchmarks against plain loops, and over suites as papers quote."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from build.photos import plain
from build.tables import write_zip
from compoclip.benchmarks.case import (
    Benchmark,
    Classification,
    ImageRef,
    Retrieval,
    image_key,
)
from compoclip.benchmarks.names import SUITES
from compoclip.benchmarks.targets import parse_targets
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.comparison import ScorePart
from compoclip.evaluation.groups import (
    group_differences,
    group_scores,
    overall_groups,
    part_score,
    skill_groups,
)
from compoclip.evaluation.results import Results, Score, load_items
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap, sign_flip
from compoclip.evaluation.tables import overall_table
from compoclip.report.looks import Album, ref_of_key
from evaluation_helpers import FakeEncoder, choice_benchmark, compare, photos


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


# --- Suites by name, and the means over them that publications quote. ---


def test_a_suite_is_a_list_of_targets() -> None:
    found = parse_targets(["elevater,root=/data", "sugarcrepe"], Path("here"))
    assert [each.spec for each in found] == [*SUITES["elevater"], "sugarcrepe"]
    assert {each.root for each in found[:-1]} == {Path("/data")}
    assert len(parse_targets(["comp"], Path())) == 11
    assert [t.spec for t in parse_targets(["retrieval_3,pre_caption_words=30"], Path())] == [
        "retrieval:coco",
        "retrieval:flickr30k",
        "retrieval:coco_cf",
    ]
    for text in ("elevater,id=x", "elevater,images=/x"):
        with pytest.raises(UsageError, match="neither images= nor id="):
            parse_targets([text], Path())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    """A tiny set under the name of each of the 21 and of the three retrieval sets."""
    root = tmp_path_factory.mktemp("sets")
    names = [f"{k}_{'cat' if k % 2 else 'dog'}" for k in range(6)]
    refs = tuple(photos(root, names).values())
    zero = Classification(
        refs, tuple(k % 2 for k in range(6)), ("dog", "cat"), (("a_dog",), ("a_cat",))
    )
    benchmarks = []
    for number, spec in enumerate(SUITES["elevater"]):
        labels = tuple((k + (k < number % 3)) % 2 for k in range(6))
        content, name = replace(zero, labels=labels), spec.replace(":", "_")
        rules = content.rules()
        benchmarks.append(Benchmark(name, content, "d", aggregates=rules, headline="accuracy"))
    texts = tuple(name.replace("_", " ") for name in names)
    pairs = tuple((k, k) for k in range(6))
    benchmarks += [
        Benchmark(spec.replace(":", "_"), Retrieval(refs, texts, pairs), "d")
        for spec in SUITES["retrieval_3"]
    ]
    return evaluate("m", FakeEncoder(quality=2.0), benchmarks, root / "out", Options(resamples=50))


def test_means_over_complete_suites_only(results: list[Results]) -> None:
    found = group_scores(results, overall_groups(results), bootstrap=Bootstrap(50))
    assert set(found) == {"ZS (21)", "ZS (20)", "I2T Ret", "T2I Ret"}
    zero = {
        each.benchmark: each.aggregates["accuracy"].value
        for each in results
        if each.benchmark.startswith("zero_shot")
    }
    assert found["ZS (21)"].value == pytest.approx(sum(zero.values()) / 21)
    without = [value for name, value in zero.items() if name != "zero_shot_imagenet-1k"]
    assert found["ZS (20)"].value == pytest.approx(sum(without) / 20)
    assert found["ZS (21)"].n == 21 * 6
    ranks = [each.scores["i2t"]["r1"].value for each in results if "i2t" in each.scores]
    assert found["I2T Ret"].value == pytest.approx(sum(ranks) / 3)
    text = str(overall_table("m", found))
    assert "ZS (21)" in text
    assert text.startswith("m over whole suites")
    some = [each for each in results if each.benchmark != "zero_shot_mnist"]
    assert set(overall_groups(some)) == {"I2T Ret", "T2I Ret"}
    assert overall_groups(results[:3]) == {}
    renamed = [
        replace(result, benchmark=f"mine-{k}", known_as=result.benchmark)
        for k, result in enumerate(results)
    ]
    again = group_scores(renamed, overall_groups(renamed), bootstrap=Bootstrap(50))
    assert {name: score.value for name, score in again.items()} == {
        name: score.value for name, score in found.items()
    }


CLIP = {
    "aro": 57.55, "crepe_prod": 23.71, "eqben": 26.49, "imagecode": 21.72, "sugarcrepe": 73.03,
    "svo_probes": 84.14, "valse": 67.53, "vl_checklist": 70.77, "whatsup": 41.46,
    "winoground": 8.75, "spec": 31.9, "caltech-101": 88.26, "cifar-10": 89.83, "cifar-100": 65.08,
    "country211": 17.21, "dtd": 44.41, "eurosat_clip": 45.54, "fer-2013": 42.27,
    "fgvc-aircraft-2013b": 19.65, "food-101": 84.01, "gtsrb": 32.56, "kitti-distance": 27.43,
    "mnist": 48.25, "oxford-flower-102": 66.68, "oxford-iiit-pets": 87.14,
    "patch-camelyon": 60.62, "rendered-sst2": 58.59, "resisc45_clip": 60.02,
    "stanford-cars": 59.64, "voc-2007": 82.61, "hateful-memes": 55.87, "imagenet-1k": 63.34,
}  # fmt: skip
RANKS = {"coco": (50.12, 30.45), "flickr30k": (78.8, 58.76), "coco_cf": (51.0, 48.1)}
"""CLIP ViT-B/32."""


def test_the_means_of_clip_are_the_published_ones() -> None:
    def score(value: float) -> Score:
        return Score("accuracy", value, 1, 1, 0.0, 100.0, "wilson", 0.0, 100)

    def result(name: str, **changes: object) -> Results:
        plain = Results("clip", name, 1, {}, "", {}, {}, {"h": score(0.0)}, "h", {}, "")
        return replace(plain, **changes)

    suites = {
        spec.partition(":")[2] or spec: spec.replace(":", "_")
        for s in SUITES.values()
        for spec in s
    }
    found = [result(suites[name], aggregates={"h": score(value)}) for name, value in CLIP.items()]
    for name, ranks in RANKS.items():
        scores = {way: {"r1": score(rank)} for way, rank in zip(("i2t", "t2i"), ranks)}
        found.append(result(suites[name], scores=scores))
    by_name = {each.benchmark: each for each in found}
    means = {
        title: sum(part_score(by_name, part).value for part in parts) / len(parts)
        for title, parts in overall_groups(found).items()
    }
    assert {title: round(mean, 1) for title, mean in means.items()} == {
        "Comp": 46.1,
        "ZS (21)": 57.1,
        "ZS (20)": 56.8,
        "I2T Ret": 60.0,
        "T2I Ret": 45.8,
    }
    assert means["ZS (21)"] == pytest.approx(57.10, abs=0.005)
    assert means["ZS (20)"] == pytest.approx(56.78, abs=0.005)


def test_pictures_inside_archives_can_be_shown(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "photos.zip", {"in/a b.png": plain("red")})
    album = Album()
    shown = album.add(f"{archive}@in/a b.png")
    cropped = album.add(f"{archive}@in/a b.png#0,0,4,4")
    assert shown.uri.startswith("data:image/")
    assert cropped.uri.startswith("data:image/")
    assert album.add(f"{archive}@gone.png").uri == ""
    assert album.unreadable == 1
    (tmp_path / "moved").mkdir()
    archive.rename(tmp_path / "moved" / "photos.zip")
    moved = Album(root=tmp_path / "moved")
    assert moved.add(f"{archive}@in/a b.png#0,0,4,4").uri == cropped.uri


@pytest.mark.parametrize("path", ["a.png", "a#1,2,3,4.png", "photos@home.png"])
@pytest.mark.parametrize("box", [None, (0.0, 0.0, 4.0, 4.5), (-1.5, 1e-05, 1e06, 2.0)])
def test_a_key_in_results_names_its_image(
    path: str, box: tuple[float, float, float, float] | None
) -> None:
    for upright, mirror in product((True, False), repeat=2):
        ref = ImageRef(Path(path), box, upright=upright, mirror=mirror)
        packed = replace(ref, path=Path("a.zip"), member=path)
        assert ref_of_key(image_key(ref)) == ref
        assert ref_of_key(image_key(packed)) == packed
