"""The lab's numbers against plain loops, and a lab of two arms from start to table."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from build.results import few_resamples
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.results import Results, load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap, holm, percentile_interval, sign_flip
from compoclip.models.checkpoint import load_model
from compoclip.report.plotting import Panel, write_figure
from compoclip_world.export.suite import write_suite
from evaluation_helpers import FakeEncoder, choice_benchmark
from lab import curves
from lab.columns import COLUMNS, Column, best_rate, column_value, differences, merit
from lab.ground import World
from lab.job import Job
from lab.run import run_lab
from lab.settings import BASE, Arm, Effect, LabSettings
from lab_helpers import Here

QUICK = Options(resamples=50)
EVEN = Column("even", ("binding",), "accuracy")
BOTH = Column("both", ("binding", "order"), "accuracy")
ODD = Column("odd", ("binding", "order"), "accuracy", "odd")


def measured(folder: Path, name: str, quality: float) -> list[Results]:
    """Two benchmarks of which "even" tests binding and, in the first, "odd" tests order."""
    benchmarks = [
        choice_benchmark(
            folder / "p", n=60, shared=20, name="one", skills={"even": "binding", "odd": "order"}
        ),
        choice_benchmark(folder / "p", n=30, name="two", skills={"even": "binding"}),
    ]
    encoder = FakeEncoder(weights=name, quality=quality)
    return evaluate(name, encoder, benchmarks, folder / "out", QUICK)


def outcomes(run: Sequence[Results], benchmark: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of the items of a sub-task, and their photos."""
    (table,) = [load_items(each) for each in run if each.benchmark == benchmark]
    rows = [i for i, name in enumerate(table["subtask"].to_pylist()) if name == part]
    values = np.array(table["used.accuracy"].to_pylist(), dtype=float)[rows]
    return values, np.array(table["cluster"].to_pylist())[rows]


def test_a_column_is_the_mean_of_the_sub_tasks_of_its_skills(tmp_path: Path) -> None:
    run = measured(tmp_path, "m", 1.0)
    evens = [outcomes(run, name, "even")[0].mean() for name in ("one", "two")]
    odd = outcomes(run, "one", "odd")[0].mean()
    assert column_value(EVEN, run) == pytest.approx(fmean(evens))
    assert column_value(BOTH, run) == pytest.approx(fmean([*evens, odd]))
    assert column_value(ODD, run) == pytest.approx(odd)
    with pytest.raises(CompoclipError, match="column 'order': no sub-task that was measured"):
        column_value(Column("order", ("order",), "accuracy"), run[1:])


def test_differences_match_plain_loops(tmp_path: Path) -> None:
    base = [measured(tmp_path, f"b{seed}", 0.4) for seed in range(2)]
    other = [measured(tmp_path, f"o{seed}", 1.0) for seed in range(3)]
    found = differences(base, other, columns=(EVEN, BOTH, ODD), bootstrap=Bootstrap(300, 4))

    values = {
        column.name: [[column_value(column, run) for run in runs] for runs in (base, other)]
        for column in (EVEN, BOTH, ODD)
    }
    for name, (mine, theirs) in values.items():
        assert found[name].value == pytest.approx(fmean(theirs) - fmean(mine))
        assert found[name].sd == pytest.approx(math.sqrt(stdev(mine) ** 2 + stdev(theirs) ** 2))
        assert found[name].runs == 2

    # "odd" is one sub-task: its draws are those of one bootstrap over photos.
    mean = [
        np.mean([outcomes(run, "one", "odd")[0] for run in runs], axis=0) for runs in (base, other)
    ]
    photos = [str(each) for each in load_items(base[0][0])["cluster"].to_pylist()]
    gap, clusters = mean[1] - mean[0], outcomes(base[0], "one", "odd")[1]
    draws = loop_draws(gap, clusters, photos, 300, 4)
    count = len(set(clusters.tolist()))
    low, high = percentile_interval(draws, count)
    assert (found["odd"].low, found["odd"].high) == pytest.approx((low, high))
    alone = differences(base, other, columns=(ODD,), bootstrap=Bootstrap(300, 4))["odd"]
    adds = np.bincount(np.unique(clusters, return_inverse=True)[1], weights=gap / len(gap))
    assert (alone.photos, alone.p) == (count, pytest.approx(sign_flip(adds)))
    singly = [
        differences(base, other, columns=(column,), bootstrap=Bootstrap(300, 4))[column.name].p
        for column in (EVEN, BOTH, ODD)
    ]
    assert [each.p for each in found.values()] == pytest.approx(holm(singly))


def loop_draws(
    values: np.ndarray, clusters: np.ndarray, photos: list[str], resamples: int, seed: int
) -> np.ndarray:
    """Mean of the values in every draw of photos, of which some have no value."""
    names, rng, draws = sorted(set(photos)), np.random.default_rng(seed), []
    for _ in range(resamples):
        drawn = rng.integers(len(names), size=len(names))
        draws.append(np.mean([v for k in drawn for v in values[clusters == names[k]]]))
    return np.array(draws)


def test_the_base_has_no_deviation_and_one_seed_has_none_either(tmp_path: Path) -> None:
    base = [measured(tmp_path, "base", 0.4)]
    other = [measured(tmp_path, f"o{seed}", 1.0) for seed in range(3)]
    seeds = [column_value(EVEN, run) for run in other]
    found = differences(base, other, trained=False, columns=(EVEN,))["even"]
    assert (found.sd, found.runs) == (pytest.approx(stdev(seeds)), 3)
    single = differences(base, other[:1], trained=False, columns=(EVEN,))["even"]
    assert math.isnan(single.sd)
    assert math.isnan(single.least)
    assert single.sign == 0
    assert math.isnan(differences(base, other, columns=(EVEN,))["even"].sd)


def test_runs_on_other_benchmarks_cannot_be_compared(tmp_path: Path) -> None:
    base, other = measured(tmp_path, "a", 0.4), measured(tmp_path, "b", 1.0)
    with pytest.raises(CompoclipError, match="a and b were measured on different benchmarks"):
        differences([base], [other[:1]], columns=(EVEN,))


SETTINGS = LabSettings(
    arms=(
        Arm("clip-ft", "clip-ft", seeds=(3, 4), about="the control"),
        Arm("triplet", "triplet-clip", wise_ft=0.5),
    ),
    benchmarks=(
        "world-confusable",
        "world-hard-positives",
        "world-retrieval",
        "world-retrieval-style",
        "world-zero-shot-kinds",
    ),
    control="clip-ft",
    seeds=(3,),
    effects=(Effect("a claim", "triplet", BASE, ("t2i",), "kept"),),
    scenes=24,
    items=2,
    choice_items=2,
    steps=2,
    batch_size=8,
    lrs=(1e-4, 1e-3),
    warmup=1,
)


FEW = ("augmented", "brittleness", "zero-shot", "i2t", "t2i", "style", "look-alikes")
"""Columns to which these benchmarks give values."""


@pytest.mark.slow
def test_a_lab_runs_to_its_table_and_goes_on(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("lab.pool.Workers", Here)
    monkeypatch.setattr("lab.run.differences", partial(differences, bootstrap=Bootstrap(50)))
    built = ("confusable", "hard_positives", "retrieval", "zero_shot")
    monkeypatch.setattr("lab.ground.write_suite", partial(write_suite, benchmarks=built))
    columns = tuple(column for column in COLUMNS if column.name in FEW)
    monkeypatch.setattr(World, "columns", columns)
    monkeypatch.setattr(World, "shown", FEW)
    out, settings = tmp_path / "lab", replace(SETTINGS, model=str(world / "base"))
    with pytest.raises(UsageError, match="no arm 'nobody'; there are: clip-ft, triplet"):
        run_lab(settings, out, ["nobody"])
    with pytest.raises(CompoclipError, match="nothing is finished yet"):
        run_lab(settings, out, budget=0, workers=1)

    with few_resamples():
        text = run_lab(settings, out, workers=1)
    said = capsys.readouterr().err
    assert "learning rates: running 8 jobs" in said  # the base, three bounds, two rates of each arm
    assert "measured: running 3 jobs" in said  # two seeds of the control
    assert "not judged: one seed" in text
    assert text + "\n" == (out / "lab.md").read_text()
    numbers = json.loads((out / "lab.json").read_text())
    names = ["base", "oracle", "text only", "untrained", "clip-ft", "triplet"]
    assert [line["name"] for line in numbers["lines"]] == names
    oracle = {name: values[0] for name, values in numbers["lines"][1]["values"].items()}
    assert all(value == (name != "brittleness") for name, value in oracle.items())

    # The choice is that of the best run on the validation suite, and is not trained again.
    run = {}
    for arm, choice in numbers["rates"].items():
        merits = {float(rate): value for rate, value in choice["merits"].items()}
        assert choice["chosen"] == best_rate(merits)
        for rate, value in merits.items():
            folder = out / "choice" / f"{arm}-lr{rate:g}-seed3"
            results = load_results(folder)
            assert value == merit({c.name: column_value(c, results) for c in columns})
            assert (out / "runs" / folder.name / "model").is_dir() == (rate == choice["chosen"])
        run[arm] = out / "runs" / f"{arm}-lr{choice['chosen']:g}-seed3"
        measured_runs = sorted(path.name for path in (out / "results").glob(f"{arm}-*"))
        seeds = (3, 4) if arm == "clip-ft" else (3,)
        assert measured_runs == [f"{arm}-lr{choice['chosen']:g}-seed{seed}" for seed in seeds]
    log = (run["triplet"] / "train.jsonl").read_text().splitlines()
    assert (json.loads(log[-1])["step"], json.loads(log[-1])["images"]) == (2, 16)
    path = out / "results" / run["triplet"].name / "world-retrieval.json"
    identity = json.loads(path.read_text())["identity"]
    assert identity["base"]
    tuned = load_model(run["triplet"] / "model").identity.weights
    assert identity["weights"] != tuned  # half of the way from the base is measured
    assert not (run["triplet"] / "state").exists()

    # Lost: one arm is run again, to the same numbers, and nothing else is touched.
    kept = run["clip-ft"] / "done.json"
    before = kept.stat().st_mtime_ns
    shutil.rmtree(run["triplet"])
    shutil.rmtree(out / "results" / run["triplet"].name)
    assert "jobs (not run: triplet)," in run_lab(settings, out, ["clip-ft"], workers=1)
    capsys.readouterr()
    assert "not run" not in run_lab(settings, out, ["triplet"], workers=1)
    said = capsys.readouterr().err
    assert "learning rates: 5 jobs of 6 finished before" in said
    assert "measured: running 1 job," in said
    assert kept.stat().st_mtime_ns == before
    again = json.loads((out / "lab.json").read_text())
    assert [line["values"] for line in again["lines"]] == [
        line["values"] for line in numbers["lines"]
    ]
    assert again["rates"] == numbers["rates"]

    # Rates that are stated are not chosen again.
    stated = {arm: choice["chosen"] for arm, choice in numbers["rates"].items()}
    run_lab(replace(settings, rates=stated), out, workers=1)
    said = capsys.readouterr().err
    assert "learning rates: 4 jobs of 4 finished before" in said  # base and bounds
    assert "measured: 3 jobs of 3 finished before" in said

    with pytest.raises(CompoclipError, match="made with other settings"):
        run_lab(replace(settings, steps=3), out, workers=1)


def test_another_seed_of_the_world_is_other_scenes_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = partial(write_suite, benchmarks=("confusable",))
    monkeypatch.setattr("lab.ground.write_suite", built)
    only = replace(SETTINGS, benchmarks=("world-confusable",))
    for seed in (0, 1):
        settings = replace(only, world_seed=seed)
        World().prepare(settings, tmp_path / str(seed), choosing=True)
        record = Job(tmp_path, settings, settings.arms[0], 0, "w", 1e-3).made_from()
        assert record["common"].get("world_seed", 0) == seed
    for name in ("data/scenes.jsonl", "suite/scenes.json.gz", "choice-suite/scenes.json.gz"):
        first, second = ((tmp_path / seed / name).read_bytes() for seed in "01")
        assert first != second


def draw_first_and_last(
    stem: Path, panels: Sequence[Panel], size: tuple[int, int]
) -> tuple[Path, Path]:
    """Draw the panel of one skill, which those of the others are like, and the legend."""
    return write_figure(stem, [panels[0], panels[-1]], size)


@pytest.mark.slow
def test_curves_measure_a_long_run_on_the_way(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = ("control", "scenes", "batch_size", "warmup")
    others = ("world-aro", "world-foils", "world-sugarcrepe", "world-winoground")
    settings = {name: getattr(SETTINGS, name) for name in names} | {
        "benchmarks": [*SETTINGS.benchmarks, *others],
        "model": str(world / "base"),
        "arms": [{"name": "clip-ft", "method": "clip-ft"}],
        "rates": {"clip-ft": 1e-3},
        "items": 2,
    }
    (tmp_path / "lab.json").write_text(json.dumps(settings))
    monkeypatch.setattr("lab.curves.SETTINGS", tmp_path / "lab.json")
    monkeypatch.setattr("lab.curves.write_figure", draw_first_and_last)
    out = tmp_path / "out"
    words = ["--out", str(out), "--arms", "clip-ft", "--samples", "32", "--every", "2"]
    monkeypatch.setattr("sys.argv", ["lab.curves", *words])
    with few_resamples():
        assert curves.main() == 0
    log = (out / "runs" / "clip-ft" / "train.jsonl").read_text()
    assert curves.main() == 0  # and does not train again
    assert (out / "runs" / "clip-ft" / "train.jsonl").read_text() == log
    found = json.loads((out / "curves.json").read_text())["clip-ft"]
    assert list(found) == ["0", "16", "32"]
    results = load_results(out / "runs" / "clip-ft" / "eval" / "step-00000002")
    assert found["16"] == {c.name: column_value(c, results) for c in curves.SHOWN}
    assert all(0 <= column_value(column, results) <= 1 for column in COLUMNS)
    assert (out / "curves.svg").is_file()
