"""From one flat ragged list of texts to one row of logits an image: caption first, then negatives.

Hard-negative losses compare, for each image, its caption with its own negatives. How many
negatives an image has varies; the rows here are the only place where that becomes a rectangle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role

MissingHN = Literal["mask", "zero"]
"""What stands for a negative that a rewrite could not make: nothing, or a logit of 0."""

Reduction = Literal["valid", "batch"]
"""Divide the sum over rows by the number of rows that have a negative, or by all rows."""


@dataclass(frozen=True)
class RowIndex:
    """Which text stands where in (B, 1+K) rows; column 0 is the caption.

    index: (B, 1+K) int64 into the T texts, any where not valid. valid: (B, 1+K) bool. In rows of
    hard negatives an image without one is not valid anywhere: it does not count.
    """

    index: Tensor
    valid: Tensor

    @property
    def texts(self) -> Tensor:
        """(N,) the texts in use, row by row."""
        return self.index[self.valid]

    def spread(self, scores: Tensor) -> Tensor:
        """(B, 1+K) rows of the (N,) scores of `texts`; 0 where not valid."""
        rows = scores.new_zeros(self.valid.shape)
        return rows.masked_scatter(self.valid, scores)


@dataclass(frozen=True)
class RowSum:
    """A sum of per-row losses and how many rows it covers.

    Kept apart so that several processes can add both and divide once: the mean over the global
    batch, not the mean of means.
    """

    total: Tensor
    count: Tensor

    def mean(self) -> Tensor:
        """total / count; exactly zero, still connected to the graph, when nothing counts."""
        return self.total / self.count.clamp_min(1)


def check(features: Features, layout: Layout) -> None:
    """Raise ValueError when features and layout do not describe the same batch."""
    images, texts = features.image.shape[0], features.text.shape[0]
    if images == 0 or images != layout.images:
        raise ValueError(f"{images} image features, but the layout speaks of {layout.images}")
    if texts != layout.owner.numel():
        raise ValueError(f"{texts} text features, but the layout speaks of {layout.owner.numel()}")


def texts_by_owner(layout: Layout, role: Role, rewrite: int | None = None) -> tuple[Tensor, Tensor]:
    """Per image its texts of one role (and of one rewrite, if given), in the order of the list.

    Returns (B, K) indices into the texts (0 where there is none) and a (B, K) mask, with K the
    largest number that any image has.
    """
    wanted = layout.role == int(role)
    if rewrite is not None:
        wanted = wanted & (layout.rewrite == rewrite)
    position = torch.nonzero(wanted).squeeze(1)
    owner, order = torch.sort(layout.owner[position], stable=True)
    position = position[order]
    image = torch.arange(layout.images, device=owner.device)
    start = torch.searchsorted(owner, image)
    count = torch.searchsorted(owner, image, right=True) - start
    width = int(count.max())
    index = position.new_zeros((layout.images, width))
    rank = torch.arange(owner.numel(), device=owner.device) - start[owner]
    index[owner, rank] = position
    return index, torch.arange(width, device=owner.device) < count[:, None]


def first_text(layout: Layout, role: Role, rewrite: int | None = None) -> tuple[Tensor, Tensor]:
    """Per image its first text of one role (and of one rewrite, if given).

    Returns (B,) indices into the texts (0 where there is none) and a (B,) mask.
    """
    index, valid = texts_by_owner(layout, role, rewrite)
    if index.shape[1] == 0:
        return index.new_zeros(layout.images), valid.new_zeros(layout.images)
    return index[:, 0], valid[:, 0]


def caption_index(layout: Layout) -> Tensor:
    """(B,) the first caption of every image.

    Raises ValueError when an image has none: contrastive losses have no target for it.
    """
    index, valid = first_text(layout, Role.CAPTION)
    if not valid.all():
        raise ValueError(f"image {int((~valid).nonzero()[0])} of the batch has no caption")
    return index


def hard_negative_rows(layout: Layout) -> RowIndex:
    """(B, 1+K) rows: the first caption of each image, then its own negatives."""
    negative, valid = texts_by_owner(layout, Role.NEGATIVE)
    counted = valid.any(1, keepdim=True)
    index = torch.cat([caption_index(layout)[:, None], negative], dim=1)
    return RowIndex(
        index=index.masked_fill(~counted, 0), valid=torch.cat([counted, valid], dim=1) & counted
    )


def missing_negatives(layout: Layout, rewrites: int) -> Tensor:
    """(B,) how many of the `rewrites` kinds of negative each image lacks.

    Kinds are the values 0 .. rewrites-1 of `layout.rewrite`.
    """
    negative = (layout.role == int(Role.NEGATIVE)) & (layout.rewrite >= 0)
    present = torch.zeros((layout.images, rewrites), dtype=torch.bool, device=layout.owner.device)
    present[layout.owner[negative], layout.rewrite[negative]] = True
    return rewrites - present.sum(1)


def phantom_count(layout: Layout, missing_hn: MissingHN, rewrites: int | None) -> Tensor:
    """(B,) logits of 0 that stand for missing negatives: none under "mask".

    Raises ValueError under "zero" when the number of rewrites is not given: a kind that is empty
    for the whole batch cannot be seen in the layout.
    """
    if missing_hn == "mask":
        return torch.zeros(layout.images, dtype=torch.int64, device=layout.owner.device)
    if rewrites is None:
        raise ValueError('missing_hn="zero" needs the number of rewrites a caption should have')
    return missing_negatives(layout, rewrites)
