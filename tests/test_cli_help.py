"""Options: help says what each does, its default in words, and flags in both their forms."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path

import pytest

from compoclip.cli.main import VERBS, Verbs, all_verbs, main
from compoclip.cli.options import processes
from compoclip.cli.train import KEYS, USUAL
from compoclip.config import options_of
from compoclip.console import refilled
from compoclip.methods.registry import method_names, recipe_card
from compoclip.programs.run import TrainOptions
from compoclip.programs.sweep import SweepOptions


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
    """The help of a command, without line breaks."""
    return " ".join(page(capsys, words).split())


def page(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The whole help of a command."""
    code: object
    try:
        code = main([*words, "--help-all" if words[0] == "train" and words[1:] else "--help"])
    except SystemExit as ended:
        code = ended.code
    assert code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in (["evaluate"], ["compare"], ["new"], ["data", "pack"], ["train", "fsc-clip"]):
        lines = page(capsys, words).splitlines()
        # a name such as sugarcrepe,annotations=/a/sugarcrepe,images=/coco/val2017 is not broken
        assert [line for line in lines if len(line) > width and " " in line.strip()] == []
    for words in ([], ["data"], ["train"], ["sweep"]):
        assert main([*words, "--help"]) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= max(width, 64)
        assert words or all(verb in text for verb in VERBS)


def test_an_example_that_is_too_long_is_continued_as_in_a_shell() -> None:
    text = """Do it. Two sentences, in a paragraph that is
wrapped in the source.

Examples:
    compoclip do "a red cup on a blue mat" --with one
        --and two
"""
    assert refilled(text, 36).splitlines() == [
        "Do it. Two sentences, in a paragraph",
        "that is wrapped in the source.",
        "",
        "Examples:",
        "    compoclip do \\",
        '        "a red cup on a blue mat" \\',
        "        --with one --and two",
    ]


def test_tasks_and_examples_of_caption_are_printed_line_by_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = page(capsys, ["caption"])
    assert "    positives-verb     as positives-swap\n" in text
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0]
    assert examples.count("    compoclip caption ") == 4
    assert re.search(r"\S {2,}\S", examples) is None


def test_data_model_and_output_stand_before_the_options_of_a_method(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys, ["train", "fsc-clip"])
    places = [text.index(f" {flag} ") for flag in ("--data", "--model", "--out", "--global-weight")]
    assert max(places[:3]) < places[3]


def test_list_without_a_kind_counts_what_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == [str(len(method_names())), "methods", "compoclip", "list", "methods"]


def test_there_are_commands_within_commands() -> None:
    names = {" ".join(words) for words in commands()}
    assert {"evaluate", "data pack", "world suite", "train fsc-clip", "convert"} <= names


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
        default = re.search(r"\((?:default: ([^)]*)|required)\)", after)
        assert default is not None
        assert default[1] in (flag, f"no-{flag}"), flag
    if words[0] == "train" and len(words) == 2:
        assert len(flags) > 5


def test_options_are_those_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    """COMPOCLIP_WRITE_GOLDEN=1 records them. Those of methods are in methods/recipes.json."""
    found: dict[str, list[str]] = {}
    for words in commands():
        if words[0] not in ("train", "sweep"):
            named = re.findall(r"^  (?:-\w(?: \w+)?, )?--([\w-]+)", page(capsys, words), re.M)
            found[" ".join(words)] = sorted({*named} - {"help"})
    for verb, options in (("train", TrainOptions), ("sweep", SweepOptions)):
        names = {*options_of(options), "config", *(["save_config"] if verb == "train" else [])}
        found[verb] = sorted(name.replace("_", "-") for name in names)
    path = Path(__file__).with_name("golden") / "options.json"
    if os.environ.get("COMPOCLIP_WRITE_GOLDEN"):
        rows = (f"{json.dumps(key)}: {json.dumps(names)}" for key, names in sorted(found.items()))
        path.write_text("{\n " + ",\n ".join(rows) + "\n}\n", encoding="utf-8")
    record = "COMPOCLIP_WRITE_GOLDEN=1 pytest -n0 tests/test_cli_help.py -k recorded"
    assert found == json.loads(path.read_text(encoding="utf-8")), f"record the options: {record}"


@pytest.mark.parametrize("name", method_names())
def test_train_has_at_most_60_options(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = page(capsys, ["train", name])
    assert len(re.findall(r"^  --", text, re.M)) <= 60
    keys = set(re.findall(r"^  (\w+)$", text.partition("keys of a --config file")[2], re.M))
    assert keys == KEYS
    with pytest.raises(SystemExit):
        main(["train", name, "--help"])
    usual = re.findall(r"^  --([\w-]+)", capsys.readouterr().out, re.M)
    assert len(usual) == 3 + len(USUAL) + len(recipe_card(name).options)
    assert len(USUAL) == 15


def test_auto_is_all_cores_where_the_work_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compoclip.workers.available_cores", lambda: 6)
    assert processes("auto", 4096, 4096) == 6
    assert processes("auto", 4095, 4096) == 1
    assert processes(3, 1, 4096) == 3
