"""Sweeps: which runs there are, what they leave, and that the same command goes on."""

from __future__ import annotations

import csv
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import own_files
from compoclip import sweep as sweeping
from compoclip.cli.main import main
from compoclip.cli.sweep import with_shared
from compoclip.config import CONFIG, options_of
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.registry import load_recipe
from compoclip.run import TrainOptions
from compoclip.sweep import DrawnRange, names_of, points, space_of
from method_data import arguments, write_world

FEW = ("--epochs=0.4", "--batch-size=8", "--warmup=0", "--device=cpu", "--workers=0")
KNOWN = options_of(TrainOptions, load_recipe("fsc-clip"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    suite = ["world", "suite", f"--out={folder / 'suite'}", "--items-per-task=3", "--size=32"]
    assert main([*suite, "--benchmarks", "sugarcrepe"]) == 0
    return folder


def sweep(world: Path, out: Path, *more: str) -> int:
    inputs = (f"--model={world / 'base'}", f"--data={world / 'plain.jsonl'}", f"--out={out}")
    return main(["sweep", "fsc-clip", *inputs, *FEW, *more])


def weights(run: Path) -> bytes:
    return (run / "model" / "open_clip_model.safetensors").read_bytes()


def table(out: Path) -> list[dict[str, str]]:
    with (out / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# --- Which runs there are. ---


def grid(*texts: str, ranges: bool = False) -> dict[str, Any]:
    return space_of(texts, "--grid", KNOWN, ranges)


def test_values_are_of_the_type_of_the_option() -> None:
    found = grid("lr=1e-6,3e-6,1e-6", "seed=0,1", "crop=true,false", "attention=softmax,minmax")
    assert found == {
        "lr": (1e-6, 3e-6),
        "seed": (0, 1),
        "crop": (True, False),
        "attention": ("softmax", "minmax"),
    }
    assert grid("epochs=[1, 2]", "texts=[+a, [+a, +b]]") == {
        "epochs": (1.0, 2.0),
        "texts": (("+a",), ("+a", "+b")),
    }
    assert grid("set=terms.clip.weight=0.5", "model=a,b/c") == {
        "set": (("terms.clip.weight=0.5",),),
        "model": ("a", "b/c"),
    }


@pytest.mark.parametrize(
    ("text", "ranges", "message"),
    [
        ("lr", False, "--grid lr: write NAME=VALUE,VALUE,..."),
        ("lr=", False, "--grid lr=: write NAME=VALUE,VALUE,..."),
        ("warm-up=1", False, "--grid warm-up: no such option to vary; did you mean warmup"),
        ("lr=a", False, "--grid lr: 'a' (str) is not a number"),
        ("seed=0.5", False, "--grid seed: 0.5 (float) is not a whole number"),
        ("lr=1..2", False, "--grid lr: '1..2' (str) is not a number"),
        ("lr=2..1", True, "--grid lr: a range is LOW..HIGH with LOW below HIGH"),
        ("lr=log:0..1", True, "--grid lr: a range is LOW..HIGH with LOW below HIGH, above 0"),
        ("lr=a..b", True, "--grid lr: 'a' (str) is not a number"),
        ("attention=1..2", True, "--grid attention: is no number, so that it has no range"),
    ],
)
def test_what_cannot_be_varied_is_said(text: str, ranges: bool, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        grid(text, ranges=ranges)
    assert str(caught.value).startswith(message)
    with pytest.raises(UsageError, match="is there twice"):
        grid("lr=1", "lr=2")


def test_a_range_is_drawn_from_evenly() -> None:
    found = grid("lr=log:1e-6..1e-2", "beta=0..1", "batch-size=log:8..512", ranges=True)
    assert found == {
        "lr": DrawnRange(1e-6, 1e-2, log=True, whole=False),
        "beta": DrawnRange(0, 1, log=False, whole=False),
        "batch_size": DrawnRange(8, 512, log=True, whole=True),
    }
    draws = random.Random(0)
    lrs = [found["lr"].draw(draws) for _ in range(400)]
    assert 1e-6 <= min(lrs) < 1e-5
    assert 0.4 < sum(each < 1e-4 for each in lrs) / 400 < 0.6  # the middle of the scale
    betas = [found["beta"].draw(draws) for _ in range(400)]
    assert 0.4 < sum(each < 0.5 for each in betas) / 400 < 0.6
    sizes = [found["batch_size"].draw(draws) for _ in range(400)]
    assert {type(each) for each in sizes} == {int}
    assert 8 <= min(sizes) <= max(sizes) <= 512


def test_a_grid_and_draws_are_combined(capsys: pytest.CaptureFixture[str]) -> None:
    cells = points(grid("lr=1,2", "seed=0,1"), {}, 0, 0)
    assert [tuple(each.values()) for each in cells] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    drawn = grid("beta=0..1", ranges=True)
    some = points(grid("seed=0,1"), drawn, 3, 7)
    assert len(some) == 6
    assert [each["seed"] for each in some] == [0, 1] * 3
    assert len({each["beta"] for each in some}) == 3
    # More draws keep the first ones; another seed draws others.
    assert points(grid("seed=0,1"), drawn, 4, 7)[:6] == some
    assert points(grid("seed=0,1"), drawn, 3, 8) != some
    few = points({}, grid("attention=softmax,minmax"), 5, 0)
    assert sorted(each["attention"] for each in few) == ["minmax", "softmax"]
    assert "there are but 2 combinations to draw, not 5" in capsys.readouterr().err


def test_runs_are_named_after_their_values() -> None:
    found = [{"lr": 1e-6, "batch_size": 8}, {"texts": ("+./a.py", "+b")}, {"crop": False}, {}]
    assert names_of(found) == ["lr-1e-06_batch-size-8", "texts-+.-a.py-+b", "crop-false", "run"]
    close = [{"lr": 1e-6}, {"lr": 1.0000001e-6}, {"lr": 1.0000002e-6}]
    assert names_of(close) == ["lr-1e-06", "lr-1e-06--2", "lr-1e-06--3"]


# --- What a sweep does. ---


def test_a_sweep_trains_measures_and_reports(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the runs fails, and the others are done all the same."""
    out = tmp_path / "sweep"
    what = ("--grid", "lr=1e-4,1e-2", "min-lr=0,1e-3", f"--on={world / 'suite'}")
    assert sweep(world, out, *what) == 1
    shown = capsys.readouterr()
    failed = "lr-0.0001_min-lr-0.001"
    assert f"[2/4] {failed}: failed: --min-lr 0.001 is above the peak" in shown.err
    assert "1 run failed; the same command tries again" in shown.err
    head, _, *lines = shown.out.splitlines()
    assert head.split()[:3] == ["lr", "min_lr", "loss"]
    assert lines[0].startswith("base ")
    assert lines[4].split()[:3] == ["0.0001", "0.001", "failed"]
    rows = table(out)
    benchmark = list(rows[0])[4]
    scores = [float(row[benchmark].split()[0]) for row in rows[1:4]]
    assert scores == sorted(scores, reverse=True)
    assert lines[5] == f"best by {benchmark}: {out / 'runs' / rows[1]['run']}"
    assert rows[-1]["run"] == failed
    assert rows[-1]["error"].startswith("--min-lr 0.001")
    page = (out / "report.html").read_text()
    assert all(row["run"] in page for row in rows[:4])
    # Each run is the one that train makes of its own file.
    run = out / "runs" / "lr-0.01_min-lr-0"
    assert main(["train", f"--config={run / CONFIG}", f"--out={tmp_path / 'again'}"]) == 0
    assert weights(tmp_path / "again") == weights(run)
    assert weights(run) != weights(out / "runs" / "lr-0.01_min-lr-0.001")


def test_the_same_command_goes_on(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, what = tmp_path / "sweep", ("--save-every=1", "--log-every=1", "--grid")
    assert sweep(world, out, *what, "lr=1e-3,1e-4") == 0
    done = {run.name: weights(run) for run in (out / "runs").iterdir()}
    assert len(done) == 2
    times = {run: (run / "model").stat().st_mtime_ns for run in (out / "runs").iterdir()}
    # A run that was stopped on the way, and a value more.
    half = out / "runs" / "lr-0.0001"
    options = [f"--config={half / CONFIG}", f"--out={tmp_path / 'half'}", "--stop-after=1"]
    assert main(["train", *options]) == 0
    shutil.rmtree(half)
    (tmp_path / "half").rename(half)
    capsys.readouterr()
    assert sweep(world, out, *what, "lr=1e-3,1e-4,1e-5", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == 3
    assert found["sorted_by"] == "loss"
    assert [each["loss"] for each in found["runs"]] == sorted(e["loss"] for e in found["runs"])
    assert {name: weights(out / "runs" / name) for name in done} == done
    kept = out / "runs" / "lr-0.001"
    assert (kept / "model").stat().st_mtime_ns == times[kept]
    # Other settings are another sweep; how it is carried out is not a setting.
    assert sweep(world, out, *what, "lr=1e-3", "--gamma=1") == 2
    said = capsys.readouterr().err
    assert f"{kept / CONFIG}: is of a run with gamma 2, not 1; choose another --out" in said
    assert sweep(world, out, "--save-every=7", "--max-bad=3", "--grid", "lr=1e-3") == 0


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
    said = capsys.readouterr().err
    assert "seed-0: is of a run of other data or files (captions of 1 of 40 rows changed)" in said
    table.write_text(text)
    method.write_text(own_files.METHOD.replace("weight: float = 1.0", "weight: float = 1.00"))
    assert swept("seed=0,1") == 2
    assert "(mine.py changed); choose another --out" in capsys.readouterr().err


@pytest.mark.slow
def test_several_jobs_make_the_same_runs(world: Path, tmp_path: Path) -> None:
    what = ("--grid", "lr=1e-4,1e-3", "seed=0,1", f"--on={world / 'suite'}")
    assert sweep(world, tmp_path / "one", *what) == 0
    assert sweep(world, tmp_path / "two", *what, "--jobs=2") == 0
    runs = sorted((tmp_path / "one" / "runs").iterdir())
    assert len(runs) == 4
    for run in runs:
        assert weights(tmp_path / "two" / "runs" / run.name) == weights(run)
    assert table(tmp_path / "two") == table(tmp_path / "one")


@pytest.mark.slow
def test_ray_makes_the_same_runs(world: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    what = ("--grid", "lr=1e-4,1e-3")
    assert sweep(world, tmp_path / "one", *what) == 0
    assert sweep(world, tmp_path / "two", *what, "--jobs=2", "--engine=ray") == 0
    for run in (tmp_path / "one" / "runs").iterdir():
        assert weights(tmp_path / "two" / "runs" / run.name) == weights(run)


def test_runs_that_kill_their_process_do_not_hide_the_others(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def dying(work: Any, runs: Any, *_: object) -> Any:
        yield work(runs[0])
        raise CompoclipError("workers died 4 times over the same work")

    monkeypatch.setattr(sweeping, "carried_out", dying)
    assert sweep(world, tmp_path / "sweep", "--grid", "lr=1e-4,1e-3") == 1
    assert "lr-0.001 failed: workers died 4 times" in capsys.readouterr().err
    assert [row["error"][:12] for row in table(tmp_path / "sweep")] == ["", "workers died"]


def test_an_interrupted_sweep_says_how_it_goes_on(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(sweeping, "carried_out", interrupted)
    assert sweep(world, tmp_path / "sweep", "--grid", "lr=1e-4,1e-3") == 130
    assert "interrupted; the same command goes on" in capsys.readouterr().err


def test_a_sweep_in_a_file(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(sweeping, "_all", lambda runs, _: asked.extend(runs) or {})
    file = tmp_path / "sweep.yaml"
    text = "method: fsc-clip\ndata: x.tsv\nout: sweep\nepochs: 2\n"
    more = "grid:\n  seed: [0, 1]\n  texts: [[+unit, +denial]]\n  gamma: 1\n"
    more += "random: {lr: log:1e-6..1e-4}\n"
    file.write_text(f"{text}{more}draws: 2\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyError):  # nothing was done
        main(["sweep", f"--config={file}", "--epochs=3", "--debug"])
    assert len(asked) == 4
    values = [each.values for each in asked]  # type: ignore[attr-defined]
    assert {(each["gamma"], each["epochs"], each["texts"]) for each in values} == {
        (1.0, 3.0, ("+unit", "+denial"))
    }
    for wrong, message in (
        ("drawz: 1", "fsc-clip has no option 'drawz'; did you mean draws"),
        ("resume: true", "fsc-clip has no option 'resume'"),
        ("draws: many", "draws: 'many' (str) is not a whole number"),
    ):
        file.write_text(f"{text}{wrong}\n")
        assert main(["sweep", f"--config={file}"]) == 2
        assert f"{file}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name what to vary: --grid"),
        (("--random", "lr=1..2"), "--random and --draws go together"),
        (("--grid", "out=a,b"), "--grid out: no such option to vary"),
        (("--grid", "lr=1", "--random", "lr=1..2", "--draws=1"), "--random lr: is in --grid"),
        (("--grid", "lr=1", "--jobs=0"), "--jobs must be at least 1"),
        (("--grid", "lr=1", "--sort-by=x"), "--sort-by x: there is loss"),
        (("--grid", "lr=1", "--on=nothing"), "nothing"),
        (("--grid", "lr=1e-4,.nan"), "lr nan: --lr nan: must be a number from 0 on"),
        (("--grid", "batch_size=0,8"), "batch_size 0: --batch-size 0: must be a number from 1 on"),
        (("--grid", "seed=-1"), "seed -1: --seed -1: must be a whole number from 0"),
        (
            ("--random", "seed=0..1e400", "--draws=2"),
            "seed: a range is LOW..HIGH with LOW below HIGH, both finite",
        ),
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


@dataclass(frozen=True, kw_only=True)
class Watching:
    on: tuple[str, ...] = ()
    every: int = 0


@dataclass(frozen=True, kw_only=True)
class WatchedRun(Watching, TrainOptions):
    """Options of a run that has one in common with a sweep, declared with one of its own."""


def test_a_benchmark_is_passed_on_to_a_run_that_measures_by_itself() -> None:
    asked = sweeping.SweepOptions(out=Path("x"), on=("suite",), json=True)
    plain = WatchedRun(data="x", out=Path("run"), lora=True)
    assert with_shared(plain, asked) == plain
    watched = WatchedRun(data="x", out=Path("run"), every=5)
    found = with_shared(watched, asked)
    assert isinstance(found, WatchedRun)
    assert (found.on, found.out, found.json) == (("suite",), Path("run"), False)
