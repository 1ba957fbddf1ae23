"""`compoclip parse`: one caption, files, resuming, errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import compoclip.recordfile as recordfile
from build.tables import read_jsonl, write_lines, write_rows
from compoclip.cli.caption_input import read_captions
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError

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
    made = read_jsonl(out)
    assert [r["id"] for r in made] == ["1", "2", "3", "4"]
    assert [r["caption"] for r in made] == CAPTIONS
    shown = capsys.readouterr().out
    assert "4 captions" in shown
    assert "1 without an object" in shown
    settings = json.loads(recordfile.settings_path(out).read_text())
    assert {"tagger", "parser", "source", "content of the file"} == set(settings)


def test_counts_as_json_and_a_rerun_goes_on(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert run(text_file, "-o", out, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    whole = out.read_bytes()
    made = read_jsonl(out)
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


def test_captions_are_read_from_every_form(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps({"7": {"filename": "x", "caption": "a", "negative_caption": "b"}})
    )
    (tmp_path / "b.json").write_text('{"id": 1, "caption": "c"}\n{"id": 2, "caption2": "d"}\n')
    (tmp_path / "c.jsonl").write_text('{"captions": ["e", "f"]}\n\n"g"\n'.replace('"g"\n', ""))
    (tmp_path / "d.txt").write_text("h\n\n i \n")
    (tmp_path / "e.json").write_text('["j", {"caption": " "}]')
    (tmp_path / "README.md").write_text("not this")
    assert read_captions(tmp_path) == ["a", "b", "c", "d", "e", "f", "h", " i ", "j"]
    (tmp_path / "none.txt").write_text("\n")
    for path, message in (
        (tmp_path / "none.txt", "none.txt: holds no captions; name a table with a column"),
        (tmp_path / "missing.txt", "missing.txt"),
    ):
        with pytest.raises(CompoclipError, match=message):
            read_captions(path)


@pytest.mark.parametrize(
    "name", ["c.csv", "c.CSV", "c.tsv", "c.jsonl", "c.jsonl.gz", "c.json", "c.parquet"]
)
def test_captions_of_a_list_are_read_by_its_kind(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"caption_id": "1", "Caption": "a cat on a mat", "negative_caption": "a mat on a cat"},
        {"caption_id": "2", "Caption": "", "negative_caption": "['a dog', 'a log']"},
        {"caption_id": "3", "Caption": "", "negative_caption": " "},
    ]
    path = tmp_path / name
    if name.endswith(".gz"):
        plain = write_rows(tmp_path / "plain.jsonl", rows)
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    else:
        write_rows(tmp_path / name.lower(), rows).rename(path)
    for place in (path, tmp_path):
        assert read_captions(place) == ["a cat on a mat", "a mat on a cat", "a dog", "a log"]
        shown = capsys.readouterr().err
        assert "left out of the data: 3 x empty caption" in shown
        assert "left out of the data: 1 x sample without a caption" in shown
    kinds = r"notes\.md: not one of the kinds \.txt, \.csv, .*; convert it"
    with pytest.raises(UsageError, match=kinds):
        read_captions(write_lines(tmp_path / "notes.md", ["a cat"]))
    titles = write_rows(tmp_path / "titles.csv", [{"filepath": "1.jpg", "title": "a fish"}])
    assert read_captions(titles) == ["a fish"]


def test_sugarcrepe_has_its_15022_captions(shared_data: Path) -> None:
    assert len(read_captions(shared_data / "annotations" / "sugarcrepe")) == 2 * 7511
