"""docs/reading.md: the spine of the package, file by file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "compoclip"
PAGE = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
NAMES = re.findall(r"`([\w/]+\.py)`", PAGE)


def test_the_steps_are_numbered_and_name_files_that_exist() -> None:
    steps = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| \w.+\. \|$", PAGE, flags=re.M)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert 55 <= len(steps) <= 70
    assert len(set(NAMES)) == len(NAMES)
    assert [name for name in NAMES if not (PACKAGE / name).is_file()] == []


@pytest.mark.parametrize("room", ["captions", "rewrites", "data", "training", "evaluation"])
def test_every_file_that_a_room_exports_from_is_named(room: str) -> None:
    stub = (PACKAGE / room / "__init__.pyi").read_text(encoding="utf-8")
    modules = {
        name.replace(".", "/") for name in re.findall(r"^from \.([\w.]+) import", stub, re.M)
    }
    folders = {name for name in modules if (PACKAGE / room / name).is_dir()}
    files = {f"{room}/{name}.py" for name in modules - folders}
    files |= {f"{room}/{name}/__init__.py" for name in folders}
    assert files - set(NAMES) == set(), "name these files in docs/reading.md"
