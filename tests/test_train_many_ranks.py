"""Work, memory and exchange of a rank grow with the number of ranks only by gathered columns.

There is one process: the other ranks are taken to have what this one has. Features have shapes and
no content (torch's `meta` device).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from compoclip.data.batch import Batch
from compoclip.data.loader import BatchLoader
from compoclip.data.prepared import Preparation
from compoclip.errors import UsageError
from compoclip.losses.contract import Features, Layout, Role
from compoclip.methods.base import LossTerm, Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip.ranks import Ranks
from compoclip.training.distributed import RankPeers, shared_batches
from compoclip.training.step import weighted_loss
from models_thin import config

RECIPES = ["fsc-clip", "negclip", "negclip-original", "hard-positives", "mosaic-clip", "clic"]
IMAGE, GB = 512 * 4, 1e9  # bytes of a feature
META = torch.device("meta")
CAPTIONS, WIDTH, PATCHES = 4, 512, 49  # texts per image; features of ViT-B/32


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    cfg = config()
    cfg["text_cfg"]["vocab_size"] = 49408
    return create_model(ModelConfig(cfg), seed=1)


@dataclass(frozen=True)
class Alike(Ranks):
    """Rank 0 of many that all have what it has. exchanges: the bytes that each brought."""

    exchanges: list[int] = field(default_factory=list, compare=False)

    def exchange(self, record: Any) -> list[Any]:
        self.exchanges.append(self.world)
        return [record] * self.world

    def _gathered(self, tensor: Tensor) -> Tensor:
        self._note(tensor, self.world)
        return tensor.repeat(self.world, *[1] * (tensor.ndim - 1))

    def reduce_scatter(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        self._note(rows)
        return rows[: counts[0]] * self.world

    def all_reduce(self, tensor: Tensor) -> None:
        self._note(tensor)
        tensor *= self.world

    def _note(self, tensor: Tensor, times: int = 1) -> None:
        if self.world > 1:
            self.exchanges.append(tensor.numel() * tensor.element_size() * times)


class Loader:
    """The same batch again and again, with its numbers as a worker makes them."""

    def __init__(self, model: LoadedModel, method: Method, images: int) -> None:
        self.bad: dict[str, str] = {}
        rng, count = random.Random(0), images * CAPTIONS
        shown = model.preprocess
        self._batch = Batch(
            torch.zeros((images, 3, *shown.size), dtype=torch.uint8),
            texts=tuple(" ".join(rng.choices(["cat", "dog", "red"], k=10)) for _ in range(count)),
            owner=tuple(i // CAPTIONS for i in range(count)),
            role=(Role.CAPTION, *[Role.NEGATIVE] * (CAPTIONS - 1)) * images,
            rewrite=("", *[method.kinds[0]] * (CAPTIONS - 1)) * images,
            ids=tuple(map(str, range(images))),
            mean=shown.mean,
            std=shown.std,
        )
        self._prepare = Preparation(model.tokenizer, model.encoder.text_planner(0))

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        for _ in range(start, stop):
            numbers = self._prepare(self._batch, self._batch.unforeseen)
            yield replace(self._batch, numbers=numbers)


# There is no autocast for a device without content, where it changes nothing.
@patch.object(torch, "autocast", lambda *_, **__: nullcontext())
def counts_of(model: LoadedModel, recipe: str, world: int, images: int) -> tuple[list[int], int]:
    """Bytes of each exchange of a step on one of `world` ranks, and bytes kept for its losses."""
    method = load_recipe(recipe)()
    loader, ranks = Loader(model, method, images), Alike(0, world)
    shared = shared_batches(cast(BatchLoader, loader), ranks, lambda: 0, 0, 3)

    def made(*shape: int) -> Tensor:
        return torch.zeros(shape, device=META, requires_grad=True)

    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
        return tensor

    for batch, whole in shared:  # the first steps say which indices losses want
        ranks.exchanges.clear()
        storages.clear()
        assert batch.numbers is not None
        texts, layout = batch.numbers.on(META)
        layout.shared_by(whole.peers).unforeseen = batch.unforeseen
        terms, rows = method.terms_on(batch.kind), len(layout.owner)
        local = any(term.needs_local for term in terms)
        features = Features(
            F.normalize(made(layout.images, WIDTH), dim=-1),
            F.normalize(made(rows, WIDTH), dim=-1),
            made().exp(),
            made(layout.images, PATCHES, WIDTH) if local else None,
            made(rows, texts.longest, WIDTH) if local else None,
            torch.ones(rows, texts.longest, dtype=torch.bool, device=META) if local else None,
        )
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            _, loss = weighted_loss(terms, features, layout)
        whole.peers.summed(loss)
        kept = sum(storages.values())
        loss.backward(torch.full_like(loss, world))
    return ranks.exchanges, kept


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_number_of_exchanges_is_that_of_two_ranks(recipe: str, model: LoadedModel) -> None:
    one, two, many = (counts_of(model, recipe, world, images=8)[0] for world in (1, 2, 64))
    assert len(many) == len(two) <= 10
    assert one == []


def test_16384_images_on_64_ranks_fit_a_gpu(model: LoadedModel) -> None:
    """With 2.4 GB of weights, gradients and moments, and 13.2 GB kept for the towers of ViT-B/32,
    a GPU holds less than 20 GB."""
    (_, alone), (exchanges, many) = (counts_of(model, "fsc-clip", n, images=256) for n in (1, 64))
    assert alone < 0.5 * GB
    assert many < alone + 0.2 * GB
    columns = 2 * 16_384 * IMAGE  # images and captions; no patch and no token
    assert columns < sum(exchanges) < 2 * columns + 1e6
    # What they are told of each other's batch is a few integers each.
    assert sorted(exchanges)[-3] <= columns / 2
    assert sum(size for size in exchanges if size < columns / 2) < 64 * 256


# --- Losses of one's own. ---

LAYOUT = Layout(torch.zeros(1).long(), torch.zeros(1).long(), -torch.ones(1).long(), 1)
FEATURES = Features(torch.ones(1, 2), torch.ones(1, 2), torch.tensor(1.0))


@pytest.mark.parametrize(
    ("value", "kind"), [(torch.ones(3), r"shape \[3\]"), (0.5, "float"), (None, "NoneType")]
)
def test_a_loss_that_is_no_single_number_is_refused(value: Any, kind: str) -> None:
    terms = [LossTerm("own", lambda features, layout: value)]
    with pytest.raises(UsageError, match=f"the loss own must return a tensor .* found {kind}"):
        weighted_loss(terms, FEATURES, LAYOUT)


def test_a_loss_that_knows_nothing_of_other_ranks_is_refused() -> None:
    terms = [LossTerm("own", lambda features, layout: features.image.mean())]
    assert weighted_loss(terms, FEATURES, LAYOUT)[1] == 1
    with pytest.raises(UsageError, match="the loss own ignores the other processes"):
        weighted_loss(terms, FEATURES, LAYOUT.shared_by(RankPeers(Alike(0, 2))))
