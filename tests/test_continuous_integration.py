"""The files that the code host reads: workflows, forms of issues, hooks before a commit."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CLASSIFIER = "Programming Language :: Python :: "


def read(name: str) -> Any:
    """Return the content of a YAML file; BaseLoader leaves `on` and 3.10 the strings they are."""
    return yaml.load((ROOT / name).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


@pytest.mark.parametrize(
    "path", sorted(ROOT.joinpath(".github").rglob("*.yml")), ids=lambda path: path.name
)
def test_every_file_of_the_code_host_is_yaml(path: Path) -> None:
    assert isinstance(read(str(path.relative_to(ROOT))), dict)


def test_changes_are_tested_on_the_versions_of_python_that_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [
        line.removeprefix(CLASSIFIER)
        for line in project["classifiers"]
        if line.startswith(CLASSIFIER)
    ]
    job = read(".github/workflows/tests.yml")["jobs"]["run"]
    assert job["strategy"]["matrix"]["python-version"] == declared
    assert project["requires-python"] == f">={declared[0]}"
    assert ".ci/run" in [step.get("run") for step in job["steps"]]


def test_a_tag_publishes_both_distributions() -> None:
    workflow = read(".github/workflows/release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    commands = [step.get("run", "") for step in workflow["jobs"]["build"]["steps"]]
    assert any("pip wheel . ./world" in command for command in commands)
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}


def test_hooks_before_a_commit_are_those_of_make_lint() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint: install\n")[2]
    commands = [
        line.strip().replace("$(BIN)", ".venv/bin")
        for line in recipe.partition("\n\n")[0].splitlines()
    ]
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == commands
