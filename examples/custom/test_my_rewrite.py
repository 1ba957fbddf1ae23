"""Tests of my_rewrite.py. Run with: pytest test_my_rewrite.py"""

from pathlib import Path
from typing import Any

from PIL import Image

import compoclip

FILE = str(Path(__file__).with_name("my_rewrite.py"))


def rewritten(caption: str, seed: int = 0) -> str:
    (record,) = compoclip.rewrite(caption, FILE, seed=seed)
    return str(record["text"] or record["reason"])


def test_it_changes_one_word() -> None:
    assert rewritten("a red star above a blue mug") == "a red star below a blue mug"
    both = {rewritten("a man with a dog above a mat", seed) for seed in range(20)}
    assert both == {"a man without a dog above a mat", "a man with a dog below a mat"}


def test_it_refuses_rather_than_invents() -> None:
    assert rewritten("a red star") == "no-opposite"
    assert rewritten("...") == "no-opposite"


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
    tuned = compoclip.train("bundled", "negclip", data, out=tmp_path / "run", **few, texts=FILE)
    provenance = tuned.loaded.provenance
    assert provenance["run"]["steps"] == 2
    assert "my_rewrite.py" in provenance["sources"]  # --resume notices a changed file
