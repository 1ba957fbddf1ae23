"""Which texts are encoded, in what order, how they are grouped, and where the results go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from compoclip.models.text_layers import Segment


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
class TextPlan:
    """What is encoded and how it goes back: on the CPU, made before any device is asked.

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

    def pieces(self, limit: int) -> tuple[tuple[Bucket, ...], ...]:
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


def plan_texts(ids: Tensor, last: Tensor, bucket_cost: int, deduplicate: bool = True) -> TextPlan:
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
    return TextPlan(rows[order, : lengths[-1]], ends, rank[inverse], buckets)


@dataclass(frozen=True)
class Packed:
    """The real positions of some rows of a plan as one list of M, text after text.

    ids, row, position: (M,) token, row (from 0) and place in it of each. ends: (rows,) index of
    each row's last position in the list. length: of the longest row. segments: the buckets, which
    attention works on.
    """

    ids: Tensor
    row: Tensor
    position: Tensor
    ends: Tensor
    rows: int
    length: int
    segments: tuple[Segment, ...]

    def to(self, device: torch.device) -> Packed:
        """The same on a device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        segments = (
            s if s.place is None else replace(s, place=moved(s.place)) for s in self.segments
        )
        return replace(
            self,
            ids=moved(self.ids),
            row=moved(self.row),
            position=moved(self.position),
            ends=moved(self.ends),
            segments=tuple(segments),
        )


def pack(plan: TextPlan, buckets: Sequence[Bucket]) -> Packed:
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
    return Packed(
        ids[row, position], row, position, ends - 1, stop - first, length, tuple(segments)
    )
