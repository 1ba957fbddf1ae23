"""`python -m bench all`: one table of every stage."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.__main__ import STAGES, main
from bench.rows import Inputs, Row, shown
from compoclip.errors import CompoclipError

FAST = Row("one", "things/s", 300.0, 100.0, "slow way", 3.0, target=2.5)
SLOW = Row("two", "more/s", 9.0, target=10.0, of="ratio", limit="no reference")
MISSED = Row("two", "images/s", 9.123, target=10, of="ours", limit="decoding")


def test_a_target_is_met_missed_or_cannot_be_told() -> None:
    assert [row.met for row in (FAST, SLOW, MISSED, Row("x", "y", 1.0))] == [
        True,
        None,
        False,
        None,
    ]
    lines = shown([FAST, SLOW, MISSED]).splitlines()
    assert lines[2].split()[-7:] == ["100", "300", "3", "ratio", ">=", "2.5", "met"]
    assert lines[4].split()[-5:] == ["9.12", "ours", ">=", "10", "missed"]
    assert lines[-1] == "two, images/s: decoding"
    assert MISSED.to_json()["met"] is False
    assert len({line.find("target") for line in lines[:1]}) == 1


def test_every_stage_gives_rows() -> None:
    for stage in STAGES:
        module = import_module(f"bench.{stage}")
        assert callable(module.rows), stage
        assert callable(module.main), stage


def test_all_goes_on_past_a_stage_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Inputs] = []

    def good(inputs: Inputs) -> list[Row]:
        seen.append(inputs)
        assert inputs.folder.is_dir()
        assert len(inputs.captions.read_text().splitlines()) == 2000
        return [FAST]

    def bad(inputs: Inputs) -> list[Row]:
        raise CompoclipError("no such thing; get it")

    modules = {"text": SimpleNamespace(rows=good), "parse": SimpleNamespace(rows=bad)}
    monkeypatch.setattr("bench.all.import_module", lambda name: modules[name.rpartition(".")[2]])
    asked = ["all", "--quick", "--only", "parse", "text"]
    assert main([*asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == {"parse": "no such thing; get it"}
    assert [row["ratio"] for row in found["rows"]] == [3.0]
    assert found["setting"]["quick"] is True
    assert main(asked) == 1
    out = capsys.readouterr().out
    assert "parse: could not be measured: no such thing; get it" in out
    assert "slow way" in out
    assert not seen[0].folder.exists()
    assert main(["all", "--only", "nothing"]) == 2


def test_captions_of_the_user_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.txt"
    file.write_text("a cat\n")
    module = SimpleNamespace(rows=lambda inputs: [Row("text", str(inputs.captions), 1.0)])
    monkeypatch.setattr("bench.all.import_module", lambda _: module)
    assert main(["all", "--only", "text", "--captions", str(file)]) == 0
    assert str(file) in capsys.readouterr().out
