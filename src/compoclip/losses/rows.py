"""From one flat ragged list of texts to one row of logits an image: caption first, then negatives.

Indices are computed on the host and asked for through `Layout.indices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Loss, Role, StatefulLoss

MissingHN = Literal["mask", "zero"]
"""Treatment of a negative that a rewrite could not make: no entry, or a logit of 0."""

Reduction = Literal["valid", "batch"]
"""Divide the sum over rows by the number of rows that have a negative, or by all rows."""

Selection = tuple[Any, ...]
"""A function of a `HostLayout`, then its further arguments; the first array that it returns."""


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

    def spread(self, scores: Tensor) -> Tensor:
        """Lay out the (N,) scores of `texts` in (B, 1+K) rows; 0 where not valid."""
        flat = scores.new_zeros(self.valid.numel()).index_copy(0, self.place, scores)
        return flat.view(self.valid.shape)


def row_arrays(host: HostLayout, index: Ints, valid: Ints) -> tuple[Ints, ...]:
    """Return the fields of a `RowIndex` of (B, 1+K) indices into the texts, on the host."""
    texts = index[valid]
    return texts, host.owner[texts], np.flatnonzero(valid), valid


def by_owner(host: HostLayout, role: Role, *kinds: str) -> tuple[NDArray[np.int64], Ints]:
    """Return per image its texts of one role (and of these kinds, if any), in list order.

    (B, K) indices into the texts (0 without one) and a (B, K) mask, with K the largest
    number that any image has.
    """
    position = host.of(role, *kinds)
    position = position[np.argsort(host.owner[position], kind="stable")]
    owner = host.owner[position]
    count = np.bincount(owner, minlength=host.images)
    index = np.zeros((host.images, count.max(initial=0)), np.int64)
    index[owner, np.arange(len(owner)) - (count.cumsum() - count)[owner]] = position
    return index, np.arange(index.shape[1]) < count[:, None]


def first_of(host: HostLayout, role: Role, *kinds: str) -> tuple[Ints, ...]:
    """Return the first text of a role of every image that has one, and these images."""
    index, valid = host.first(role, *kinds)
    return index[valid], np.flatnonzero(valid)


def having(host: HostLayout, role: Role, *kinds: str) -> tuple[Ints, ...]:
    """Return the images that have a text of a role (and of these kinds, if any)."""
    return first_of(host, role, *kinds)[1:]


def captions(host: HostLayout) -> tuple[Ints, ...]:
    """Return the (B,) first caption of every image. Raises ValueError when an image has none."""
    index, valid = host.first(Role.CAPTION)
    if not valid.all():
        raise ValueError(f"image {np.flatnonzero(~valid)[0]} of the batch has no caption")
    return (index,)


def with_captions(host: HostLayout, role: Role, *kinds: str) -> tuple[Ints, ...]:
    """Return the caption and the first text of a role of every image that has such a text."""
    text, image = first_of(host, role, *kinds)
    return captions(host)[0][image], text


def caption_pairs(
    f: Features, layout: Layout, role: Role, *kinds: str
) -> tuple[Tensor, Tensor, int]:
    """Return the features of the texts of `with_captions`, and their number in all processes."""
    caption, other = (
        f.text.index_select(0, index) for index in layout.indices(with_captions, role, *kinds)
    )
    return caption, other, layout.total(with_captions, role, *kinds)


def negatives_by_image(host: HostLayout) -> tuple[Ints, ...]:
    """Return all negatives of the batch, image by image."""
    index, valid = by_owner(host, Role.NEGATIVE)
    return (index[valid],)


def every_text(host: HostLayout) -> tuple[Ints, ...]:
    """Return all texts of the batch."""
    return (np.arange(len(host.owner)),)


def every_image(host: HostLayout) -> tuple[Ints, ...]:
    """Return all images of the batch."""
    return (np.arange(host.images),)


def missing(host: HostLayout, kinds: tuple[str, ...]) -> tuple[Ints, ...]:
    """Return (B,) how many of these kinds of negative each image lacks, and the image of each.

    Raises ValueError without kinds: one that the whole batch lacks cannot be seen in the layout.
    """
    if not kinds:
        raise ValueError(
            'missing_hn="zero" needs to know which kinds of negatives a caption should have'
        )
    present = np.zeros((host.images, len(kinds)), bool)
    for place, kind in enumerate(kinds):
        present[host.owner[host.of(Role.NEGATIVE, kind)], place] = True
    return len(kinds) - present.sum(1), np.nonzero(~present)[0]


def hard_negatives(host: HostLayout, positives: bool = False) -> tuple[Ints, ...]:
    """Return the `RowIndex` of the first caption of each image and its negatives.

    positives: its positives stand between the two.
    """
    negative, valid = by_owner(host, Role.NEGATIVE)
    counted = valid.any(1, keepdims=True)
    index, places = [captions(host)[0][:, None]], [counted]
    if positives:
        positive, exists = by_owner(host, Role.POSITIVE)
        index, places = [*index, positive], [*places, exists & counted]
    rows = np.concatenate([*index, negative], axis=1), np.concatenate([*places, valid], axis=1)
    if not positives:
        return row_arrays(host, *rows)
    true = [np.zeros_like(counted), places[1], np.zeros_like(valid)]
    return *row_arrays(host, *rows), np.concatenate(true, axis=1)


# --- Which texts of a batch are true of which images, besides the pairs it was made of. ---
#
# A batch may hold the same photo twice, or photos with the same caption. A contrast that treats
# such a pair as wrong teaches the opposite of what the data say.


def true_pairs(
    layout: Layout,
    rows: Selection = (every_text,),
    columns: Selection = (every_text,),
    images: Selection = (every_image,),
) -> tuple[Tensor, Tensor] | None:
    """Return which texts equal a CAPTION or POSITIVE of which images, or of the same photo.

    A contrast leaves these pairs out where the layout masks duplicates, but for its targets. Texts
    are equal by `text_id`, photos by `image_id`; without one of the two, all are taken to differ in
    it. A NEGATIVE that equals a caption of the image is true.

    Args:
        layout: The batch.
        rows: Selects n texts of this process.
        columns: Selects N texts, over all processes.
        images: Selects B images, over all processes.

    Returns:
        (B, N) bool, images of this process and texts of all; and (n, B of all processes) bool,
        texts of this process and images of all. None where duplicates are not masked, and where a
        batch of one process has none.
    """
    host = layout.whole
    if not host.mask_duplicates:
        return None
    id_arrays = [ids for ids in (host.text_id, host.image_id) if ids is not None]
    differ = id_arrays and all(len(np.unique(ids)) == len(ids) for ids in id_arrays)
    if host.peers.world == 1 and differ:
        return None
    indices = layout.indices(_true_pairs, rows, columns, images, joint=True)
    return tuple(  # type: ignore[return-value]
        true.index_select(0, row).index_select(1, column)
        for true, row, column in (indices[:3], indices[3:])
    )


def _true_pairs(
    host: HostLayout, rows: Selection, columns: Selection, images: Selection
) -> tuple[Ints, ...]:
    if host.text_id is None and host.image_id is None:
        raise ValueError("masking duplicates needs text_id or image_id in the layout")
    text_keys, photo_keys = host.keys or (host.text_id, host.image_id)
    text = told_apart(host, text_keys, len(host.owner))
    photo = told_apart(host, photo_keys, host.images)
    positive = np.flatnonzero(host.role != int(Role.NEGATIVE))
    row, own_column = (text[make(host, *rest)[0]] for make, *rest in (rows, columns))
    own_image = photo[images[0](host, *images[1:])[0]]
    of_photo, of_text, column, image = host.peers.collected(
        [photo[host.owner[positive]], text[positive], own_column, own_image]
    )
    return (
        *_related(own_image, of_photo, of_text, column),
        *_related(row, of_text, of_photo, image),
    )


def told_apart(host: HostLayout, keys: Ints | None, count: int) -> Ints:
    """Return (count,) keys, all different in all processes where they are not known."""
    return np.arange(count) + (host.peers.rank << 40) if keys is None else keys


def _related(rows: Ints, left: Ints, right: Ints, columns: Ints) -> tuple[Ints, Ints, Ints]:
    """Return a table of which rows belong to which columns, by pairs of both, and the place in it
    of every row and column. Only pairs with one of the rows are numbered."""
    numbered, row = np.unique(rows, return_inverse=True)
    place, present = _places(numbered, left)
    place, right = place[present], right[present]
    others = np.unique(right)
    table = np.zeros((len(numbered), len(others) + 1), bool)  # the last for what belongs to none
    table[place, np.searchsorted(others, right)] = True
    column, matched = _places(others, columns)
    return table, row.reshape(-1), np.where(matched, column, len(others))


def _places(ordered: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return the place of every value among different ones in order, and whether it is there."""
    place = np.searchsorted(ordered, values)
    present = place < len(ordered)
    present[present] = ordered[place[present]] == values[present]
    return place, present


# --- Show a loss some of the texts of a batch only. ---


def select_texts(features: Features, keep: Tensor) -> Features:
    """Return the features with the texts `keep` (n,) int64, in this order."""
    names = ("text", "tokens", "token_mask", "teacher_text", "text_state")
    texts = {name: getattr(features, name) for name in names}
    return replace(
        features, **{name: x.index_select(0, keep) for name, x in texts.items() if x is not None}
    )


@dataclass(frozen=True)
class OnlyKinds:
    """Restrict a loss, which may be a `StatefulLoss`, to captions and texts of the given kinds."""

    loss: Loss
    kinds: tuple[str, ...]

    def __call__(self, features: Features, layout: Layout) -> Tensor:
        """Compute `loss` on the texts that remain."""
        keep, part = layout.only(self.kinds)
        return self.loss(select_texts(features, keep), part)

    def state_dict(self) -> dict[str, float]:
        """Return the state of the loss; empty for one without."""
        return self.loss.state_dict() if isinstance(self.loss, StatefulLoss) else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Let the loss resume from `state`."""
        if isinstance(self.loss, StatefulLoss):
            self.loss.load_state_dict(state)
