"""Messages: one printable line of bounded length, whatever they quote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError, closest, typed_repr
from compoclip.typed import read_fields


def bomb() -> list[Any]:
    """A list of 30 lists whose repr has two thousand million elements."""
    value: list[Any] = [1, 1]
    for _ in range(30):
        value = [value, value]
    return value


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "start", "kind"),
    [
        (bomb(), "[[[[[[[...]", "(list)"),
        ({f"k{i}": bomb() for i in range(9)}, "{'k0': [[", "(dict)"),
        ("x" * 10_000_000, "'xxx", "(str)"),
        (10**5000, "...", "(int)"),
        (Mute(), "<Mute instance", "(Mute)"),
        ("a\0\n\x1b[31m\ud800", r"'a\x00\n\x1b[31m\ud800'", "(str)"),
        (3, "3 (int)", "(int)"),
    ],
    ids=["list", "dict", "long", "digits", "mute", "control", "plain"],
)
def test_a_value_is_shortened_while_it_is_shown(value: object, start: str, kind: str) -> None:
    text = typed_repr(value)
    assert text.startswith(start)
    assert text.endswith(f" {kind}")
    assert len(text) < 150
    assert text.isprintable()


@pytest.mark.parametrize(
    ("message", "shown_as"),
    [
        ("two\nlines\u2028three", "two lines three"),
        ("nul \0, bell \a, escape \x1b[31m", r"nul \x00, bell \x07, escape \x1b[31m"),
        ("half \ud800, café, 猫", r"half \ud800, café, 猫"),
        ("begin" + "x" * 100_000 + "end", "begin" + "x" * 495 + " ... " + "x" * 497 + "end"),
    ],
    ids=["lines", "control", "half", "long"],
)
def test_a_message_is_one_printable_line(message: str, shown_as: str) -> None:
    assert str(CompoclipError(message)) == shown_as
    assert len(str(CompoclipError("\0" * 10_000))) < 1100


def test_names_of_a_file_are_shortened_in_messages(tmp_path: Path) -> None:
    long = "9j/4AAQSkZJRg" * 100
    for name, text in (
        ("columns.jsonl", f'{{"{long}": 1}}'),
        ("columns.tsv", f"{long}\ta dog\n"),
        ("splits.csv", f"image,caption,split\na.jpg,a dog,{long}\n"),
    ):
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(UsageError) as raised:
            open_source(str(file))
        assert len(str(raised.value).removeprefix(str(tmp_path))) < 300
    with pytest.raises(CompoclipError) as refused:
        read_fields({long: 1}, {"id": str}, "line 1")
    assert len(str(refused.value)) < 200
    assert len(closest("x", ["y", long])) < 200


def test_a_path_that_is_too_long_is_shortened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "clip-ft", f"--data={'x' * 5000}", f"--out={tmp_path / 'run'}"]) == 1
    error = capsys.readouterr().err
    assert "File name too long" in error
    assert len(error) < 1100
