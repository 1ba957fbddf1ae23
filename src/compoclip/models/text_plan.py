"""Which rows of token ids a text tower encodes, in which order, and as which tensors.

Made on the CPU, before any device is asked, and without the tower: workers do it for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """Positions start..stop of a packed batch: the real ones of `rows` texts, one after the other.

    length: of the longest of these. place: (stop - start,) where each stands in (rows, length) laid
    out flat; None when all texts are that long.
    """

    start: int
    stop: int
    rows: int
    length: int
    place: Tensor | None


@dataclass(frozen=True)
class Bucket:
    """Rows start..stop of the length-sorted texts, encoded at `length` positions."""

    start: int
    stop: int
    length: int


def choose_buckets(lengths: Sequence[int], cost: int) -> list[Bucket]:
    """Split ascending `lengths` into runs that minimise padded positions + cost * runs.

    Exact dynamic programme over the distinct lengths (at most the context length of them).
    """
    ends = [
        i for i in range(1, len(lengths) + 1) if i == len(lengths) or lengths[i] != lengths[i - 1]
    ]
    best: list[tuple[int, int]] = [
        (0, 0)
    ]  # (total, number of distinct lengths before the last run)
    starts = [0, *ends]
    for j in range(1, len(starts)):
        longest = lengths[starts[j] - 1]
        best.append(
            min((best[i][0] + longest * (starts[j] - starts[i]) + cost, i) for i in range(j))
        )
    buckets: list[Bucket] = []
    j = len(ends)
    while j > 0:
        i = best[j][1]
        buckets.append(Bucket(starts[i], starts[j], lengths[starts[j] - 1]))
        j = i
    return buckets[::-1]


@dataclass(frozen=True)
class EncodingPlan:
    """Which rows are encoded and how they go back; made on the CPU, before any device is asked.

    ids: (R, L) rows by ascending length, cut to the longest bucket. last: (R,) position of the
    end-of-text token. place: (T,) row of each text. buckets: runs of rows. packed: whether all but
    attention runs on real positions only, and attention alone on the buckets.
    """

    ids: Tensor
    last: Tensor
    place: Tensor
    buckets: tuple[Bucket, ...]
    packed: bool = False

    @property
    def positions(self) -> int:
        """Token positions that pass through the layers: with padding inside buckets, or packed."""
        if self.packed:
            return int((self.last + 1).sum())
        return sum((b.stop - b.start) * b.length for b in self.buckets)

    def micro_batches(self, limit: int) -> tuple[tuple[Bucket, ...], ...]:
        """The buckets, cut and grouped so that a group has at most `limit` positions (but at least
        one row); all in one group for 0."""
        if not limit:
            return (self.buckets,)
        groups: list[list[Bucket]] = [[]]
        free = limit
        for bucket in self.buckets:
            start = bucket.start
            while start < bucket.stop:
                if groups[-1] and free < bucket.length:
                    groups.append([])
                    free = limit
                rows = min(bucket.stop - start, max(1, free // bucket.length))
                groups[-1].append(Bucket(start, start + rows, bucket.length))
                free -= rows * bucket.length
                start += rows
        return tuple(map(tuple, groups))


def plan_texts(
    ids: Tensor, last: Tensor, bucket_cost: int, deduplicate: bool = True
) -> EncodingPlan:
    """Distinct rows of (T, context) CPU ids, sorted by length, in buckets.

    last: (T,) position of each row's end-of-text token.
    """
    if deduplicate:
        rows, inverse = torch.unique(ids, dim=0, return_inverse=True)
        ends = torch.empty(len(rows), dtype=last.dtype).scatter_(0, inverse, last)
    else:
        rows, inverse, ends = ids, torch.arange(len(ids)), last
    order = torch.argsort(ends, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    ends = ends[order]
    lengths = (ends + 1).tolist()
    buckets = tuple(choose_buckets(lengths, bucket_cost))
    return EncodingPlan(rows[order, : lengths[-1]], ends, rank[inverse], buckets)


@dataclass(frozen=True)
class PackedTokens:
    """The real positions of some rows of a plan as one list of M, text after text.

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

    def mapped(self, move: Callable[[Tensor], Tensor]) -> PackedTokens:
        """The same with every tensor moved."""
        segments = (
            s if s.place is None else replace(s, place=move(s.place)) for s in self.segments
        )
        return replace(
            self,
            ids=move(self.ids),
            position=move(self.position),
            place=move(self.place),
            starts=move(self.starts),
            ends=move(self.ends),
            segments=tuple(segments),
        )


@dataclass(frozen=True)
class PaddedTokens:
    """Some rows of a plan, in runs of similar length. ids: (n, L). last: (n,)."""

    ids: Tensor
    last: Tensor
    buckets: tuple[Bucket, ...]

    def mapped(self, move: Callable[[Tensor], Tensor]) -> PaddedTokens:
        """The same with every tensor moved."""
        return replace(self, ids=move(self.ids), last=move(self.last))


@dataclass(frozen=True)
class TextInputs:
    """All that the text tower needs of T texts, of which R are distinct.

    Attributes:
        groups: The micro-batches.
        packed: Whether these are packed, or padded.
        last: (R,) position of the end-of-text token of each row.
        place: (T,) row of each text.
        longest: Positions of the longest row.
        again: What a further pass is given, if there is one.
    """

    groups: tuple[PackedTokens, ...] | tuple[PaddedTokens, ...]
    packed: bool
    last: Tensor
    place: Tensor
    longest: int
    again: FurtherTexts | None = None

    def mapped(self, move: Callable[[Tensor], Tensor]) -> TextInputs:
        """The same with every tensor moved, always in one order.

        Args:
            move: What becomes of a tensor.

        Returns:
            The moved inputs.
        """
        groups: Any = tuple(group.mapped(move) for group in self.groups)
        last, place = move(self.last), move(self.place)
        again = None if self.again is None else self.again.mapped(move)
        return replace(self, groups=groups, last=last, place=place, again=again)


@dataclass(frozen=True)
class FurtherTexts:
    """The texts of a further pass through the tower, and what a method wants to know of them."""

    texts: TextInputs
    tensors: tuple[Tensor, ...]

    def mapped(self, move: Callable[[Tensor], Tensor]) -> FurtherTexts:
        """Return the same with every tensor moved."""
        return FurtherTexts(self.texts.mapped(move), tuple(map(move, self.tensors)))


@dataclass(frozen=True)
class TextPlanner:
    """How a text tower wants its texts; knows no weights, so that workers can plan.

    Attributes:
        causal: Whether rows are cut to their own length.
        packs: Whether all but attention runs on real positions only.
        pools_at_end: Whether the pooled feature is the state at the end-of-text token.
        end: Id of that token; None is the highest id of a row.
        cost: Padding that one more bucket must save, in token positions.
        limit: Texts of full length that have as many positions as a micro-batch may; 0 is all.
    """

    causal: bool
    packs: bool
    pools_at_end: bool
    end: int | None
    cost: int
    limit: int = 0

    def plan(self, ids: Tensor, deduplicate: bool = True) -> EncodingPlan:
        """Plan the encoding of texts: rows of a causal tower cut to their length, all others whole,
        as they come.

        Args:
            ids: (T, context) token ids on the CPU.
            deduplicate: Encode equal rows once.

        Returns:
            The plan.
        """
        if self.causal:
            plan = plan_texts(ids, self.ends(ids), self.cost, deduplicate)
            return replace(plan, packed=self.packs)
        full = torch.full((len(ids),), ids.shape[1] - 1)
        last = self.ends(ids) if self.pools_at_end else full
        return EncodingPlan(ids, last, torch.arange(len(ids)), (Bucket(0, *ids.shape),))

    def inputs(self, ids: Tensor, deduplicate: bool = True) -> TextInputs:
        """Plan the encoding of texts and lay out its tensors, on the CPU.

        Args:
            ids: (T, context) int64 token ids on the CPU.
            deduplicate: Encode equal rows once.

        Returns:
            What the tower is given.
        """
        plan = self.plan(ids, deduplicate)
        groups: Any = tuple(
            pack(plan, buckets) if plan.packed else _padded(plan, buckets)
            for buckets in plan.micro_batches(self.limit * ids.shape[1])
        )
        longest = int(plan.last.max()) + 1 if self.causal else ids.shape[1]
        return TextInputs(groups, plan.packed, plan.last, plan.place, longest)

    def ends(self, ids: Tensor) -> Tensor:
        """Where open_clip pools: the position of the (first) end-of-text token of each row.

        Args:
            ids: (T, context) token ids.

        Returns:
            (T,) positions.
        """
        return (ids if self.end is None else (ids == self.end).int()).argmax(dim=-1)


def _padded(plan: EncodingPlan, buckets: tuple[Bucket, ...]) -> PaddedTokens:
    """The rows of adjacent buckets of a plan, as they are."""
    rows = slice(buckets[0].start, buckets[-1].stop)
    return PaddedTokens(plan.ids[rows], plan.last[rows], buckets)


def pack(plan: EncodingPlan, buckets: Sequence[Bucket]) -> PackedTokens:
    """The rows of adjacent buckets of a plan, packed, on the CPU."""
    first, stop, length = buckets[0].start, buckets[-1].stop, buckets[-1].length
    ids, last = plan.ids[first:stop, :length], plan.last[first:stop]
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
