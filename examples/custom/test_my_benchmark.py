"""Tests of my_benchmark.py. Run with: pytest test_my_benchmark.py"""

import json
from pathlib import Path

import pytest
from PIL import Image

import compoclip
from compoclip.evaluation import Results

FILE = str(Path(__file__).with_name("my_benchmark.py"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "my_benchmark"
    folder.mkdir()
    lines = []
    for number, (part, other) in enumerate([("left", "right"), ("right", "left")] * 2):
        Image.new("RGB", (64, 64), (60 * number, 0, 0)).save(folder / f"{number}.jpg")
        true, false = (f"a cup {side} of a plate" for side in (part, other))
        row = {"image": f"{number}.jpg", "caption": true, "false": false, "part": part}
        lines.append(json.dumps(row))
    (folder / "items.jsonl").write_text("\n".join(lines))
    return tmp_path


def measured(data: Path, spec: str = FILE) -> Results:
    options = compoclip.EvaluateOptions(on=(spec,), data=data, out=data / "results", device="cpu")
    (results,) = compoclip.evaluate(options, {"bundled": "bundled"})
    return results


def test_every_item_is_measured(data: Path) -> None:
    results = measured(data)
    assert results.benchmark == "my_benchmark"
    assert set(results.scores) == {"left", "right"}
    assert results.aggregates[results.headline].n == 4
    assert measured(data, f"{FILE}:left").headline_score.n == 2


def test_an_incomplete_line_is_named(data: Path) -> None:
    (data / "my_benchmark" / "items.jsonl").write_text('{"image": "0.jpg"}')
    with pytest.raises(compoclip.CompoclipError, match="line 1"):
        measured(data)
