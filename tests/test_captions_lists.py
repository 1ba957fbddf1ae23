"""Word lists: their format, the shipped files, and what the rooms of captions export."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from compoclip import captions, language, rewrites
from compoclip.captions.lists import WordLists, word_lists

FILE = """# before any list
loose words

# Phrases are separated by commas.
[phrases]
in front of, on
under

[kinds]
cat: lion tiger
dog wolf: hound

[more]
{phrases} beside
"""
FOLDERS = [Path(str(room.__file__)).parent for room in (captions, rewrites)]
FILES = [path for folder in FOLDERS for path in sorted((folder / "data").glob("*.txt"))]


@pytest.fixture
def lists(tmp_path: Path) -> WordLists:
    path = tmp_path / "lists.txt"
    path.write_text(FILE, encoding="utf-8")
    return WordLists(path)


def test_the_format(lists: WordLists) -> None:
    assert lists.rows() == ("loose words",)
    assert lists["phrases"] == {"in front of", "on", "under"}
    assert lists["more"] == {"in front of", "on", "under", "beside"}
    assert lists.groups("phrases") == (("in front of", "on"), ("under",))
    assert lists.table("kinds") == {
        "cat": ("lion", "tiger"),
        "dog": ("hound",),
        "wolf": ("hound",),
    }
    assert lists.keys_of("kinds") == {"lion": "cat", "tiger": "cat", "hound": "wolf"}
    with pytest.raises(KeyError):
        lists["none"]


def test_code_names_lists_that_exist() -> None:
    names = {name for path in FILES for name in WordLists(path).names()}
    used = re.compile(r'(?:WORDS|RULES|_LISTS|RELATIONS|_FAMILIES)\["([^"]+)"\]')
    for folder in FOLDERS:
        for path in folder.glob("*.py"):
            assert names >= set(used.findall(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_list_says_what_it_is_for(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    names = [line for line in lines if line.startswith("[")]
    assert len(names) == len(set(names))
    if path.stem not in ("families", "lexicon", "exceptions"):  # which say it at the top
        for number, line in enumerate(lines):
            assert not line.startswith("[") or lines[number - 1].startswith("# "), line


def test_a_file_is_read_once() -> None:
    module = str(FOLDERS[1] / "replace.py")
    assert word_lists(module, "rules") is word_lists(module, "rules")


@pytest.mark.parametrize("room", [captions, rewrites, language], ids=lambda room: room.__name__)
def test_rooms_export_what_their_stub_lists(room: ModuleType) -> None:
    assert room.__all__
    for name in room.__all__:
        assert not isinstance(getattr(room, name), ModuleType), name
        assert importlib.import_module(room.__name__) is room
