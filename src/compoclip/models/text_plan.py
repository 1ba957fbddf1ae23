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


@dataclass(frozen=True)
class PackedTokens:
    """The real positions of some rows as one list of M, text after text.

    ids, position: (M,) token and its place in its row. place: (M,) where it stands in (rows,
    length) laid out flat. starts: (rows + 1,) index of each row's first position in the list, and
    M. ends: (rows,) of its last. length: of the longest row. segments: the buckets, which attention
    works on where it cannot work on the list.
    """

    ids: Tensor
    position: Tensor
    place: Tensor
    starts: Tensor
    ends: Tensor
    rows: int
    length: int
    segments: tuple[Segment, ...]

    def mapped(self, move: Move) -> PackedTokens:
        """Return the same with every tensor moved."""
        names = ("ids", "position", "place", "starts", "ends")
        moved: Any = {name: move(getattr(self, name)) for name in names}
        segments = tuple(
            s if s.place is None else replace(s, place=move(s.place)) for s in self.segments
        )
        return replace(self, segments=segments, **moved)


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
    """

    causal: bool
    pools_at_end: bool
    end: int | None
    cost: int
    limit: int = 0

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
        packed = tuple(pack(rows, last, buckets) for buckets in groups)
        return TextInputs(packed, last, place, lengths[-1])

    def ends(self, ids: Tensor) -> Tensor:
        """Return where open_clip pools (T, context) ids: (T,) the first end-of-text token."""
        return (ids if self.end is None else (ids == self.end).int()).argmax(dim=-1)


def pack(ids: Tensor, last: Tensor, buckets: Sequence[Bucket]) -> PackedTokens:
    """Pack the rows of adjacent buckets. ids: (R, L) by ascending length. last: (R,)."""
    first, stop, length = buckets[0].start, buckets[-1].stop, buckets[-1].length
    ids, last = ids[first:stop, :length], last[first:stop]
    row, position = (torch.arange(length) <= last[:, None]).nonzero(as_tuple=True)
    ends = (last + 1).cumsum(0)
    segments = []
    start = 0
    for bucket in buckets:
        rows, end = bucket.stop - bucket.start, int(ends[bucket.stop - first - 1])
        place = (row[start:end] - (bucket.start - first)) * bucket.length + position[start:end]
        whole = end - start == rows * bucket.length
        segments.append(Segment(start, end, rows, bucket.length, None if whole else place))
        start = end
    return PackedTokens(
        ids=ids[row, position],
        position=position,
        place=row * length + position,
        starts=F.pad(ends, (1, 0)),
        ends=ends - 1,
        rows=stop - first,
        length=length,
        segments=tuple(segments),
    )
