"""Exact nearest neighbours of every row among all rows, in bounded memory."""

from __future__ import annotations

import torch
from torch import Tensor

_QUERIES = 1024
_BLOCK = 32_768


def nearest(features: Tensor, photo: Tensor, count: int) -> Tensor:
    """(N, count) int64: for each row the rows of highest inner product, highest first.

    features: (N, D) float32. photo: (N,) int64; rows with the same number are the same photo and
    not neighbours of each other; -1 takes a row out altogether. -1 stands where there are no more.
    """
    total = len(features)
    found = torch.full((total, count), -1, dtype=torch.int64)
    for start in range(0, total, _QUERIES):
        rows = slice(start, min(start + _QUERIES, total))
        best = features.new_full((rows.stop - rows.start, count), -torch.inf)
        index = found[rows].clone()
        for first in range(0, total, _BLOCK):
            columns = slice(first, min(first + _BLOCK, total))
            scores = features[rows] @ features[columns].T
            other = photo[columns]
            scores.masked_fill_((other == photo[rows, None]) | (other == -1), -torch.inf)
            top = scores.topk(min(count, scores.shape[1]), dim=1)
            best, order = torch.cat([best, top.values], dim=1).topk(count, dim=1)
            index = torch.cat([index, top.indices + first], dim=1).gather(1, order)
        index[best == -torch.inf] = -1
        index[photo[rows] == -1] = -1
        found[rows] = index
    return found
