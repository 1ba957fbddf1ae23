"""CONTRIBUTING.md: what it names exists, and what it describes works in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^ *```.*?^ *```", "", PAGE, flags=re.S | re.M)
NAMED = sorted(set(re.findall(r"`([^`\n]+)`", PROSE)))
FILES = [n for n in NAMED if re.fullmatch(r"[\w./-]+(/|\.(py|pyi|md|json|yaml|yml|txt|j2))", n)]
NAMES = [n for n in NAMED if re.fullmatch(r"@?[A-Za-z_]+(\.[A-Za-z_]+)*(\(\))?", n)]
PLACES = (ROOT, ROOT / "src" / "compoclip")
EXAMPLE = re.compile(r"my[_-]|hello|PAPER|NAME|^site/")


def words() -> set[str]:
    """Every name in the code and in its tables."""
    found: set[str] = set()
    for folder in ("src", "world/src", "tests", "scripts", ".github"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".pyi", ".yaml", ".yml") and path != Path(__file__):
                found.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return found


def is_file(name: str) -> bool:
    """Return whether there is a file or folder of this path, or a file of this name alone."""
    if any((place / name).exists() for place in PLACES):
        return True
    return "/" not in name.rstrip("/") and any((ROOT / "src").rglob(name.rstrip("/")))


def test_files_that_are_named_exist() -> None:
    assert len(FILES) > 40
    assert [name for name in FILES if not EXAMPLE.search(name) and not is_file(name)] == []


def test_names_that_are_named_exist() -> None:
    known = words()
    names = [name for name in NAMES if name not in FILES and not EXAMPLE.search(name)]
    assert len(NAMES) > 60
    assert [name for name in names if not {*re.findall(r"\w+", name)} <= known] == []


# --- The steps, in a copy of the package. ---


def blocks(section: str) -> list[str]:
    """The blocks of code of the section with this heading."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^   ```(?:python|yaml)\n(.*?)^   ```", text, re.S | re.M)
    return [re.sub(r"^   ", "", each, flags=re.M) for each in found]


def put(path: Path, mark: str, text: str) -> None:
    """Write `text` before the first `mark` in a file of the copy."""
    old = path.read_text(encoding="utf-8")
    assert mark in old
    path.unlink()  # a link to the original
    path.write_text(old.replace(mark, f"{text}{mark}", 1), encoding="utf-8")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to which everything that the page shows was added."""
    copy = tmp_path_factory.mktemp("copy") / "compoclip"
    shutil.copytree(ROOT / "src" / "compoclip", copy, copy_function=os.symlink)
    example = ROOT / "examples" / "custom" / "my_method.py"
    shutil.copy(example, copy / "methods" / "my_method.py")
    reader, form = blocks("How to add a data format or an image plan")
    sources = copy / "data" / "sources"
    put(sources / "tables.py", "# --- Data sets of Hugging Face.", f"{reader}\n\n")
    put(
        sources / "tables.py",
        "from compoclip.records import",
        "from compoclip.tables import read_lines\n",
    )
    put(sources / "open.py", "    open_hugging_face,\n", "    open_bars,\n")
    put(sources / "open.py", '    DataForm(\n        "data sets of', form)
    (benchmark,) = blocks("How to add a benchmark")
    put(copy / "benchmarks" / "benchmarks.yaml", "\nsugarcrepe_pp: &", f"\n{benchmark}")
    (verb,) = blocks("How to add a verb")
    (copy / "cli" / "hello.py").write_text(verb, encoding="utf-8")
    (row,) = re.findall(r'`("hello": \(.*\),)`', PAGE)
    put(copy / "cli" / "main.py", '    "cache": (', f"    {row}\n")
    (copy / "methods" / "recipes.json").unlink()  # what the script writes
    return copy


# Writes the list of recipes, then runs a command per argument.
RUN = """
import runpy, sys
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except SystemExit:
    pass
from compoclip.cli.main import main
for line in sys.argv[2:]:
    assert main(line.split()) == 0, line
"""


def test_the_steps_give_a_method_a_format_a_benchmark_and_a_verb(
    package: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "data" / "my_benchmark" / "photos"
    photos.mkdir(parents=True)
    for k, colour in enumerate(("red", "blue", "green", "white"), 1):
        Image.new("RGB", (64, 64), colour).save(photos / f"{k}.png")
    (item,) = json.loads(re.findall(r"# (\[\{.*\}), \.\.\.\]\n", PAGE)[0] + "]")
    items = [item, {**item, "task": "swap"}]
    (photos.parent / "items.json").write_text(json.dumps(items), encoding="utf-8")
    lines = [f"{k}.png|a red cup on a blue mat {k}|train\n" for k in range(1, 5)]
    (photos / "pairs.psv").write_text("".join(lines), encoding="utf-8")
    commands = (
        "hello --name Ada",
        "hello --json",
        "list methods my-method",
        f"data audit --data {photos}/pairs.psv",
        "data ls my_benchmark",
        "evaluate base=bundled --on my_benchmark --data data --device cpu --out results",
    )
    places = (package.parent, ROOT / "world" / "src")
    done = subprocess.run(
        [sys.executable, "-c", RUN, ROOT / "scripts" / "list_recipes.py", *commands],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("Hello, Ada.", '"name": "world"', "my-method", "pairs.psv", "My Benchmark"):
        assert words in done.stdout
    (found,) = (tmp_path / "results" / "base").glob("*.json")
    scores = json.loads(found.read_text(encoding="utf-8"))["scores"]
    assert {"colour", "swap"} <= set(scores)
