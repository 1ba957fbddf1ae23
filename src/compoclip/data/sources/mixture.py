"""Mixtures of data sets with sampling weights: `a.jsonl=0.7 b.tsv=0.3`.

**An epoch** of a mixture has as many samples as all its data sets together, and each data set has
its weight's share of them. If the share exceeds the data set, its samples are shown more than once
per epoch; if it is smaller, the next epoch continues where this one stopped. Over many epochs every
sample of a data set is shown equally often. Each data set has its own permutations. The
data sets take random turns.

The order is a function of (seed, epoch), for any number of workers and after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from compoclip.errors import UsageError
from compoclip.rewrites.base import rng_for


@dataclass(frozen=True)
class WeightedMix:
    """Samples the epochs of several concatenated data sets, by their sizes and weights.

    Weights may have any sum. quotas: samples of each data set in an epoch.
    """

    sizes: Mapping[str, int]
    weights: Mapping[str, float]
    quotas: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        total, whole = sum(self.sizes.values()), math.fsum(self.weights.values())
        exact = {name: total * weight / whole for name, weight in self.weights.items()}
        quotas = {name: math.floor(share) for name, share in exact.items()}
        left = total - sum(quotas.values())
        for name in sorted(exact, key=lambda dataset: quotas[dataset] - exact[dataset])[:left]:
            quotas[name] += 1
        for name, quota in quotas.items():
            if not quota:
                raise UsageError(
                    f"{name}: a weight of {self.weights[name]:g} is less than one sample in an "
                    f"epoch of {total}; raise it, or leave the data set out"
                )
        object.__setattr__(self, "quotas", quotas)

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the samples of an epoch in order.

        A sample that is shown for the k-th time in an epoch is its index + (k - 1) * total.
        """
        sizes, total = list(self.sizes.values()), sum(self.sizes.values())
        turns = _turns(tuple(self.quotas.values()), seed, epoch)
        order = np.empty(total, np.int64)
        first = 0
        for number, (size, quota) in enumerate(zip(sizes, self.quotas.values())):
            begin, end = epoch * quota, (epoch + 1) * quota
            passes = range(begin // size, -(-end // size))
            stream = np.concatenate(
                [
                    first + permutation(seed, f"mixture\x1f{number}", k, size) + repeat * total
                    for repeat, k in enumerate(passes)
                ]
            )
            offset = passes.start * size
            order[turns == number] = stream[begin - offset : end - offset]
            first += size
        return order

    def samples_by_source(self, seed: int, epoch: int, samples: int) -> dict[str, int]:
        """Return the number of samples of each data set among the first samples of an epoch."""
        counts = np.bincount(
            _turns(tuple(self.quotas.values()), seed, epoch)[:samples], minlength=len(self.sizes)
        )
        return dict(zip(self.sizes, counts.tolist()))

    def of(self, indices: NDArray[np.int64]) -> WeightedMix:
        """Return the mixture of the samples `indices` (ascending indices)."""
        ends = np.cumsum(list(self.sizes.values()))
        places = np.searchsorted(indices, ends)
        sizes = np.diff(places, prepend=0).tolist()
        return WeightedMix(dict(zip(self.sizes, sizes)), self.weights)


@lru_cache(4)
def _turns(quotas: tuple[int, ...], seed: int, epoch: int) -> NDArray[np.int64]:
    """The number of the data set of each sample of an epoch."""
    turns = np.repeat(np.arange(len(quotas)), quotas)
    return turns[permutation(seed, "mixture", epoch, len(turns))]


def permutation(seed: int, key: str, number: int, size: int) -> NDArray[np.int64]:
    """Return a permutation of `size` numbers, by seed, key and number alone."""
    bits = rng_for(seed, key, number, "order").getrandbits(64)
    return np.random.Generator(np.random.PCG64(bits)).permutation(size)
