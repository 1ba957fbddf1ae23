"""From a decoded image to the pixels a model expects, for evaluation and for training."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from compoclip.errors import CompoclipError

_FILTERS = ("bicubic", "bilinear")
_MOST_PIXELS = 8192  # a side
_RESIZE_MODES = ("shortest", "longest", "squash")


@dataclass(frozen=True)
class Preprocess:
    """How a model wants its images: open_clip's `preprocess_cfg`, comparable.

    size: (height, width). mean, std: per channel, for pixels in [0, 1].
    interpolation: "bicubic" or "bilinear". resize_mode: "shortest" (resize the short side, centre
    crop), "longest" (resize the long side, pad) or "squash" (resize both). fill_color: of padding.
    """

    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = OPENAI_DATASET_MEAN
    std: tuple[float, ...] = OPENAI_DATASET_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0

    def __post_init__(self) -> None:
        """Raises CompoclipError for a value that no image can be made with."""
        if len(self.size) != 2 or not all(_within(n, 1, _MOST_PIXELS) for n in self.size):
            raise CompoclipError(
                f"image size {_short(self.size)}: must be two numbers of pixels up to "
                f"{_MOST_PIXELS}"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not all(map(math.isfinite, values)):
                raise CompoclipError(
                    f"image {name} {_short(values)}: must be three numbers, one a channel"
                )
        if min(self.std) <= 0:
            raise CompoclipError(f"image std {_short(self.std)}: pixels are divided by it")
        if not _within(self.fill_color, 0, 255):
            raise CompoclipError(f"image fill_color {_short(self.fill_color)}: must be 0 to 255")
        if self.interpolation not in _FILTERS:
            raise CompoclipError(
                f"image interpolation '{self.interpolation}' is not one of {', '.join(_FILTERS)}"
            )
        if self.resize_mode not in _RESIZE_MODES:
            raise CompoclipError(
                f"image resize mode '{self.resize_mode}' is not one of {', '.join(_RESIZE_MODES)}"
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Preprocess:
        """From open_clip's `preprocess_cfg`; what it leaves out has open_clip's default.

        Raises CompoclipError when a value has the wrong form.
        """
        values = {
            key: config[key] for key in cls.__dataclass_fields__ if config.get(key) is not None
        }
        try:
            if "size" in values:
                size = values["size"]
                values["size"] = (size, size) if isinstance(size, int) else (size[0], size[1])
            for key in ("mean", "std"):
                if key in values:
                    value = values[key]
                    numbers = [value] * 3 if isinstance(value, int | float) else value
                    values[key] = tuple(float(v) for v in numbers)
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            raise CompoclipError(f"preprocess_cfg has an unusable value: {error}") from error
        return cls(**values)

    def to_config(self) -> dict[str, Any]:
        """The `preprocess_cfg` of an open_clip configuration file."""
        return {
            "size": list(self.size),
            "mode": "RGB",
            "mean": list(self.mean),
            "std": list(self.std),
            "interpolation": self.interpolation,
            "resize_mode": self.resize_mode,
            "fill_color": self.fill_color,
        }

    def evaluation(self, image: Image.Image) -> torch.Tensor:
        """(3, H, W) float32 pixels, exactly as open_clip's evaluation transform makes them."""
        pixels: torch.Tensor = self._transform()(image)
        return pixels

    def framed(self, image: Image.Image) -> Image.Image:
        """The image that `evaluation` makes pixels of: resized, cropped or padded."""
        *steps, _, _ = self._transform().transforms  # the last two: to numbers, normalised
        for step in steps:
            image = step(image)
        return image

    def _transform(self) -> Any:
        config = PreprocessCfg(**{**self.to_config(), "size": self.size})
        return image_transform_v2(config, is_train=False)


def _within(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and low <= value <= high


def _short(value: object) -> str:
    return str(value)[:80]


def random_crop(
    height: int,
    width: int,
    rng: random.Random,
    scale: tuple[float, float] = (0.9, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """The box (top, left, height, width) of a "random resized crop".

    Area is uniform in `scale` times the image's, log aspect ratio uniform in log `ratio`; ten tries
    to fit, then the largest centred box within `ratio`. Same law as torchvision's
    RandomResizedCrop (Szegedy et al. 2015), drawn from `rng`.
    """
    area = height * width
    for _ in range(10):
        target = area * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
    return (height - h) // 2, (width - w) // 2, h, w
