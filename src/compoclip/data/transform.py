"""Transform an RGB image into the pixels a model expects, with the random crop of training."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from compoclip.data.decode import Picture, opened
from compoclip.models.preprocess import Preprocess, random_crop


@dataclass(frozen=True)
class RandomCrop:
    """The random resized crop of fine-tuning recipes; no flip.

    Args:
        scale: Range of the crop's share of the area.
        ratio: Range of width / height.
        fixed: Number of fixed crops per photo, one per epoch in turn; 0 samples new crops.
    """

    scale: tuple[float, float] = (0.9, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    fixed: int = 0


@dataclass(frozen=True)
class ImageTransform:
    """The image transform of training.

    The pixels equal torchvision's crop and `Preprocess.evaluation`, with less overhead for small
    images. They stay uint8, a quarter of float32, until `normalised` converts them.

    Args:
        preprocess: Preprocessing of the model.
        crop: The random crop; None treats images as evaluation does.
        draft: Whether large JPEGs are decoded at a fraction of their size, never below the
            size of the crop.
        upright: Whether images are rotated by their EXIF orientation before the crop.
    """

    preprocess: Preprocess
    crop: RandomCrop | None = RandomCrop()
    draft: bool = True
    upright: bool = False

    def read(self, image: Picture, rng: random.Random, name: str = "") -> torch.Tensor:
        """Read an image file or its bytes, which errors call `name`: (3, H, W) uint8 pixels.

        `rng` places the crop, if there is one. Raises as `decode` does.
        """
        return self.pixels(*self.decoded(image, rng, name))

    def decoded(
        self, image: Picture, rng: random.Random, name: str = ""
    ) -> tuple[Image.Image, tuple[int, int], tuple[int, int, int, int] | None]:
        """Return the decoded image, its stored size and the crop: the arguments of `pixels`."""
        with opened(image, name, upright=self.upright) as file:
            stored = file.size
            box = self.box(stored, rng)
            width, height = self.preprocess.size[::-1]  # of the whole image, not to be enlarged
            if box is not None:
                left, top, right, bottom = box
                width = ceil(stored[0] * width / (right - left))
                height = ceil(stored[1] * height / (bottom - top))
            rgb = file.rgb((width, height) if self.draft else None)
        return rgb, stored, box

    def __call__(self, image: Image.Image, rng: random.Random) -> torch.Tensor:
        """Transform an RGB image."""
        return self.pixels(image, image.size, self.box(image.size, rng))

    @property
    def resampling(self) -> Image.Resampling:
        """Return the filter for resizing."""
        return Image.Resampling[self.preprocess.interpolation.upper()]

    def box(self, stored: tuple[int, int], rng: random.Random) -> tuple[int, int, int, int] | None:
        """Return (left, upper, right, lower) of the crop; None is the crop of evaluation."""
        if self.crop is None:
            return None
        top, left, h, w = random_crop(*stored[::-1], rng, self.crop.scale, self.crop.ratio)
        return left, top, left + w, top + h

    def together(self, images: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (B, 3, H, W) uint8 pixels of results of `read` or `pixels_of`.

        In a worker they are in shared memory, to be sent uncopied.
        """
        pixels = torch.empty(len(images), 3, *self.preprocess.size, dtype=torch.uint8)
        if get_worker_info() is not None and images:
            pixels.share_memory_()  # type: ignore[no-untyped-call]
        for place, image in zip(pixels, images):
            place.copy_(image)
        return pixels

    def pixels(
        self, image: Image.Image, stored: tuple[int, int], box: tuple[int, int, int, int] | None
    ) -> torch.Tensor:
        """Return the pixels of `box`, given in the stored size; the image may be smaller."""
        height, width = self.preprocess.size
        if box is None:
            if image.size != (width, height):
                image = self.preprocess.framed(image)
        elif image.size == stored:
            image = image.crop(box)
            if image.size != (width, height):
                image = image.resize((width, height), self.resampling)
        else:
            across, down = image.width / stored[0], image.height / stored[1]
            scaled = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
            image = image.resize((width, height), self.resampling, box=scaled)
        return pixels_of(image)


def pixels_of(image: Image.Image) -> torch.Tensor:
    """Return (3, H, W) uint8 pixels of an RGB image, with the channels last in memory."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def normalised(pixels: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Convert (..., 3, H, W) pixels to float32: (value / 255 - mean) / std per channel."""
    centre, spread = _scale(tuple(mean), tuple(std), pixels.device)
    return pixels.float().div_(255).sub_(centre).div_(spread)


@lru_cache(16)
def _scale(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as (3, 1, 1) tensors, copied to a device once: it would be waited for."""
    centre, spread = (torch.tensor(values, device=device).view(3, 1, 1) for values in (mean, std))
    return centre, spread
