"""Options: help says what each does, its default in words, and flags in both their forms."""

from __future__ import annotations

import importlib
import re

import pytest

from compoclip.cli import options
from compoclip.cli.main import Verbs, all_verbs, main
from compoclip.cli.options import processes
from compoclip.errors import UsageError
from compoclip.methods.registry import method_names


def commands() -> list[list[str]]:
    """Every command that has options of its own: verbs, verbs of verbs, and a train per method."""
    found = []
    for verb, (_, place) in all_verbs().table.items():
        name = place.partition(":")[0]
        module = importlib.import_module(name if "." in name else f"compoclip.cli.{name}")
        inner = [each for each in vars(module).values() if isinstance(each, Verbs)]
        if inner and ":" not in place:
            found += [[verb, name] for each in inner for name in each.table]
        else:
            found.append([verb])
    return [*found, *(["train", name] for name in method_names())]


def shown(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The help of a command, without its frames and line breaks."""
    code: object
    try:
        code = main([*words, "--help"])
    except SystemExit as ended:
        code = ended.code
    assert code == 0
    return " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())


def test_there_are_commands_within_commands() -> None:
    found = [" ".join(words) for words in commands()]
    assert {"evaluate", "data pack", "world suite", "train fsc-clip", "convert"} <= set(found)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_defaults_are_said_in_words(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    text = shown(capsys, words)
    remnants = r"default:? (True|False|None|\)|\(\)|\[\]|\{\}|'|\w+Path\()|<factory>|MISSING|=None"
    assert re.search(remnants, text) is None, text
    # A flag has both forms, and its default is one of them.
    flags = re.findall(r"--([\w-]+), --no-([\w-]+) ", text)
    assert all(one == other for one, other in flags)
    for flag, _ in flags:
        after = text.partition(f"--{flag}, --no-{flag} ")[2]
        default = re.search(r"\((?:default: ([^)]*)|required|optional)\)", after)
        assert default is not None
        assert default[1] in (flag, f"no-{flag}"), flag
    if words[0] == "train" and len(words) == 2:
        assert len(flags) > 5


def test_auto_is_all_cores_where_the_work_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "available_cores", lambda: 6)
    assert processes("auto", 4096, 4096) == 6
    assert processes("auto", 4095, 4096) == 1
    assert processes(3, 1, 4096) == 3
    with pytest.raises(UsageError, match="--workers must be at least 1"):
        processes(0, 1, 1)
