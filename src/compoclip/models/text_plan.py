"""Which rows of token ids a text tower encodes, in which order, and as which tensors.

Made on the CPU, before any device is asked, and without the tower: workers do it for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Move = Callable[[Tensor], Tensor]
_WORTH_SHARING = 0.9
"""Share of the positions that may remain for it to be worth to copy what attention reads."""


@dataclass(frozen=True)
class Segment:
    """Positions start..stop of a packed batch: the real ones of `rows` texts, one after the other.
    length: of the longest. place: (stop - start,) where each stands in (rows, length) laid out
    flat; None when all texts are that long."""

    start: int
    stop: int
    rows: int
    length: int
    place: Tensor | None


class Bucket(NamedTuple):
    """Rows start..stop of the length-sorted texts, encoded at `length` positions."""

    start: int
    stop: int
    length: int


def choose_buckets(lengths: Sequence[int], cost: int) -> list[Bucket]:
    """Split ascending `lengths` into runs that minimise padded positions + cost * runs.

    Exact dynamic programme over the distinct lengths (at most the context length of them).
    """
    edges = [i for i in range(len(lengths)) if i == 0 or lengths[i] != lengths[i - 1]]
    edges.append(len(lengths))
    best = [(0, 0)]  # (total, number of distinct lengths before the last run)
    for j in range(1, len(edges)):
        longest = lengths[edges[j] - 1]
        best.append(min((best[i][0] + longest * (edges[j] - edges[i]) + cost, i) for i in range(j)))
    buckets: list[Bucket] = []
    j = len(edges) - 1
    while j > 0:
        i = best[j][1]
        buckets.append(Bucket(edges[i], edges[j], lengths[edges[j] - 1]))
        j = i
    return buckets[::-1]


def micro_batches(buckets: Sequence[Bucket], limit: int) -> list[list[Bucket]]:
    """Cut and group buckets so that a group has at most `limit` positions, but at least one row.

    All are in one group for 0.
    """
    if not limit:
        return [list(buckets)]
    groups: list[list[Bucket]] = [[]]
    free = limit
    for start, stop, length in buckets:
        while start < stop:
            if groups[-1] and free < length:
                groups.append([])
                free = limit
            rows = min(stop - start, max(1, free // length))
            groups[-1].append(Bucket(start, start + rows, length))
            free -= rows * length
            start += rows
    return groups


class SharedBeginnings(NamedTuple):
    """Where texts that begin alike have their positions, in a list of M that holds each once.

    of_texts: (P,) for the P real positions of all rows, text after text, the place in the list.
    in_texts: (M,) for each position of the list, one of its places among those P.
    """

    of_texts: Tensor
    in_texts: Tensor


@dataclass(frozen=True)
class PackedTokens:
    """The real positions of some rows, P in all, as one list of M.

    The list has them text after text. With `shared`, positions whose text is the same up to there
    are in it once (M < P).

    ids, position: (M,) token and its place in its row. place: (P,) where it stands in (rows,
    length) laid out flat. starts: (rows + 1,) number of positions before each row, and P. ends:
    (rows,) place of each row's last position in the list. length: of the longest row. segments: the
    buckets of the P positions, which attention works on where it cannot work on a list.
    """

    ids: Tensor
    position: Tensor
    place: Tensor
    starts: Tensor
    ends: Tensor
    rows: int
    length: int
    segments: tuple[Segment, ...]
    shared: SharedBeginnings | None = None

    def mapped(self, move: Move) -> PackedTokens:
        """Return the same with every tensor moved."""
        names = ("ids", "position", "place", "starts", "ends")
        moved: Any = {name: move(getattr(self, name)) for name in names}
        segments = tuple(
            s if s.place is None else replace(s, place=move(s.place)) for s in self.segments
        )
        shared = None if self.shared is None else SharedBeginnings(*map(move, self.shared))
        return replace(self, segments=segments, shared=shared, **moved)


@dataclass(frozen=True)
class WholeTokens:
    """Rows of full length, for a tower that looks ahead. ids: (n, context). ends: (n,) where each
    is pooled."""

    ids: Tensor
    ends: Tensor

    def mapped(self, move: Move) -> WholeTokens:
        """Return the same with every tensor moved."""
        return WholeTokens(move(self.ids), move(self.ends))


@dataclass(frozen=True)
class TextInputs:
    """All that the text tower needs of T texts, of which R are distinct.

    Attributes:
        groups: The micro-batches.
        last: (R,) position of the end-of-text token of each row.
        place: (T,) row of each text.
        longest: Positions of the longest row.
        again: What a further pass is given, if there is one.
    """

    groups: tuple[PackedTokens, ...] | tuple[WholeTokens, ...]
    last: Tensor
    place: Tensor
    longest: int
    again: FurtherTexts | None = None

    @property
    def positions(self) -> int:
        """Token positions that pass through the layers."""
        return sum(group.ids.numel() for group in self.groups)

    def mapped(self, move: Move) -> TextInputs:
        """Return the same with every tensor moved, always in one order."""
        groups: Any = tuple(group.mapped(move) for group in self.groups)
        last, place = move(self.last), move(self.place)
        again = None if self.again is None else self.again.mapped(move)
        return TextInputs(groups, last, place, self.longest, again)


@dataclass(frozen=True)
class FurtherTexts:
    """The texts of a further pass through the tower, and what a method wants to know of them."""

    texts: TextInputs
    tensors: tuple[Tensor, ...]

    def mapped(self, move: Move) -> FurtherTexts:
        """Return the same with every tensor moved."""
        return FurtherTexts(self.texts.mapped(move), tuple(map(move, self.tensors)))


@dataclass(frozen=True)
class TextPlanner:
    """How a text tower wants its texts; knows no weights, so that workers can plan.

    Attributes:
        causal: Whether rows are cut to their own length; else they are encoded whole, as they come.
        pools_at_end: Whether the pooled feature is the state at the end-of-text token.
        end: Id of that token; None is the highest id of a row.
        cost: Padding that one more bucket must save, in token positions.
        limit: Texts of full length that have as many positions as a micro-batch may; 0 is all.
        shares: Whether what texts have in common at their beginning is encoded once, where equal
            rows are.
    """

    causal: bool
    pools_at_end: bool
    end: int | None
    cost: int
    limit: int = 0
    shares: bool = False

    def inputs(self, ids: Tensor, deduplicate: bool = True) -> TextInputs:
        """Plan the encoding of texts and lay out its tensors, on the CPU.

        deduplicate: encode equal rows once, where rows are cut.
        """
        texts, context = ids.shape
        if not self.causal:
            last = self.ends(ids) if self.pools_at_end else torch.full((texts,), context - 1)
            size = self.limit or texts
            whole = tuple(map(WholeTokens, torch.split(ids, size), torch.split(last, size)))
            return TextInputs(whole, last, torch.arange(texts), context)
        rows, place = ids, torch.arange(texts)
        if deduplicate:
            rows, place = torch.unique(ids, dim=0, return_inverse=True)
        last = self.ends(rows)
        order = torch.argsort(last, stable=True)
        rows, last, place = rows[order], last[order], order.argsort()[place]
        lengths = (last + 1).tolist()
        groups = micro_batches(choose_buckets(lengths, self.cost), self.limit * context)
        # `torch.unique` has sorted the rows by their tokens, which `order` still tells.
        alphabet = order if deduplicate and self.shares else None
        packed = tuple(pack(rows, last, buckets, alphabet) for buckets in groups)
        return TextInputs(packed, last, place, lengths[-1])

    def ends(self, ids: Tensor) -> Tensor:
        """Return where open_clip pools (T, context) ids: (T,) the first end-of-text token."""
        return (ids if self.end is None else (ids == self.end).int()).argmax(dim=-1)


def pack(
    ids: Tensor, last: Tensor, buckets: Sequence[Bucket], alphabet: Tensor | None = None
) -> PackedTokens:
    """Pack the rows of adjacent buckets. ids: (R, L) by ascending length. last: (R,). alphabet:
    (R,) the rank of each row in the order of their tokens, to share beginnings."""
    first, stop, length = buckets[0].start, buckets[-1].stop, buckets[-1].length
    ids, last = ids[first:stop, :length], last[first:stop]
    real = torch.arange(length) <= last[:, None]
    row, position = real.nonzero(as_tuple=True)
    ends = (last + 1).cumsum(0)
    segments = []
    start = 0
    for bucket in buckets:
        rows, end = bucket.stop - bucket.start, int(ends[bucket.stop - first - 1])
        place = (row[start:end] - (bucket.start - first)) * bucket.length + position[start:end]
        whole = end - start == rows * bucket.length
        segments.append(Segment(start, end, rows, bucket.length, None if whole else place))
        start = end
    packed = PackedTokens(
        ids=ids[row, position],
        position=position,
        place=row * length + position,
        starts=F.pad(ends, (1, 0)),
        ends=ends - 1,
        rows=stop - first,
        length=length,
        segments=tuple(segments),
    )
    if alphabet is None:
        return packed
    shared = shared_beginnings(ids, real, alphabet[first:stop].argsort())
    if len(shared.in_texts) > _WORTH_SHARING * len(shared.of_texts):
        return packed
    return replace(
        packed,
        ids=packed.ids[shared.in_texts],
        position=position[shared.in_texts],
        ends=shared.of_texts[packed.ends],
        shared=shared,
    )


def shared_beginnings(ids: Tensor, real: Tensor, order: Tensor) -> SharedBeginnings:
    """Find the positions (R, L) of rows whose tokens are the same up to there.

    Compares neighbours in `order`, so that all are found if that is the order of the tokens. real:
    (R, L) bool, the positions of each row, from its first to its last.
    """
    rows, in_order = ids.masked_fill(~real, -1)[order], real[order]
    differs = torch.ones_like(real)
    differs[1:] = (rows[1:] != rows[:-1]).cumsum(1) > 0
    begins = differs & in_order
    # The last row in order that began a beginning is the one that holds it.
    held_by = torch.where(begins, torch.arange(len(ids))[:, None], 0).cummax(0).values
    holder, listed = torch.empty_like(held_by), torch.empty_like(begins)
    holder[order], listed[order] = order[held_by], begins
    number = listed.flatten().cumsum(0).view_as(ids) - 1
    of_texts = number.gather(0, holder)[real]
    return SharedBeginnings(of_texts, listed[real].nonzero()[:, 0])
