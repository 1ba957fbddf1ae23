"""From one flat ragged list of texts to one row of logits an image: caption first, then negatives.

Hard-negative losses compare, for each image, its caption with its own negatives. How many
negatives an image has varies; the rows here are the only place where that becomes a rectangle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Loss, Role, StatefulLoss

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


def texts_by_owner(layout: Layout, role: Role, kind: str | None = None) -> tuple[Tensor, Tensor]:
    """Per image its texts of one role (and of one kind, if given), in the order of the list.

    Returns (B, K) indices into the texts (0 where there is none) and a (B, K) mask, with K the
    largest number that any image has.
    """
    wanted = layout.role == int(role)
    if kind is not None:
        wanted = wanted & layout.kind(kind)
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


def first_text(layout: Layout, role: Role, kind: str | None = None) -> tuple[Tensor, Tensor]:
    """Per image its first text of one role (and of one kind, if given).

    Returns (B,) indices into the texts (0 where there is none) and a (B,) mask.
    """
    index, valid = texts_by_owner(layout, role, kind)
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


def missing_negatives(layout: Layout, kinds: Sequence[str]) -> Tensor:
    """(B,) how many of these kinds of negative each image lacks."""
    role = layout.role == int(Role.NEGATIVE)
    present = torch.zeros((layout.images, len(kinds)), dtype=torch.bool, device=role.device)
    for place, kind in enumerate(kinds):
        present[layout.owner[role & layout.kind(kind)], place] = True
    return len(kinds) - present.sum(1)


def phantom_count(layout: Layout, missing_hn: MissingHN, kinds: Sequence[str]) -> Tensor:
    """(B,) logits of 0 that stand for missing negatives: none under "mask".

    Raises ValueError under "zero" when no kinds are named: a kind that is empty for the whole batch
    cannot be seen in the layout.
    """
    if missing_hn == "mask":
        return torch.zeros(layout.images, dtype=torch.int64, device=layout.owner.device)
    if not kinds:
        raise ValueError('missing_hn="zero" needs the kinds of negative a caption should have')
    return missing_negatives(layout, kinds)


# --- Which texts of a batch are true of which images, beside the pairs it was made of. ---
#
# A batch may hold the same photo twice, or photos with the same caption. A contrast that treats
# such a pair as wrong teaches the opposite of what the data say.


def true_pairs(layout: Layout) -> Tensor:
    """(B, T) bool: the text equals a CAPTION or POSITIVE of the image, or of the same photo.

    Texts are equal by `text_id`, photos by `image_id`; where the layout has only one of the two,
    the other is taken to be all different. A NEGATIVE that equals a caption of the image is true.

    Raises: ValueError when the layout has neither.
    """
    text_id, image_id = layout.text_id, layout.image_id
    if text_id is None and image_id is None:
        raise ValueError("masking duplicates needs text_id or image_id in the layout")
    device = layout.owner.device
    text, texts = _groups(text_id, layout.owner.numel(), device)
    photo, photos = _groups(image_id, layout.images, device)
    positive = layout.role != int(Role.NEGATIVE)
    true = torch.zeros((photos, texts), dtype=torch.bool, device=device)
    true[photo[layout.owner[positive]], text[positive]] = True
    return true[photo][:, text]


def _groups(identity: Tensor | None, count: int, device: torch.device) -> tuple[Tensor, int]:
    """Each element's group, numbered from 0, and the number of groups."""
    if identity is None:
        return torch.arange(count, device=device), count
    unique, group = torch.unique(identity, return_inverse=True)
    return group, unique.numel()


# --- Show a loss some of the texts of a batch only. ---


def select_texts(features: Features, layout: Layout, keep: Tensor) -> tuple[Features, Layout]:
    """The batch with the texts where `keep` (T,) bool is set, in the same order."""

    def of(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[keep]

    return (
        replace(
            features,
            text=features.text[keep],
            tokens=of(features.tokens),
            token_mask=of(features.token_mask),
        ),
        replace(
            layout,
            owner=layout.owner[keep],
            role=layout.role[keep],
            rewrite=layout.rewrite[keep],
            text_id=of(layout.text_id),
        ),
    )


@dataclass(frozen=True)
class OnlyKinds:
    """A loss that sees the captions, and of the other texts those of the named kinds.

    For terms that must not read what others do: in DAC the contrast with hard negatives must not
    see the negatives of bags, and a term that joins another method sees the texts of its own.
    loss: the loss, which may remember numbers from step to step.
    """

    loss: Loss
    kinds: tuple[str, ...]

    def __call__(self, features: Features, layout: Layout) -> Tensor:
        """`loss` on the texts that remain."""
        keep = (layout.role == int(Role.CAPTION)) | layout.kind(*self.kinds)
        return self.loss(*select_texts(features, layout, keep))

    def state_dict(self) -> dict[str, float]:
        """What the loss remembers; nothing for one without a state."""
        return self.loss.state_dict() if isinstance(self.loss, StatefulLoss) else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Let the loss go on from `state`."""
        if isinstance(self.loss, StatefulLoss):
            self.loss.load_state_dict(state)
