"""Tests of my_model.py. Run with: pytest test_my_model.py"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import compoclip
from compoclip.evaluation import Embedder, open_encoder

FILE = str(Path(__file__).with_name("my_model.py"))
COLOURS = ("red", "blue", "green", "white")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "foils").mkdir()
    lines = []
    for colour, other in zip(COLOURS, COLOURS[1:] + COLOURS[:1]):
        Image.new("RGB", (96, 64), colour).save(tmp_path / f"{colour}.png")
        row = {"image": f"{colour}.png", "caption": f"a {colour} wall"}
        lines.append(json.dumps({**row, "negative_caption": f"a {other} wall"}))
    (tmp_path / "foils" / "walls.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_one_vector_per_image_and_text() -> None:
    model = open_encoder(FILE).model  # type: ignore[union-attr]
    assert isinstance(model, Embedder)
    with torch.inference_mode():
        images = np.asarray(model.images([Image.new("RGB", (64, 48), c) for c in COLOURS]))
        texts = np.asarray(model.texts(["a red wall", "a blue wall"]))
    assert images.shape[0] == 4
    assert texts.shape == (2, images.shape[1])
    assert np.isfinite(images).all()


def test_it_is_measured(data: Path) -> None:
    options = compoclip.EvaluateOptions(
        models=(FILE,), on=("foils",), data=data, out=data / "results", device="cpu"
    )
    (results,) = compoclip.evaluate(options)
    assert results.headline_score.n == 4
    assert results.identity["prompt"] == {"": "a photo of "}
    assert results.identity["files"]  # measured again when the file changes
