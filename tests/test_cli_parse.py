"""`compoclip parse` and `python -m bench parse`: one caption, files, resuming, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import compoclip.recordfile as recordfile
from bench.__main__ import main as bench
from compoclip.cli.main import main
from record_files import lines, write_lines

CAPTIONS = ["a red dog on a mat", "", "two men's hats", "unicode: a 猫 on a café table 😀"]


def run(*arguments: str | Path) -> int:
    return main(["parse", *map(str, arguments)])


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "captions.txt", CAPTIONS)


def test_one_caption(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a red dog on two mats") == 0
    assert capsys.readouterr().out == (
        "a     a    DET   DT\n"
        "red   red  ADJ   JJ\n"
        "dog   dog  NOUN  NN\n"
        "on    on   ADP   IN\n"
        "two   two  NUM   CD\n"
        "mats  mat  NOUN  NNS\n"
        "\n"
        "dog  red\n"
        "└─ on ─▶ mat\n"
        "mat  two\n"
    )
    assert run("") == 0
    assert capsys.readouterr().out == "(no objects)\n"


def test_one_caption_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a red dog on a mat", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [node["name"] for node in record["objects"]] == ["dog", "mat"]
    assert record["relations"][0]["name"] == "on"


def test_files_give_one_record_a_caption(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out.jsonl"
    assert run(text_file, "-o", out) == 0
    made = lines(out)
    assert [r["id"] for r in made] == ["1", "2", "3", "4"]
    assert [r["caption"] for r in made] == CAPTIONS
    shown = capsys.readouterr().out
    assert "4 captions" in shown
    assert "1 without an object" in shown
    settings = json.loads(recordfile.settings_path(out).read_text())
    assert {"tagger", "parser", "source"} == set(settings)


def test_counts_as_json_and_a_rerun_goes_on(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert run(text_file, "-o", out, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    whole = out.read_bytes()
    made = lines(out)
    assert first["captions"] == 4
    assert first["objects"] == sum(len(r["objects"]) for r in made)
    assert first["relations"] == sum(len(r["relations"]) for r in made)
    assert first["records_from_before"] == 0
    part = out.with_name("out.jsonl.part")
    part.write_bytes(whole[: whole.index(b"\n", len(whole) // 2) - 3])  # torn in the middle
    out.unlink()
    assert run(text_file, "-o", out, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert out.read_bytes() == whole
    assert 0 < again["records_from_before"] < 4
    assert {k: v for k, v in again.items() if k != "records_from_before"} == {
        k: v for k, v in first.items() if k != "records_from_before"
    }


def test_bench_parse(text_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["parse", "--captions", str(text_file), "--repeats", "1"]
    assert bench(arguments) == 0
    shown = capsys.readouterr().out
    assert "captions/CPU second" in shown
    for stage in ("tags", "noun chunks", "scene graphs", "all, cold", "all, warm"):
        assert stage in shown
    assert bench([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["captions"] == 3  # blank lines are no captions
    assert min(result[k] for k in ("cold", "warm", "tags", "chunks", "graphs")) > 0
    assert bench([*arguments[:-1], "0"]) == 2
    assert "--repeats" in capsys.readouterr().err
