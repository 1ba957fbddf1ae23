"""The screening of a method's parts: its design, its effects, a whole small run."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compoclip.errors import CompoclipError
from lab import columns, screen
from lab.run import NAME
from lab.screen import FOUND, RUNS, design, effects, read_screen, run_screen
from lab.settings import LabSettings

COLUMNS = [column.name for column in columns.COLUMNS]

SETTINGS: dict[str, Any] = {
    "split": "val",
    "scenes": 24,
    "items": 2,
    "steps": 1,
    "batch_size": 4,
    "warmup": 1,
    "seeds": [0, 1],
    "control": "clip-ft",
    "benchmarks": ["world-sugarcrepe", "world-sugarcrepe-pp", "world-foils", "world-aro"],
    "arms": [{"name": "clip-ft", "method": "clip-ft"}],
    "screen": {
        "method": "compo",
        "settings": {"gamma": 0.0},
        "factors": {
            "global": [{"global_weight": 0.0}, {"global_weight": 0.5}],
            "shuffle": [{"shuffle": False}, {"shuffle": True}],
        },
    },
}
FACTORS = SETTINGS["screen"]["factors"]


@pytest.mark.parametrize("factors", [1, 8, 12, 15])
def test_each_factor_is_on_in_half_of_the_runs_whatever_others_are(factors: int) -> None:
    runs = np.array(design(factors))
    assert runs.shape == (2 * RUNS, factors)
    assert (runs[RUNS:] == -runs[:RUNS]).all()
    for half in (runs[:RUNS], runs[RUNS:]):
        assert (half.sum(0) == 0).all()
        assert (half.T @ half == RUNS * np.eye(factors)).all()
    for a, b in combinations(range(factors), 2):  # no factor looks like two others together
        assert not (runs.T @ (runs[:, a] * runs[:, b])).any()


def test_too_many_factors_are_refused() -> None:
    with pytest.raises(CompoclipError, match="16 factors: 16 runs tell apart 1 to 15"):
        design(16)


def test_effects_of_known_sizes_are_found() -> None:
    """Two effects and an interaction, in noise of a twentieth of them."""
    runs = np.array(design(6))
    noise = np.random.default_rng(0).normal(0, 0.001, len(runs))
    values = 0.5 + 0.02 * runs[:, 1] - 0.01 * runs[:, 4] + 0.03 * runs[:, 0] * runs[:, 2] + noise
    found = effects(values.tolist(), runs.tolist())
    assert [round(each.value, 2) for each in found] == [0.0, 0.04, 0.0, 0.0, -0.02, 0.0]
    assert [str(each)[-1] for each in found] == [" ", "*", " ", " ", "*", " "]
    assert found[0].margin < 0.003


def test_noise_alone_seldom_shows() -> None:
    rng, shown = np.random.default_rng(1), 0
    for _ in range(200):
        values = rng.normal(0.5, 0.01, 2 * RUNS).tolist()
        shown += sum(str(each).endswith("*") for each in effects(values, design(10)))
    assert 40 <= shown <= 160  # of 2,000 at 5 %


def test_every_run_of_the_design_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lab is asked for the right arms and seeds; what it gives becomes the right effects."""
    asked: list[tuple[str, int, tuple[bool, bool]]] = []

    def lab(settings: LabSettings, out: Path) -> str:
        level = {column: [0.5] for column in COLUMNS}
        lines = [{"name": "base", "values": level}]
        for arm in settings.arms:
            on = (arm.settings.get("global_weight") == 0.5, arm.settings.get("shuffle") is True)
            if arm.method == "compo":
                assert arm.settings["gamma"] == 0.0
                asked.append((arm.name, *settings.seeds, on))
            values = {**level, "order": [0.5 + 0.2 * on[1]]}
            lines.append({"name": arm.name, "values": {**values, "i2t": [0.6 - 0.1 * on[0]]}})
        out.mkdir(exist_ok=True)
        (out / f"{NAME}.json").write_text(json.dumps({"lines": lines}))
        return ""

    monkeypatch.setattr(screen, "run_lab", lab)
    path = tmp_path / "screen.json"
    path.write_text(json.dumps(SETTINGS))
    settings, found = read_screen(path)
    text = run_screen(settings, found, tmp_path / "out")
    runs = design(2)
    assert asked == [
        (f"run{k:02}", int(k >= RUNS), (run[0] > 0, run[1] > 0)) for k, run in enumerate(runs)
    ]
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    header = text.splitlines()[0].split()
    shown = {name: dict(zip(header[1:], rows[name][1:])) for name in ("global", "shuffle")}
    assert shown["shuffle"]["order"] == "+20.0*"
    assert shown["global"]["i2t"] == "-10.0*"
    assert shown["shuffle"]["learnt"] == "+2.2*"  # of nine columns one has moved
    assert shown["global"]["kept"] == "-3.3*"
    assert shown["shuffle"]["i2t"].startswith("+0.0")
    assert rows["clip-ft"][1] == "50.0"
    numbers = json.loads((tmp_path / "out" / FOUND).read_text())
    assert numbers["effects"]["order"][1]["value"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"screen": None}, "'screen' must hold 'method' and 'factors'"),
        ({"screen": {"factors": FACTORS}}, "'screen' must hold"),
        ({"screen": {"method": "compo", "factors": {"a": [{}]}}}, "'screen' must hold"),
        ({"screen": {"method": "compo", "factors": {"a": [{}, 1]}}}, "'screen' must hold"),
        ({"seeds": [0]}, "'seeds' must be two"),
        ({"split": "train"}, "split: no 'train'; there are: test, val"),
    ],
)
def test_malformed_files_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "screen.json"
    path.write_text(json.dumps({**SETTINGS, **change}))
    with pytest.raises(CompoclipError, match=message):
        read_screen(path)
