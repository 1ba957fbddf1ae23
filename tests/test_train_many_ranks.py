"""What a rank does, keeps and exchanges grows with their number only by gathered columns."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import count_ranks
import pytest
import torch
from count_ranks import Alike, Loader, Setting, counts_of

from compoclip.errors import UsageError
from compoclip.losses.contract import Features, Layout
from compoclip.methods.base import LossTerm
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip.training.distributed import RankPeers, shared_batches
from compoclip.training.step import weighted_loss
from models_thin import config

RECIPES = ["fsc-clip", "negclip", "negclip-original", "hard-positives", "mosaic-clip", "clic"]
IMAGE, GB = 512 * 4, 1e9  # bytes of a feature


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    cfg = config()
    cfg["text_cfg"]["vocab_size"] = 49408
    return create_model(ModelConfig(cfg), seed=1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_number_of_exchanges_is_that_of_two_ranks(
    recipe: str, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_ranks, "PART", Setting(batch=8, captions=4))
    two, many = (counts_of(model, recipe, world, repeats=1) for world in (2, 64))
    assert len(many.exchanges) == len(two.exchanges) <= 10
    assert counts_of(model, recipe, 1, repeats=1).exchanges == ()


def test_16384_images_on_64_ranks_fit_a_gpu(model: LoadedModel) -> None:
    """With 2.4 GB of weights, gradients and moments, and 13.2 GB kept for the towers of ViT-B/32
    (count_ranks.py --towers), a GPU holds less than 20 GB."""
    alone, many = (counts_of(model, "fsc-clip", world, repeats=1) for world in (1, 64))
    assert alone.kept < 0.5 * GB
    assert many.kept < alone.kept + 0.2 * GB
    columns = 2 * 16_384 * IMAGE  # images and captions; no patch and no token
    assert columns < sum(many.exchanges) < 2 * columns + 1e6
    # What they are told of each other's batch is a few integers each.
    assert sorted(many.exchanges)[-3] <= columns / 2
    assert sum(size for size in many.exchanges if size < columns / 2) < 64 * 256


def calls_of(model: LoadedModel, world: int) -> int:
    """Calls of Python functions for a batch, from the worker to the layout of its losses."""
    made = count_ranks.batch_of(
        Setting(batch=16, captions=4), model, count_ranks.load_recipe("fsc-clip")()
    )
    prepare = count_ranks.Preparation(model.tokenizer, model.encoder.text_planner(0))
    shared = shared_batches(Loader(made, prepare), Alike(0, world), lambda: 0, 0, 2)
    next(shared)
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        batch, whole = next(shared)
        layout = batch.numbers.on(torch.device("cpu"))[1].shared_by(whole.peers)
    finally:
        sys.setprofile(None)
    assert layout.images == 16
    assert whole.images == 16 * world
    assert whole.texts == 64 * world
    return calls


def test_taking_a_batch_is_as_much_work_at_any_number_of_ranks(model: LoadedModel) -> None:
    few, many = (calls_of(model, world) for world in (2, 64))
    assert many == few


def test_a_loss_that_knows_nothing_of_other_ranks_is_refused() -> None:
    def own(features: Features, layout: Layout) -> torch.Tensor:
        return features.image.mean()

    layout = Layout(torch.zeros(1).long(), torch.zeros(1).long(), -torch.ones(1).long(), 1)
    features = Features(torch.ones(1, 2), torch.ones(1, 2), torch.tensor(1.0))
    terms = [LossTerm("own", own)]
    assert weighted_loss(terms, features, layout)[1] == 1
    with pytest.raises(UsageError, match="the loss own takes no account of other processes"):
        weighted_loss(terms, features, layout.shared_by(RankPeers(Alike(0, 2))))
