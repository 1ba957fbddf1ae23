"""The demo at toy size: every stage runs, a second call repeats none, the report is there."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from build.results import few_resamples
from compoclip import console
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip_world import dataset, demo
from compoclip_world.export import suite
from compoclip_world.export.part import SuiteSpec
from ranks_helpers import Forked


def small_suite(patch: pytest.MonkeyPatch) -> None:
    """Let the demo write only the benchmarks that its own table and first scene need."""
    few = partial(suite.write_suite, benchmarks=("confusable", "foils"))
    patch.setattr("compoclip_world.export.suite.write_suite", few)


@pytest.mark.slow
@pytest.mark.usefixtures("user_cache")
def test_demo_runs_end_to_end_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compoclip_world.demo.available_cores", lambda: 1)
    warm = SimpleNamespace(Popen=Forked)  # has imported torch
    monkeypatch.setattr("compoclip_world.demo.subprocess", warm)
    small_suite(monkeypatch)
    out = tmp_path / "demo"
    arguments = [
        "demo",
        f"--out={out}",
        "--scenes=16",
        "--batch-size=8",
        "--items-per-task=2",
        "--methods",
        "fsc-clip",
    ]
    with few_resamples():
        assert main(arguments) == 0
    printed = capsys.readouterr()
    shown = printed.out
    assert re.match(
        r"draws 16 scenes, trains 1 model and measures them, in about \d.* if this machine stays",
        printed.err,
    )
    assert re.search(
        r'^the first scene, \S+\.png: ".+" is true and ".+" is false; the base scores them '
        r"-?0\.\d{3} and -?0\.\d{3}, which is (right|wrong)$",
        printed.err,
        re.M,
    )
    assert "fsc-clip: step" not in printed.err
    assert "drawing scenes: 0 % of the demo done" in printed.err
    assert (out / "runs" / "fsc-clip.log").is_file()
    assert re.search(r"^foils \(macro\)", shown, re.M)
    assert re.search(r"^exchanged colours( +\d+\.\d[+-]?){3}$", shown, re.M)
    assert re.search(
        r"^look-alikes, text to image +\d.*\nlook-alikes, image to text +\d", shown, re.M
    )
    assert re.search(r"^fsc-clip: mean grounded gain \d+\.\d -> \d+\.\d \(", shown, re.M)
    page = (out / "report.html").read_text()
    assert "fsc-clip" in page
    assert "base" in page
    log = (out / "runs" / "fsc-clip" / "train.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["step"] == 4
    weights = out / "runs" / "fsc-clip" / "model" / "open_clip_model.safetensors"
    before = weights.stat().st_mtime_ns

    # The same page once more, which test_report_page.py shows to be the same bytes.
    monkeypatch.setattr("compoclip_world.demo._report", lambda *_: out / "report.html")
    assert main([*arguments, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert weights.stat().st_mtime_ns == before
    assert {result["model"] for result in again["results"]} == {"base", "fsc-clip"}
    assert {result["grounded"]["blind_models"][0] for result in again["results"]} == {"text only"}
    assert {bound["model"] for bound in again["bounds"]} == {"oracle", "text only"}
    assert "oracle" in page

    assert main([*arguments, "--epochs=3", "--seed=1"]) == 2
    error = capsys.readouterr().err
    assert "is of another demo (epochs was 2.0, is 3.0; seed was 0, is 1); choose another" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "negclip", "negclip"], "--methods names negclip twice; name it once"),
        (["--methods"], "--methods: name one at least"),
        (["--scenes=100"], "--batch-size 128: more than the scenes to train on; give 100 at most"),
        (["--items-per-task=1"], "1 item per sub-task; give at least 2"),
    ],
)
def test_a_demo_that_cannot_be_done_draws_nothing(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", f"--out={tmp_path / 'o'}", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "o" / "data").exists()


def test_data_of_a_demo_that_lack_a_file_or_are_others_are_refused(tmp_path: Path) -> None:
    spec = dataset.TrainingSet(dataset.bundled_world(), 5, captions=1, shard_size=2)
    assert not dataset.has_training_set(tmp_path / "data", spec)
    shards = dataset.write_training_set(tmp_path / "data", spec)
    assert dataset.has_training_set(tmp_path / "data", spec)
    with pytest.raises(
        CompoclipError, match=r"of other parameters \(count was 5, is 6.*remove the"
    ):
        dataset.has_training_set(tmp_path / "data", replace(spec, count=6))
    record = tmp_path / "data" / "world.json"
    text = record.read_text()
    for content in (text.replace("{", '{"joint": null,', 1), text.replace("{", '{"joint": {},', 1)):
        record.write_text(content)
        with pytest.raises(CompoclipError, match=r"unknown field 'joint' \(str\); remove the"):
            dataset.has_training_set(tmp_path / "data", spec)
    record.write_text("[]")
    with pytest.raises(CompoclipError, match=r"data needs an object; it has: \[\].*remove the"):
        dataset.has_training_set(tmp_path / "data", spec)
    record.write_text(text)
    shards[1].unlink()
    with pytest.raises(CompoclipError, match=r"1 file missing, such as train-000001.*remove the"):
        dataset.has_training_set(tmp_path / "data", spec)
    core, out = SuiteSpec(dataset.bundled_world(), 2), tmp_path / "suite"
    assert not suite.has_suite(out, core)
    suite.write_suite(out, core, benchmarks=("foils",))
    assert suite.has_suite(out, core)
    with pytest.raises(CompoclipError, match=r"of other parameters \(seed was 0, is 1\)"):
        suite.has_suite(out, replace(core, seed=1))
    next(out.rglob("*.png")).unlink()
    with pytest.raises(CompoclipError, match=r"suite: 1 file missing, such as .*png; remove the"):
        suite.has_suite(out, core)


@pytest.mark.parametrize(
    ("program", "said"),
    [("print('step 1'); print('the disk is full'); exit(3)", "the disk is full"), ("exit(3)", "")],
)
def test_a_training_that_fails_is_told_with_its_log(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo._Suite, "__init__", lambda *_: None)
    monkeypatch.setattr(demo._Suite, "measure", lambda *_: None)
    monkeypatch.setattr(demo._Suite, "bounds", ("measured",), raising=False)
    monkeypatch.setattr(demo, "_first_scene", lambda *_: "")
    monkeypatch.setattr(demo, "_train_command", lambda *_: [sys.executable, "-c", program])
    options = demo.DemoOptions(out=tmp_path, methods=("negclip",))
    log = re.escape(str(tmp_path / "runs" / "negclip.log"))
    cause = said or "it printed nothing"
    with pytest.raises(CompoclipError, match=rf"^negclip was not trained \({cause}; more in {log}"):
        demo._train_and_measure(options, lambda *_: None)


@pytest.mark.parametrize(
    ("cores", "events"),
    [
        (
            1,
            "base, start fsc-clip, measure fsc-clip, start negclip, measure negclip, "
            "start clip-ft, measure clip-ft, bounds",
        ),
        (
            2,
            "start fsc-clip, base, start negclip, measure negclip, start clip-ft, "
            "measure fsc-clip, bounds, measure clip-ft",
        ),
        (
            4,
            "start fsc-clip, start negclip, start clip-ft, base, bounds, measure negclip, "
            "measure fsc-clip, measure clip-ft",
        ),
    ],
)
def test_a_core_measures_while_the_others_train(
    cores: int, events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    lasts = {"clip-ft": 5, "negclip": 1, "fsc-clip": 4}  # looks at the processes

    class Training:
        def __init__(self, command: list[str], **_: object) -> None:
            method = command[command.index("train") + 1]
            happened.append(f"start {method}")
            self.left, self.returncode = lasts[method], 0

        def poll(self) -> int | None:
            self.left -= 1
            return None if self.left else 0

    class Suite:
        def __init__(self, _: demo.DemoOptions) -> None:
            self.bounds: list[str] = []

        def measure(self, name: str, _: str) -> None:
            happened.append(name)

        def measure_trained(self, method: str) -> None:
            happened.append(f"measure {method}")

        def measure_bounds(self) -> None:
            happened.append("bounds")
            self.bounds.append("measured")

    monkeypatch.setattr(demo, "available_cores", lambda: cores)
    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(Popen=Training))
    monkeypatch.setattr(demo, "_Suite", Suite)
    monkeypatch.setattr(demo, "_first_scene", lambda _: "")
    monkeypatch.setattr(demo.time, "sleep", lambda _: None)
    demo._train_and_measure(demo.DemoOptions(out=tmp_path), lambda *_: None)
    assert happened == events.split(", ")


def test_progress_weighs_methods_by_what_they_cost(tmp_path: Path) -> None:
    methods = ("clip-ft", "compo")
    options = demo.DemoOptions(out=tmp_path, scenes=1280, epochs=1, methods=methods)
    assert demo._trained(options) == 0
    for method, step in (("clip-ft", 10), ("compo", 5)):
        log = tmp_path / "runs" / method / "train.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text(f'{{"step": {step}}}\n')
    cheap, dear = (demo._START + 1280 * demo._TRAINING[method] for method in methods)
    measured = 500 * demo._MEASURED
    assert demo._trained(options) == pytest.approx(
        (cheap + dear / 2) / (cheap + dear + 2 * measured)
    )
    (tmp_path / "results" / "clip-ft").mkdir(parents=True)
    assert demo._trained(options) == pytest.approx(
        (cheap + dear / 2 + measured) / (cheap + dear + 2 * measured)
    )


def test_stages_of_the_demo_are_shown_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(demo.time, "monotonic", lambda: now)
    options = demo.DemoOptions(out=tmp_path)
    stages = demo._stages(options)
    whole = sum(stages.values())
    with demo._progress(options) as stage:
        stage("drawing scenes", 0.0)
        now = 5.0
        stage("drawing scenes", 0.5)  # too early for another line
        now = 10.0
        stage("drawing tests", 0.0)
    share = 100 * stages["drawing scenes"] / whole
    left = 10 * (whole / stages["drawing scenes"] - 1)
    assert capsys.readouterr().err.splitlines() == [
        "drawing scenes: 0 % of the demo done",
        f"drawing tests: {share:.0f} % of the demo done, {console.duration(left)} left",
    ]
