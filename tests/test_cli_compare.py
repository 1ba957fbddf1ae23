"""`compoclip compare` over result folders."""

from __future__ import annotations

import json

from compoclip.cli.main import main
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder, choice_benchmark


def folders(tmp_path, *names: str) -> list[str]:
    toy = choice_benchmark(tmp_path / "p", n=20)
    for name in names:
        evaluate(name, FakeEncoder(name), [toy], tmp_path / "out", Options(resamples=50))
    return [str(tmp_path / "out" / name) for name in names]


def test_one_table_for_each_other_model(tmp_path, capsys):
    places = folders(tmp_path, "base", "one", "two")
    single = f"{places[2]}/toy.json"  # will do as well as its folder
    assert main(["compare", *places[:2], single, "--resamples", "100"]) == 0
    text = capsys.readouterr().out
    assert "one against base (base)" in text
    assert "two against base (base)" in text
    assert "toy micro" in text
    assert main(["compare", *places, "--resamples", "100", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [each["other"] for each in data] == ["one", "two"]
    assert {each["name"] for each in data[0]["subtasks"]} == {"even", "odd"}
    gain, models = data[0]["mean_grounded_gain"], data[0]["grounded"]
    assert gain["base"] == models["base"]["mean"]["value"]
    assert gain["other"] == models["one"]["mean"]["value"]
    assert {column["name"] for column in models["one"]["columns"]} == {"even", "odd"}


def test_errors_are_one_line(tmp_path, capsys):
    places = folders(tmp_path, "base", "one")
    assert main(["compare", places[0]]) == 2
    assert main(["compare", *places, "--resamples", "0"]) == 2
    capsys.readouterr()
    assert main(["compare", places[0], str(tmp_path / "out")]) == 1
    assert main(["compare", places[0], str(tmp_path / "none")]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2
    assert "several models" in lines[0]
    assert "no such file or folder" in lines[1]
