"""--cache-frozen: each image of a frozen tower or trunk encoded once, and the same run with it."""

from __future__ import annotations

import json
import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from build.models import trainable
from build.runs import losses
from compoclip.cli.main import main
from compoclip.data import cached
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.image_tower import ImageTower
from compoclip.models.work import CachedAt
from method_data import arguments, differing_in_images, run_of
from models_thin import config, timm_config
from train_helpers import weight_hashes, weights, write_data

FROZEN = ("--lora", "--set=lora_towers=text", "--no-crop", "--epochs=1.2")
TRUNK = ("--freeze", "image-trunk")


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch, user_cache: Path) -> list[int]:
    """Counts the images that a tower encodes, in a cache folder that is empty at first."""
    seen: list[int] = []
    encode, states = ImageTower._encode, ImageTower.cached_features

    def counted(self: ImageTower, pixels: Tensor, patches: bool) -> Any:
        seen.append(len(pixels))
        return encode(self, pixels, patches)

    def also_counted(self: ImageTower, pixels: Tensor, patches: bool, at: Any) -> Any:
        before = sum(seen)
        made = states(self, pixels, patches, at)
        if sum(seen) == before and len(pixels) > 1:  # one to know the shape
            seen.append(len(pixels))
        elif len(pixels) == 1 and sum(seen) > before:
            seen.pop()
        return made

    monkeypatch.setattr(ImageTower, "_encode", counted)
    monkeypatch.setattr(ImageTower, "cached_features", also_counted)
    return seen


def assert_alike(run: Path, other: Path) -> None:
    assert losses(run) == pytest.approx(losses(other), abs=1e-5)
    expected = weights(other / "model")
    for name, value in weights(run / "model").items():
        wanted = expected[name]
        if name.endswith("in_proj_bias"):  # keys' have no gradient but rounding, which Adam scales
            thirds = [torch.cat((each.chunk(3)[0], each.chunk(3)[2])) for each in (value, wanted)]
            value, wanted = thirds
        torch.testing.assert_close(value, wanted, atol=1e-5, rtol=1e-5, msg=name)


def assert_equal(run: Path, other: Path) -> None:
    assert losses(run) == losses(other)
    assert weight_hashes(run) == weight_hashes(other)


def test_the_same_run_with_each_image_encoded_once(
    world: Path, tmp_path: Path, encoded: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Pooled features, which negclip reads, are those that were cached with patches."""
    for name, method, more, times in (
        ("plain", "fsc-clip", (), 6 * 8),
        ("first", "fsc-clip", ("--cache-frozen",), 40),
        ("later", "fsc-clip", ("--cache-frozen",), 0),
        ("pieces", "fsc-clip", ("--cache-frozen", "--micro-batch=5"), 0),
        ("reading", "fsc-clip", ("--cache-frozen", "--workers=2"), 0),
        ("plain pooled", "negclip", (), 6 * 8),
        ("pooled", "negclip", ("--cache-frozen",), 0),
    ):
        encoded.clear()
        assert main(arguments(world, method, tmp_path / name, *FROZEN, *more)) == 0
        assert sum(encoded) == times, name
        printed = capsys.readouterr().err
        assert ("encoding features of 40 of 40 images" in printed) == (times == 40)
        assert ("features of 40 images are in" in printed) == (times == 0)
        plain = "plain" if method == "fsc-clip" else "plain pooled"
        assert_alike(tmp_path / name, tmp_path / plain)
    for name in ("later", "reading"):
        assert_equal(tmp_path / name, tmp_path / "first")


@pytest.mark.parametrize("name", differing_in_images())
def test_images_of_every_plan_give_the_same_run_from_cached_features(
    name: str, world: Path, tmp_path: Path, encoded: list[int]
) -> None:
    recipe = load_recipe(name)()
    alone = ("--set=lora_towers=text",) if recipe.lora is not None else TRUNK
    crop = "--crops=2" if recipe.crop else "--no-crop"
    shared = (*alone, crop, "--batch-size=16", "--epochs=3", *run_of(name)["kept"])
    images = []
    for run, more in (("plain", ()), ("cached", ("--cache-frozen",))):
        encoded.clear()
        assert main(arguments(world, name, tmp_path / run, *shared, *more)) == 0
        images.append(sum(encoded))
    assert images[1] < images[0]
    assert_alike(tmp_path / "cached", tmp_path / "plain")
    assert "visual.proj" in weights(tmp_path / "cached" / "model")


def test_features_are_of_the_tower_the_crops_and_the_images(
    world: Path, tmp_path: Path, encoded: list[int]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(world, data)

    def times(*more: str, method: str = "negclip") -> int:
        encoded.clear()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        run = arguments(data, method, tmp_path / "run", "--epochs=0.2", "--cache-frozen", *more)
        assert main(run) == 0
        return sum(encoded)

    assert times(*TRUNK, "--no-crop") == 40
    assert times(*TRUNK, "--no-crop", "--seed=1", "--lr=1e-4", method="clip-ft") == 0
    assert times("--freeze", "image", "--no-crop") == 40
    assert times(*TRUNK, "--crops=3") == 120
    assert times(*TRUNK, "--crops=3") == 0
    assert times(*TRUNK, "--no-crop", method="fsc-clip") == 40  # patches, too
    # Another trunk; another projection is none.
    trained = arguments(data, "negclip", tmp_path / "other", "--epochs=0.2", *TRUNK)
    assert main(trained) == 0
    assert times(*TRUNK, "--no-crop", f"--model={tmp_path / 'other' / 'model'}") == 0
    trained = arguments(data, "negclip", tmp_path / "whole", "--epochs=0.2")
    assert main(trained) == 0
    assert times(*TRUNK, "--no-crop", f"--model={tmp_path / 'whole' / 'model'}") == 40
    # Another photo of the same size and time; the same photos in another place.
    photo, other = data / "3.png", (data / "4.png").read_bytes()
    size, at = photo.stat().st_size, photo.stat().st_mtime_ns
    photo.write_bytes(other[:size].ljust(size, b"\0"))
    os.utime(photo, ns=(at, at))
    assert times(*TRUNK, "--no-crop") == 40
    data.rename(tmp_path / "moved")
    data = tmp_path / "moved"
    assert times(*TRUNK, "--no-crop") == 0


def test_what_is_damaged_or_cut_short_is_told_and_made_anew(
    world: Path,
    tmp_path: Path,
    encoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cached, "_PART_PHOTOS", 10)

    def run(name: str) -> str:
        encoded.clear()
        more = (*TRUNK, "--no-crop", "--epochs=0.4", f"--set=features={tmp_path / 'features'}")
        assert main(arguments(world, "negclip", tmp_path / name, *more)) == 0
        return capsys.readouterr().err

    run("first")
    parts = sorted(tmp_path.glob("features/*/part-*.safetensors"))
    assert len(parts) == 4
    whole = [part.read_bytes() for part in parts]

    def spoilt(name: str, said: str, content: bytes | None) -> None:
        """The second part becomes this; one part is made anew."""
        parts[1].unlink()
        if content is not None:
            parts[1].write_bytes(content)
        printed = run(name)
        assert (f"{parts[1].name}: {said}" in printed) == bool(said), printed
        assert "encoding features of 10 of 40 images" in printed
        assert sum(encoded) == 10
        assert [part.read_bytes() for part in parts] == whole
        assert_equal(tmp_path / name, tmp_path / "first")

    one = bytearray(whole[1])
    one[-3] ^= 1
    spoilt("flipped", "damaged (its checksum differs); made again", bytes(one))
    spoilt("short", "damaged (", whole[1][:-100])
    spoilt("empty", "damaged (", b"")
    spoilt("place", "", whole[0])
    spoilt("gone", "", None)


def test_what_does_not_fit_the_disk_is_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    more = (*TRUNK, "--crops=2", f"--set=features={tmp_path / 'features'}")
    assert main(arguments(world, "negclip", tmp_path / "run", *more)) == 1
    printed = capsys.readouterr().err
    assert "features of 40 images take" in printed
    assert "--set features" in printed
    assert not (tmp_path / "run" / "model").exists()
    assert not list(tmp_path.glob("features/*/part-*"))


def test_unreadable_images_are_left_out_as_without(
    world: Path, tmp_path: Path, encoded: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(world, data)
    (data / "5.png").write_bytes(b"no image")
    (data / "6.png").unlink()
    cache = ("--cache-frozen",)
    for name, more in (("plain", ()), ("kept", cache), ("again", cache)):
        words = (*TRUNK, "--no-crop", "--epochs=1.2", "--set=max_bad=2", *more)
        assert main(arguments(data, "negclip", tmp_path / name, *words)) == 0
        printed = capsys.readouterr().err
        assert "5.png: " in printed
        assert "6.png: " in printed
    assert_alike(tmp_path / "kept", tmp_path / "plain")
    strict = arguments(data, "negclip", tmp_path / "strict", *TRUNK, "--no-crop", "--cache-frozen")
    assert main(strict) == 1
    assert "unreadable image" in capsys.readouterr().err


def test_fixed_crops_are_those_of_any_seed_and_take_turns(world: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")  # one caption an image
    plain = ("--epochs=2", "--crops=1", "--lr=0", "--batch-size=40", f"--data={data}")
    for seed in ("1", "2"):
        assert main(arguments(world, "clip-ft", tmp_path / seed, *plain, f"--seed={seed}")) == 0
    first, second = losses(tmp_path / "1")
    assert first == pytest.approx(second, abs=1e-6)  # the same crop in both epochs
    assert losses(tmp_path / "2") == pytest.approx([first, first], abs=1e-6)
    assert main(arguments(world, "clip-ft", tmp_path / "two", *plain, "--crops=2")) == 0
    changing = losses(tmp_path / "two")
    assert changing[0] == pytest.approx(first, abs=1e-6)
    assert abs(changing[1] - first) > 1e-5
    record = json.loads((tmp_path / "two" / "model" / "compoclip.json").read_text())
    assert record["provenance"]["crops"] == 2


@pytest.mark.parametrize(
    "cfg",
    [
        config(),
        config(vision={"pool_type": "avg"}),
        config(vision={"final_ln_after_pool": True, "pool_type": "avg"}),
        timm_config("mobilenetv2_050", 64),
        timm_config("mobilenetv2_050", 64, timm_proj="mlp"),
        timm_config("test_vit", 160, timm_pool="token"),
    ],
    ids=["vit", "avg", "after pool", "mobilenet", "mlp", "timm vit"],
)
def test_what_is_kept_of_a_trunk_gives_the_features_of_the_tower(cfg: dict[str, Any]) -> None:
    model = trainable(cfg)
    encoder = model.encoder.eval()
    pixels = torch.rand(3, 3, *model.preprocess.size)
    ids = model.tokenizer(["a", "b"])
    places: tuple[CachedAt, ...] = ("trunk", "tower")
    for at, patches in product(places, (False, True)):
        expected = encoder.work(pixels, ids, patches).all()
        states = encoder.cached_features(pixels, patches, at)
        features = encoder.work(states, ids, patches, cached_at=at).all()
        torch.testing.assert_close(features.image, expected.image, atol=1e-5, rtol=1e-5)
        if patches:
            assert features.patches is not None
            torch.testing.assert_close(features.patches, expected.patches, atol=1e-5, rtol=1e-5)


def test_a_trunk_without_a_projection_cannot_be_kept(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vision = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 32, "patch_size": None}
    cfg = config(vision=vision, text={"vocab_size": 49408, "context_length": 77})
    save_model(create_model(ModelConfig(cfg)), tmp_path / "resnet", provenance={})
    run = arguments(world, "clip-ft", tmp_path / "run", f"--model={tmp_path / 'resnet'}")
    asked = [*run, "--cache-frozen", "--no-crop", f"--set=features={tmp_path / 'features'}"]
    assert main([*asked, "--freeze", "image-trunk"]) == 2
    assert "features of a frozen image trunk cannot be cached" in capsys.readouterr().err
    assert main([*asked, "--epochs=1", "--freeze", "image"]) == 0
