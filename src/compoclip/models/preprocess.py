"""Images as a model sees them: resized, cropped or padded, as pixels."""

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

from compoclip.bounds import MAX_IMAGE_SIDE, MAX_RESIZED_PIXELS
from compoclip.errors import CompoclipError, require
from compoclip.models.config import sound

_FILTERS = ("bicubic", "bilinear")
_RESIZE_MODES = ("shortest", "longest", "squash")


@dataclass(frozen=True)
class Preprocess:
    """Image preprocessing of a model: open_clip's `preprocess_cfg`, comparable.

    Attributes:
        size: (height, width) in pixels.
        mean: Per channel, for pixels in [0, 1].
        std: Per channel.
        interpolation: "bicubic" or "bilinear".
        resize_mode: "shortest" (resize the short side, centre crop), "longest" (resize the long
            side, pad) or "squash" (resize both).
        fill_color: Grey level of padding, 0 to 255.
    """

    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = OPENAI_DATASET_MEAN
    std: tuple[float, ...] = OPENAI_DATASET_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0

    def __post_init__(self) -> None:
        """Raises CompoclipError for a value that no image can be made with."""
        sizes = len(self.size) == 2 and all(isinstance(n, int) for n in self.size)
        grey = isinstance(self.fill_color, int) and 0 <= self.fill_color <= 255
        mean = len(self.mean) == 3 and all(map(math.isfinite, self.mean))
        std = len(self.std) == 3 and all(0 < value < math.inf for value in self.std)
        good = sizes and all(1 <= n <= MAX_IMAGE_SIDE for n in self.size)
        for name, holds, requirement in (
            ("size", good, f"two numbers of pixels up to {MAX_IMAGE_SIDE}"),
            ("mean", mean, "three numbers, one a channel"),
            ("std", std, "three numbers above 0, one a channel"),
            ("fill_color", grey, "0 to 255"),
            ("interpolation", self.interpolation in _FILTERS, " or ".join(_FILTERS)),
            ("resize_mode", self.resize_mode in _RESIZE_MODES, " or ".join(_RESIZE_MODES)),
        ):
            value = str(getattr(self, name))[:80]
            require(holds, f"image {name} {value}", f"must be {requirement}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Preprocess:
        """Build from open_clip's `preprocess_cfg`; missing keys have open_clip's defaults.

        Raises CompoclipError when a value has the wrong form.
        """
        names = cls.__dataclass_fields__
        values = {key: config[key] for key in names if config.get(key) is not None}
        with sound("preprocess_cfg"):
            if "size" in values:
                size = values["size"]
                values["size"] = (size, size) if isinstance(size, int) else (size[0], size[1])
            for key in {"mean", "std"} & values.keys():
                value = values[key]
                numbers = [value] * 3 if isinstance(value, int | float) else value
                values[key] = tuple(float(v) for v in numbers)
        return cls(**values)

    def to_config(self) -> dict[str, Any]:
        """Return the `preprocess_cfg` of an open_clip configuration file."""
        lists = {"size": list(self.size), "mean": list(self.mean), "std": list(self.std)}
        return {"size": 0, "mode": "RGB", **vars(self), **lists}

    def evaluation(self, image: Image.Image) -> torch.Tensor:
        """Return (3, H, W) float32 pixels, equal to open_clip's evaluation transform.

        Raises as `framed` does.
        """
        *_, to_numbers, normalise = self._steps()
        pixels: torch.Tensor = normalise(to_numbers(self.framed(image)))
        return pixels

    def framed(self, image: Image.Image) -> Image.Image:
        """Return the resized, cropped or padded image before conversion to numbers.

        Raises CompoclipError for an elongated image, most of which would be enlarged and then
        cropped away, and for an image with a side of 0 pixels after resizing.
        """
        (width, height), (high, wide) = image.size, self.size
        enlarged = width * height / min(width / wide, height / high) ** 2
        if self.resize_mode == "shortest" and enlarged > MAX_RESIZED_PIXELS:
            raise CompoclipError(
                f"an image of {width} x {height} pixels is too elongated for a model that sees "
                f"{wide} x {high}; crop or remove it"
            )
        *steps, _, _ = self._steps()
        try:
            for step in steps:
                image = step(image)
        except ValueError as error:
            raise CompoclipError(
                f"an image of {width} x {height} pixels cannot be resized ({error}); remove it"
            ) from None
        return image

    def _steps(self) -> Any:
        config = PreprocessCfg(**{**self.to_config(), "size": self.size})
        return image_transform_v2(config, is_train=False).transforms


def random_crop(
    height: int,
    width: int,
    rng: random.Random,
    scale: tuple[float, float] = (0.9, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Return the box (top, left, height, width) of a "random resized crop".

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
