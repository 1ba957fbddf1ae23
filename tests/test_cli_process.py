"""The command line as a process: Ctrl-C, readers that go away, full outputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file

from build.tables import write_lines
from compoclip.cli.main import main
from compoclip.files import LOCK
from compoclip.training.log import read_log
from compoclip.training.state import latest_state
from compoclip_world.export import suite
from ranks_helpers import Forked
from train_helpers import FEW, write_config, write_data

COMMAND = (sys.executable, "-m", "compoclip")


def training(folder: Path, out: str, *more: str) -> list[str]:
    places = {"model": "config.json", "data": "data/data.tsv", "out": out}
    words = [f"--{name}={folder / place}" for name, place in places.items()]
    sizes = ["--batch-size=8", "--epochs=4000", "--set=log_every=1"]
    return ["train", "clip-ft", "--from-scratch", *words, *sizes, *more]


def started(arguments: list[str]) -> subprocess.Popen[str]:
    """The command line in a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that put the tests into the background has them ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def alone() -> None:
    """Lead a process group, as what a shell starts does, and heed Ctrl-C."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def alone_with_a_small_suite() -> None:
    """Do as `alone`, and let the demo write only the benchmarks that it begins with."""
    alone()
    suite.write_suite = partial(suite.write_suite, benchmarks=("foils",))


def forked(arguments: list[str]) -> Forked:
    """Start a command as `started` does, from an interpreter that has imported torch."""
    return Forked(["compoclip", *arguments], preexec_fn=alone)


def until(
    condition: Callable[[], bool], process: subprocess.Popen[str] | Forked | None = None
) -> None:
    """Wait for the condition, while the process runs."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.03)


def group(process: subprocess.Popen[str] | Forked) -> list[int]:
    """The living processes of its group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            if of == str(process.pid) and state != "Z":
                found.append(int(stat.parent.name))
    return found


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    write_config(tmp_path / "config.json", merges=FEW)
    write_data(tmp_path / "data")
    return tmp_path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.usefixtures("inputs")
def test_a_run_that_is_asked_to_stop_goes_on_exactly(
    tmp_path: Path, number: int, code: int
) -> None:
    process = forked(training(tmp_path, "run", "--workers=2"))
    log = tmp_path / "run" / "train.jsonl"
    until(lambda: log.is_file() and len(read_log(log)) >= 3, process)
    os.killpg(process.pid, number)  # as a terminal and SLURM do: to the workers as well
    if number == signal.SIGTERM:  # and once more, as a launcher that got it does
        os.killpg(process.pid, number)
    out, error = process.communicate(timeout=120)

    assert process.returncode == code
    assert "Traceback" not in error
    state = latest_state(tmp_path / "run" / "state")
    step = int(state.name.removeprefix("step-"))
    *_, last = error.strip().splitlines()
    assert last.startswith(f"compoclip train: interrupted after step {step} of 20000")
    assert "--resume continues" in last
    assert out == ""
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / LOCK).exists()
    until(lambda: group(process) == [])

    assert main(training(tmp_path, "whole", f"--set=stop_after={step + 2}")) == 0
    assert main(training(tmp_path, "run", f"--set=stop_after={step + 2}", "--resume")) == 0
    one, other = (
        load_file(latest_state(tmp_path / run / "state") / "tensors.safetensors")
        for run in ("whole", "run")
    )
    assert one.keys() == other.keys()
    assert [name for name in one if not one[name].equal(other[name])] == []


@pytest.mark.usefixtures("inputs")
def test_a_run_folder_has_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = forked(training(tmp_path, "run", "--set=save_every=3"))
    lock = tmp_path / "run" / LOCK
    until(lambda: lock.exists() and lock.read_text() != "", first)  # says who holds it once held
    os.kill(first.pid, signal.SIGSTOP)  # it would take the other's core
    assert main(training(tmp_path, "run", "--resume", "--seed=5")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"compoclip train: {tmp_path / 'run'}: process {first.pid} on ")
    os.kill(first.pid, signal.SIGCONT)
    log = tmp_path / "run" / "train.jsonl"
    until(lambda: log.is_file() and len(read_log(log)) >= 3, first)
    os.kill(first.pid, signal.SIGKILL)  # no lock is left
    first.communicate()
    assert main(training(tmp_path, "run", "--set=stop_after=9", "--resume")) == 0


def with_workers(verb: str, folder: Path) -> list[str]:
    """A verb that keeps two workers busy for long."""
    if verb == "rewrite shards":
        (folder / "in").mkdir()
        for shard in range(4):
            rows = (json.dumps({"caption": f"a red dog on mat {i}"}) for i in range(20_000))
            write_lines(folder / "in" / f"{shard}.jsonl", rows)
        return ["rewrite", str(folder / "in"), "-o", str(folder / "out"), "--workers=2"]
    captions = write_lines(folder / "c.txt", (f"a red dog on mat {i}" for i in range(50_000)))
    return [verb, str(captions), "-o", str(folder / "out.jsonl"), "--workers=2"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
@pytest.mark.parametrize(
    ("verb", "signals", "code"),
    [
        ("rewrite", [signal.SIGKILL], 128 + signal.SIGKILL),
        ("rewrite", [signal.SIGTERM], 143),
        ("rewrite shards", [signal.SIGINT, signal.SIGINT], 130),
    ],
)
def test_nothing_is_left_of_a_command_that_is_ended(
    verb: str, signals: list[int], code: int, tmp_path: Path
) -> None:
    process = started(with_workers(verb, tmp_path))
    until(lambda: len(group(process)) >= 4, process)  # with what keeps track of shared memory
    time.sleep(0.5)
    for number in signals:
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)
        time.sleep(0.05)
    _, error = process.communicate(timeout=120)
    # the second Ctrl-C may come when Python has ended as far as it can handle signals
    assert process.returncode in (code, 128 - code)
    assert "Traceback" not in error
    until(lambda: group(process) == [])
    if code != 128 + signal.SIGKILL:
        how = "ended by SIGTERM" if code == 143 else "interrupted"
        assert error.splitlines()[-1] == f"compoclip {verb.split()[0]}: {how}"
        left = [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")]
        assert left == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
def test_the_runs_of_a_demo_that_is_killed_save_their_state_and_end(tmp_path: Path) -> None:
    run = tmp_path / "out" / "runs" / "clip-ft"
    sizes = ["--scenes=24", "--items-per-task=2", "--epochs=9999", "--batch-size=8"]
    arguments = ["demo", f"--out={tmp_path / 'out'}", "--methods", "clip-ft", *sizes]
    process = Forked(["compoclip", *arguments], preexec_fn=alone_with_a_small_suite)
    log = run / "train.jsonl"
    until(lambda: log.is_file() and len(read_log(log)) >= 1, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: group(process) == [])
    assert latest_state(run / "state") is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["parse", "a red cup on a blue table", "--json"],
    ],
)
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(120) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--help"], "compoclip --help: output: No space left on device"),
        (["parse", "a red cup", "--json"], "compoclip parse: output: No space left on device"),
    ],
)
def test_an_output_that_is_full_is_one_line(arguments: list[str], message: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo"], "the verb 'demo' comes with compoclip-world: run pip install ./world"),
        (["world", "show"], "the verb 'world' comes with compoclip-world"),
        (["inspect", "bundled"], "the base model 'bundled' comes with compoclip-world"),
    ],
)
def test_without_the_world_a_line_says_where_it_is(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compoclip.plugins.installed", lambda kind: {})
    assert main(words) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
