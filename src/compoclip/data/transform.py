"""RGB image -> the pixels a model expects, with the random crop of training."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from compoclip.models.preprocess import Preprocess, random_crop

_RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class RandomCrop:
    """The random resized crop of fine-tuning recipes (METHODS 0.2); no flip.

    scale: range of the fraction of the area kept. ratio: range of width / height.
    """

    scale: tuple[float, float] = (0.9, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class ImageTransform:
    """What training does to an image: `crop` it at random, or (None) treat it as evaluation does.

    Gives the same pixels as torchvision's crop and `Preprocess.evaluation`, but skips the general
    machinery where it has nothing to do, which matters for small images.
    """

    preprocess: Preprocess
    crop: RandomCrop | None = RandomCrop()

    def __call__(self, image: Image.Image, rng: random.Random) -> torch.Tensor:
        """(3, H, W) float32 pixels; `rng` places the crop and is not used without one."""
        height, width = self.preprocess.size
        if self.crop is not None:
            top, left, h, w = random_crop(
                image.height, image.width, rng, self.crop.scale, self.crop.ratio
            )
            image = image.crop((left, top, left + w, top + h))
            if image.size != (width, height):
                image = image.resize((width, height), self.resampling)
        elif image.size != (width, height):
            return self.preprocess.evaluation(image)
        return normalised(image, self.preprocess.mean, self.preprocess.std)

    @property
    def resampling(self) -> Image.Resampling:
        """The filter images are resized with."""
        return _RESAMPLING[self.preprocess.interpolation]


def normalised(image: Image.Image, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """(3, H, W) float32 pixels: (value / 255 - mean) / std for each channel of an RGB image."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float()
    centre = torch.tensor(mean).view(3, 1, 1)
    return pixels.div_(255).sub_(centre).div_(torch.tensor(std).view(3, 1, 1))
