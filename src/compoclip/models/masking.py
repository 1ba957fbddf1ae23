"""The masked second pass: words of a caption and patches of its image are hidden from the towers.

A learned vector takes the place of the embedding of every hidden token and patch, before positions
are added. A hidden token keeps its place in the ids: `~id`, which is negative, stands for `id`, so
that texts with hidden words are planned, packed and told apart as all others are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from compoclip.errors import CompoclipError
from compoclip.losses.contract import HeadPlan, TowerSizes
from compoclip.models.text_plan import MaskedTexts

Box = tuple[float, float, float, float]
"""Left, upper, right, lower, as fractions of what is shown of an image."""
_TOUCH = 1e-6  # of a patch: a box that ends where a patch begins does not touch it


@dataclass(frozen=True)
class MaskVectors(HeadPlan):
    """What stands for hidden tokens and patches: two vectors that learn and do not join the model.

    Args:
        lr: Their peak learning rate, whatever that of the model.
        weight_decay: None is that of the model; vectors have none in any case.
    """

    lr: float = 1e-3
    weight_decay: float | None = None

    def build(self, sizes: TowerSizes, seed: int) -> Masks:
        """Draw the vectors, as token embeddings are drawn."""
        return Masks(sizes, seed)

    def record(self) -> dict[str, Any]:
        """How they learn."""
        return {"lr": self.lr, "weight_decay": self.weight_decay}


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


@dataclass(frozen=True)
class MaskedInputs:
    """What a masked second pass is given, beside the pixels.

    Args:
        masks: What stands for hidden tokens and patches.
        captions: The first caption of each image, with hidden tokens.
        boxes: Of each image what is hidden; () leaves images as they are.
    """

    masks: Masks
    captions: MaskedTexts
    boxes: Sequence[Sequence[Box]] = ()


@contextmanager
def hidden_tokens(embedding: nn.Module, vector: Tensor) -> Iterator[None]:
    """Inside the block an embedding gives a vector for ids that are negative.

    Args:
        embedding: ids -> (..., W).
        vector: (W,).
    """
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
    """Inside the block the patches of a tower's images are embedded as a vector where hidden.

    Args:
        visual: The tower.
        vector: (width,).
        hidden: (B, P) bool, row by row of the grid.
    """

    def put(_: nn.Module, __: tuple[Tensor], embedded: Tensor) -> Tensor:
        where = hidden.view(len(embedded), 1, *embedded.shape[-2:])
        return torch.where(where, vector.to(embedded.dtype)[:, None, None], embedded)

    handle = visual.conv1.register_forward_hook(put)
    try:
        yield
    finally:
        handle.remove()


def require_patches_to_hide(visual: nn.Module) -> VisionTransformer:
    """The tower, if patches of it can be hidden; raises CompoclipError for one of another kind."""
    if not isinstance(visual, VisionTransformer):
        raise CompoclipError(
            f"patches of this image tower ({type(visual).__name__}) cannot be hidden: choose a "
            "vision transformer of open_clip's, or hide words alone (macco --hidden words, other "
            "methods --set texts.masks.images=false)"
        )
    return visual


def boxes_to_patches(boxes: Sequence[Sequence[Box]], grid: tuple[int, int]) -> Tensor:
    """Find the patches that boxes touch.

    Args:
        boxes: Of each of B images.
        grid: Rows and columns of patches.

    Returns:
        (B, P) bool on the CPU, row by row of the grid.
    """
    hidden = np.zeros((len(boxes), *grid), bool)
    for place, own in zip(hidden, boxes):
        for left, upper, right, lower in own:
            (top, bottom), (first, last) = (
                (int(start * cells + _TOUCH), int(np.ceil(stop * cells - _TOUCH)))
                for start, stop, cells in ((upper, lower, grid[0]), (left, right, grid[1]))
            )
            place[max(0, top) : bottom, max(0, first) : last] = True
    return torch.from_numpy(hidden).flatten(1)


def patch_pixels(pixels: Tensor, visual: VisionTransformer, places: Tensor) -> Tensor:
    """Cut patches out of images.

    Args:
        pixels: (B, 3, H, W).
        visual: Says how large a patch is.
        places: (m,) int64 into (B, P).

    Returns:
        (m, p p 3), each patch with mean 0 and variance 1.
    """
    (rows, columns), (tall, wide) = visual.grid_size, visual.patch_size
    cut = pixels[..., : rows * tall, : columns * wide]
    grid = cut.reshape(len(cut), 3, rows, tall, columns, wide)
    found = grid.permute(0, 2, 4, 3, 5, 1).reshape(-1, tall * wide * 3).index_select(0, places)
    centred = found - found.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (centred.shape[1] - 1)
    return centred / (variance + 1e-6).sqrt()
