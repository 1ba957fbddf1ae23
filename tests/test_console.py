"""Progress lines where there is no terminal, tables that fit one, numbers of things."""

from __future__ import annotations

import re
from itertools import count

import pytest
from rich.cells import cell_len

from compoclip.cli.main import main
from compoclip.console import counted, duration, left_out_listed, reasons_listed, track, worded
from compoclip.methods.registry import method_names
from compoclip.printed import Table, without


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every look is six seconds after the last."""
    ticks = count(step=6.0)
    monkeypatch.setattr("compoclip.console.time.monotonic", lambda: next(ticks))


@pytest.mark.usefixtures("slow")
def test_lines_say_how_long_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track("abcdef", "reading", unit="files")) == list("abcdef")
    assert capsys.readouterr().err.splitlines() == [
        "reading: 1 of 6 files, 60 s left",
        "reading: 3 of 6 files, 24 s left",
        "reading: 5 of 6 files, 7 s left",
    ]


@pytest.mark.usefixtures("slow")
def test_lines_give_the_speed_where_the_end_is_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(track(iter("abcd"), "reading", unit="files")) == list("abcd")
    assert capsys.readouterr().err.splitlines()[0] == "reading: 1 file, 0.1/s"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "image", "1 image"),
        (0, "image", "0 images"),
        (2000, "distinct caption", "2,000 distinct captions"),
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (1, "query", "1 query"),
        (3, "directory", "3 directories"),
    ],
)
def test_nouns_agree_with_their_number(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (600, "10 min")]
)
def test_minutes_are_counted_from_one_and_a_half(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "verb",
    ["list rewrites", "list losses", "list benchmarks", "list methods", "data ls", "cache"],
)
def test_lists_fit_the_terminal_and_name_their_columns(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(verb.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert verb != "list methods" or len(lines) < 2.5 * len(method_names())
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(verb.split()) == 0
    header, rule = capsys.readouterr().out.splitlines()[:2]
    assert len(re.split(r"  +", header)) == len(rule.split())


@pytest.mark.parametrize("verb", ["reproduce --list", "list methods fsc-clip", "inspect bundled"])
def test_notes_and_sentences_fit_the_terminal(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(verb.split()) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_narrow_table_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = [["x" * 30, "[red] :smile: and", "1.25"], ["b", "short", "-3.5"]]
    narrow = Table(rows, ["name", "what it is", "score"], left=2).text()
    assert max(map(len, narrow.splitlines())) <= 30
    for word in ("name", "what it is", "score", "[red]", ":smile:", "and", "1.25", "short", "-3.5"):
        assert word in narrow
    assert narrow.count("x") == 30


def test_the_widest_column_is_folded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["  a long name of a benchmark", "70.1 [69.0, 71.2]"]]
    assert Table(rows, ["", "runs/compo-seed-0"]).text().splitlines() == [
        "                       runs/compo-seed-0",
        "---------------------  -----------------",
        "  a long name of a     70.1 [69.0, 71.2]",
        "benchmark",
    ]
    # No column is left out while long names can be folded.
    monkeypatch.setenv("COLUMNS", "50")
    long, header = [["a-name-" * 8, "70.1", "[69.0, 71.2]"]], ["", "score", "interval"]
    assert "[69.0, 71.2]" in Table(long, header, narrower=[without(2)]).text()
    monkeypatch.setenv("COLUMNS", "40")
    assert "[69.0, 71.2]" not in Table(long, header, narrower=[without(2)]).text()
    lines = Table([["a" * 40, "1"]], ["", "n"]).text().splitlines()
    assert lines[2:] == [f"{'a' * 37}  1", "a" * 3]


def test_numbers_without_room_follow_below_and_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ["published", "CLIP ViT-B/32", *(f"{k}.5" for k in range(50, 62))],
        ["measured", "日本語のモデル", *(f"-{k}.25" for k in range(12))],
    ]
    header = ["", "method", *(f"CREPE {k}" for k in range(12))]
    table = Table(rows, header, left=2)
    monkeypatch.setenv("COLUMNS", "60")
    text = table.text()
    assert max(map(cell_len, text.splitlines())) <= 60
    blocks = [block.splitlines() for block in text.split("\n\n")]
    assert len(blocks) == 3
    for block in blocks:
        assert block[-2].startswith("published  CLIP ViT-B/32 ")
        assert block[-1].startswith("measured   日本語のモデル ")
    for row in rows:
        assert {*row[2:]} <= {*text.split()}
    monkeypatch.setenv("COLUMNS", "0")  # not a terminal
    assert len(table.text().splitlines()) == 4


def test_reasons_are_listed_by_one_rule() -> None:
    reasons = {"empty caption": 1200, "hidden file": 0, "caption that is no text": 1}
    listed = ["1,200 x empty caption", "1 x caption that is no text"]
    assert reasons_listed(reasons) == listed
    assert left_out_listed(reasons) == f" (left out: {', '.join(listed)})"
    assert left_out_listed({"hidden file": 0}) == ""


def test_a_record_is_one_line_of_words() -> None:
    record = {
        "size_bytes": 9,
        "of": {"photos": 3, "seen": True},
        "names": ["a", None, "b"],
        "no": "",
    }
    assert worded(record) == "size bytes 9, of (photos 3, seen yes), names a; b"
