"""Sweeps: which runs there are, what they leave, and that the same command goes on."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import own_files
from build.runs import losses
from compoclip.cli.main import main
from compoclip.config import CONFIG
from compoclip.errors import RunInterruptedError, UsageError
from compoclip.files import content_hash
from compoclip.programs.request import TrainRequest
from compoclip.programs.run import TrainOptions
from compoclip.programs.sweep import run_name, space_of
from method_data import arguments
from train_helpers import weight_hashes

pytestmark = pytest.mark.usefixtures("warm_workers")

FEW = ("--epochs=0.4", "--batch-size=8", "--warmup=0", "--device=cpu", "--workers=0")
REQUEST = TrainRequest.of("fsc-clip", {"data": "captions.csv", "out": Path("run")})
optuna = pytest.importorskip("optuna", reason="needs the extra sweep")


def sweep(world: Path, out: Path, *more: str) -> int:
    inputs = (f"--model={world / 'base'}", f"--data={world / 'plain.jsonl'}", f"--out={out}")
    return main(["sweep", "fsc-clip", *inputs, *FEW, *more])


def table(out: Path) -> list[dict[str, str]]:
    with (out / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a sweep end at once with a loss that grows with their learning rate."""

    def run_one(request: TrainRequest) -> dict[str, Any]:
        options = request.options
        options.written.mkdir(parents=True)
        (options.written / "model").write_text("")
        outcome = {"loss": options.lr or 0.0, "scores": {}, "error": ""}
        return {"name": options.out.name, "content": content_hash(options.written), **outcome}

    monkeypatch.setattr("compoclip.programs.sweep.run_one", run_one)


# --- Which runs there are. ---


def test_values_are_checked_and_stay_texts() -> None:
    space = space_of(
        ["lr=1e-6,3e-6,1e-6", "texts=[+mosaic, [+mosaic, +synonym]]"], "--grid", REQUEST
    )
    assert space["lr"].choices == ("1e-6", "3e-6")
    assert space["texts"].choices == ("+mosaic", '["+mosaic", "+synonym"]')
    drawn = space_of(
        ["lr=log:1e-6..1e-2", "batch-size=8..512", "beta=0.1,0.2"], "--random", REQUEST
    )
    bounds = [(s.low, s.high, s.log) for s in (drawn["lr"], drawn["batch_size"])]
    assert bounds == [(1e-6, 1e-2, True), (8, 512, False)]
    assert isinstance(drawn["batch_size"], optuna.distributions.IntDistribution)
    assert drawn["beta"].choices == ("0.1", "0.2")
    parts = space_of(["texts.graph.weights=[[1, 0, 0], [0.08, 0, 0.46]]"], "--grid", REQUEST)
    assert parts["texts.graph.weights"].choices == ("[1, 0, 0]", "[0.08, 0, 0.46]")


@pytest.mark.parametrize(
    ("text", "flag", "message"),
    [
        ("lr", "--grid", "--grid lr: write NAME=VALUE,VALUE,..."),
        ("lr=", "--grid", "--grid lr=: write NAME=VALUE,VALUE,..."),
        ("warm-up=1", "--grid", "--grid warm-up: fsc-clip has no option 'warm_up'; did you mean"),
        ("lr=a", "--grid", "--grid lr must be a number"),
        ("seed=0.5", "--grid", "--grid seed must be a whole number"),
        ("lr=1..2", "--grid", "--grid lr must be a number"),
        ("lr=2..1", "--random", "--random lr: write LOW..HIGH"),
        ("lr=log:0..1", "--random", "--random lr: write LOW..HIGH"),
        ("lr=a..b", "--random", "--random lr: write LOW..HIGH"),
        ("seed=0..1e400", "--random", "--random seed: write LOW..HIGH, both finite"),
        ("attention=1..2", "--random", "--random attention must be one of"),
    ],
)
def test_what_cannot_be_varied_is_said(text: str, flag: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        space_of([text], flag, REQUEST)
    assert str(caught.value).startswith(message)
    with pytest.raises(UsageError, match="is there twice"):
        space_of(["lr=1", "lr=2"], flag, REQUEST)


# --- What a sweep does. ---


def test_an_interrupted_run_ends_the_sweep(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = []

    def interrupted(options: TrainOptions, *_: object, **__: object) -> None:
        begun.append(options.out)
        raise RunInterruptedError("the same command with --resume continues", signal.SIGTERM)

    monkeypatch.setattr("compoclip.programs.sweep.train", interrupted)
    assert sweep(world, tmp_path / "sweep", "--grid", "lr=1e-3,1e-4") == 128 + signal.SIGTERM
    assert len(begun) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "compoclip sweep: interrupted; the same command continues"


def test_a_sweep_trains_measures_and_reports(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, suite = tmp_path / "sweep", tmp_path / "suite"
    small = [f"--out={suite}", "--items-per-task=3", "--size=32"]
    assert main(["world", "suite", *small, "--benchmarks", "sugarcrepe"]) == 0
    capsys.readouterr()
    assert sweep(world, out, "--grid", "lr=1e-4,1e-2", f"--on={suite}", "--jobs=2") == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["lr", "loss"]
    rows = table(out)
    benchmark = list(rows[0])[3]
    scores = [float(row[benchmark]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert lines[-1] == f"best by {benchmark}: {out / 'runs' / rows[0]['run']}"
    page = (out / "report.html").read_text()
    assert all(name in page for name in ("base", *(row["run"] for row in rows)))
    for row in rows:
        assert row["loss"] == f"{losses(out / 'runs' / row['run'])[-1]:.4f}"
    # Each run is the one that train makes of its own file, alone and in this process.
    run = out / "runs" / run_name({"lr": "1e-2"})
    assert main(["train", f"--config={run / CONFIG}", f"--out={tmp_path / 'again'}"]) == 0
    assert weight_hashes(tmp_path / "again") == weight_hashes(run)
    assert weight_hashes(run) != weight_hashes(out / "runs" / run_name({"lr": "1e-4"}))


def test_the_same_command_resumes(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, what = tmp_path / "sweep", ("--set", "save_every=1", "log_every=1", "--grid")
    assert sweep(world, out, *what, "lr=1e-3,1e-4") == 0
    done = {run.name: weight_hashes(run) for run in (out / "runs").iterdir()}
    assert len(done) == 2
    times = {run: (run / "model").stat().st_mtime_ns for run in (out / "runs").iterdir()}
    # A run that was stopped on the way, and a value more.
    half = out / "runs" / run_name({"lr": "1e-4"})
    options = [f"--config={half / CONFIG}", f"--out={tmp_path / 'half'}", "--set=stop_after=1"]
    assert main(["train", *options]) == 0
    shutil.rmtree(half)
    (tmp_path / "half").rename(half)
    with sqlite3.connect(out / "sweep.db") as study:  # as a killed command leaves it
        study.execute("UPDATE trials SET state = 'RUNNING' WHERE number = 1")
    capsys.readouterr()
    assert sweep(world, out, *what, "lr=1e-3,1e-4,1e-5", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sorted_by"] == "loss"
    assert [each["loss"] for each in found["runs"]] == sorted(e["loss"] for e in found["runs"])
    assert len(found["runs"]) == 3
    assert {name: weight_hashes(out / "runs" / name) for name in done} == done
    kept = out / "runs" / run_name({"lr": "1e-3"})
    assert (kept / "model").stat().st_mtime_ns == times[kept]
    # Other settings are another sweep; how it is executed is not a setting.
    assert sweep(world, out, *what, "lr=1e-3", "--gamma=1") == 2
    said = capsys.readouterr().err
    assert f"{out}: is of another sweep (gamma was 2.0, is 1.0); choose another --out" in said
    assert sweep(world, out, "--set", "save_every=7", "max_bad=3", "--grid", "lr=1e-3") == 0


def test_every_point_has_a_name_of_its_own() -> None:
    long = {f"option_{n}": "0.123456789" for n in range(12)}
    points = [
        {**long, "seed": "1"},
        {**long, "seed": "2"},
        {"texts": "[+a, +b]"},
        {"texts": "+a +b"},
        {"texts": "-+a-+b"},
        {"a": "1_b-2"},
        {"a": "1", "b": "2"},
    ]
    names = [run_name(point) for point in points]
    assert len({*names}) == len(points)
    assert all(len(name) < 100 for name in names)
    assert run_name(points[0]) == names[0]
    assert run_name(points[0], 1) != run_name(points[0], 2)


def test_a_sweep_of_a_replaced_base_benchmark_or_model(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "sweep"
    shutil.copytree(world, data)

    def swept(*more: str) -> tuple[int, str]:
        code = sweep(data, out, "--grid", "lr=1e-3", *more)
        return code, capsys.readouterr().err

    assert swept()[0] == 0
    model = out / "runs" / run_name({"lr": "1e-3"}) / "model"
    made = weight_hashes(model.parent)
    shutil.rmtree(model)  # a run without its model is made anew
    assert swept()[0] == 0
    assert weight_hashes(model.parent) == made
    shutil.rmtree(model)
    shutil.copytree(data / "base", model)
    code, said = swept()
    assert (code, f"{model}: was changed after the sweep made it" in said) == (1, True)
    record = data / "base" / "compoclip.json"
    record.write_text(record.read_text() + "\n")
    code, said = swept()
    assert (code, "another sweep (content of model changed)" in said) == (2, True)


@pytest.mark.usefixtures("untrained")
def test_other_data_or_another_method_file_is_another_sweep(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(world, data)
    method = own_files.write(tmp_path, "mine.py", own_files.METHOD)

    def swept(grid: str) -> int:
        words = arguments(data, str(method), tmp_path / "sweep", "--epochs=0.4", "--workers=0")
        return main(["sweep", *words[1:], "--grid", grid])

    assert swept("seed=0") == 0
    table = data / "plain.jsonl"
    text = table.read_text()
    table.write_text(text.replace("a ", "the ", 1))
    capsys.readouterr()
    assert swept("seed=0,1") == 2
    assert "another sweep (captions of 1 of 40 rows changed)" in capsys.readouterr().err
    table.write_text(text)
    method.write_text(own_files.METHOD.replace("weight: float = 1.0", "weight: float = 1.00"))
    assert swept("seed=0,1") == 2
    assert "(mine.py changed); choose another --out" in capsys.readouterr().err


@pytest.mark.usefixtures("untrained")
def test_a_varied_model_that_was_replaced_is_trained_anew(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [tmp_path / "a", tmp_path / "b"]
    for model in models:
        shutil.copytree(world / "base", model)
    inputs = [f"--data={world / 'plain.jsonl'}", f"--out={tmp_path / 'sweep'}"]

    def runs(grid: str = "model=" + ",".join(map(str, models))) -> set[str]:
        assert main(["sweep", "fsc-clip", *inputs, *FEW, "--grid", grid, "--json"]) == 0
        return {run["name"] for run in json.loads(capsys.readouterr().out)["runs"]}

    first = runs()
    assert runs() == first
    record = models[1] / "compoclip.json"
    record.write_text(record.read_text() + "\n")
    second = runs()
    assert len(first & second) == 1
    assert len(second) == 2
    assert len([*(tmp_path / "sweep" / "runs").iterdir()]) == 3
    # So is a run whose data the point chooses, and a model of several.
    inputs = [f"--data={world / 'plain.jsonl'}", f"--out={tmp_path / 'mixed'}"]
    mixture = f"init-from=[[{models[0]}, {models[1]}]]"
    only = runs(mixture)
    record.write_text(record.read_text() + "\n")
    assert not runs(mixture) & only


def test_runs_are_measured_anew_on_other_photos(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def run_one(request: TrainRequest) -> dict[str, Any]:
        options = request.options
        begun.append(options.out.name)
        options.written.mkdir(parents=True, exist_ok=True)
        content, scores = content_hash(options.written), {"foils": 0.5}
        name = options.out.name
        return {"name": name, "content": content, "loss": 1.0, "scores": scores, "error": ""}

    monkeypatch.setattr("compoclip.programs.sweep.run_one", run_one)
    monkeypatch.setattr("compoclip.report.write.write_report", lambda *_, **__: None)
    foils = tmp_path / "foils"
    foils.mkdir()
    Image.new("RGB", (8, 8)).save(foils / "a.png")
    row = {"image": "a.png", "caption": "a cat", "negative_caption": "a dog"}
    (foils / "mine.jsonl").write_text(json.dumps(row) + "\n")
    on = f"--on=foils,annotations={foils / 'mine.jsonl'},images={foils}"
    assert sweep(world, tmp_path / "sweep", "--grid", "lr=1e-3,1e-4", on) == 0
    assert sweep(world, tmp_path / "sweep", "--grid", "lr=1e-3,1e-4", on) == 0
    assert len(begun) == 2
    Image.new("RGB", (8, 8), "red").save(foils / "a.png")
    assert sweep(world, tmp_path / "sweep", "--grid", "lr=1e-3,1e-4", on) == 0
    assert begun[2:] == begun[:2]


@pytest.mark.usefixtures("untrained")
def test_sampled_values_random_and_tpe(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def runs(out: str, *more: str) -> list[dict[str, Any]]:
        what = ("--random", "lr=log:1e-5..1e-3", "--json", *more)
        assert sweep(world, tmp_path / out, *what) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
        return found

    first = runs("random", "--draws=1", "--grid", "seed=0,1")
    assert [each["point"]["seed"] for each in sorted(first, key=lambda e: e["name"])] == ["0", "1"]
    assert len({each["point"]["lr"] for each in first}) == 1
    more = runs("random", "--draws=2", "--grid", "seed=0,1")
    assert len(more) == 4
    assert {each["name"] for each in first} < {each["name"] for each in more}
    assert len(runs("tpe", "--draws=2", "--sampler=tpe")) == 2
    assert len(runs("tpe", "--draws=3", "--sampler=tpe")) == 3


def test_a_run_that_fails_stops_no_other(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = world / "base"
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "open_clip_config.json").write_text("{}")
    assert sweep(world, tmp_path / "sweep", "--grid", f"model={base},{damaged}", "lr=1e-4") == 1
    assert "1 run failed; the same command tries again" in capsys.readouterr().err
    rows = table(tmp_path / "sweep")
    assert [row["loss"] == "failed" for row in rows] == [False, True]
    assert str(damaged) in rows[1]["error"]


def test_a_sweep_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.yaml"
    text = f"method: fsc-clip\ndata: {tmp_path / 'x.tsv'}\nout: {tmp_path / 'sweep'}\n"
    more = "grid:\n  seed: [0, 1]\n  texts: [[+unit, +denial]]\n  gamma: 1\n"
    file.write_text(f"{text}{more}random: {{lr: log:1e-6..1e-4}}\ndraws: 2\n")
    assert main(["sweep", f"--config={file}", "--epochs=3"]) == 1
    assert capsys.readouterr().err.startswith(f"compoclip sweep: {tmp_path / 'x.tsv'}: not found")
    for wrong, message in (
        ("drawz: 1", "fsc-clip has no option 'drawz'; did you mean draws"),
        ("resume: true", "fsc-clip has no option 'resume'"),
        ("draws: many", "draws must be a whole number"),
    ):
        file.write_text(f"{text}{wrong}\n")
        assert main(["sweep", f"--config={file}"]) == 2
        assert f"{file}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name the options to vary, each once: --grid"),
        (("--random", "lr=1..2"), "--random and --draws go together"),
        (("--grid", "lr=1", "--draws=2"), "--random and --draws go together"),
        (("--grid", "out=a,b"), "--grid out: fsc-clip has no option 'out'"),
        (("--grid", "lr=1", "--random", "lr=1..2", "--draws=1"), "each once"),
        (("--grid", "lr=1", "--jobs=0"), "--jobs must lie between 1 and"),
        (("--grid", "lr=1", "--sort-by=x"), "--sort-by x: there is loss"),
        (("--grid", "lr=1", "--on=nothing"), "nothing"),
        (("--grid", "lr=1e-4,.nan"), "--grid lr must be a number or null, found nan"),
        (("--grid", "batch_size=0,8"), "--batch-size 0: must be a number from 1 on"),
        (("--grid", "seed=-1"), "--grid seed must lie between 0 and"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_done(
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    assert sweep(world, tmp_path / "sweep", *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "sweep" / "runs").exists()


def test_without_optuna_one_line_says_what_to_install(
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep(world, tmp_path / "sweep", "--grid", "lr=1") == 1
    assert capsys.readouterr().err == (
        "compoclip sweep: a sweep needs optuna: pip install optuna\n"
    )
