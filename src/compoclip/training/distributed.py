"""Training on several ranks: each makes and encodes its part of every batch.

What is computed is what one process with the global batch computes (see "The algebra" below): the
losses see the features and the layout of the global batch, in its order, whatever the number of
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compoclip.data.batch import Batch, Merged, TextBlock, from_record, merge, to_record
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import PlanCounts
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Features, Layout
from compoclip.ranks import SINGLE, Ranks, failure, raise_first

# --- Features of all ranks put together with their gradients. ---
#
# The algebra. W ranks have equal parameters theta. Rank r encodes its part of a batch, f_r; all
# ranks gather f = (f_0 .. f_{W-1}), in the order of the global batch, and compute the same loss
# L(f, s) with s the logit scale. What one process with the global batch would have is
#
#     dL/dtheta = sum_r (dL/df_r) (df_r/dtheta).
#
# Each rank knows dL/df completely. Gathering hands W * dL/df_r back to the part of rank r, so its
# backward pass gives g_r = W (dL/df_r) (df_r/dtheta), and the *mean* of g_r over the ranks is
# dL/dtheta. The logit scale enters L directly: its gradient dL/ds is the same on all ranks, and so
# is the mean. So one rule serves every parameter: take the mean of the gradients
# (`average_gradients`), which is also what FSDP does. Nothing is communicated in the backward pass
# of the gathering.

_BUCKET_BYTES = 32 << 20


def gather_features(features: Features, ranks: Ranks, merged: Merged) -> Features:
    """Gather the features of the global batch from those of every rank, with gradients.

    Exact, and heavy where there are local features (patches of all images).

    Args:
        features: Those of this rank's part; parts may be of any size, zero too.
        ranks: The processes that train together.
        merged: How the parts make the whole.

    Returns:
        The features of the global batch, tokens padded to the longest text as in one process.
        Gradients go back to the parts, times W (see the algebra above).
    """
    if ranks.world == 1:
        return features
    of_images = [images for images, _ in merged.sizes]
    of_texts = [texts for _, texts in merged.sizes]
    image_order = torch.tensor(merged.images, device=features.image.device)
    text_order = torch.tensor(merged.texts, device=features.image.device)
    gathered = replace(
        features,
        image=gather_rows(features.image, of_images, ranks)[image_order],
        text=gather_rows(features.text, of_texts, ranks)[text_order],
    )
    if features.patches is not None:
        patches = gather_rows(features.patches, of_images, ranks)[image_order]
        gathered = replace(gathered, patches=patches)
    if features.tokens is not None and features.token_mask is not None:
        length = features.tokens.shape[1]
        more = max(ranks.exchange(length)) - length
        mask = F.pad(features.token_mask, (0, more)).to(torch.uint8)
        tokens = F.pad(features.tokens, (0, 0, 0, more))
        gathered = replace(
            gathered,
            tokens=gather_rows(tokens, of_texts, ranks)[text_order],
            token_mask=ranks.all_gather(mask, of_texts)[text_order].bool(),
        )
    return gathered


def gather_rows(rows: Tensor, counts: Sequence[int], ranks: Ranks) -> Tensor:
    """`Ranks.all_gather` through which W times the gradient of its own rows flows back."""
    gathered: Tensor = _Gather.apply(rows, counts, ranks)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], ranks: Ranks) -> Tensor:
        ctx.world = ranks.world
        ctx.start = sum(counts[: ranks.rank])
        ctx.stop = ctx.start + counts[ranks.rank]
        return ranks.all_gather(rows, counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.world * gradient[ctx.start : ctx.stop], None, None


def average_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Replace every gradient by its mean over the ranks, in buckets of 32 MB.

    Args:
        parameters: In the same order on all ranks. One without a gradient on some ranks counts as
            zero there; without one anywhere it keeps none. Those that FSDP has split (DTensors)
            are left alone: their means are taken already.
        ranks: The processes that train together.

    Raises:
        PeerLostError: When a rank is gone.
    """
    if ranks.world == 1:
        return
    from torch.distributed.tensor import DTensor  # slow to import, and not needed alone

    # All ranks must reduce the same parameters in the same order, so they first agree on which have
    # a gradient anywhere: a part without an image, or without a kind of text, may leave some out.
    whole = [p for p in parameters if p.requires_grad and not isinstance(p, DTensor)]
    having = torch.tensor([p.grad is not None for p in whole], dtype=torch.int32)
    ranks.all_reduce(having)
    # Few large messages rather than one for each parameter: latency dominates for small tensors.
    bucket: list[Tensor] = []
    for parameter, count in zip(whole, having.tolist()):
        if not count:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and (
            _bytes([*bucket, parameter.grad]) > _BUCKET_BYTES
            or (bucket[0].dtype, bucket[0].device) != (parameter.dtype, parameter.device)
        ):
            _average(bucket, ranks)
            bucket = []
        bucket.append(parameter.grad)
    _average(bucket, ranks)


def _average(gradients: Sequence[Tensor], ranks: Ranks) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    ranks.all_reduce(flat)
    flat /= ranks.world
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients])):
        gradient.copy_(part.view_as(gradient))


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# --- Batches: this rank's part, and what all ranks have. ---


@dataclass(frozen=True)
class GlobalBatch:
    """The global batch, assembled from every rank's part.

    Args:
        ranks: The processes that train together.
        merged: All texts, and where images and texts are in the parts.
        skipped: Samples of all parts that were left out.
        truncated: Texts of all parts that the tokenizer cuts.
        asked: The signal that asked any rank to stop before the batch, 0 for none.
    """

    ranks: Ranks
    merged: Merged
    skipped: int = 0
    truncated: int = 0
    asked: int = 0

    @staticmethod
    def of_one(block: TextBlock) -> GlobalBatch:
        """A single-process batch: local and global are the same."""
        images, texts = range(block.images), range(len(block.texts))
        sizes = ((len(images), len(texts)),)
        return GlobalBatch(SINGLE, Merged(block, tuple(images), tuple(texts), sizes))

    def layout(self, device: torch.device, ids: Tensor) -> Layout:
        """The layout of the global batch. ids: (t, context) token ids of this rank's texts."""
        if self.ranks.world > 1:
            counts = [texts for _, texts in self.merged.sizes]
            ids = self.ranks.all_gather(ids, counts)[list(self.merged.texts)]
        return self.merged.block.layout(device, ids)

    def features(self, own: Features, images: int) -> Features:
        """The features of the global batch, from this rank's; see `gather_features`.

        images: how many the part has. Without any, the features are those of a stand-in, since
        towers need something to encode; they are dropped here, with a gradient of zero.
        """
        if images == 0:
            cut = {name: value[:0] for name, value in _tensors(own) if name != "logit_scale"}
            own = replace(own, **cut)
        return gather_features(own, self.ranks, self.merged)


class SharedBatches:
    """The batches of a loader, each with the global batch that it is part of.

    An error in the data of one rank is raised on all, at the same batch. Unreadable images are
    counted over all ranks. asked: the signal that asked this rank to stop, or 0.
    """

    def __init__(
        self,
        batches: BatchLoader,
        ranks: Ranks,
        truncated: Callable[[list[str]], int],
        asked: Callable[[], int],
    ) -> None:
        self._batches, self._ranks = batches, ranks
        self._truncated, self._asked = truncated, asked

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[tuple[Batch, GlobalBatch]]:
        """This rank's part of each batch, and the global batch.

        Raises CompoclipError for what the data of any rank raise, and when no rank has an image
        for a batch.
        """
        batches = self._batches.epoch(epoch, start_step)
        told: set[str] = set(self._batches.bad)
        while True:
            error: CompoclipError | None = None
            batch: Batch | None = None
            try:
                batch = next(batches, None)
            except CompoclipError as found:
                error = found
            # One exchange a batch says everything: texts for the layout, what was unreadable, who
            # was asked to stop, who failed. So all ranks decide alike, and none waits for another
            # that has left.
            record: dict[str, Any] = {"failure": failure(error), "end": batch is None}
            if batch is not None:
                record |= {
                    "block": to_record(batch.block) if self._ranks.world > 1 else None,
                    "drawn": len(batch.ids),
                    "skipped": len(batch.skipped),
                    "bad": {k: v for k, v in self._batches.bad.items() if k not in told},
                    "truncated": self._truncated(list(batch.block.texts)),
                    "asked": self._asked(),
                }
            records = self._ranks.exchange(record)
            raise_first([each["failure"] for each in records], error)
            if batch is None:
                return
            yield batch, self._global(batch, records)
            told = set(self._batches.bad)

    def _global(self, batch: Batch, records: Sequence[dict[str, Any]]) -> GlobalBatch:
        for record in records:
            self._batches.report_bad(record["bad"])
        if not any(record["drawn"] for record in records):
            first = next(iter(self._batches.bad.values()), "none was found")
            raise CompoclipError(f"no image of a batch could be read ({first}); mend the data")
        if self._ranks.world == 1:
            merged = GlobalBatch.of_one(batch.block).merged
        else:
            blocks = [from_record(record["block"]) for record in records]
            merged = merge(blocks, [record["drawn"] for record in records])
        return GlobalBatch(
            self._ranks,
            merged,
            skipped=sum(record["skipped"] for record in records),
            truncated=sum(record["truncated"] for record in records),
            asked=max(record["asked"] for record in records),
        )


class RewriteCounts:
    """What the caption plan made, over all ranks and since the first start of a run.

    Only batches whose step is done count: what else was drawn is drawn again after a resume.
    """

    def __init__(self, before: Mapping[str, Any]) -> None:
        """before: `total` of the state that the run goes on from, {} at its start."""
        self._before = PlanCounts.from_json(before) if before else PlanCounts()
        self._own = PlanCounts()

    def step_is_done(self, drawn: PlanCounts) -> None:
        """drawn: what this rank has drawn since it started, the batch of the step included."""
        self._own = PlanCounts()
        self._own.add(drawn)

    def total(self, ranks: Ranks) -> dict[str, Any]:
        """The counts as `PlanCounts.to_json` has them; all ranks must call it."""
        total = PlanCounts()
        total.add(self._before)
        for part in ranks.exchange(self._own.to_json()):
            total.add(PlanCounts.from_json(part))
        return total.to_json()


def _tensors(features: Features) -> list[tuple[str, Tensor]]:
    values = ((each.name, getattr(features, each.name)) for each in fields(features))
    return [(name, value) for name, value in values if value is not None]


def sync_batch_norm(network: nn.Module, device: torch.device, ranks: Ranks) -> None:
    """Let batch norms that learn take their statistics over the global batch.

    Raises UsageError on a CPU, for which torch has no such layer. Frozen ones have none to take.
    """
    learning = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]
    if ranks.world == 1 or not learning:
        return
    if device.type != "cuda":
        raise UsageError(
            f"{learning[0]} is a batch norm that learns, and on a CPU its statistics cannot be "
            "taken over several processes: freeze that tower, train on GPUs, or in one process"
        )
    nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]


def require_same_step(step: int, ranks: Ranks) -> None:
    """Raise CompoclipError unless all ranks go on from the same step."""
    steps = ranks.exchange(step)
    if len(set(steps)) > 1:
        raise CompoclipError(
            f"the processes found training states of different steps ({sorted(set(steps))}): --out "
            "must be on a disk that all machines share"
        )


def seed_dropout(step: int, ranks: Ranks) -> None:
    """Let dropout draw other masks on every rank; rank 0 draws what one process would."""
    if not ranks.first:
        torch.manual_seed(torch.initial_seed() + 1_000_003 * ranks.rank + step)
