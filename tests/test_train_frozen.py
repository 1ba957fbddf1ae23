"""--cache-frozen: each image of a frozen tower encoded once, the same run bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compoclip.cli.main import main
from compoclip.models.checkpoint import load_model
from compoclip.models.dual_encoder import ImageTower
from compoclip.training.caches import FrozenImages
from compoclip.training.log import read_log
from method_data import arguments, write_world
from test_train_gradcache import batch_for, loaded

FROZEN = ("--lora", "--lora-towers=text", "--no-crop", "--epochs=2")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


def weights(run: Path) -> dict[str, Tensor]:
    return load_model(run / "model").encoder.model.state_dict()


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_log(run / "train.jsonl")]


def test_the_same_run_with_each_image_encoded_once(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded = []
    encode = ImageTower._encode

    def counted(self: ImageTower, pixels: Tensor, patches: bool) -> Any:
        encoded.append(len(pixels))
        return encode(self, pixels, patches)

    monkeypatch.setattr(ImageTower, "_encode", counted)
    for name, more in (
        ("plain", ()),
        ("cached", ("--cache-frozen",)),
        ("pieces", ("--cache-frozen", "--micro-batch=5")),
    ):
        encoded.clear()
        run = arguments(world, "fsc-clip", tmp_path / name, *FROZEN, *more)
        assert main(run) == 0
        assert sum(encoded) == (2 * 40 if name == "plain" else 40), name
    assert "40 of 80 images encoded, the others remembered" in capsys.readouterr().err
    assert losses(tmp_path / "plain") == losses(tmp_path / "cached")
    for name, value in weights(tmp_path / "plain").items():
        assert torch.equal(value, weights(tmp_path / "cached")[name]), name
    # Resumed in the second epoch, with nothing remembered: still the same.
    cut = arguments(world, "fsc-clip", tmp_path / "cut", *FROZEN, "--cache-frozen")
    assert main([*cut, "--stop-after=7"]) == 0
    assert main([*cut, "--resume"]) == 0
    for name, value in weights(tmp_path / "plain").items():
        assert torch.equal(value, weights(tmp_path / "cut")[name]), name


def test_room_is_bounded_and_new_pixels_are_new_images() -> None:
    model = loaded()
    model.encoder.model.get_submodule("visual").requires_grad_(False)
    model.encoder.train()
    batch = batch_for(model)
    ids = model.tokenizer(list(batch.block.texts))
    pixels = batch.normalised(torch.device("cpu"))
    one = 4 * (24 + 16 * 24)  # bytes of an image's pooled feature and patches
    memory = FrozenImages(most=2 * one)
    for round_ in range(2):
        found = memory.work(model.encoder, batch, pixels, ids, True, 0).all()
        expected = model.encoder.work(pixels, ids, True).all()
        assert torch.equal(found.image, expected.image)
        assert found.patches is not None
        assert expected.patches is not None
        assert torch.equal(found.patches, expected.patches)
        assert (memory.asked, memory.found, memory.bytes) == (5 * round_ + 5, 2 * round_, 2 * one)
    batch.pixels[0, 0, 0, 0] += 1
    memory.work(model.encoder, batch, pixels, ids, True, 0).all()
    assert memory.found == 2 + 1


def test_where_nothing_would_be_remembered_it_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = arguments(world, "clip-ft", tmp_path / "no", "--cache-frozen")
    assert main([*asked, "--no-crop"]) == 2
    assert "clip-ft trains the image tower" in capsys.readouterr().err
    assert main([*asked, "--lora", "--lora-towers=text"]) == 2
    assert "add --no-crop" in capsys.readouterr().err
