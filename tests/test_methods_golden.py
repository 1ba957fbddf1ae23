"""Every recipe trains on world data through the command line, with the losses it always had.

COMPOCLIP_WRITE_GOLDEN=1 writes the curves anew; look at what changes before keeping them.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from build.runs import losses
from compoclip.cli.main import main
from compoclip.methods.registry import method_names
from compoclip.models.checkpoint import load_model
from method_data import STEPS, arguments, differing, write_world

GOLDEN = Path(__file__).with_name("golden")
TOLERANCE = 1e-4
WRITE = bool(os.environ.get("COMPOCLIP_WRITE_GOLDEN"))
RECORD = "record curves: COMPOCLIP_WRITE_GOLDEN=1 pytest -n0 tests/test_methods_golden.py -k NAME"
RECORDED = (
    method_names()
    if WRITE
    else sorted(path.stem for path in GOLDEN.glob("*.json") if path.stem != "options")
)
START = 10  # steps of a recipe whose every part another has that is trained to the end


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("name", RECORDED)
def test_golden_curve(name: str, world: Path, tmp_path: Path) -> None:
    run, whole = tmp_path / "run", WRITE or name in differing()
    steps, more = (STEPS, ()) if whole else (START, (f"--set=stop_after={START}",))
    assert main(arguments(world, name, run, *more)) == 0
    curve = losses(run)
    assert len(curve) == steps
    assert all(map(math.isfinite, curve))
    if whole:
        provenance = load_model(run / "model").provenance
        assert provenance["method"] == name
        assert provenance["run"]["skipped"] == 0
    path = GOLDEN / f"{name}.json"
    if WRITE:
        path.write_text(json.dumps({"losses": [round(loss, 6) for loss in curve]}) + "\n")
    golden = json.loads(path.read_text())["losses"]
    assert len(golden) == STEPS
    assert curve == pytest.approx(golden[:steps], abs=TOLERANCE), RECORD


def test_every_recipe_has_a_curve() -> None:
    assert set(RECORDED) == set(method_names()), RECORD
