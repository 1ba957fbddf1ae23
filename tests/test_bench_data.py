"""`python -m bench data` and `bench retrieval`: what they measure is the same thing both ways."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main
from bench.data import (
    DRAFT,
    PACKED,
    PLAIN,
    STAGES,
    WHOLE,
    Options,
    PlainPhotos,
    _text,
    loader_speed,
    measure,
    our_speed,
    photo_like,
    write_photos,
)
from bench.retrieval import class_weights, retrieval_cost
from compoclip.data.sources.open import open_source
from compoclip.data.transform import ImageTransform
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig
from compoclip.models.preprocess import Preprocess
from models_thin import config

SMALL = Preprocess(size=(32, 32))


def test_made_photos_have_detail_at_every_scale() -> None:
    one = np.asarray(photo_like(1, 160, 120), float).mean(-1)
    assert one.shape == (120, 160)
    assert np.array_equal(one, np.asarray(photo_like(1, 160, 120), float).mean(-1))
    assert not np.array_equal(one, np.asarray(photo_like(2, 160, 120), float).mean(-1))
    power = np.abs(np.fft.rfft2(one - one.mean())) ** 2
    assert power[:8, :8].mean() > 30 * power[40:60, 40:60].mean() > 0


def test_every_stage_is_timed(tmp_path: Path) -> None:
    source = open_source(str(write_photos(tmp_path, 4)))
    speed = our_speed(source, ImageTransform(SMALL), repeats=1)
    assert set(speed.shares) == set(STAGES)
    assert sum(speed.shares.values()) == pytest.approx(1)
    assert speed.queue_bytes == 3 * 32 * 32
    assert speed.images_per_second > 0
    assert PlainPhotos(source, SMALL)[0].shape == (3, 32, 32)
    for plain in (False, True):
        assert loader_speed(source, ImageTransform(SMALL), 2, 0, plain) > 0


def test_the_ways_are_measured_on_one_set(tmp_path: Path) -> None:
    options = Options(count=4, size=32, pack_size=48, workers=0, repeats=1, texts=40)
    found = measure(options, tmp_path)
    assert list(found.ways) == [PLAIN, WHOLE, DRAFT, PACKED]
    assert found.texts.texts > 1.5
    for name in (WHOLE, DRAFT, PACKED):
        alone = 1000 / found.ways[name].worker_ms
        assert 0 < found.per_core(name) < alone
    assert found.images == 4
    assert found.size[PACKED] < found.size[DRAFT]
    assert found.ways[PLAIN].queue_bytes == 4 * found.ways[PACKED].queue_bytes
    shown = _text(found)
    assert "PIL and torchvision" in shown
    assert "a worker, ms an image" in shown
    assert "kB" in shown


def test_the_data_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = write_photos(tmp_path / "photos", 4)
    asked = ["data", "--data", str(photos), "--size=32", "--workers=0", "--repeats=1"]
    asked += ["--texts=40", "--resave"]
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 4
    assert main([*asked, "--batch-size=0"]) == 2


def test_both_ways_of_ranking_agree_and_one_holds_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compoclip.evaluation.forms.retrieval.SCORES_AT_ONCE", 1 << 13)
    cost = retrieval_cost(60, 301, width=16)
    assert cost.equal
    assert cost.ours.peak_bytes < cost.dense.peak_bytes
    assert (cost.images, cost.texts) == (60, 301)


def test_class_weights_are_those_of_open_clip() -> None:
    model = create_model(ModelConfig(config(text={"vocab_size": 49408})), seed=1)
    model.encoder.eval()
    templates = [lambda name: f"a {name}.", lambda name: f"the {name}.", lambda name: f"a {name}."]
    found = class_weights(model, ["cat", "dog", "red cup"], templates)
    assert (found.classes, found.prompts, found.distinct) == (3, 9, 6)
    assert found.difference < 1e-5


def test_the_retrieval_verb(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["retrieval", "--images=20", "--texts=100", "--classes=2", "--templates=2"]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert "ranks equal" in shown
    assert "2 classes, 4 prompts" in shown
    assert main(["retrieval", "--images=5", "--texts=4"]) == 2
    assert main(["retrieval", "--classes=0"]) == 2
