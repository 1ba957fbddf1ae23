"""SigLIP as a base that trains: the bias learns, in pieces and processes, and is written back."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch

import siglip_thin
from build.runs import STEPS, close, command, difference, run
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.architecture import build_model
from compoclip.models.checkpoint import create_model, load_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.dual_encoder import DualEncoder
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.log import read_log
from ranks_helpers import in_ranks
from siglip_thin import clip_words_config, thin_config
from train_helpers import OPTIM, write_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thin SigLIP `base` and 40 captioned squares."""
    path = tmp_path_factory.mktemp("siglip")
    model = create_model(ModelConfig(clip_words_config()), seed=1)
    save_model(model, path / "base", provenance={})
    write_data(path / "data")
    return path


def still(name: str) -> Method:
    """A recipe whose steps leave the weights as they are."""
    return load_recipe(name)(optim=replace(OPTIM, lr=0.0))


def test_scale_and_bias_learn_and_are_written_for_everybody(folder: Path) -> None:
    assert main(command(folder, "run", "--lr=1e-3", "--warmup=1")) == 0
    log = read_log(folder / "run" / "train.jsonl")
    assert log[-1]["loss"] < log[0]["loss"]
    assert log[-1]["logit_bias"] != log[0]["logit_bias"] != -10
    after = load_model(folder / "run" / "model")
    assert after.provenance["contrast"] == "sigmoid"
    assert after.encoder.logit_bias is not None
    assert after.encoder.logit_bias.item() == log[-1]["logit_bias"]
    plain, _, _ = open_clip.create_model_and_transforms(f"local-dir:{folder / 'run' / 'model'}")
    assert plain.logit_bias.item() == log[-1]["logit_bias"]
    assert plain.logit_scale.item() == after.encoder.logit_scale.item()


@pytest.mark.parametrize("name", ["mosaic-clip", "hard-positives", "cs-clip"])
def test_micro_batches_have_the_gradients_of_the_whole_batch(name: str, folder: Path) -> None:
    whole = run(SINGLE, folder, f"{name}-whole", still(name), stop_after=STEPS)
    pieces = run(SINGLE, folder, f"{name}-pieces", still(name), stop_after=STEPS, micro_batch=3)
    assert difference(pieces["gradients"], whole["gradients"]) < 1e-5
    assert all(close(a, b) for a, b in zip(pieces["log"], whole["log"], strict=True))


def in_parts(ranks: Ranks, folder: Path) -> float:
    """How far the gradients of several processes are from those of one, for `in_ranks`."""
    assert siglip_thin.is_model("vit_thin_patch8_siglip_32_tanh")
    parts = run(ranks, folder, "parts", still("negclip"), stop_after=STEPS)
    whole = torch.load(folder / "whole.pt", weights_only=True)
    assert all(close(a, b) for a, b in zip(parts["log"], whole["log"], strict=True))
    return difference(parts["gradients"], whole["gradients"])


def test_processes_have_the_gradients_of_one(folder: Path) -> None:
    whole = run(SINGLE, folder, "whole", still("negclip"), stop_after=STEPS)
    torch.save({name: whole[name] for name in ("gradients", "log")}, folder / "whole.pt")
    for worst in in_ranks(4, in_parts, folder):
        assert isinstance(worst, float), worst
        assert worst < 1e-5


def test_what_contrasts_are_can_be_chosen(folder: Path) -> None:
    runs = {
        contrast: run(SINGLE, folder, contrast, still("clip-ft"), stop_after=1, contrast=contrast)
        for contrast in ("auto", "softmax", "sigmoid")
    }
    losses = {contrast: result["log"][0]["loss"] for contrast, result in runs.items()}
    assert losses["auto"] == losses["sigmoid"] != losses["softmax"]
    bias = [gradient for gradient in runs["softmax"]["gradients"][0] if gradient is None]
    assert len(bias) == 1  # a softmax has no use for it


def test_a_published_scale_above_that_of_clip_stays(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "data", tmp_path / "data")
    base = load_model(folder / "base")
    with torch.no_grad():
        base.encoder.logit_scale.fill_(4.765)  # s = 117.3, of google/siglip-base-patch16-224
    save_model(base, tmp_path / "base", provenance={})
    method = load_recipe("clip-ft")(optim=replace(OPTIM, lr=1e-6))
    log = run(SINGLE, tmp_path, "run", method, stop_after=2)["log"]
    assert log[-1]["logit_scale"] == pytest.approx(117.3, rel=1e-3)


def test_patches_are_what_the_pool_makes_of_a_position_alone() -> None:
    network: Any = build_model(thin_config(), seed=3)
    encoder = DualEncoder(network).eval()
    encoder.require_local(tower="image")
    with pytest.raises(CompoclipError, match="native open_clip text tower"):
        encoder.require_local()
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    pool = network.visual.trunk.attn_pool
    with torch.no_grad():
        found = encoder.encode_images(pixels, patches=True).patches
        states = network.visual.trunk.forward_features(pixels)
        value = pool.kv(states)[..., states.shape[-1] :]
        expected = pool.proj(value)
        expected = expected + pool.mlp(pool.norm(expected))
    assert found is not None
    assert found.shape == (2, 16, 32)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_losses_of_patches_alone_leave_the_tokens() -> None:
    encoder = DualEncoder(build_model(thin_config(), seed=3))
    ids = torch.ones(2, 12, dtype=torch.int64)
    seen = encoder.work(torch.zeros(2, 3, 32, 32), ids, patches=True).all()
    assert seen.patches is not None
    assert seen.tokens is None
