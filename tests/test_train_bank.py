"""Captions against the images of the whole data: the loss and its bank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from build.runs import CACHED, run
from compoclip.data.batch import Batch, item_keys
from compoclip.data.cached import CachedFeatures
from compoclip.errors import CompoclipError
from compoclip.losses import all_images_loss
from compoclip.losses.contract import Features, Layout, Role
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.ranks import SINGLE
from compoclip.training import caches
from train_helpers import OPTIM


def a_batch(photos: tuple[str, ...], bank: tuple[str, ...]) -> tuple[Any, Layout]:
    """Images with a caption and a negative each, and a bank of photos by name."""
    rng = torch.Generator().manual_seed(0)

    def units(count: int) -> Tensor:
        rows = torch.randn(count, 6, generator=rng, dtype=torch.float64)
        return torch.nn.functional.normalize(rows, dim=1)

    count = len(photos)
    batch = Batch(
        torch.zeros(count, 3, 1, 1),
        tuple(f"text {number}" for number in range(2 * count)),
        (*range(count), *range(count)),
        (*([Role.CAPTION] * count), *([Role.NEGATIVE] * count)),
        (*([""] * count), *(["swap"] * count)),
        photos=photos,
    )
    features = Features(
        image=units(count),
        text=units(2 * count).requires_grad_(),
        logit_scale=torch.tensor(5.0, dtype=torch.float64, requires_grad=True),
        bank=units(len(bank)),
        bank_keys=torch.from_numpy(item_keys(bank).view(np.int32).astype(np.int64)),
    )
    return features, batch.layout()


def by_loops(f: Features, photos: tuple[str, ...], bank: tuple[str, ...]) -> Tensor:
    """The loss, number by number."""
    assert f.bank is not None
    total = torch.zeros((), dtype=torch.float64)
    for row, photo in enumerate(photos):
        own = f.logit_scale * sum(a * b for a, b in zip(f.text[row], f.image[row]))
        logits = [own]
        for other, image in zip(bank, f.bank):
            if other != photo:
                logits.append(f.logit_scale * sum(a * b for a, b in zip(f.text[row], image)))
        total = total - (own - torch.logsumexp(torch.stack(logits), 0))
    return total / len(photos)


def test_it_equals_loops() -> None:
    photos, bank = ("a", "b", "c"), ("a", "x", "c", "y", "z")
    features, layout = a_batch(photos, bank)
    leaves = (features.text, features.logit_scale)
    ours, loop = all_images_loss(features, layout), by_loops(features, photos, bank)
    torch.testing.assert_close(ours, loop, rtol=1e-12, atol=1e-12)
    for one, other in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(loop, leaves)):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_bank_of_the_own_photo_alone_gives_no_signal() -> None:
    features, layout = a_batch(("a", "a"), ("a",))
    assert all_images_loss(features, layout).item() == 0
    with pytest.raises(ValueError, match=r"Features\.bank, which was not computed"):
        all_images_loss(replace(features, bank=None), layout)
    _, layout = a_batch(("a", "a"), ("a",))
    layout.host = replace(layout.host, keys=None)
    with pytest.raises(ValueError, match="which photos"):
        all_images_loss(features, layout)


def test_at_most_so_many_images_spread_evenly(tmp_path: Path) -> None:
    names = {f"photo {number}": number for number in range(10)}
    kept = CachedFeatures(tmp_path, {}, (1, 1, 3), "tower", names)
    kept._bad = {4: "unreadable"}
    kept.of = lambda photo, crop: torch.full((1, 3), names[photo])  # type: ignore[method-assign]
    assert [*kept.some(20)] == [f"photo {number}" for number in range(10) if number != 4]
    assert [*kept.some(3)] == ["photo 0", "photo 3", "photo 7"]
    assert kept.some(3)["photo 7"].shape == (1, 3)


def test_features_that_went_after_they_were_made_are_named(tmp_path: Path) -> None:
    kept = CachedFeatures(tmp_path, {}, (1, 1, 3), "tower", {"photo 0": 0})
    with pytest.raises(CompoclipError, match=r"part-\S+: .*; start again"):
        kept.open()


def test_the_bank_holds_the_images_of_batches(
    squares: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Features] = []

    def look(bank: caches.ImageBank, features: Features) -> Features:
        seen.append(replace(features, bank=bank.features, bank_keys=bank.keys))
        return seen[-1]

    monkeypatch.setattr(caches.ImageBank, "add_to", look)
    method = compose(load_recipe("clip-ft")(optim=OPTIM), terms=["+all-images"])
    run(SINGLE, squares, "run", method, features=squares / "features", stop_after=1, **CACHED)
    bank, image = seen[0].bank, seen[0].image
    assert bank is not None
    assert bank.shape == (40, image.shape[1])
    cosines = image @ bank.T
    torch.testing.assert_close(cosines.amax(1), torch.ones(len(image)), rtol=0, atol=1e-5)
