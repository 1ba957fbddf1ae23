"""`python -m bench serve`: what it asks and prints."""

from __future__ import annotations

import json

import pytest

from bench.__main__ import main
from bench.serve import Options, measure
from compoclip.models.checkpoint import load_model

SMALL = ["--clients=4", "--requests=12", "--repeats=1", "--side=32", "--device=cpu"]


def test_one_by_one_is_a_call_a_request_and_many_share_calls() -> None:
    options = Options(clients=4, requests=12, repeats=1, side=32)
    speeds = measure(load_model("bundled"), options)
    assert [each.what for each in speeds] == ["text", "image"]
    for each in speeds:
        assert each.alone.requests == each.together.requests == each.alone.calls == 12
        assert each.together.calls <= 12
        assert each.ratio > 0


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *SMALL]) == 0
    assert "one by one" in capsys.readouterr().out
    assert main(["serve", *SMALL, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["speeds"][0]["clients"] == 4
    assert main(["serve", "--clients=0"]) == 2
    assert "at least 1" in capsys.readouterr().err
