"""Tables of the papers: every one is there, and every one runs on a few drawn scenes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.results import few_resamples
from compoclip.benchmarks.case import Aggregate
from compoclip.benchmarks.registry import meta
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.experiment_page import _in_words, directions, experiment_page
from compoclip.evaluation.published import read
from compoclip.evaluation.published.protocols import training_photos
from compoclip.evaluation.published.read import (
    Arm,
    Column,
    Paper,
    PublishedNumber,
    PublishedRow,
    PublishedTable,
    paper,
    paper_names,
)
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip.files import write_json
from compoclip.models.checkpoint import save_model
from compoclip.programs import experiment_costs, experiments, reproduce
from compoclip.programs.estimate import MachineSpeed, measuring_seconds
from compoclip.programs.experiment_costs import within_budget
from compoclip.programs.experiments import Experiment, RunCost, Scale, experiment
from compoclip.programs.reproduce import ReproduceOptions
from compoclip.programs.request import TrainRequest, known_options
from compoclip_world import scale as world_scale
from compoclip_world.export.suite import write_suite
from evaluation_helpers import FakeEncoder, choice_benchmark
from test_published_settings import RECIPES
from train_helpers import new_model, write_data

PLACES = {
    "clic": "table 1, table data, table large, table more, table losses, table llava",
    "fsc-clip": (
        "table 1, table 2, table 3a, table 3b, table 3c, table 4, table 5, table 6, table 7, "
        "table 8, table 9, table 10, figure 1, figure 4, figure 5"
    ),
    "hard-positives": "table 1, table shares, table transfer",
    "mosaic-clip": (
        "table 1, table 2, table 3, table 4, table 5, table 6, table 7, table 8, table 9, "
        "table 10, table 11, table 12, table 13, table 14, table 15, table 17, table 18, table 20, "
        "table 22, table crepe-cc12m, table crepe-yfcc15m, figure 4a, figure 4b, figure 4c, "
        "figure 4d, figure 6, figure 7, figure 8, figure 9, figure 10, figure 11, figure 12, "
        "figure 13, figure 14, figure 3"
    ),
}
"""The tables and figures of each paper that have experiments, written by hand from the papers."""
TABLES = [(name, table.place) for name in paper_names() for table in paper(name).tables]
SHORT = ("world-hard-positives", "world-retrieval")


@pytest.mark.parametrize("name", paper_names())
def test_every_table_of_a_paper_is_there(name: str) -> None:
    assert [table.place for table in paper(name).tables] == PLACES[name].split(", ")


@pytest.mark.parametrize(("name", "place"), TABLES)
def test_arms_have_known_recipes_settings_and_data(name: str, place: str) -> None:
    table = paper(name).table(place)
    labels = [row.labels for row in table.rows]
    assert len({*labels}) == len(labels)
    assert table.reference in (*labels, ())
    assert table.measure or not any(row.arm for row in table.rows)
    for row in table.rows:
        assert len(row.values) == len(table.columns)
        assert len(row.deviations) in (0, len(table.columns))
        if row.arm and row.arm.recipe:
            values = {**row.arm.settings, "data": "captions.csv", "out": "run"}
            TrainRequest.of(row.arm.recipe, values)
            # The share only bounds the warm-up of runs that are shorter than the published ones.
            ours = RECIPES[row.arm.recipe].get("ours", {}).keys() - {"warmup_share"}
            assert ours <= row.arm.settings.keys(), "write the paper's value into the row"
            for name, label in zip(table.row_labels, row.labels):
                option = known_options(row.arm.recipe).get(name.replace(" ", "_"))
                if option and option.plain is float:  # a row that names a value trains with it
                    assert float(label) == row.arm.settings.get(option.name, option.default)
            for data in (row.arm.data, *row.arm.block_data.values()):
                assert training_photos(data).number
            assert set(row.arm.block_data) <= set(table.blocks)


def test_the_list_names_all_tables_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    text = capsys.readouterr().out
    for name, place in TABLES:
        option, number = place.split(" ", 1)
        assert f"{name} --{option} {number}" in text
    assert main(["reproduce", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["paper"], row["place"]) for row in listed] == TABLES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fsc-clip --table 12", "fsc-clip: no table 12; did you mean table 2"),
        ("fsc-clip --figure 9", "fsc-clip: no figure 9"),
        ("fsc --table 2", "no paper 'fsc'; known: clic, fsc-clip"),
        ("fsc-clip --table 2 --figure 4", "--table and --figure exclude each other"),
        ("fsc-clip --table 2 --scale moon", "--scale moon: no such scale; known: full, world"),
        (
            "fsc-clip --table 2 --scale world --allow-partial",
            "--allow-partial goes with --scale full",
        ),
        ("fsc-clip --allow-partial", "--allow-partial goes with --table or --figure"),
        ("", "name a paper or a model; compoclip reproduce --list shows the papers"),
        ("fsc-clip --table 2", "laion-coco-100k: needs 100,000 photos of LAION-COCO"),
        ("fsc-clip --table 6", "FSC-CLIP, Table 6 (benchmarks): needs nothing to be trained"),
        ("fsc-clip --table 7 --captions none.csv", "none.csv: not found; check the path"),
        ("fsc-clip --seeds 0 1", "--seeds goes with --table or --figure"),
        ("fsc-clip --scale world", "--scale goes with --table or --figure"),
        ("fsc-clip --model bundled", "--model goes with --table or --figure"),
        ("fsc-clip --table 2 --seeds 1 2 1", "--seeds names 1 twice; name it once"),
        ("fsc-clip --max-steps 3", "--max-steps goes with --table or --figure"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["reproduce", *arguments.split(), "--out", str(tmp_path / "out")]) != 0
    assert message in capsys.readouterr().err


# --- Runs on a few scenes, two steps each. ---


def no_cost(planned: Experiment) -> dict[str, RunCost]:
    """An estimate that measures nothing."""
    return {run.name: RunCost(0.0, 0.0) for run in planned.trained}


@pytest.fixture(scope="module")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Scale:
    """The world's scale with few scenes, few items, a part of its suite and a tiny model."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world_scale, "SCENES", 64)
        patch.setattr(world_scale, "ITEMS", 6)
        few = partial(write_suite, benchmarks=("hard_positives", "retrieval"))
        patch.setattr(world_scale, "write_suite", few)
        patch.setattr(world_scale, "available_cores", lambda: 1)
        scale: Scale = world_scale.scale(folder)
    suite = Path(scale.on[0]) / "suite.json"
    listed = json.loads(suite.read_text())
    listed["benchmarks"] = [one for one in listed["benchmarks"] if one["id"] in SHORT]
    suite.write_text(json.dumps(listed))
    save_model(new_model(folder), folder / "tiny")
    few = {"batch_size": 8, "allow_no_negatives": True}  # without a search for negatives
    return replace(scale, model=str(folder / "tiny"), fixed={**scale.fixed, **few})


@pytest.fixture(scope="module", autouse=True)
def narrow_measurements() -> Iterator[None]:
    """No test of this file asserts an interval of what a command measured."""
    with few_resamples():
        yield


@pytest.fixture(scope="module")
def papers_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of a folder per paper: equal arms of its tables are trained once."""
    return tmp_path_factory.mktemp("papers")


@pytest.mark.parametrize(("name", "place"), TABLES)
def test_a_table_runs_with_two_steps(
    name: str,
    place: str,
    small_world: Scale,
    papers_out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(experiments, "scale_named", lambda *_: small_world)
    monkeypatch.setattr(experiment_costs, "estimate", no_cost)
    option, number = place.split(" ", 1)
    table = paper(name).table(place)
    command = ["reproduce", name, f"--{option}", number, "--scale", "world", "--max-steps", "2"]
    command += ["--jobs", "1", "--yes", "--out", str(papers_out / name), "--json"]
    if table.id != "fsc-clip-table8":
        command += ["--seeds", "0"]
    trained = [
        row
        for row in table.rows
        if row.arm and row.arm.recipe and not row.arm.settings.get("from_scratch")
    ]
    if trained:  # the last row, beside the one that it is compared with
        command += ["--arms", trained[-1].name]
    else:
        assert main(command) == 2
        assert table.needs in capsys.readouterr().err
        return
    assert main(command) == 0
    record = json.loads(capsys.readouterr().out)
    page = Path(record["page"]).read_text()
    assert page.startswith(f"# {table.title}")
    for row in (trained[-1], *(row for row in table.rows if row.labels == table.reference)):
        assert f"| {' | '.join(row.labels)} | paper |" in page


def test_equal_arms_of_two_tables_are_one_run(small_world: Scale, tmp_path: Path) -> None:
    fsc = paper("fsc-clip")
    options = ReproduceOptions(out=tmp_path)
    two, three = (
        experiment(fsc.table(name), options, small_world) for name in ("table 2", "table 7")
    )
    shared = {run.name for run in two.trained} & {run.name for run in three.trained}
    assert len(shared) == 1
    few = experiment(fsc.table("table 2"), replace(options, arms=("yes yes yes yes",)), small_world)
    assert len(few.trained) == 1
    seeds = experiment(fsc.table("table 7"), replace(options, seeds=(0, 1)), small_world)
    assert len(seeds.trained) == 2 * len(three.trained)
    with pytest.raises(UsageError, match="--arms none: no row of FSC-CLIP, Table 2"):
        experiment(fsc.table("table 2"), replace(options, arms=("none",)), small_world)


def test_a_run_has_one_name_wherever_its_command_is_started(
    small_world: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = paper("fsc-clip").table("table 7")
    monkeypatch.chdir(tmp_path)
    here = experiment(table, ReproduceOptions(out=Path("papers"), data=Path("data")), None)
    record = experiments.require_same_place(here)
    (tmp_path / "papers").mkdir()
    monkeypatch.chdir(tmp_path / "papers")
    there = experiment(table, ReproduceOptions(out=Path(), data=Path("../data")), None)
    assert [run.name for run in here.trained] == [run.name for run in there.trained]
    record.save(tmp_path / "papers")
    experiments.require_same_place(there)
    scenes = experiment(table, ReproduceOptions(out=tmp_path), small_world)
    assert not {run.name for run in scenes.trained} & {run.name for run in here.trained}


@pytest.mark.usefixtures("warm_workers")
def test_a_run_that_is_done_takes_no_time(small_world: Scale, tmp_path: Path) -> None:
    table = paper("fsc-clip").table("table 7")
    options = ReproduceOptions(out=tmp_path, arms=("softmax",), max_steps=2, jobs=2)
    planned = experiment(table, options, small_world)
    before = experiment_costs.estimate(planned)
    assert [*before] == [run.name for run in planned.trained]
    assert all(cost.training > 0 and cost.measuring > 0 for cost in before.values())
    assert not (tmp_path / "runs").exists()
    experiments.run_experiment(planned, before)
    plan = json.loads((tmp_path / "plans" / "fsc-clip-table7.json").read_text())
    assert plan["estimated"] == {name: asdict(cost) for name, cost in before.items()}
    assert {*plan["taken_seconds"]} == {*before}
    write_json(tmp_path / "plans" / "fsc-clip-table7.json", {**plan, "budgets": 3})
    with pytest.raises(CompoclipError, match=r"table7\.json: unknown field 'budgets' .*delete it"):
        experiments.earlier_plan(planned)
    write_json(tmp_path / "plans" / "fsc-clip-table7.json", plan)
    assert all(cost.seconds == 0 for cost in experiment_costs.estimate(planned).values())
    more = experiment(table, replace(options, seeds=(0, 1), jobs=1), small_world)
    experiments.run_experiment(more, {**before, **no_cost(more)})
    again = json.loads((tmp_path / "plans" / "fsc-clip-table7.json").read_text())
    assert again["estimated"].items() >= plan["estimated"].items()  # what was foretold stays
    assert again["taken_seconds"].items() > plan["taken_seconds"].items()


@pytest.mark.parametrize(("total", "max_steps"), [(120, 0), (120, 40), (6, 0), (1, 0)])
def test_steps_of_all_epochs_are_timed(
    total: int, max_steps: int, small_world: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = paper("fsc-clip").table("table 7")
    options = ReproduceOptions(out=tmp_path, arms=("softmax",))
    run = experiment(table, options, small_world).trained[0]
    assert run.request
    pilots = []

    def pilot(_: TrainRequest, __: Path, **changed: float) -> tuple[int, list[float]]:
        pilots.append((changed.get("stop_after", 0), changed.get("fraction", 1.0)))
        number = int(changed.get("stop_after", 12))
        return total, [1.0 + 2.0 * step for step in range(min(number, total))]

    monkeypatch.setattr(experiment_costs, "_pilot", pilot)
    seconds = experiment_costs._training_seconds(run.request, tmp_path, max_steps)
    assert pilots[0] == (1, 1.0)
    if total == 120 and not max_steps:  # a tenth of the data, and all its epochs
        assert pilots[1] == (0, 0.1)
    else:
        assert pilots[1] == (min(12, total), 1.0)
    per_step = 1.0 if total == 1 else 2.0
    assert seconds == pytest.approx(total * per_step - 1.0, abs=0.1)  # its beginning took no time


def test_a_budget_takes_a_share_of_the_data(
    small_world: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = paper("fsc-clip").table("table 7")
    planned = experiment(table, ReproduceOptions(out=tmp_path, jobs=2), small_world)
    measured = []

    def cost(planned: Experiment) -> dict[str, RunCost]:
        measured.append(planned.share)
        return {run.name: RunCost(planned.share * 800.0, 100.0) for run in planned.trained}

    monkeypatch.setattr(experiment_costs, "estimate", cost)
    # three runs: 2,400 s of training and 300 s of measuring, two at once
    whole, _ = within_budget(planned, 1350.0)
    assert whole.share == 1.0
    quarter, costs = within_budget(planned, 450.0)  # 600 + 300 s by two
    assert quarter.share == 0.25
    assert [cost.training for cost in costs.values()] == [200.0] * 3
    assert all(run.request and run.request.options.fraction == 0.25 for run in quarter.trained)
    assert not {run.name for run in quarter.trained} & {run.name for run in planned.trained}
    with pytest.raises(UsageError, match=r"--budget: .* takes 4 min on 0.0625 of its training"):
        within_budget(planned, 200.0)
    experiments.save_plan(quarter, costs)
    again, _ = within_budget(planned, 450.0)  # the share of the earlier start
    assert (again.share, measured[-1]) == (0.25, 0.25)


def test_other_options_in_the_same_folder_are_refused(small_world: Scale, tmp_path: Path) -> None:
    table = paper("fsc-clip").table("table 7")
    options = ReproduceOptions(out=tmp_path, arms=("softmax",), max_steps=1, jobs=1)
    planned = experiment(table, options, small_world)
    experiments.run_experiment(planned, no_cost(planned))
    other = experiment(table, replace(options, max_steps=2), small_world)
    with pytest.raises(CompoclipError, match="max_steps was 1, is 2"):
        experiments.run_experiment(other, no_cost(other))
    with pytest.raises(UsageError, match="model was empty, is random"):
        experiments.require_same_place(
            experiment(table, replace(options, model="random:ViT-B-32"), small_world)
        )


# --- The paper's own scale, on made photos. ---


def table_of_small_batches(of_arm: dict[str, Any], **of_table: Any) -> Paper:
    """FSC-CLIP with its table 7 alone, whose rows train for one epoch of small batches."""
    table = paper("fsc-clip").table("table 7")
    few = {"epochs": 1.0, "batch_size": 8, "warmup": 1}
    rows = tuple(
        replace(row, arm=replace(row.arm, settings={**row.arm.settings, **few}, **of_arm))
        for row in table.rows
        if row.arm
    )
    return replace(paper("fsc-clip"), tables=(replace(table, rows=rows, **of_table),))


def test_a_table_at_its_own_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(new_model(tmp_path), tmp_path / "tiny")
    captions = write_data(tmp_path / "photos", 24)
    on = (f"retrieval:{captions},images={captions.parent},split=all",)
    made = table_of_small_batches({"model": str(tmp_path / "tiny")}, measure=on)
    monkeypatch.setattr(read, "paper", lambda _: made)
    monkeypatch.setattr(reproduce, "missing_files", lambda specs, _: ({}, list(specs), {}))
    command = ["reproduce", "fsc-clip", "--table", "7", "--arms", "softmax", "--device", "cpu"]
    command += ["--captions", str(captions), "--images", str(captions.parent)]
    command += ["--out", str(tmp_path / "out"), "--data", str(tmp_path), "--yes", "--json"]
    assert main(command) == 0
    streams = capsys.readouterr()
    record = json.loads(streams.out)
    assert "2 runs, 1 at once; takes about" in streams.err
    assert f"laion-coco-100k: the paper has 100,000 samples, {captions} 24" in streams.err
    trained = [name for name in record["runs"] if name.startswith("fsc-clip")]
    assert len(trained) == 2
    for name in trained:
        assert (tmp_path / "out" / "runs" / name / "model").is_dir()
        assert (tmp_path / "out" / "results" / name).is_dir()
    about = f"Here: the paper's models and settings, 24 samples of {captions}."
    assert about in record["text"]
    assert main(command) == 0  # everything is done
    assert "takes about 0 s here" in capsys.readouterr().err


def test_the_available_items_of_a_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that lie elsewhere, and a part of the photos: nothing is fetched."""
    save_model(new_model(tmp_path), tmp_path / "tiny")
    captions = write_data(tmp_path / "photos", 24)
    rows = [
        {"filename": name, "caption": "a red cup", "negative_caption": "a blue cup"}
        for name in ("0.png", "1.png", "2.png", "3.png", "absent.jpg")
    ]
    annotations = tmp_path / "annotations"
    annotations.mkdir()
    for part in meta("sugarcrepe").parts:
        (annotations / f"{part}.json").write_text(json.dumps(dict(enumerate(rows))))
    on = f"sugarcrepe,annotations={annotations},images={captions.parent}"
    command = ["reproduce", "fsc-clip", "--table", "7", "--arms", "sparse", "--max-steps", "1"]
    command += ["--model", str(tmp_path / "tiny"), "--captions", str(captions), "--yes"]
    command += ["--images", str(captions.parent), "--data", str(tmp_path), "--device", "cpu"]
    command += ["--on", on, "--out", str(tmp_path / "out")]
    made = table_of_small_batches({})
    monkeypatch.setattr(read, "paper", lambda _: made)

    def never(planned: Experiment) -> dict[str, RunCost]:
        raise AssertionError(planned)

    # What can be said at once is said before anything is measured for the estimate.
    monkeypatch.setattr(experiment_costs, "estimate", never)
    assert main(command) != 0
    assert "absent.jpg" in capsys.readouterr().err
    elsewhere = [word.replace(str(annotations), str(tmp_path / "none")) for word in command]
    assert main([*elsewhere, "--allow-partial"]) != 0
    assert str(tmp_path / "none") in capsys.readouterr().err
    unasked = [word for word in command if word != "--yes"]
    assert main([*unasked, "--allow-partial"]) == 2
    assert "there is no terminal to ask for it" in capsys.readouterr().err
    monkeypatch.setattr(experiment_costs, "estimate", no_cost)
    assert main([*command, "--allow-partial"]) == 0
    page = capsys.readouterr().out
    assert "Comp from 1 of 11 benchmarks" in page
    assert f"from {tmp_path / 'tiny'}, but every run ended after 1 step" in page
    assert "Here: the paper's settings, " in page
    assert "* marks numbers for which only a part of the benchmark's items was measured." in page
    assert "Not run: softmax" in page
    assert "Measured on sugarcrepe." in page


def test_options_of_a_benchmark_do_not_hide_its_files(tmp_path: Path) -> None:
    spec = "retrieval:coco,pre_caption_words=30"
    _, benchmarks, left_out = reproduce.missing_files([spec], tmp_path)
    _, plain, plain_left_out = reproduce.missing_files(["retrieval:coco"], tmp_path)
    assert [name.partition(",")[0] for name in benchmarks] == plain
    assert [*left_out.values()] == [*plain_left_out.values()]
    tables = [table for name in paper_names() for table in paper(name).tables]
    for spec in {spec for table in tables for spec in table.measure}:
        reproduce.missing_files([spec], tmp_path)  # every one is known
        assert experiment_costs_of(spec) > 0


def experiment_costs_of(spec: str) -> float:
    """Seconds of a benchmark at one second per photo and text."""
    speed = MachineSpeed(1, 1, 1, 1, 1, photo=1, text=1, parameters=1)
    return measuring_seconds(speed, [spec])


def test_another_model_takes_the_place_of_the_papers(tmp_path: Path, small_world: Scale) -> None:
    table = paper("fsc-clip").table("table 2")
    model = "ViT-B-16-quickgelu:openai"
    options = ReproduceOptions(out=tmp_path, captions="laion.csv", model=model)
    for scale in (None, small_world):
        for run in experiment(table, options, scale).unique:
            assert run.arm.model == model
    checkpoints = tmp_path / "data" / experiments.CHECKPOINTS
    checkpoints.mkdir(parents=True)
    (checkpoints / "negclip.pth").touch()
    one = paper("fsc-clip").table("table 1")
    options = replace(options, data=tmp_path / "data")
    models = {run.model for run in experiment(one, options, None).unique if not run.request}
    assert models == {
        model,
        f"ViT-B-32-quickgelu@{checkpoints / 'negclip.pth'}",
    }


def test_a_part_of_larger_data_is_used(tmp_path: Path) -> None:
    table = paper("fsc-clip").table("table 7")
    options = ReproduceOptions(out=tmp_path, captions="laion.csv")
    for run in experiment(table, options, None, 400_000).trained:
        assert run.request is not None
        assert run.request.options.fraction == 0.25  # 100,000 of them
    shares = paper("mosaic-clip").table("table 10")
    options = ReproduceOptions(out=tmp_path, captions="cc3m.csv")
    fractions = {
        run.request.options.fraction
        for run in experiment(shares, options, None, 400_000, share=0.5).trained
        if run.request
    }
    assert fractions == {0.125 * share for share in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)}


# --- The page, by hand. ---

BENCHMARKS = ("one", "two")


def results_of(folder: Path, model: str) -> list[Results]:
    """Results of a fake model on two small benchmarks."""
    rules = {"all": Aggregate(("even", "odd"))}
    made = [
        replace(
            choice_benchmark(folder / name, n=400, shared=1, name=name, aggregates=rules),
            headline="all",
        )
        for name in BENCHMARKS
    ]
    return evaluate(model, FakeEncoder(model), made, folder / model, Options(resamples=50))


def table_of(printed: dict[str, list[float | None]]) -> PublishedTable:
    """A table of two benchmarks and their mean, with these printed numbers by row."""
    columns = [
        Column(name, name, "", ((PublishedNumber(name), 1.0),), "as measured")
        for name in BENCHMARKS
    ]
    both = tuple((PublishedNumber(name), 0.5) for name in BENCHMARKS)
    columns.append(Column("mean", "mean", "", both, "plain mean of 2 numbers"))
    rows = tuple(
        PublishedRow((name,), tuple(values), arm=Arm()) for name, values in printed.items()
    )
    return PublishedTable(
        id="made", title="Made", paper="Nobody", models="none", row_labels=("method",), blocks={},
        columns=tuple(columns), rows=rows, place="table 1", reference=("base",),
    )  # fmt: skip


def test_differences_are_those_of_the_results(tmp_path: Path) -> None:
    table = table_of({"base": [50.0, 50.0, 50.0], "new": [60.0, 50.2, None], "other": [40.0] * 3})
    measured = {name: results_of(tmp_path, name) for name in ("base", "new")}
    runs = {(name,): {"": [results]} for name, results in measured.items()}
    (direction,) = directions(table, runs)  # 50.2 is noise, and what is not printed says nothing
    one = {name: results[0].aggregates["all"].value for name, results in measured.items()}
    assert (direction.row, direction.column, direction.printed) == ("new", "one", 10.0)
    assert direction.here.difference == pytest.approx(one["new"] - one["base"])
    expected = (one["new"] > one["base"]) if direction.here.significant else None
    assert direction.agrees == expected


def test_rows_are_named_by_what_they_have() -> None:
    fsc = paper("fsc-clip")
    names = {"table 2": "FSC-CLIP, global, local, focal, smoothing", "table 3b": "gamma 2"}
    for place, name in names.items():
        table = fsc.table(place)
        assert _in_words(table, table.reference) == name


def test_the_mean_of_two_seeds_and_of_two_benchmarks(tmp_path: Path) -> None:
    table = table_of({"base": [50.0, 50.0, 50.0], "new": [None, None, 60.0]})
    base, *seeds = (results_of(tmp_path, name) for name in ("base", "seed-0", "seed-1"))
    runs = {("base",): {"": [base]}, ("new",): {"": seeds}}
    (direction,) = directions(table, runs)
    values = [[result.aggregates["all"].value for result in results] for results in (base, *seeds)]
    mean = np.mean(values[1:]) - np.mean(values[0])
    assert direction.here.difference == pytest.approx(mean)
    page = experiment_page(table, runs, (), "made results", partial=False)
    over_seeds = [np.mean(of_seed) for of_seed in values[1:]]
    cell = f"{100 * np.mean(over_seeds):.1f} ±{100 * np.std(over_seeds, ddof=1):.2f}"
    assert f"| {cell} |" in page
    assert "- Here: made results." in page
    assert "± is the standard deviation over 2 seeds." in page
    assert "The paper prints 1 difference from base of at least 0.5 points" in page


def test_every_seed_counts_once_where_rows_have_different_numbers(tmp_path: Path) -> None:
    table = table_of({"base": [50.0, 50.0, 50.0], "new": [None, None, 60.0]})
    names = {"base": ("base-0", "base-1"), "new": ("new-0", "new-1", "new-2")}
    runs = {
        (row,): {"": [results_of(tmp_path, name) for name in seeds]} for row, seeds in names.items()
    }
    (direction,) = directions(table, runs)
    base, other = (
        np.mean([[result.aggregates["all"].value for result in seed] for seed in blocks[""]])
        for blocks in runs.values()
    )
    assert direction.here.difference == pytest.approx(other - base)
