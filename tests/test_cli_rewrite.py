"""`compoclip rewrite`: one caption, files, resuming, statistics, errors."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path

import pytest

from build.tables import read_jsonl, write_jsonl, write_lines, write_rows
from compoclip.cli.caption_input import CaptionFile
from compoclip.cli.main import main
from compoclip.data.columns import EMPTY_CAPTION, EMPTY_CELL, NO_CAPTION, NO_TEXT
from compoclip.rewrites.base import rewrite_names

pytestmark = pytest.mark.usefixtures("warm_workers")

CAPTIONS = [
    "A red star to the left of a large striped mug.",
    "a cat next to a dog",
    "",
    "two blue fish above a small green tree",
    "a dog",
    "unicode: a 猫 on a café table 😀",
]


def run(*arguments: str | Path) -> int:
    return main(["rewrite", *map(str, arguments)])


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "captions.txt", CAPTIONS)


def test_one_caption_shows_edits_rules_and_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("An apple on a table", "--rewrites", "negclip") == 0
    shown = capsys.readouterr().out
    assert "[A] [table] on [an] [apple]  (negative, swap:noun)" in shown
    assert run("a cat next to a dog", "--rewrites", "negclip,replace") == 0
    shown = capsys.readouterr().out
    assert "refused: no-legal-pair" in shown
    assert "replace:" in shown
    assert "\x1b" not in shown


def test_negatives_and_positives_stand_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a red dog and a blue cat") == 0
    shown = capsys.readouterr().out
    head, _, rest = shown.partition("\nnegatives\n")
    negatives, _, positives = rest.partition("\npositives\n")
    assert head.startswith("caption")
    assert "(positive" not in negatives
    assert "(negative" not in positives
    assert "[a blue cat] and [a red dog]  (positive, and:noun-phrase)" in positives
    assert "[crimson]" in positives
    assert "crepe-atom" in negatives
    assert run("a red dog and a blue cat", "--rewrites", "synonym") == 0
    assert "positives" not in capsys.readouterr().out


def test_one_caption_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("An apple on a table", "--rewrites", "negclip", "--json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["text"] == "A table on an apple"
    assert [(e["before"], e["after"]) for e in record["edits"]] == [
        ("An", "A"),
        ("apple", "table"),
        ("a", "an"),
        ("table", "apple"),
    ]
    for edit in record["edits"]:
        assert record["caption"][edit["start"] : edit["end"]] == edit["before"]
        assert record["text"][edit["new_start"] : edit["new_end"]] == edit["after"]


def test_text_file_gives_a_record_for_each_caption_and_rewrite(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out.jsonl"
    assert run(text_file, "-o", out) == 0
    made = read_jsonl(out)
    names = rewrite_names()
    assert [(r["id"], r["rewrite"]) for r in made] == [
        (str(i), name) for i in range(1, len(CAPTIONS) + 1) for name in names
    ]
    assert [r["caption"] for r in made[:: len(names)]] == CAPTIONS
    for record in made:
        assert (record["text"] is None) == (record["reason"] is not None)
        assert {"version", "rule", "seed", "epoch", "tagger", "lexicon"} <= set(record)
    assert {r["reason"] for r in made if r["id"] == "3"} == {"empty-caption"}
    shown = capsys.readouterr().out
    assert "coverage" in shown
    assert "empty-caption 1" in shown
    assert not out.with_name("out.jsonl.part").exists()


def test_tables_and_json_lines(tmp_path: Path) -> None:
    rows = [("x7", "a red car above a blue bus"), ("x8", 'a "big", dog on a mat')]
    csv_file, tsv_file, jsonl = (tmp_path / f"c.{kind}" for kind in ("csv", "tsv", "jsonl"))
    csv_file.write_text('id,title\nx7,a red car above a blue bus\nx8,"a ""big"", dog on a mat"\n')
    tsv_file.write_text(
        'id\ttitle\nx7\ta red car above a blue bus\nx8\t"a ""big"", dog on a mat"\n'
    )
    jsonl.write_text("".join(json.dumps({"id": i, "title": t}) + "\n" for i, t in rows))
    results = []
    for path in (csv_file, tsv_file, jsonl):
        out = tmp_path / f"{path.suffix[1:]}.out.jsonl"
        assert run(path, "-o", out, "--column", "title", "--rewrites", "negclip,replace") == 0
        results.append(out.read_bytes())
    assert results[0] == results[1] == results[2]
    made = read_jsonl(tmp_path / "csv.out.jsonl")
    assert [r["caption"] for r in made[::2]] == [text for _, text in rows]
    assert [r["id"] for r in made[::2]] == ["x7", "x8"]


def test_a_file_and_a_shard_read_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, object]] = [
        {"weight": 1},
        {"id": None, "caption": "a red cat on a blue mat"},
        {"id": "", "caption": " two blue fish above a small green tree "},
        {"id": "k", "caption": ["a big dog by a small house", 3, "a cat on a red car"]},
        {"id": 8, "caption": "['a cat on a mat', 'a dog on a red sofa']"},
        *({"caption": cell} for cell in (None, 42, "nan", " ", [])),
    ]
    source = write_jsonl(tmp_path / "c.jsonl", rows)
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    read, texts = [], []
    for path, name in (
        (source, "o.jsonl"),
        (packed, "p.jsonl"),
        (write_rows(tmp_path / "c.json", rows), "q.jsonl"),
        (source, "shards"),
    ):
        out = tmp_path / name
        assert run(path, "-o", out, "--rewrites", "negclip", "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        total = shown.get("total", shown)
        read.append({key: total[key] for key in ("rows", "captions", "left_out")})
        if out.is_file():
            made = read_jsonl(out)
            assert [r["id"] for r in made] == ["2", "3", "k", "k#1", "8", "8#1"]
            by_id = {r["id"]: r["text"] for r in made if r["text"]}
            texts.append([text for id, text in by_id.items() if id[0] in "k8"])
        else:
            texts.append(
                [text for row in read_jsonl(out / "c.jsonl")[3:] for text in row["neg_caption"]]
            )
    assert read == [read[0]] * 4
    assert texts == [texts[0]] * 4
    left_out = {NO_CAPTION: 6, NO_TEXT: 2, EMPTY_CELL: 1, EMPTY_CAPTION: 1}
    assert read[0] == {"rows": len(rows), "captions": 6, "left_out": left_out}
    assert run(source, "-o", tmp_path / "again.jsonl", "--rewrites", "negclip") == 0
    assert ", 2 x caption that is no text, " in capsys.readouterr().out


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl", ".json"])
def test_captions_are_in_the_column_of_that_name_or_of_a_usual_one(
    tmp_path: Path, ending: str
) -> None:
    for number, row in enumerate(
        ({"title": "no", "caption": "a cat", "id": "x"}, {"id": "x", "title": "a cat", "n": "1"})
    ):
        file = CaptionFile(write_rows(tmp_path / f"{number}{ending}", [row]))
        assert list(file) == [("x", "a cat")]
        assert file.identity()["column"] == ("caption", "title")[number]


def test_statistics_as_json(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.jsonl"
    assert run(text_file, "-o", out, "--rewrites", "negclip", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    tally = shown["rewrites"]["negclip"]
    made = read_jsonl(out)
    assert tally["captions"] == len(CAPTIONS)
    assert tally["rewritten"] == sum(r["reason"] is None for r in made)
    assert sum(tally["refused"].values()) == sum(r["reason"] is not None for r in made)
    words = [sum(len(e["before"].split()) for e in r["edits"]) for r in made if r["text"]]
    assert tally["mean_edited_words"] == pytest.approx(sum(words) / len(words), abs=0.01)


def test_interrupted_runs_go_on(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, part = tmp_path / "o.jsonl", tmp_path / "o.jsonl.part"
    assert run(text_file, "-o", out) == 0
    whole = out.read_bytes()
    records = whole.splitlines(keepends=True)
    first, fifth = b"".join(records[:4]), records[4]
    for place, content, kept in (
        (part, first, 4),
        (part, first + fifth[:25], 4),
        (part, first + b"\x00\xff{]\n", 4),
        (out, first + fifth[:9], 4),  # the finished file itself lost its end
        (out, whole, len(records)),
    ):
        out.unlink()
        place.write_bytes(content)
        capsys.readouterr()
        assert run(text_file, "-o", out) == 0
        assert out.read_bytes() == whole
        assert f"already there: {kept} record" in capsys.readouterr().err


def test_records_that_are_not_those_of_the_captions_are_made_again(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.jsonl"
    assert run(text_file, "-o", out, "--rewrites", "negclip,replace") == 0
    whole = out.read_bytes()
    records = whole.splitlines(keepends=True)
    first, rest = records[:4], records[4:]
    other = rest[0].replace(b'"caption": "', b'"caption": "no ')
    for spoilt, message in (
        ([*first, *first, *rest], "record 5 is damaged; making 12 records again from there"),
        ([*first, *rest[2:]], "record 5 is damaged; making 6 records again from there"),
        ([*first, other, *rest[1:]], "record 5 is damaged; making 8 records again from there"),
        ([*records, records[-1]], "record 13 is damaged; making 1 record again from there"),
    ):
        out.write_bytes(b"".join(spoilt))
        capsys.readouterr()
        assert run(text_file, "-o", out, "--rewrites", "negclip,replace") == 0
        assert out.read_bytes() == whole
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_same_bytes_for_any_worker_count_and_fresh_draws_by_seed_and_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compoclip.recordfile.BATCH", 20)
    path = tmp_path / "many.txt"
    base = [c for c in CAPTIONS if c]
    path.write_text("\n".join(f"{base[i % 5]} {i}" for i in range(45)), encoding="utf-8")
    outputs = {}
    for name, options in {
        "one": (),
        "three": ("--workers", "3"),
        "seed": ("--seed", "1"),
        "epoch": ("--epoch", "1"),
    }.items():
        out = tmp_path / f"{name}.jsonl"
        names = "negclip,replace,synonym,tsvlc-rb"
        assert run(path, "-o", out, "--rewrites", names, *options) == 0
        outputs[name] = [(r["id"], r["rewrite"], r["text"]) for r in read_jsonl(out)]
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "three.jsonl").read_bytes()
    assert outputs["one"] != outputs["seed"]
    assert outputs["one"] != outputs["epoch"]
    assert outputs["seed"] != outputs["epoch"]


def test_other_settings_or_captions_are_an_error(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.jsonl"
    assert run(text_file, "-o", out, "--rewrites", "negclip") == 0
    before = out.read_bytes()
    negclip = ("--rewrites", "negclip")
    for changed in ((*negclip, "--seed=1"), (*negclip, "--epoch=2"), ("--rewrites", "replace")):
        assert run(text_file, "-o", out, *changed) == 2
        assert "other settings" in capsys.readouterr().err
    text_file.write_text("something else\n")
    assert run(text_file, "-o", out, "--rewrites", "negclip") == 2
    assert "source" in capsys.readouterr().err
    assert out.read_bytes() == before
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text("my notes\n")
    assert run(text_file, "-o", foreign) == 2
    assert foreign.read_text() == "my notes\n"


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err.strip()
    assert error.startswith("compoclip rewrite: ")
    assert "\n" not in error
    return error


def test_errors_are_one_line(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.jsonl"
    for name, content in (
        ("c.tar", b""),
        ("c.csv", b"id,words\n1,a dog on a mat\n"),
        ("e.txt", b""),
        ("latin.txt", b"caf\xe9\n"),
        ("bad.jsonl", b'{"caption": "a dog"}\n{"caption": }\n'),
        ("file", b""),
    ):
        (tmp_path / name).write_bytes(content)
    for words, code, message in (
        ((text_file,), 2, "-o"),
        (("a dog", "-o", out), 2, "-o"),
        ((text_file, "-o", text_file), 2, "input itself"),
        (("a dog", "--rewrites", ","), 2, "choose from"),
        (("a dog", "--tagger", "magic"), 2, "magic"),
        (("a dog", "--workers", "0"), 2, "--workers"),
        ((tmp_path / "c.tar", "-o", out), 2, ".jsonl"),
        ((tmp_path / "c.csv", "-o", out), 2, "name it with --column, one of: id, words"),
        ((tmp_path / "e.txt", "-o", out), 2, "no captions"),
        ((tmp_path / "latin.txt", "-o", out), 1, "UTF-8"),
        ((tmp_path / "bad.jsonl", "-o", out), 1, "line 2"),
        ((text_file, "-o", tmp_path / "file" / "o.jsonl"), 1, "cannot be written"),
    ):
        assert run(*words) == code, words
        assert message in one_line(capsys)
        assert not out.exists()


def test_full_disk_is_one_line_and_the_rest_can_follow(
    text_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "o.jsonl"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert run(text_file, "-o", out, "--rewrites", "negclip") == 1
    assert "No space left" in one_line(capsys)
    assert not out.exists()
    assert run(text_file, "-o", out, "--rewrites", "negclip") == 0
    assert len(read_jsonl(out)) == len(CAPTIONS)


def test_lone_surrogates_and_line_breaks_survive(tmp_path: Path) -> None:
    source = tmp_path / "c.jsonl"
    captions = ["a \ud800 dog on a mat", "a dog\non a mat", "a\x00dog on a red mat"]
    source.write_text("".join(json.dumps({"caption": c}) + "\n" for c in captions))
    out = tmp_path / "o.jsonl"
    assert run(source, "-o", out, "--rewrites", "replace") == 0
    assert [r["caption"] for r in map(json.loads, out.read_bytes().splitlines())] == captions
