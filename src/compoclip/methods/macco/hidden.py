"""The second pass of MACCO, with words of a caption and patches of its image masked.

A learned vector replaces the embedding of every masked token and patch, before positions are
added. A masked token stays in the ids as `~id`, which is negative, so that texts with masked words
are planned, packed and compared like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
import torch
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import normalize

from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.masks import Box
from compoclip.errors import CompoclipError
from compoclip.losses import Features, TowerSizes
from compoclip.methods.base import PassPlan
from compoclip.models.dual_encoder import DualEncoder, PassInputs
from compoclip.models.image_tower import ImageFeatures
from compoclip.models.text_plan import FurtherTexts
from compoclip.models.text_tower import TextFeatures
from compoclip.models.work import MicroBatch, Outputs, Work, together

_TOUCH = 1e-6  # of a patch: a box that ends where a patch begins does not touch it
T = Any


@dataclass(frozen=True)
class MaskVectors(PassPlan):
    """The two vectors for masked tokens and patches; they are not part of the model.

    Args:
        lr: Their peak learning rate, independent of the model's.
        weight_decay: Weight decay of the group; vectors are never decayed.
    """

    name: ClassVar[str] = "masks"
    needs: ClassVar[str] = "masks"
    lr: float = 1e-3
    weight_decay: float | None = None

    def build(self, sizes: TowerSizes, seed: int) -> Masks:
        """Initialise the vectors like token embeddings."""
        return Masks(sizes, seed)

    def require(self, texts: CaptionPlan, encoder: DualEncoder) -> None:
        """Raise CompoclipError if words, or the patches named by `texts`, cannot be masked."""
        encoder.require_local("masked captions", "text")
        if self.changes_images(texts):
            _vision_transformer(encoder.model.get_submodule("visual"))

    def changes_images(self, texts: CaptionPlan) -> str:
        """Return True: patches are masked (see `PassPlan.changes_images`)."""
        hides = "patches" in texts.hides
        return "hide words alone (--set texts.masks.images=false)" if hides else ""


class Masks(nn.Module):
    """The vectors of `MaskVectors`.

    Attributes:
        token: (W,).
        patch: (width of a patch,).
    """

    def __init__(self, sizes: TowerSizes, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.token = nn.Parameter(0.02 * torch.randn(sizes.text, generator=generator))
        self.patch = nn.Parameter(0.02 * torch.randn(sizes.image, generator=generator))

    def extend(self, work: Work[Features], inputs: PassInputs) -> Work[Features]:
        """See `ExtraPass.extend`: both towers once more, with words and patches hidden."""
        boxes: Sequence[Sequence[Box]] = ()  # leaves images as they are
        if "patches" in inputs.plan.hides:
            boxes = tuple(mask.boxes for mask in inputs.batch.masks)
            boxes = boxes or tuple(repeat((), len(inputs.pixels)))
        none = inputs.texts.place.new_empty(0)
        # The first captions with `~id` in hidden places, these places and the ids.
        captions = inputs.texts.again or FurtherTexts(inputs.texts, (none, none))
        encoder, pixels, (tokens, ids) = inputs.encoder, inputs.pixels, captions.tensors
        embedding = encoder.text_tower.layers().embedding
        texts = _inside(
            encoder.text_work(captions.texts, inputs.local, learns=self.token.requires_grad),
            lambda: hidden_tokens(embedding, self.token),
        )
        images: list[Work[ImageFeatures]] = []
        if boxes:
            tower = _vision_transformer(encoder.model.get_submodule("visual"))
            hidden = boxes_to_patches(boxes, tower.grid_size)
            places = torch.from_numpy(np.flatnonzero(hidden)).to(pixels.device, non_blocking=True)
            hidden = hidden.to(pixels.device, non_blocking=True)
            parts = torch.split(hidden, inputs.micro_batch or len(pixels))
            learns = self.patch.requires_grad
            image_work = encoder.image_work(pixels, inputs.local, inputs.micro_batch, learns=learns)
            contexts = (partial(hidden_patches, tower, self.patch, part) for part in parts)
            images.append(_inside(image_work, *contexts))

        def add(
            features: Features, text: TextFeatures, image: ImageFeatures | None = None
        ) -> Features:
            features = replace(
                features,
                masked_text=normalize(text.pooled.float(), dim=-1),
                masked_tokens=None if text.tokens is None else text.tokens.float(),
                hidden_tokens=tokens,
                hidden_ids=ids,
            )
            if image is None:
                return features
            pooled = normalize(image.pooled.float(), dim=-1)
            features = replace(features, masked_image=pooled, hidden_patches=places)
            if image.patches is None:
                return features
            there = patch_pixels(pixels, tower, places)
            return replace(features, masked_patches=image.patches.float(), hidden_pixels=there)

        return together(add, work, texts, *images)


def _inside(work: Work[T], *contexts: Callable[[], AbstractContextManager[None]]) -> Work[T]:
    """Run each micro-batch within its context, or all within one."""

    def run(encode: MicroBatch, context: Callable[[], AbstractContextManager[None]]) -> Outputs:
        with context():
            return encode()

    count = len(work.micro_batches)
    pairs = zip(work.micro_batches, contexts if len(contexts) == count else contexts * count)
    return replace(work, micro_batches=tuple(partial(run, *pair) for pair in pairs))


@contextmanager
def hidden_tokens(embedding: nn.Module, vector: Tensor) -> Iterator[None]:
    """Let an embedding give a vector (W,) for ids that are negative."""
    hidden: list[Tensor] = []

    def look(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        (ids,) = arguments
        hidden.append(ids < 0)
        return (torch.where(hidden[-1], ~ids, ids),)

    def put(_: nn.Module, __: tuple[Tensor], embedded: Tensor) -> Tensor:
        return torch.where(hidden.pop()[..., None], vector.to(embedded.dtype), embedded)

    handles = embedding.register_forward_pre_hook(look), embedding.register_forward_hook(put)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def hidden_patches(visual: VisionTransformer, vector: Tensor, hidden: Tensor) -> Iterator[None]:
    """Let a tower embed the patches of its images as a vector (width,) where `hidden` (B, P)."""

    def put(_: nn.Module, __: tuple[Tensor], embedded: Tensor) -> Tensor:
        mask = hidden.view(len(embedded), 1, *embedded.shape[-2:])
        return torch.where(mask, vector.to(embedded.dtype)[:, None, None], embedded)

    handle = visual.conv1.register_forward_hook(put)
    try:
        yield
    finally:
        handle.remove()


def _vision_transformer(visual: nn.Module) -> VisionTransformer:
    """Return the tower. Raises CompoclipError for one from which patches cannot be hidden."""
    if not isinstance(visual, VisionTransformer):
        raise CompoclipError(
            f"patches of this image tower ({type(visual).__name__}) cannot be hidden: choose a "
            "vision transformer of open_clip's, or hide words alone (macco --hidden words, other "
            "methods --set texts.masks.images=false)"
        )
    return visual


def boxes_to_patches(boxes: Sequence[Sequence[Box]], grid: tuple[int, int]) -> Tensor:
    """Return the patches that the boxes of each of B images touch: (B, P) bool on the CPU, row by
    row of a grid of (rows, columns)."""
    hidden = np.zeros((len(boxes), *grid), bool)
    for place, image_boxes in zip(hidden, boxes):
        for left, upper, right, lower in image_boxes:
            (top, bottom), (first, last) = (
                (int(start * cells + _TOUCH), int(np.ceil(stop * cells - _TOUCH)))
                for start, stop, cells in ((upper, lower, grid[0]), (left, right, grid[1]))
            )
            place[max(0, top) : bottom, max(0, first) : last] = True
    return torch.from_numpy(hidden).flatten(1)


def patch_pixels(pixels: Tensor, visual: VisionTransformer, places: Tensor) -> Tensor:
    """Return the patches (m, p p 3) at places (m,) into (B, P) of images (B, 3, H, W), each with
    mean 0 and variance 1."""
    (rows, columns), (tall, wide) = visual.grid_size, visual.patch_size
    cut = pixels[..., : rows * tall, : columns * wide]
    grid = cut.reshape(len(cut), 3, rows, tall, columns, wide)
    patches = grid.permute(0, 2, 4, 3, 5, 1).reshape(-1, tall * wide * 3).index_select(0, places)
    centred = patches - patches.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (centred.shape[1] - 1)
    return centred / (variance + 1e-6).sqrt()
