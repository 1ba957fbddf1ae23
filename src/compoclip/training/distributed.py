"""Training on several ranks: each loads and encodes its part of every batch and computes its rows
of the losses.

The result equals one process with the global batch, for any number of ranks (see "The algebra"
below).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compoclip.data.batch import Batch
from compoclip.data.loader import BatchLoader
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import ALONE, Features, IndexRequest, Ints, Peers
from compoclip.ranks import Ranks, failure, raise_first
from compoclip.training.gradients import learning_batch_norms

# --- What ranks give each other for their losses. ---
#
# The algebra. W ranks have equal parameters theta. Rank r encodes its part of a batch, f_r, and
# computes its rows of the loss, L_r, where own rows meet the columns of all ranks; the loss of the
# batch is L = sum_r L_r. What one process with the global batch would have is
#
#     dL/dtheta = sum_r (dL/df_r) (df_r/dtheta),   dL/df_r = sum_q dL_q/df_r.
#
# Backward starts from W * L_r, and gathering hands to each rank the sum of what all ranks have for
# its rows. So the backward pass of rank r gives g_r = W (dL/df_r) (df_r/dtheta), and the *mean* of
# g_r over the ranks is dL/dtheta. The logit scale enters L_r directly: rank r has W dL_r/ds, whose
# mean is dL/ds. So one rule serves every parameter: take the mean of the gradients
# (`GradientMean`), which is also what FSDP does.


class _Gather(torch.autograd.Function):
    """`Ranks.all_gather` through which the sum of all ranks' gradients of its rows flows back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], ranks: Ranks) -> Tensor:
        ctx.counts, ctx.ranks = counts, ranks
        return ranks.all_gather(rows, counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.ranks.reduce_scatter(gradient, ctx.counts), None, None


class RankPeers(Peers):
    """The ranks of a run, as losses see them at one batch.

    Args:
        lengths: For requests that have been exchanged with the batch, their lengths on all ranks.
        requested: Collects the others, with the number of their arrays. All ranks compute the same
            losses, so they collect the same in the same order.
    """

    def __init__(
        self,
        ranks: Ranks,
        lengths: dict[IndexRequest, NDArray[np.int64]] | None = None,
        requested: dict[IndexRequest, int] | None = None,
    ) -> None:
        self.rank, self.world, self._ranks = ranks.rank, ranks.world, ranks
        self._lengths = {} if lengths is None else lengths
        self._requested = {} if requested is None else requested

    def sizes(self, request: IndexRequest, local: Sequence[int]) -> NDArray[np.int64]:
        """Return the lengths; ask the other ranks if they have not come with the batch."""
        self.calls += 1
        if request not in self._lengths:
            self._lengths[request] = _table(local, self._ranks).T
            self._requested[request] = len(local)
        return self._lengths[request]

    def gathered(self, rows: Tensor, sizes: Ints) -> Tensor:
        """Return the rows of all ranks; gradients flow back, summed over the ranks."""
        gathered: Tensor = _Gather.apply(rows, sizes.tolist(), self._ranks)
        return gathered

    def summed(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, without gradient."""
        total = values.detach().clone()
        self._ranks.all_reduce(total)
        return total

    def collected(self, arrays: Sequence[Ints]) -> list[Ints]:
        """Return the arrays of all ranks."""
        lengths = _table([len(array) for array in arrays], self._ranks)
        local = torch.from_numpy(np.concatenate(arrays).astype(np.int64))
        whole = self._ranks.all_gather(local, lengths.sum(1).tolist()).numpy()
        parts = np.split(whole, lengths.ravel().cumsum()[:-1])
        return [np.concatenate(parts[i :: len(arrays)]) for i in range(len(arrays))]


def _table(local: Sequence[int], ranks: Ranks) -> NDArray[np.int64]:
    """(world, n) integers of all ranks, n of each."""
    row = torch.tensor([list(local)], dtype=torch.int64)
    table: NDArray[np.int64] = ranks.all_gather(row, [1 for _ in range(ranks.world)]).numpy()
    return table


# --- Batches: this rank's part, and what is to be known of the others'. ---


@dataclass(frozen=True)
class GlobalBatch:
    """The global batch, of the parts of all ranks, and how many of each it holds.

    skipped: samples left out. truncated: texts cut by the tokenizer. peers: the ranks that share
    it. stop_signal: the signal that any rank received before the batch, 0 for none.
    """

    images: int = 0
    texts: int = 0
    peers: Peers = field(default=ALONE)
    skipped: int = 0
    truncated: int = 0
    stop_signal: int = 0


def without_rows(features: Features) -> Features:
    """The features of no image and no text, with a gradient of zero.

    For a part without images: towers need something to encode, which must not count.
    """
    values = ((field.name, getattr(features, field.name)) for field in fields(features))
    cut = {k: value[:0] for k, value in values if value is not None and value.ndim}
    return replace(features, **cut)


# What every rank tells of its part, in this order; then the lengths of what losses ask for. "words"
# says that there is something to read: an error, or the names of unreadable images.
_ADDED = ("images", "texts", "skipped", "truncated")
_EXCHANGED = ("words", "end", "drawn", *_ADDED, "stop_signal")


def shared_batches(
    loader: BatchLoader, ranks: Ranks, stop_signal: Callable[[], int], start: int, stop: int
) -> Iterator[tuple[Batch, GlobalBatch]]:
    """This rank's part of each batch, and the global batch; see `BatchLoader.steps`.

    Unreadable images are counted over all ranks. stop_signal: the one that asked this rank to stop,
    or 0. Raises CompoclipError, on all ranks at the same batch, for what the data of any rank
    raise, and when no rank has an image for a batch.
    """
    batches, reported = loader.steps(start, stop), set(loader.bad)
    requested: dict[IndexRequest, int] = {}  # what losses ask for, and the number of its arrays
    while True:
        error: CompoclipError | None = None
        batch: Batch | None = None
        try:
            batch = next(batches, None)
        except CompoclipError as caught:
            error = caught
        # One exchange of a few integers says everything: how large the parts are, who was asked to
        # stop, who failed. So all ranks decide alike, and none waits for another that has left.
        # Texts stay where they are.
        bad = {k: v for k, v in loader.bad.items() if k not in reported}
        local: dict[str, int] = {"words": bool(error or bad), "end": batch is None}
        lengths = [0 for _ in range(sum(requested.values()))]
        if batch is not None:
            numbers = batch.numbers
            local |= {"drawn": len(batch.ids), "images": batch.images, "texts": len(batch.texts)}
            local |= {"skipped": len(batch.skipped), "stop_signal": stop_signal()}
            local["truncated"] = numbers.truncated if numbers else 0
            lengths = [n for request in requested.items() for n in _lengths(batch, *request)]
        table = _table([*(local.get(name, 0) for name in _EXCHANGED), *lengths], ranks).T
        of_ranks = dict(zip(_EXCHANGED, table))
        if of_ranks["words"].any():
            records = ranks.exchange({"failure": failure(error), "bad": bad})
            raise_first([record["failure"] for record in records], error)
            for record in records:
                loader.report_bad(record["bad"])
        if batch is None:
            return
        if not of_ranks["drawn"].any():
            first = next(iter(loader.bad.values()), "none was found")
            raise CompoclipError(f"no image of a batch could be read ({first}); fix the data")
        peers = ALONE
        if ranks.world > 1:
            parts = np.split(table[len(_EXCHANGED) :], np.cumsum(list(requested.values()))[:-1])
            peers = RankPeers(ranks, dict(zip(requested, parts)), requested)
        total = {name: int(of_ranks[name].sum()) for name in _ADDED}
        signal = int(of_ranks["stop_signal"].max())
        yield batch, GlobalBatch(peers=peers, stop_signal=signal, **total)
        reported = set(loader.bad)


def _lengths(batch: Batch, request: IndexRequest, count: int) -> list[int]:
    """The lengths of a rank's `count` arrays; zeros where the batch has no answer, nor is asked."""
    assert batch.numbers is not None
    try:
        return batch.numbers.lengths(request)
    except ValueError:
        return [0 for _ in range(count)]


def sync_batch_norm(network: nn.Module, device: torch.device, ranks: Ranks) -> None:
    """Let batch norms that learn take their statistics over the global batch.

    Raises UsageError on a CPU, for which torch has no such layer.
    """
    learning = learning_batch_norms(network)
    if ranks.world == 1 or not learning:
        return
    if device.type != "cuda":
        raise UsageError(
            f"{learning[0]} is a batch norm that learns, and on CPUs several processes cannot "
            "share its statistics: freeze that tower, train on GPUs, or train in one process"
        )
    from timm.layers.norm_act import convert_sync_batchnorm as convert  # keeps timm's activation

    convert(network)  # type: ignore[no-untyped-call]
