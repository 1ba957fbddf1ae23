"""`python -m bench scale`: what is measured, what the figures say, and when it stops."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from bench.__main__ import main
from bench.harness import Spent, run_process
from bench.scale import (
    COMMANDS,
    RECORDS,
    MadeData,
    Measured,
    Verb,
    command_of,
    draw_figure,
    sentence_of,
)
from compoclip.cli import options, train
from compoclip.cli.main import main as compoclip
from compoclip.search import read_index


class ParsedError(BaseException):
    """Raised in place of doing what was parsed."""


def at(rows: int, seconds: float) -> Measured:
    return Measured(rows, seconds, {"the processor": seconds}, 10**9)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ([at(10, 1), at(100, 2), at(1000, 20)], "linearly from 100 to 1,000 rows (slope 1.00)."),
        (
            [at(10, 1), at(100, 3), Measured(1000)],
            "less than linearly from 10 to 100 rows (slope 0.48).",
        ),
        ([at(10, 1), at(100, 100)], "more than linearly from 10 to 100 rows (slope 2.00)."),
        ([at(10, 1), Measured(100)], "was measured at one size alone."),
        ([Measured(10)], "no size was finished."),
    ],
)
def test_the_two_largest_sizes_say_whether_time_is_linear(
    measured: list[Measured], words: str
) -> None:
    assert sentence_of("index", measured).endswith(words)


def test_data_have_as_many_rows_as_asked_for(tmp_path: Path) -> None:
    data = MadeData(tmp_path / "data", 70, "bundled")
    assert len(data.captions.read_text().splitlines()) == 70
    rows = [json.loads(line) for line in data.pairs.read_text().splitlines()]
    photos = [(tmp_path / "data" / row["image"]).read_bytes() for row in rows]
    assert len(set(photos)) == len({row["caption"] for row in rows}) == 70
    assert read_index(data.index).features.shape[0] == 70


@pytest.mark.parametrize("verb", COMMANDS)
def test_commands_are_understood(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ("captions", "photos", "pairs", "index", "model")
    data: Any = SimpleNamespace(**{part: f"some-{part}" for part in parts})

    def parsed(*_: object) -> None:
        raise ParsedError

    monkeypatch.setattr(options, "check_options", parsed)  # the last step of parsing
    monkeypatch.setattr(train, "start", parsed)
    with pytest.raises(ParsedError):
        compoclip(command_of(verb, data, Path("out")))


def test_figures_have_both_quantities(tmp_path: Path) -> None:
    measured = [at(10, 1), at(100, 3), Measured(1000)]
    for path in draw_figure(tmp_path / "index", "index", measured):
        assert path.stat().st_size > 1000
    text = (tmp_path / "index.svg").read_text()
    for words in ("index: time", "index: memory", "linear", "the processor", "seconds", "GB"):
        assert words in text
    assert "mathdefault" not in text


def run_here(command: list[str], folder: Path, limit: float, **variables: str) -> Spent:
    """`run_process` for commands of compoclip, in this process, for what it does with them; those
    of less than a second are stopped."""
    assert command[:3] == [sys.executable, "-m", "compoclip"]
    assert variables == {"XDG_CACHE_HOME": str(folder / "cache")}
    if limit < 1:
        return Spent(limit, stopped=True)
    errors = io.StringIO()
    with (
        redirect_stderr(errors),
        redirect_stdout(io.StringIO()),
        mock.patch.dict(os.environ, variables),
    ):
        code = compoclip(command[3:])
    return Spent(3600.0, 30.0, 2 * 10**9, errors.getvalue().strip() if code else "")


@pytest.mark.slow
def test_commands_are_measured_and_drawn(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.scale.run_process", run_here)
    out = tmp_path / "scale"
    tiny = ["scale", "--fewest=64", "--most=64", "--out", str(out), "--json", "--verbs"]
    on_base = ["--minutes=99", f"--model={world / 'base'}"]
    assert main([*tiny, "rewrite", "train", *on_base]) == 0
    printed = capsys.readouterr()
    rows = {row["what"]: row["ours"] for row in json.loads(printed.out)["rows"]}
    assert rows["train, 64 rows: seconds of a step"] > 0
    assert 0 < rows["train, 64 rows: seconds of all but the steps"] < 3600
    assert rows["train, 64 rows: seconds of the processor"] == 30.0
    assert rows["rewrite, 64 rows: seconds of the whole command"] == 3600.0
    assert rows["rewrite, 64 rows: GB at most"] == 2.0
    assert "rewrite: the time of the processor was measured at one size alone" in printed.err
    assert main([*tiny, "search", "--minutes=0.0001"]) == 0
    assert "search: no size was finished" in capsys.readouterr().err
    assert main([*tiny, "index", "--minutes=99", "--model=no-such-model"]) == 0
    assert "index, 64 rows: compoclip index: no model 'no-such-model'" in capsys.readouterr().err
    records = json.loads((out / RECORDS).read_text())
    assert "no-such-model" in records["index"]["sizes"][0]["problem"]
    assert {verb: len(record["sizes"][0]["seconds"]) for verb, record in records.items()} == {
        "rewrite": 2,
        "train": 3,
        "search": 0,
        "index": 0,
    }
    assert {path.name for path in out.glob("*.svg")} == {"rewrite.svg", "train.svg"}


def test_memory_is_that_of_the_command_alone(tmp_path: Path) -> None:
    """The system counts that of the starting process too, and this one has imported torch."""
    spent = run_process([sys.executable, "-c", "print(1)"], tmp_path, 60)
    assert 0 < spent.peak_bytes < 60e6
    assert (tmp_path / "output.txt").read_text() == "1\n"


@pytest.mark.parametrize(
    ("command", "limit", "problem"),
    [
        ([sys.executable, "-c", "raise ValueError(1)"], 60, "ValueError: 1"),
        ([sys.executable, "-c", "exit(3)"], 60, "ended with 3"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], 0.2, "stopped after 0 s"),
        (["no-such-program"], 60, "No such file"),
    ],
)
def test_a_command_that_fails_says_why(
    command: list[str], limit: float, problem: str, tmp_path: Path
) -> None:
    spent = run_process(command, tmp_path, limit)
    assert problem in spent.problem
    assert spent.stopped == (limit < 1)


def test_recorded_sizes_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure(verb: Verb, data: MadeData, rows: int, folder: Path, limit: float) -> Measured:
        measured.append(rows)
        return at(rows, 1)

    monkeypatch.setattr("bench.scale.measure_command", measure)
    monkeypatch.setattr("bench.scale.draw_figure", lambda *_: None)
    words = ["scale", "--verbs=rewrite", "--fewest=10", "--out", str(tmp_path / "out")]
    assert main([*words, "--most=100"]) == 0
    assert main([*words, "--most=1000", "--resume"]) == 0
    assert measured == [10, 100, 1000]
