"""The lab's numbers against plain loops; a lab, curves, a comparison from start to table."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from build.results import few_resamples
from build.tables import write_json
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.results import Results, load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap, holm, percentile_interval, sign_flip
from compoclip.models.checkpoint import load_model
from compoclip.report.plotting import Panel, write_figure
from evaluation_helpers import FakeEncoder, choice_benchmark
from lab import curves
from lab.columns import COLUMNS, Column, best_rate, column_value, differences, merit
from lab.effort import RATE, Searched, propose, read_effort, run_effort
from lab.effort_page import differences_to, grounded_runs, mean_gain
from lab.ground import World
from lab.job import Job
from lab.run import run_lab
from lab.settings import BASE, Arm, Effect, LabSettings
from lab_helpers import cells, run_small

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


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> list[list[Results]]:
    """Two seeds of a model that is often wrong."""
    folder = tmp_path_factory.mktemp("base")
    return [measured(folder, f"b{seed}", 0.4) for seed in range(2)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> list[list[Results]]:
    """Three seeds of a better one."""
    folder = tmp_path_factory.mktemp("other")
    return [measured(folder, f"o{seed}", 1.0) for seed in range(3)]


Runs = Sequence[Sequence[Results]]


def outcomes(run: Sequence[Results], benchmark: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of the items of a sub-task, and their photos."""
    (table,) = [load_items(results) for results in run if results.benchmark == benchmark]
    rows = [i for i, name in enumerate(table["subtask"].to_pylist()) if name == part]
    values = np.array(table["used.accuracy"].to_pylist(), dtype=float)[rows]
    return values, np.array(table["cluster"].to_pylist())[rows]


def test_a_column_is_the_mean_of_the_sub_tasks_of_its_skills(other: Runs) -> None:
    run = other[0]
    evens = [outcomes(run, name, "even")[0].mean() for name in ("one", "two")]
    odd = outcomes(run, "one", "odd")[0].mean()
    assert column_value(EVEN, run) == pytest.approx(fmean(evens))
    assert column_value(BOTH, run) == pytest.approx(fmean([*evens, odd]))
    assert column_value(ODD, run) == pytest.approx(odd)
    with pytest.raises(CompoclipError, match="column 'order': no sub-task that was measured"):
        column_value(Column("order", ("order",), "accuracy"), run[1:])


def test_differences_match_plain_loops(base: Runs, other: Runs) -> None:
    columns, bootstrap = (EVEN, BOTH, ODD), Bootstrap(300, 4)
    together = differences(base, other, columns=columns, bootstrap=bootstrap)
    for column in columns:
        before, after = ([column_value(column, run) for run in runs] for runs in (base, other))
        difference = together[column.name]
        assert difference.value == pytest.approx(fmean(after) - fmean(before))
        assert difference.sd == pytest.approx(math.hypot(stdev(before), stdev(after)))
        assert difference.runs == 2

    # "odd" is one sub-task: its draws are those of one bootstrap over photos.
    mean = [
        np.mean([outcomes(run, "one", "odd")[0] for run in runs], axis=0) for runs in (base, other)
    ]
    photos = [str(name) for name in load_items(base[0][0])["cluster"].to_pylist()]
    gap, clusters = mean[1] - mean[0], outcomes(base[0], "one", "odd")[1]
    draws = loop_draws(gap, clusters, photos, 300, 4)
    count = len(set(clusters.tolist()))
    interval = percentile_interval(draws, count)
    assert (together["odd"].low, together["odd"].high) == pytest.approx(interval)
    alone = {
        column.name: differences(base, other, columns=(column,), bootstrap=bootstrap)[column.name]
        for column in columns
    }
    adds = np.bincount(np.unique(clusters, return_inverse=True)[1], weights=gap / len(gap))
    assert (alone["odd"].photos, alone["odd"].p) == (count, pytest.approx(sign_flip(adds)))
    corrected = holm([difference.p for difference in alone.values()])
    assert [difference.p for difference in together.values()] == pytest.approx(corrected)


def loop_draws(
    values: np.ndarray, clusters: np.ndarray, photos: list[str], resamples: int, seed: int
) -> np.ndarray:
    """Mean of the values in every draw of photos, of which some have no value."""
    names, rng, draws = sorted(set(photos)), np.random.default_rng(seed), []
    for _ in range(resamples):
        drawn = rng.integers(len(names), size=len(names))
        draws.append(np.mean([v for k in drawn for v in values[clusters == names[k]]]))
    return np.array(draws)


def test_the_base_has_no_deviation_and_one_seed_has_none_either(base: Runs, other: Runs) -> None:
    seeds = [column_value(EVEN, run) for run in other]
    untrained = differences(base[:1], other, trained=False, columns=(EVEN,))["even"]
    assert (untrained.sd, untrained.runs) == (pytest.approx(stdev(seeds)), 3)
    single = differences(base[:1], other[:1], trained=False, columns=(EVEN,))["even"]
    assert math.isnan(single.sd)
    assert math.isnan(single.least)
    assert single.sign == 0
    assert math.isnan(differences(base[:1], other, columns=(EVEN,))["even"].sd)


def test_a_model_without_seeds_is_compared_with_every_seed(base: Runs, other: Runs) -> None:
    grounded = grounded_runs({"base": base[:1], "other": other}, (), ("one", "two"))
    up, down = (differences_to(name, grounded) for name in ("base", "other"))
    assert down["base"].difference == pytest.approx(-up["other"].difference)
    low, high = up["other"].low, up["other"].high
    assert low is not None
    assert high is not None
    assert (down["base"].low, down["base"].high) == pytest.approx((-high, -low))
    gains = [fmean(mean_gain(run) for run in grounded[name]) for name in ("other", "base")]
    assert up["other"].difference == pytest.approx(gains[0] - gains[1])  # no column is floored


def test_runs_on_other_benchmarks_cannot_be_compared(base: Runs, other: Runs) -> None:
    with pytest.raises(CompoclipError, match="b0 and o0 were measured on different benchmarks"):
        differences(base[:1], [other[0][:1]], columns=(EVEN,))


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


def shared_settings(base: Path, *further: str) -> dict[str, Any]:
    """The fields of settings of plain fine-tuning, as a file has them."""
    names = ("control", "scenes", "batch_size", "warmup", *further)
    shared = {name: getattr(SETTINGS, name) for name in names}
    return {**shared, "model": str(base), "arms": [{"name": "clip-ft", "method": "clip-ft"}]}


FEW = ("augmented", "brittleness", "zero-shot", "i2t", "t2i", "style", "look-alikes")
"""Columns to which these benchmarks give values."""


@pytest.mark.slow
@few_resamples()
def test_a_lab_runs_to_its_table_and_resumes(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(monkeypatch, tmp_path, ("confusable", "hard_positives", "retrieval", "zero_shot"))
    columns = tuple(column for column in COLUMNS if column.name in FEW)
    monkeypatch.setattr(World, "columns", columns)
    monkeypatch.setattr(World, "shown", FEW)
    out, settings = tmp_path / "lab", replace(SETTINGS, model=str(world / "base"))
    with pytest.raises(UsageError, match="no arm 'nobody'; there are: clip-ft, triplet"):
        run_lab(settings, out, ["nobody"])
    with pytest.raises(CompoclipError, match="nothing is finished yet"):
        run_lab(settings, out, budget=0, workers=1)

    text = run_lab(settings, out, workers=1)
    notes = capsys.readouterr().err
    assert (
        "learning rates: running 8 jobs" in notes
    )  # the base, three bounds, two rates of each arm
    assert "measured: running 3 jobs" in notes  # two seeds of the control
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
    finished = run["clip-ft"] / "done.json"
    before = finished.stat().st_mtime_ns
    shutil.rmtree(run["triplet"])
    shutil.rmtree(out / "results" / run["triplet"].name)
    assert "jobs ended (not run: triplet) in" in run_lab(settings, out, ["clip-ft"], workers=1)
    capsys.readouterr()
    assert "not run" not in run_lab(settings, out, ["triplet"], workers=1)
    notes = capsys.readouterr().err
    assert "learning rates: 5 jobs of 6 finished before" in notes
    assert "measured: running 1 job," in notes
    assert finished.stat().st_mtime_ns == before
    again = json.loads((out / "lab.json").read_text())
    values, same = ([line["values"] for line in record["lines"]] for record in (numbers, again))
    assert same == values
    assert again["rates"] == numbers["rates"]

    # Rates that are stated are not chosen again.
    stated = {arm: choice["chosen"] for arm, choice in numbers["rates"].items()}
    run_lab(replace(settings, rates=stated), out, workers=1)
    notes = capsys.readouterr().err
    assert "learning rates: 4 jobs of 4 finished before" in notes  # base and bounds
    assert "measured: 3 jobs of 3 finished before" in notes

    with pytest.raises(CompoclipError, match="made with other settings"):
        run_lab(replace(settings, steps=3), out, workers=1)


def test_another_seed_of_the_world_is_other_scenes_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(monkeypatch, tmp_path, ("confusable",))
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
@few_resamples()
def test_curves_measure_a_long_run_on_the_way(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(monkeypatch, tmp_path)
    others = ("world-aro", "world-foils", "world-sugarcrepe", "world-winoground")
    settings = {
        **shared_settings(world / "base", "items"),
        "benchmarks": [*SETTINGS.benchmarks, *others],
        "rates": {"clip-ft": 1e-3},
    }
    monkeypatch.setattr("lab.curves.SETTINGS", write_json(tmp_path / "lab.json", settings))
    monkeypatch.setattr("lab.curves.write_figure", draw_first_and_last)
    out = tmp_path / "out"
    words = ["--out", str(out), "--arms", "clip-ft", "--samples", "32", "--every", "2"]
    monkeypatch.setattr("sys.argv", ["lab.curves", *words])
    assert curves.main() == 0
    log = (out / "runs" / "clip-ft" / "train.jsonl").read_text()
    assert curves.main() == 0  # and does not train again
    assert (out / "runs" / "clip-ft" / "train.jsonl").read_text() == log
    points = json.loads((out / "curves.json").read_text())["clip-ft"]
    assert list(points) == ["0", "16", "32"]
    results = load_results(out / "runs" / "clip-ft" / "eval" / "step-00000002")
    assert points["16"] == {c.name: column_value(c, results) for c in curves.SHOWN}
    assert all(0 <= column_value(column, results) <= 1 for column in COLUMNS)
    assert (out / "curves.svg").is_file()


# --- Comparisons at equal effort. ---


RANGES = {RATE: [1e-4, 1e-2], "strength": [0.1, 3.0]}


def test_proposals_are_a_function_of_the_trials_before() -> None:
    recipe = Searched("compo", "compo", RANGES)
    trials: list[tuple[dict[str, float], float]] = []
    for number in range(6):
        point = dict(propose(recipe, trials))
        assert point == propose(recipe, trials)
        assert point.keys() == RANGES.keys()
        for name, (low, high) in RANGES.items():
            assert 0.99 * low <= point[name] <= 1.01 * high
        trials.append((point, float(-number)))
    assert len({json.dumps(point) for point, _ in trials}) == 6


def write_effort(folder: Path, base: Path, **changes: object) -> Path:
    """A comparison of two recipes by a few steps, on three benchmarks."""
    shared = {**shared_settings(base, "items", "choice_items"), "benchmarks": ["world-foils"]}
    write_json(folder / "lab.json", shared)
    search = {RATE: [1e-4, 1e-3]}
    effort = {
        "lab": "lab.json",
        "positions": 8000,
        "trials": 2,
        "trial_share": 0.5,
        "shares": [0.5, 1.0],
        "seeds": [0],
        "against": ["base", "negclip"],
        "shown": ["bind_colour"],
        "judged_on": ["world-foils"],
        "kept_on": ["world-retrieval-style"],
        "apart": ["world-strict"],
        "recipes": [
            {"name": name, "method": name, "search": search} for name in ("clip-ft", "negclip")
        ],
    }
    return write_json(folder / "effort.json", {**effort, **changes})


@pytest.mark.slow
@few_resamples()
def test_a_comparison_runs_to_its_tables_and_resumes(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(monkeypatch, tmp_path, ("foils", "retrieval"))
    path = write_effort(tmp_path, world / "base")
    effort, settings = read_effort(path)
    out = tmp_path / "out"
    numbers, text = run_effort(effort, settings, out, budget=1e6, workers=1)
    trials, chosen = numbers["trials"], numbers["chosen"]
    assert {name: len(judged) for name, judged in trials.items()} == {"clip-ft": 2, "negclip": 2}
    for name, judged in trials.items():
        assert chosen[name] == max(judged, key=lambda pair: pair[1])[0]
    plain, negatives = (
        json.loads((out / "costs" / f"{name}.json").read_text())["positions"] for name in trials
    )
    assert negatives > 1.5 * plain  # a negative for nearly every caption

    gains, columns, settings_of = map(cells, text.split("\n\n"))
    assert gains[0] == [
        *("recipe", "gain at 0.5", "gain at 1", "against base", "against negclip", "retained")
    ]
    assert [row[0] for row in gains[1:]] == ["base", "clip-ft", "negclip"]
    differences = {row[0]: ["[" in cell for cell in row[3:5]] for row in gains[1:]}
    assert differences["clip-ft"] == [True, True]
    assert differences["negclip"] == [True, False]
    assert "strict bind_colour" in [row[0] for row in columns]
    assert [row[0] for row in settings_of[1:]] == ["clip-ft", "negclip"]
    assert f"lr {chosen['negclip'][RATE]:g}" in settings_of[-1][1]

    record = [line.split("\t") for line in (out / "effort.tsv").read_text().splitlines()]
    header, blind, base, *rows = record
    assert [blind[0], base[:3]] == ["blind", ["base", "0", "0"]]
    assert [row[:3] for row in rows] == [
        [name, share, "0"] for share in ("0.5", "1") for name in ("clip-ft", "negclip")
    ]
    gain = gains[-1][2]
    assert rows[-1][header.index("gain")] == gain
    assert any(name.startswith("strict") for name in header)
    titles, chance, *summary = cells((out / "summary.md").read_text())
    assert "bind colour" in titles
    assert chance[:2] == ["chance", "0"]
    by_name = {row[0]: row[1] for row in summary}
    assert by_name["negclip"] == gain
    assert [*by_name] == sorted(by_name, key=lambda name: -float(by_name[name]))

    before = (out / "effort.md").read_text()
    capsys.readouterr()
    again, same = run_effort(effort, settings, out, budget=1e6, workers=1)
    assert (again, same + "\n") == (json.loads(json.dumps(numbers)), before)
    assert "0 of 4 runs to do" in capsys.readouterr().err

    recipes = [
        {**recipe, "chosen": chosen[recipe["name"]], "merits": [50.0, 51.5]}
        for recipe in json.loads(path.read_text())["recipes"]
    ]
    recorded, settings = read_effort(write_effort(tmp_path, world / "base", recipes=recipes))
    numbers, text = run_effort(recorded, settings, out, budget=1e6, workers=1)
    assert numbers["trials"] == {}
    merits = [(row[0], row[2]) for row in cells(text.split("\n\n")[-1])[1:]]
    assert merits == [("clip-ft", "50.0 to 51.5"), ("negclip", "50.0 to 51.5")]
    assert (out / "effort.tsv").read_text().splitlines() == ["\t".join(row) for row in record]


def test_a_comparison_of_some_recipes(tmp_path: Path) -> None:
    effort, _ = read_effort(write_effort(tmp_path, tmp_path / "base"))
    assert [recipe.name for recipe in effort.only(["negclip"]).recipes] == ["negclip"]
    with pytest.raises(UsageError, match="no recipe 'compo'; there are: clip-ft, negclip"):
        effort.only(["compo"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipes": []}, "'recipes' must be a list"),
        ({"recipes": [{"name": "a", "method": "negclip"}]}, r"recipes\[0\]: 'search' is missing"),
        ({"positions": "many"}, "'positions' must be a whole number"),
        ({"speed": 1}, "unknown field 'speed'"),
    ],
)
def test_malformed_comparisons_are_one_line(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(CompoclipError, match=words):
        read_effort(write_effort(tmp_path, tmp_path / "base", **changes))
