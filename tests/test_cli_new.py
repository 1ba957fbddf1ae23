"""The files that `compoclip new` copies from examples/custom, under another name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compoclip.cli.main import main
from ranks_helpers import SECONDS, warm_context

ROOT = Path(__file__).resolve().parents[1]
LISTS = {"method": "methods", "rewrite": "rewrites", "loss": "losses", "benchmark": "benchmarks"}
KINDS = (*LISTS, "model")


def run_tests(ideas: Path, said: Path) -> None:
    """Run the tests in a folder, and end this process with what pytest says."""
    os.chdir(ideas.parent)
    with said.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    words = ["-v", "-k", "not trains", "-p", "no:cacheprovider", str(ideas)]
    sys.exit(int(pytest.main(words)))


def test_copies_have_the_name_and_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ideas = tmp_path / "ideas"
    for kind in KINDS:
        file, test = ideas / f"a_{kind}_2.py", ideas / f"test_a_{kind}_2.py"
        assert main(["new", kind, f"A-{kind}_2", "--out", str(ideas)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert (lines[0], lines[1].split()[0]) == (str(file), str(test))
        assert lines[2].startswith("next: compoclip ")
        assert str(file) in lines[2]
        assert all("my" not in path.read_text().lower() for path in (file, test))
        if kind in LISTS:
            assert main(["list", LISTS[kind], str(file)]) == 0
            assert str(file) in capsys.readouterr().out
    # Training is tested where the examples lie.
    process = warm_context().Process(target=run_tests, args=(ideas, tmp_path / "said"))
    process.start()
    process.join(SECONDS)
    said = (tmp_path / "said").read_text()
    assert process.exitcode == 0, said
    assert all(f"test_a_{kind}_2.py::test_" in said for kind in KINDS)
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=100", str(ideas)]
    done = subprocess.run(lint, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_name_copies_the_example(tmp_path: Path) -> None:
    for kind in KINDS:
        assert main(["new", kind, f"my-{kind}", "--out", str(tmp_path)]) == 0
    for example in (ROOT / "examples" / "custom").glob("*.py"):
        assert (tmp_path / example.name).read_bytes() == example.read_bytes()


def test_invalid_and_taken_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("3d", "a b", "class", "../x"):
        assert main(["new", "method", name, "--out", str(tmp_path)]) == 2
        assert "a name has letters" in capsys.readouterr().err
    for kind, name in (("method", "fsc-clip"), ("rewrite", "negclip"), ("benchmark", "aro")):
        assert main(["new", kind, name, "--out", str(tmp_path)]) == 2
        assert f"there is a {kind} of that name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["new", "rewrite", "mine", "--out", str(tmp_path)]) == 0
    assert main(["new", "rewrite", "mine", "--out", str(tmp_path)]) == 1
    assert "exists; choose another" in capsys.readouterr().err
