"""One step of training up to the gradients: a batch in, losses out, gradients on the parameters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from compoclip.data.batch import Batch
from compoclip.losses.contract import Features, Layout
from compoclip.methods.base import LossTerm, Method
from compoclip.models.work import FeatureWork, Outputs, Work, joined
from compoclip.training.distributed import Whole
from compoclip.training.gradcache import GradientCache, refuse_batch_norm

# --- Features of a frozen image tower, encoded once for each image that is shown. ---

# Fewer rows than this may take another route through the arithmetic libraries, and round otherwise.
_LEAST = 8


class FrozenEncoder(Protocol):
    """What is needed of a dual encoder (models.DualEncoder)."""

    def work(
        self, pixels: Tensor, ids: Tensor, local: bool = False, micro_batch: int = 0
    ) -> FeatureWork: ...


class FrozenImages:
    """Remembers what a frozen image tower made of an image, by the image's pixels.

    An image whose pixels are new, by a crop or another partner in a composite, is encoded as ever:
    nothing has to be known of how images come about. Features are kept in memory on the model's
    device, up to `most` bytes; what comes later is encoded every time.

    asked, found: images that were wanted so far, and those of them that were remembered. bytes: of
    all features kept.
    """

    def __init__(self, most: int = 4 << 30) -> None:
        self._most = most
        self._kept: dict[bytes, Outputs] = {}
        self.bytes = self.asked = self.found = 0

    def work(
        self,
        encoder: FrozenEncoder,
        batch: Batch,
        pixels: Tensor,
        ids: Tensor,
        local: bool,
        micro_batch: int,
    ) -> FeatureWork:
        """`encoder.work(pixels, ids, local, micro_batch)` that encodes new images only.

        pixels: those of the batch, normalised. The image tower must be frozen.
        """
        keys = _keys(batch, local)
        known = {key: self._kept[key] for key in keys if key in self._kept}
        rows = [i for i, key in enumerate(keys) if key not in known]
        self.asked += len(keys)
        self.found += len(keys) - len(rows)
        if rows:  # some that are known beside few that are not, see _LEAST
            rows += [i for i, key in enumerate(keys) if key in known][: max(0, _LEAST - len(rows))]
        work = encoder.work(pixels[rows], ids, local, micro_batch)

        def join(images: Sequence[Outputs], texts: Sequence[Outputs]) -> Features:
            found = dict(known)
            if images:
                encoded = [joined(each) for each in zip(*images)]
                for at, row in enumerate(rows):
                    if keys[row] not in found:
                        found[keys[row]] = self._keep(keys[row], [each[at] for each in encoded])
            whole = tuple(torch.stack(each) for each in zip(*(found[key] for key in keys)))
            return work.join([whole], texts)

        image = work.image if rows else Work((), work.image.join, learns=False)
        return FeatureWork(image, work.text, join)

    def _keep(self, key: bytes, features: Sequence[Tensor]) -> Outputs:
        """Own copies of an image's features, kept if there is room."""
        own = tuple(each.detach().clone() for each in features)
        size = sum(each.numel() * each.element_size() for each in own)
        if self.bytes + size <= self._most:
            self._kept[key] = own
            self.bytes += size
        return own


def _keys(batch: Batch, local: bool) -> list[bytes]:
    """A hash of everything the features of each image depend on."""
    setting = repr((batch.mean, batch.std, local)).encode()
    return [
        hashlib.blake2b(image.numpy().tobytes() + setting, digest_size=16).digest()
        for image in batch.pixels
    ]


# --- One step of training up to the gradients: a batch in, losses out, gradients on the
# parameters. ---


class TrainableEncoder(Protocol):
    """What training needs of a dual encoder (models.DualEncoder)."""

    @property
    def model(self) -> nn.Module: ...

    def work(
        self, pixels: Tensor, ids: Tensor, local: bool = False, micro_batch: int = 0
    ) -> FeatureWork: ...

    def train(self, mode: bool = True) -> object: ...


class TextTokenizer(Protocol):
    """What training needs of a tokenizer (models.Tokenizer)."""

    def __call__(self, texts: list[str]) -> Tensor: ...

    def truncated(self, texts: list[str]) -> int: ...


@dataclass(frozen=True)
class StepSettings:
    """How a step is computed, as opposed to what.

    precision: "fp32" or "bf16" (autocast of the towers; losses are always float32). micro_batch:
    images that are encoded at once, and texts (see `DualEncoder.work`); 0 is all. The gradients
    are those of the whole batch either way.
    """

    device: str = "cpu"
    precision: str = "fp32"
    micro_batch: int = 0


@dataclass(frozen=True)
class StepResult:
    """values: every loss term before weighting, by name. loss: their weighted sum. When that is not
    finite, no gradient has been computed."""

    values: Mapping[str, float]
    loss: float

    @property
    def finite(self) -> bool:
        """Whether there are gradients to step along."""
        return math.isfinite(self.loss)


def step(
    encoder: TrainableEncoder,
    tokenize: TextTokenizer,
    method: Method,
    batch: Batch,
    settings: StepSettings,
    whole: Whole | None = None,
    frozen: FrozenImages | None = None,
) -> StepResult:
    """Add the gradients of the method's loss on a batch to those of the parameters.

    whole: what the parts of several processes make together, of which `batch` is this process's.
    The loss is then that of the whole, and so is the mean of the gradients over the processes.
    frozen: what is known of the images already, for an image tower that does not learn.
    Raises UsageError when a micro-batch would change what a batch norm computes.
    """
    device = torch.device(settings.device)
    whole = whole or Whole.alone(batch.block)
    pixels = batch.normalised(device)
    ids = tokenize(list(batch.block.texts))  # stay on the CPU, where the encoder plans with them
    layout = whole.layout(device, ids)
    images = len(pixels)
    if images == 0:  # a part without a readable image: encode a stand-in with the others
        pixels, ids = pixels.new_zeros(1, *pixels.shape[1:]), tokenize([""])
    active = method.terms_on(batch.kind)
    local = any(term.needs_local for term in active)

    def amp() -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")

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
    terms, loss = weighted_loss(active, whole.features(features, images), layout)
    result = result_of(terms, loss)
    if result.finite:
        loss.backward()  # type: ignore[no-untyped-call]
        if cache is not None:
            cache.backward()
    return result


def weighted_loss(
    active: Sequence[LossTerm], features: Features, layout: Layout
) -> tuple[dict[str, Tensor], Tensor]:
    """Every loss term by name, and their weighted sum."""
    terms = {term.name: term.loss(features, layout) for term in active}
    return terms, torch.stack([term.weight * terms[term.name] for term in active]).sum()


def result_of(terms: Mapping[str, Tensor], loss: Tensor) -> StepResult:
    """The terms and their weighted sum as numbers."""
    *values, total = torch.stack([*terms.values(), loss]).detach().tolist()  # waits once
    return StepResult(dict(zip(terms, values)), total)
