"""One step of training up to the gradients: a batch in, losses out, gradients on the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from compoclip.data.batch import Batch
from compoclip.losses.contract import Features, Layout
from compoclip.methods.base import LossTerm, Method
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.preprocess import Tokenizer
from compoclip.training.caches import FrozenImages, GradientCache, refuse_batch_norm
from compoclip.training.distributed import GlobalBatch
from compoclip.training.settings import RunSettings


@dataclass(frozen=True)
class StepResult:
    """What a step computed. When the loss is not finite, there are no gradients.

    Attributes:
        values: Every loss term before weighting, by name.
        loss: Their weighted sum.
    """

    values: Mapping[str, float]
    loss: float

    @property
    def finite(self) -> bool:
        """Whether there are gradients to step along."""
        return math.isfinite(self.loss)


def step(
    encoder: DualEncoder,
    tokenize: Tokenizer,
    method: Method,
    batch: Batch,
    settings: RunSettings,
    global_batch: GlobalBatch | None = None,
    frozen: FrozenImages | None = None,
) -> StepResult:
    """Add the gradients of the method's loss on a batch to those of the parameters.

    Args:
        encoder: The towers, on `settings.device`.
        tokenize: The encoder's tokenizer.
        method: The loss terms.
        batch: This rank's images and texts.
        settings: Device, precision (bf16 is autocast of the towers; losses are always float32) and
            micro-batch are read. The gradients are those of the whole batch either way.
        global_batch: What the batches of all ranks make together; None for a batch alone. The loss
            is that of the global batch, and so is the mean of the gradients over the ranks.
        frozen: Features of images that a frozen image tower has encoded before.

    Returns:
        The loss terms and their weighted sum.

    Raises:
        UsageError: When a micro-batch would change what a batch norm computes.
    """
    # The layout of the global batch: which text belongs to which image, on every rank the same.
    device = torch.device(settings.device)
    global_batch = global_batch or GlobalBatch.of_one(batch.block)
    pixels = batch.normalised(device)
    ids = tokenize(list(batch.block.texts))  # stay on the CPU, where the encoder plans with them
    layout = global_batch.layout(device, ids)

    # A rank whose images are all unreadable still takes part in every collective: it encodes a
    # stand-in, whose features `GlobalBatch.features` drops.
    images = len(pixels)
    if images == 0:
        pixels, ids = pixels.new_zeros(1, *pixels.shape[1:]), tokenize([""])

    # Patches and tokens are projected only for losses that read them.
    active = method.terms_on(batch.kind)
    local = any(term.needs_local for term in active)

    def amp() -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")

    # Forward. `work` is not computed yet: it is one micro-batch, which is encoded with a graph as
    # usual, or several, which are encoded without one here, and again with one in backward.
    if frozen is not None and images:
        work = frozen.work(encoder, batch, pixels, ids, local, settings.micro_batch)
    else:
        work = encoder.work(pixels, ids, local, settings.micro_batch)
    cache = None
    if not work.whole:
        refuse_batch_norm(encoder.model)
        cache = GradientCache(work, amp, device)
        features = cache.features
    else:
        with amp():
            features = work.all()

    # Losses, on the gathered features of all ranks. Reading the result is the one place where a
    # step waits for the device: gradients of a loss that is not finite must not be taken.
    terms, loss = weighted_loss(active, global_batch.features(features, images), layout)
    result = result_of(terms, loss)

    # Backward: to the parameters, or to the cached features and from there to the parameters.
    if result.finite:
        loss.backward()  # type: ignore[no-untyped-call]
        if cache is not None:
            cache.backward()
    return result


def weighted_loss(
    active: Sequence[LossTerm], features: Features, layout: Layout
) -> tuple[dict[str, Tensor], Tensor]:
    """Every loss term by name, and their weighted sum.

    Args:
        active: The terms of this kind of batch.
        features: Of the whole batch.
        layout: How its texts belong to its images.

    Returns:
        Term name -> scalar, before its weight; and the scalar that is differentiated.
    """
    terms = {term.name: term.loss(features, layout) for term in active}
    return terms, torch.stack([term.weight * terms[term.name] for term in active]).sum()


def result_of(terms: Mapping[str, Tensor], loss: Tensor) -> StepResult:
    """The terms and their weighted sum as numbers."""
    *values, total = torch.stack([*terms.values(), loss]).detach().tolist()  # waits once
    return StepResult(dict(zip(terms, values)), total)
