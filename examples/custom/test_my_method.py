"""Tests of my_method.py. Run with: pytest test_my_method.py"""

from pathlib import Path
from typing import Any

from PIL import Image

import compoclip
from compoclip.methods import load_recipe

FILE = str(Path(__file__).with_name("my_method.py"))


def test_its_parameters_reach_the_losses() -> None:
    method = load_recipe(FILE)(margin_weight=2.0)
    assert method.name == "my-method"
    assert {term.name: term.weight for term in method.losses} == {"clip": 1.0, "margin": 2.0}


def test_it_trains(tmp_path: Path) -> None:
    rows = ["image,caption"]
    for colour in ("red", "blue", "green", "white"):
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{colour}.png")
        rows.append(f"{colour}.png,a {colour} star above a black mug")
    data = tmp_path / "data.csv"
    data.write_text("\n".join(rows))
    few: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 4,
        "warmup": 0,
        "device": "cpu",
        "crop": False,
    }
    tuned = compoclip.train("bundled", FILE, data, out=tmp_path / "run", **few)
    provenance = tuned.loaded.provenance
    assert provenance["run"]["steps"] == 2
    assert "my_method.py" in provenance["sources"]  # --resume notices a changed file
