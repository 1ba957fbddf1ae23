"""RGB image -> the pixels a model expects, with the random crop of training."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import get_worker_info

from compoclip.data.decode import (
    Mirrored,
    Picture,
    opened,
    raw_pixels,
    unmirrored,
)
from compoclip.models.preprocess import Preprocess, random_crop

_RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class RandomCrop:
    """The random resized crop of fine-tuning recipes; no flip.

    Args:
        scale: Range of the fraction of the area kept.
        ratio: Range of width / height.
        fixed: The number of crops of every photo, the next one in every epoch; 0 draws new ones.
    """

    scale: tuple[float, float] = (0.9, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    fixed: int = 0


@dataclass(frozen=True)
class ImageTransform:
    """What training does to an image.

    Gives the same pixels as torchvision's crop and `Preprocess.evaluation`, but skips the general
    machinery where it has nothing to do, which matters for small images. They stay bytes, a quarter
    of what numbers take on the way from the workers; `normalised` makes numbers of them.

    Args:
        preprocess: How the model sees images.
        crop: The random crop; None treats images as evaluation does.
        draft: Whether large JPEGs are decoded at a fraction of their size, never below what is
            shown.
        upright: Whether images are turned as their EXIF orientation says, before the crop.
    """

    preprocess: Preprocess
    crop: RandomCrop | None = RandomCrop()
    draft: bool = True
    upright: bool = False

    def read(self, image: Picture, rng: random.Random, name: str = "") -> torch.Tensor:
        """Read an image file or its bytes, which errors call `name`: (3, H, W) uint8 pixels.

        `rng` places the crop and is not used without one. Raises what `decode` raises.
        """
        with opened(image, name, upright=self.upright) as file:
            stored = file.size
            box = self.box(stored, rng)
            rgb = file.rgb(self.least(stored, box) if self.draft else None)
        return self.pixels(rgb, stored, box)

    def __call__(self, image: Image.Image, rng: random.Random) -> torch.Tensor:
        """The same of an RGB image."""
        return self.pixels(image, image.size, self.box(image.size, rng))

    @property
    def resampling(self) -> Image.Resampling:
        """The filter images are resized with."""
        return _RESAMPLING[self.preprocess.interpolation]

    def box(self, stored: tuple[int, int], rng: random.Random) -> tuple[int, int, int, int] | None:
        """Left, upper, right, lower of what is shown; None is all that evaluation shows."""
        if self.crop is None:
            return None
        top, left, h, w = random_crop(*stored[::-1], rng, self.crop.scale, self.crop.ratio)
        return left, top, left + w, top + h

    def least(
        self, stored: tuple[int, int], box: tuple[int, int, int, int] | None
    ) -> tuple[int, int]:
        """Width and height of the whole image with which what is shown need not be enlarged."""
        height, width = self.preprocess.size
        if box is None:
            return width, height
        left, top, right, bottom = box
        return ceil(stored[0] * width / (right - left)), ceil(stored[1] * height / (bottom - top))

    def together(self, images: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Resize | None]:
        """(B, 3, H, W) pixels of the images of a batch, in memory that all processes see; and None:
        nothing is left to the device.
        """
        pixels = shared_bytes(len(images), 3, *self.preprocess.size)
        for place, image in zip(pixels, images):
            place.copy_(image)
        return pixels, None

    def pixels(
        self,
        image: Image.Image,
        stored: tuple[int, int],
        box: tuple[int, int, int, int] | None,
    ) -> torch.Tensor:
        """`box` refers to the size the image is stored with, which it may be smaller than."""
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
    """(3, H, W) uint8 pixels of an RGB image, which lie in memory with the channels last."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def shared_bytes(*shape: int) -> torch.Tensor:
    """An uninitialised uint8 tensor; that of a worker is sent from it without a copy."""
    if get_worker_info() is None or not prod(shape):
        return torch.empty(shape, dtype=torch.uint8)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(  # type: ignore[no-untyped-call]
        prod(shape)
    )
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


# --- Crops that the device resizes: workers cut them out and send them as they are stored. ---

_AT_ONCE = 64  # images that are resized together: bounds the memory it takes


@dataclass(frozen=True)
class Resize:
    """Resizes images of many sizes at once, on the device where their pixels lie.

    It is Pillow's resampling: separable, and antialiased, since the filter widens when it scales
    down. On a CPU torch has it for bytes. On a GPU it is two products with a matrix an image, whose
    results are not rounded to whole levels, as Pillow's are after each direction.

    Args:
        shapes: (B, 2) int32, height and width of each image.
        largest: The greatest height and the greatest width of them.
        size: (height, width) of the result.
        interpolation: "bicubic" or "bilinear".
    """

    shapes: torch.Tensor
    largest: tuple[int, int]
    size: tuple[int, int]
    interpolation: str = "bicubic"

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Resize (n, 3) uint8 pixels: all images one after the other, each row by row.

        Returns (B, 3, H, W) from 0 to 255, float32 or, on a CPU, uint8.
        """
        if pixels.device.type == "cpu":
            return self._by_bytes(pixels)
        return self.by_matrices(pixels)

    def _by_bytes(self, pixels: torch.Tensor) -> torch.Tensor:
        """One image after the other."""
        made = pixels.new_empty(len(self.shapes), 3, *self.size)
        shapes = self.shapes.tolist()
        parts = torch.split(pixels, [height * width for height, width in shapes]) if shapes else ()
        for place, part, (height, width) in zip(made, parts, shapes):
            image = part.view(1, height, width, 3).permute(0, 3, 1, 2)
            if (height, width) == self.size:
                place.copy_(image[0])
            else:
                mode = self.interpolation
                place.copy_(F.interpolate(image, self.size, mode=mode, antialias=True)[0])
        return made

    def by_matrices(self, pixels: torch.Tensor) -> torch.Tensor:
        """All at once on any device; arguments and result as of a call, in float32."""
        shapes = self.shapes.to(pixels.device, non_blocking=True).long()
        counts = shapes.prod(1)
        starts = counts.cumsum(0) - counts
        parts = zip(torch.split(shapes, _AT_ONCE), torch.split(starts, _AT_ONCE))
        made = [self._some(pixels, some, first) for some, first in parts if len(some)]
        return torch.cat(made) if made else pixels.new_zeros(0, 3, *self.size).float()

    def _some(
        self, pixels: torch.Tensor, shapes: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        height, width = self.largest
        rows, columns = (torch.arange(n, device=pixels.device) for n in self.largest)
        tall, wide = shapes[:, :1], shapes[:, 1:]
        # Padded to the largest with pixels of the image itself, whose weight is zero.
        within = torch.minimum(rows, tall - 1) * wide
        places = (
            starts[:, None, None] + within[:, :, None] + torch.minimum(columns, wide - 1)[:, None]
        )
        padded = pixels.index_select(0, places.flatten()).view(len(shapes), height, -1).float()
        down, across = (
            _weights(lengths, most, out, self.interpolation)
            for lengths, most, out in zip((tall, wide), self.largest, self.size)
        )
        # (B, H, h) (B, h, w x 3), then (B, 3 x H, w) (B, w, W).
        shrunk = torch.bmm(down, padded).view(len(shapes), self.size[0], width, 3)
        lines = shrunk.permute(0, 3, 1, 2).reshape(len(shapes), 3 * self.size[0], width)
        done = torch.bmm(lines, across.transpose(1, 2))
        return done.view(len(shapes), 3, *self.size).clamp_(0, 255)


def _weights(lengths: torch.Tensor, most: int, out: int, interpolation: str) -> torch.Tensor:
    """(B, out, most) share of each input pixel in each output pixel, for (B, 1) input lengths."""
    device = lengths.device
    scale = (lengths / out)[:, :, None]
    centre = (torch.arange(out, device=device)[:, None] + 0.5) * scale
    place = torch.arange(most, device=device) + 0.5
    distance = (place - centre).div_(scale.clamp(min=1)).abs_()
    weight = _cubic(distance) if interpolation == "bicubic" else (1 - distance).clamp_(min=0)
    weight *= place < lengths[:, :, None]
    return weight.div_(weight.sum(-1, keepdim=True))


def _cubic(x: torch.Tensor) -> torch.Tensor:
    """Keys's cubic convolution with a = -1/2, at distances from 0 on."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, far * (x < 2))


@dataclass(frozen=True)
class DeviceTransform(ImageTransform):
    """The same with the crop's resizing left to the device: for images that are stored small.

    Whole images, and those that a plan puts together, workers make as ever.
    """

    def read(self, image: Picture, rng: random.Random, name: str = "") -> torch.Tensor:
        """Read an image file or its bytes, which errors call `name`: (3, h, w) uint8 of the crop.

        `rng` places the crop and is not used without one. Raises what `decode` raises.
        """
        kept = unmirrored(image)
        pixels = raw_pixels(kept) if isinstance(kept, bytes) else None
        if self.crop is None or pixels is None:
            return super().read(image, rng, name)
        if isinstance(image, Mirrored):
            pixels = pixels[:, ::-1]
        box = self.box(pixels.shape[1::-1], rng)
        assert box is not None  # there is a crop
        left, top, right, bottom = box
        return torch.from_numpy(pixels[top:bottom, left:right].copy()).permute(2, 0, 1)

    def together(self, images: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Resize | None]:
        """(n, 3) pixels of all images, one after the other; and what the device resizes them
        with.
        """
        shapes = [tuple(image.shape[1:]) for image in images]
        sizes = [height * width for height, width in shapes]
        pixels = shared_bytes(sum(sizes), 3)
        for place, image in zip(torch.split(pixels, sizes) if sizes else (), images):
            place.copy_(image.permute(1, 2, 0).reshape(-1, 3))
        largest = max((h for h, _ in shapes), default=0), max((w for _, w in shapes), default=0)
        table = torch.tensor(shapes, dtype=torch.int32).view(-1, 2)
        preprocess = self.preprocess
        return pixels, Resize(table, largest, preprocess.size, preprocess.interpolation)


def normalised(pixels: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """(..., 3, H, W) pixels to float32: (value / 255 - mean) / std for each channel."""
    centre, spread = _scale(tuple(mean), tuple(std), pixels.device)
    return pixels.float().div_(255).sub_(centre).div_(spread)


@lru_cache(16)
def _scale(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as (3, 1, 1) tensors, copied to a device once: it would be waited for."""
    centre, spread = (torch.tensor(each, device=device).view(3, 1, 1) for each in (mean, std))
    return centre, spread
