"""From one flat ragged list of texts to one row of logits an image: caption first, then negatives.

Hard-negative losses compare, for each image, its caption with its own negatives. How many
negatives an image has varies; the rows here are the only place where that becomes a rectangle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compoclip.losses.contract import (
    Features,
    HostLayout,
    Ints,
    Layout,
    Loss,
    Role,
    StatefulLoss,
)

MissingHN = Literal["mask", "zero"]
"""What stands for a negative that a rewrite could not make: nothing, or a logit of 0."""

Reduction = Literal["valid", "batch"]
"""Divide the sum over rows by the number of rows that have a negative, or by all rows."""


@dataclass(frozen=True)
class RowIndex:
    """Which text stands where in (B, 1+K) rows; column 0 is the caption.

    texts: (N,) int64, the texts in use, row by row. image: (N,) the image of each. place: (N,)
    where each stands in the rows laid out flat. valid: (B, 1+K) bool. In rows of hard negatives an
    image without one is not valid anywhere: it does not count. positive: (B, 1+K) bool, the texts
    that are true beside the caption, if the rows were asked for them.
    """

    texts: Tensor
    image: Tensor
    place: Tensor
    valid: Tensor
    positive: Tensor | None = None

    @property
    def index(self) -> Tensor:
        """(B, 1+K) int64 into the texts, 0 where not valid."""
        return self.spread(self.texts)

    def spread(self, scores: Tensor) -> Tensor:
        """(B, 1+K) rows of the (N,) scores of `texts`; 0 where not valid."""
        flat = scores.new_zeros(self.valid.numel()).index_copy(0, self.place, scores)
        return flat.view(self.valid.shape)

    def shares(self, of_positives: float, dtype: torch.dtype) -> Tensor | None:
        """(B, 1+K) of the label: this share in equal parts on the positives of a row that has any,
        the rest on the caption; None where the rows were not asked for positives."""
        if self.positive is None:
            return None
        positive = self.positive.to(dtype)
        count = positive.sum(1, keepdim=True)
        share = of_positives * positive / count.clamp_min(1)
        caption = 1.0 - of_positives * (count > 0).to(share.dtype)
        return torch.cat([caption, share[:, 1:]], dim=1)


def row_arrays(host: HostLayout, index: Ints, valid: Ints) -> tuple[Ints, ...]:
    """The fields of a `RowIndex` in order, on the host, of (B, 1+K) indices into the texts."""
    texts = index[valid]
    return texts, host.owner[texts], np.flatnonzero(valid), valid


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
    empty = images == 0 and layout.peers.world == 1
    if empty or images != layout.images:
        raise ValueError(f"{images} image features, but the layout speaks of {layout.images}")
    if texts != layout.owner.numel():
        raise ValueError(f"{texts} text features, but the layout speaks of {layout.owner.numel()}")


# --- Indices are computed on the host and asked for through `Layout.indices`. ---


def by_owner(host: HostLayout, role: Role, *kinds: str) -> tuple[NDArray[np.int64], Ints]:
    """Per image its texts of one role (and of these kinds, if any), in the order of the list.

    Returns (B, K) indices into the texts (0 where there is none) and a (B, K) mask, with K the
    largest number that any image has.
    """
    position = host.of(role, *kinds)
    position = position[np.argsort(host.owner[position], kind="stable")]
    owner = host.owner[position]
    count = np.bincount(owner, minlength=host.images)
    index = np.zeros((host.images, count.max(initial=0)), np.int64)
    index[owner, np.arange(len(owner)) - (count.cumsum() - count)[owner]] = position
    return index, np.arange(index.shape[1]) < count[:, None]


def first(host: HostLayout, role: Role, *kinds: str) -> tuple[NDArray[np.int64], Ints]:
    """Per image its first text of one role (and of these kinds, if any).

    Returns (B,) indices into the texts (0 where there is none) and a (B,) mask.
    """
    position = host.of(role, *kinds)[::-1]
    index, valid = np.zeros(host.images, np.int64), np.zeros(host.images, bool)
    index[host.owner[position]] = position  # of several the last assignment stays
    valid[host.owner[position]] = True
    return index, valid


def captions(host: HostLayout) -> tuple[Ints, ...]:
    """The (B,) index of the first caption of every image, on the host.

    Raises ValueError when an image has none: contrastive losses have no target for it.
    """
    index, valid = first(host, Role.CAPTION)
    if not valid.all():
        raise ValueError(f"image {np.flatnonzero(~valid)[0]} of the batch has no caption")
    return (index,)


def negatives_by_image(host: HostLayout) -> tuple[Ints, ...]:
    """All negatives of the batch, image by image."""
    index, valid = by_owner(host, Role.NEGATIVE)
    return (index[valid],)


def _negative_rows(host: HostLayout) -> tuple[Ints, ...]:
    negative, valid = by_owner(host, Role.NEGATIVE)
    index = np.concatenate([captions(host)[0][:, None], negative], axis=1)
    counted = valid.any(1, keepdims=True)
    return row_arrays(host, index, np.concatenate([counted, valid], axis=1))


def _rows_with_positives(host: HostLayout) -> tuple[Ints, ...]:
    positive, said = by_owner(host, Role.POSITIVE)
    negative, valid = by_owner(host, Role.NEGATIVE)
    index = np.concatenate([captions(host)[0][:, None], positive, negative], axis=1)
    counted = valid.any(1, keepdims=True)
    nothing = np.zeros_like(counted), np.zeros_like(valid)
    true = np.concatenate([nothing[0], said & counted, nothing[1]], axis=1)
    return *row_arrays(host, index, np.concatenate([counted, said & counted, valid], axis=1)), true


def _with_negative(host: HostLayout) -> tuple[Ints, ...]:
    return (np.unique(host.owner[host.of(Role.NEGATIVE)]),)


def _missing(host: HostLayout, kinds: tuple[str, ...]) -> tuple[Ints, ...]:
    """(B,) how many of these kinds of negative each image lacks, and the image of each of those."""
    present = np.zeros((host.images, len(kinds)), bool)
    for place, kind in enumerate(kinds):
        present[host.owner[host.of(Role.NEGATIVE, kind)], place] = True
    return len(kinds) - present.sum(1), np.nonzero(~present)[0]


def texts_by_owner(layout: Layout, role: Role, kind: str | None = None) -> tuple[Tensor, Tensor]:
    """Per image its texts of one role (and of one kind, if given): see `by_owner`."""
    index, valid = layout.indices(by_owner, role, *(() if kind is None else (kind,)))
    return index, valid


def caption_index(layout: Layout) -> Tensor:
    """(B,) the first caption of every image.

    Raises ValueError when an image has none: contrastive losses have no target for it.
    """
    return layout.indices(captions)[0]


def hard_negative_rows(layout: Layout, positives: bool = False) -> RowIndex:
    """(B, 1+K) rows: the first caption of each image, then its own negatives.

    positives: its positives stand between the two.
    """
    return RowIndex(*layout.indices(_rows_with_positives if positives else _negative_rows))


def hard_negative_mean(layout: Layout, rows: RowSum, reduction: Reduction) -> Tensor:
    """The sum over `hard_negative_rows` of this process over the rows of all that count, or all."""
    (count,) = layout.sizes(_with_negative if reduction == "valid" else captions)
    return rows.total / max(1, int(count.sum()))


def missing_negatives(layout: Layout, kinds: Sequence[str]) -> Tensor:
    """(B,) how many of these kinds of negative each image lacks."""
    return layout.indices(_missing, tuple(kinds))[0]


def phantom_count(layout: Layout, missing_hn: MissingHN, kinds: Sequence[str]) -> Tensor:
    """(B,) logits of 0 that stand for missing negatives: none under "mask".

    Raises ValueError under "zero" when no kinds are named: a kind that is empty for the whole batch
    cannot be seen in the layout.
    """
    if missing_hn == "mask":
        return torch.zeros(layout.images, dtype=torch.int64, device=layout.owner.device)
    _require(kinds)
    return missing_negatives(layout, kinds)


def phantom_total(layout: Layout, kinds: Sequence[str]) -> int:
    """The sum of `phantom_count` under "zero" over the images of all processes."""
    _require(kinds)
    return int(layout.sizes(_missing, tuple(kinds))[1].sum())


def _require(kinds: Sequence[str]) -> None:
    if not kinds:
        raise ValueError('missing_hn="zero" needs the kinds of negative a caption should have')


# --- Which texts of a batch are true of which images, beside the pairs it was made of. ---
#
# A batch may hold the same photo twice, or photos with the same caption. A contrast that treats
# such a pair as wrong teaches the opposite of what the data say.


def every_text(host: HostLayout) -> tuple[Ints, ...]:
    """All texts of the batch."""
    return (np.arange(len(host.owner)),)


def every_image(host: HostLayout) -> tuple[Ints, ...]:
    """All images of the batch."""
    return (np.arange(host.images),)


def true_pairs(
    layout: Layout,
    rows: Callable[[HostLayout], tuple[Ints, ...]] = every_text,
    columns: Callable[[HostLayout], tuple[Ints, ...]] = every_text,
    images: Callable[[HostLayout], tuple[Ints, ...]] = every_image,
) -> tuple[Tensor, Tensor] | None:
    """Which texts equal a CAPTION or POSITIVE of which images, or of the same photo.

    These are what a contrast leaves out where the layout masks duplicates, but for its targets.
    Texts are equal by `text_id`, photos by `image_id`; where the layout has only one of the two,
    the other is taken to be all different. A NEGATIVE that equals a caption of the image is true.

    Args:
        layout: The batch.
        rows: Finds n texts of this process, as first of its arrays.
        columns: The same of N texts, those of all processes.
        images: The same of B images, by default all.

    Returns:
        (B, N) bool, images of this process and texts of all; and (n, B of all processes) bool,
        texts of this process and images of all. None where duplicates are not masked, and where a
        batch of one process has none.
    """
    host = layout.whole
    if not host.mask_duplicates or (host.peers.world == 1 and _all_differ(host)):
        return None
    found = layout.indices(_true_pairs, rows, columns, images, joint=True)
    return tuple(  # type: ignore[return-value]
        true.index_select(0, row).index_select(1, column)
        for true, row, column in (found[:3], found[3:])
    )


def _all_differ(host: HostLayout) -> bool:
    known = [ids for ids in (host.text_id, host.image_id) if ids is not None]
    return bool(known) and all(len(np.unique(ids)) == len(ids) for ids in known)


def _true_pairs(
    host: HostLayout,
    rows: Callable[[HostLayout], tuple[Ints, ...]],
    columns: Callable[[HostLayout], tuple[Ints, ...]],
    images: Callable[[HostLayout], tuple[Ints, ...]],
) -> tuple[Ints, ...]:
    if host.text_id is None and host.image_id is None:
        raise ValueError("masking duplicates needs text_id or image_id in the layout")
    text_keys, photo_keys = host.keys or (host.text_id, host.image_id)
    text = told_apart(host, text_keys, len(host.owner))
    photo = told_apart(host, photo_keys, host.images)
    positive = np.flatnonzero(host.role != int(Role.NEGATIVE))
    of_photo, of_text, column, image = host.peers.collected(
        [
            photo[host.owner[positive]],
            text[positive],
            text[columns(host)[0]],
            photo[images(host)[0]],
        ]
    )
    return (
        *_related(photo[images(host)[0]], of_photo, of_text, column),
        *_related(text[rows(host)[0]], of_text, of_photo, image),
    )


def told_apart(host: HostLayout, keys: Ints | None, count: int) -> Ints:
    """(count,) keys, all different in all processes where they are not known."""
    return np.arange(count) + (host.peers.rank << 40) if keys is None else keys


def _related(rows: Ints, left: Ints, right: Ints, columns: Ints) -> tuple[Ints, Ints, Ints]:
    """Which rows belong to which columns, by pairs of both: a table, and the place in it of every
    row and of every column.

    Only pairs with one of the rows matter, so that what is numbered does not grow with the others.
    """
    numbered, row = np.unique(rows, return_inverse=True)
    place, own = _places(numbered, left)
    place, right = place[own], right[own]
    others = np.unique(right)
    table = np.zeros((len(numbered), len(others) + 1), bool)  # the last for what belongs to none
    table[place, np.searchsorted(others, right)] = True
    column, known = _places(others, columns)
    return table, row.reshape(-1), np.where(known, column, len(others))


def _places(ordered: Ints, values: Ints) -> tuple[Ints, Ints]:
    """The place of every value among different ones in order, and whether it is there."""
    place = np.searchsorted(ordered, values)
    found = place < len(ordered)
    found[found] = ordered[place[found]] == values[found]
    return place, found


# --- Show a loss some of the texts of a batch only. ---


def select_texts(features: Features, keep: Tensor) -> Features:
    """The features with the texts `keep` (n,) int64, in this order."""

    def of(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.index_select(0, keep)

    return replace(
        features,
        text=features.text.index_select(0, keep),
        tokens=of(features.tokens),
        token_mask=of(features.token_mask),
        teacher_text=of(features.teacher_text),
        text_state=of(features.text_state),
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
        keep, part = layout.only(self.kinds)
        return self.loss(select_texts(features, keep), part)

    def state_dict(self) -> dict[str, float]:
        """What the loss remembers; nothing for one without a state."""
        return self.loss.state_dict() if isinstance(self.loss, StatefulLoss) else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Let the loss go on from `state`."""
        if isinstance(self.loss, StatefulLoss):
            self.loss.load_state_dict(state)
