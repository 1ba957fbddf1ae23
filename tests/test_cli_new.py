"""What `compoclip new` writes works as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compoclip.cli.main import main

KINDS = ("method", "rewrite", "loss", "benchmark")


def test_the_tests_beside_new_files_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ideas = tmp_path / "ideas"
    for kind in KINDS:
        file, test = ideas / f"my_{kind}.py", ideas / f"test_my_{kind}.py"
        assert main(["new", kind, f"My-{kind}", "--out", str(ideas)]) == 0
        assert capsys.readouterr().out.split()[:2] == [str(file), str(test)]
        assert "@" not in file.read_text().replace("@recipe", "").replace("@dataclass", "")
        assert main(["benchmarks" if kind == "benchmark" else _list(kind), str(file)]) == 0
        assert str(file) in capsys.readouterr().out
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(ideas)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"test_my_{kind}.py::test_" in done.stdout for kind in KINDS)
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=100", str(ideas)]
    done = subprocess.run(lint, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _list(kind: str) -> str:
    return {"loss": "losses"}.get(kind, f"{kind}s")


def test_names_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("3d", "a b", "class", "../x"):
        assert main(["new", "method", name, "--out", str(tmp_path)]) == 2
        assert "a name has letters" in capsys.readouterr().err
    for kind, name in (("method", "fsc-clip"), ("rewrite", "negclip"), ("benchmark", "aro")):
        assert main(["new", kind, name, "--out", str(tmp_path)]) == 2
        assert f"there is a {kind} of that name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["new", "rewrite", "mine", "--out", str(tmp_path)]) == 0
    assert main(["new", "rewrite", "mine", "--out", str(tmp_path)]) == 1
    assert "is there already" in capsys.readouterr().err
