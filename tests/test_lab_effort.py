"""A comparison at equal effort: compute is counted, trials are repeatable, tables come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compoclip.errors import CompoclipError
from lab.effort import RATE, Searched, propose, read_effort, run_effort
from lab_helpers import Here
from test_lab_run import SETTINGS

RANGES = {RATE: [1e-4, 1e-2], "strength": [0.1, 3.0]}


def test_proposals_are_a_function_of_the_trials_before() -> None:
    recipe = Searched("compo", "compo", RANGES)
    told: list[tuple[dict[str, float], float]] = []
    for number in range(6):
        point = dict(propose(recipe, told))
        assert point == propose(recipe, told)
        assert point.keys() == RANGES.keys()
        for name, (low, high) in RANGES.items():
            assert 0.99 * low <= point[name] <= 1.01 * high
        told.append((point, float(-number)))
    assert len({json.dumps(point) for point, _ in told}) == 6


def write_settings(folder: Path, base: Path, **changes: object) -> Path:
    """A comparison of two recipes by a few steps, on three benchmarks."""
    names = ("control", "scenes", "batch_size", "warmup", "items", "choice_items")
    shared = {name: getattr(SETTINGS, name) for name in names}
    arms = [{"name": "clip-ft", "method": "clip-ft"}]
    lab = {**shared, "model": str(base), "arms": arms, "benchmarks": ["world-foils"]}
    (folder / "lab.json").write_text(json.dumps(lab))
    effort = {
        "lab": "lab.json",
        "positions": 8000,
        "trials": 2,
        "trial_share": 0.5,
        "shares": [0.5, 1.0],
        "seeds": [0],
        "judged_on": ["world-foils"],
        "kept_on": ["world-retrieval-style"],
        "strict": ["world-strict"],
        "recipes": [
            {"name": "clip-ft", "method": "clip-ft", "search": {RATE: [1e-4, 1e-3]}},
            {"name": "negclip", "method": "negclip", "search": {RATE: [1e-4, 1e-3]}},
        ],
    }
    path = folder / "effort.json"
    path.write_text(json.dumps({**effort, **changes}))
    return path


@pytest.mark.slow
def test_a_comparison_runs_to_its_tables_and_resumes(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("lab.pool.Workers", Here)
    effort, settings = read_effort(write_settings(tmp_path, world / "base"))
    out = tmp_path / "out"
    numbers, text = run_effort(effort, settings, out, budget=1e6, workers=1)
    assert {name: len(told) for name, told in numbers["trials"].items()} == {
        "clip-ft": 2,
        "negclip": 2,
    }
    for name, told in numbers["trials"].items():
        assert numbers["chosen"][name] == max(told, key=lambda pair: pair[1])[0]
    costs = {
        name: json.loads((out / "costs" / f"{name}.json").read_text())["positions"]
        for name in ("clip-ft", "negclip")
    }
    assert costs["negclip"] > 1.5 * costs["clip-ft"]  # a negative for nearly every caption
    steps = {
        path.parent.name: len(path.read_text().splitlines())
        for path in out.glob("runs/*/train.jsonl")
    }
    assert steps
    header = text.splitlines()[0]
    assert "gain at 0.5" in header
    assert "gain at 1" in header
    rows = [line.split("|")[1].strip() for line in text.split("\n\n")[0].splitlines()[2:]]
    assert rows == ["base", "clip-ft", "negclip"]
    assert "strict bind_colour" in text
    chosen_table = text.split("\n\n")[-1].splitlines()
    assert [line.split("|")[1].strip() for line in chosen_table[2:]] == ["clip-ft", "negclip"]
    assert f"lr {numbers['chosen']['negclip'][RATE]:g}" in chosen_table[-1]
    before = (out / "effort.md").read_text()
    capsys.readouterr()
    again, same = run_effort(effort, settings, out, budget=1e6, workers=1)
    assert (again, same + "\n") == (json.loads(json.dumps(numbers)), before)
    assert "0 of 4 runs to do" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipes": []}, "'recipes' must be a list"),
        ({"recipes": [{"name": "a", "method": "negclip"}]}, r"recipes\[0\]: 'search' is missing"),
        ({"positions": "many"}, "'positions' must be a whole number"),
        ({"speed": 1}, "unknown field 'speed'"),
    ],
)
def test_malformed_comparisons_are_one_line(
    world: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(CompoclipError, match=words):
        read_effort(write_settings(tmp_path, world / "base", **changes))
