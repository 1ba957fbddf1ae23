"""Negative images: some rows bring one along, some do not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from compoclip.losses.contract import Features, Layout
from compoclip.losses.triplet import triplet_clip_loss
from losses_oracle import (
    CAPTION,
    NEGATIVE,
    features_for,
    layout_of,
    rearranged,
)


def _layout(pair: list[int], negatives: list[int]) -> Layout:
    """Captions of all images, negatives of some; an image is generated if `pair` names another."""
    texts = [(i, CAPTION, -1) for i in range(len(pair))]
    layout = layout_of([*texts, *((i, NEGATIVE, 0) for i in negatives)])
    at = torch.tensor(pair)
    return replace(layout, pair=at, side=(at != torch.arange(len(pair))).long())


BATCHES = {
    "full": _layout([0, 1, 2, 0, 1, 2], []),
    "texts beside images": _layout([0, 1, 2, 0, 1, 2], [0, 1, 1, 4]),
    "ragged": _layout([0, 1, 0, 3, 4, 4], [1, 1, 4, 5]),
    "one generated": _layout([0, 1, 2, 1], [0]),
    "generated first": _layout([1, 1, 2, 2], []),
    "no generated": _layout([0, 1, 2], [0, 2]),
    "one row": _layout([0, 0], []),
}


@pytest.mark.parametrize("batch", BATCHES)
def test_order_is_irrelevant(batch: str) -> None:
    layout = BATCHES[batch]
    f = features_for(layout)
    rng = torch.Generator().manual_seed(3)
    images = torch.randperm(layout.images, generator=rng)
    texts = torch.randperm(layout.owner.numel(), generator=rng)
    value = triplet_clip_loss(*rearranged(f, layout, images, texts))
    torch.testing.assert_close(value, triplet_clip_loss(f, layout), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_constant_scores(rows: int) -> None:
    layout = _layout([*range(rows), *range(rows)], [])
    f = Features(torch.ones(2 * rows, 1), torch.ones(2 * rows, 1), torch.tensor(100.0))
    expected = math.log(2 * rows) + math.log(rows)
    assert triplet_clip_loss(f, layout).item() == pytest.approx(expected)


def test_errors() -> None:
    layout = BATCHES["full"]
    f = features_for(layout)
    with pytest.raises(ValueError, match="does not tell to which images"):
        triplet_clip_loss(f, replace(layout, pair=None))
    with pytest.raises(ValueError, match="another generated image"):
        triplet_clip_loss(f, replace(layout, pair=torch.tensor([0, 1, 2, 4, 1, 2])))
    with pytest.raises(ValueError, match="two generated images belong to image 1"):
        triplet_clip_loss(f, replace(layout, pair=torch.tensor([0, 1, 2, 0, 1, 1])))
    bare = replace(layout, role=torch.where(layout.owner == 4, int(NEGATIVE), layout.role))
    with pytest.raises(ValueError, match="image 4 of the batch has no caption"):
        triplet_clip_loss(f, bare)
