"""How fast photos become training pixels: from originals, from a pack, and the plain way."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms  # type: ignore[import-untyped]

from compoclip.data.decode import opened, reduce, to_rgb
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan
from compoclip.data.sample import Source
from compoclip.data.transform import ImageTransform, RandomCrop, normalised
from compoclip.models.preprocess import Preprocess

STAGES = ("read", "decode", "crop and resize", "stack", "normalise")


@dataclass(frozen=True)
class Speed:
    """images_per_second: of processor time of one process, the best of the repeats. shares: of
    each of STAGES in it. queue_bytes: of an image on its way from a worker."""

    images_per_second: float
    shares: dict[str, float]
    queue_bytes: int


class PlainPhotos:
    """The straightforward map-style data set: PIL and torchvision, float pixels of one image."""

    def __init__(self, source: Source, preprocess: Preprocess) -> None:
        self._source = source
        crop = RandomCrop()
        mode = transforms.InterpolationMode(preprocess.interpolation)
        self._transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(preprocess.size, crop.scale, crop.ratio, mode),
                transforms.ToTensor(),
                transforms.Normalize(preprocess.mean, preprocess.std),
            ]
        )

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = self._source[index].image
        file: Any = io.BytesIO(image) if isinstance(image, bytes) else image
        with Image.open(file) as photo:
            pixels: torch.Tensor = self._transform(photo.convert("RGB"))
        return pixels


def plain_speed(source: Source, preprocess: Preprocess, repeats: int) -> Speed:
    """Of `PlainPhotos` on all images of a source."""
    photos = PlainPhotos(source, preprocess)
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        torch.stack([photos[i] for i in range(len(photos))])
        seconds.append(time.process_time() - start)
    return Speed(len(source) / min(seconds), {}, 4 * _values(preprocess))


def our_speed(source: Source, transform: ImageTransform, repeats: int) -> Speed:
    """Of `ImageTransform.read` on all images of a source, stage by stage, with the normalisation
    that a device with training on it would do."""
    best, shares = float("inf"), {}
    preprocess = transform.preprocess
    for _ in range(repeats):
        clock = _Clock()
        pixels = []
        for index in range(len(source)):
            clock.start()
            image = source[index].image
            data = image if isinstance(image, bytes) else image.read_bytes()
            clock.done("read")
            with opened(data) as file:
                stored = file.size
                box = transform.box(stored, random.Random(index))
                if transform.draft:
                    reduce(file, transform.least(stored, box))
                rgb = to_rgb(file)
            clock.done("decode")
            pixels.append(transform.pixels(rgb, stored, box))
            clock.done("crop and resize")
        batch = torch.stack(pixels)
        clock.done("stack")
        normalised(batch, preprocess.mean, preprocess.std)
        clock.done("normalise")
        total = sum(clock.spent.values())
        if total < best:
            best, shares = total, {name: clock.spent[name] / total for name in STAGES}
    return Speed(len(source) / best, shares, _values(preprocess))


def loader_speed(
    source: Source, transform: ImageTransform, batch_size: int, workers: int, plain: bool = False
) -> float:
    """Images a second of wall time over one epoch with so many workers, whose start is not timed.

    plain: by `PlainPhotos` in a DataLoader, else by `BatchLoader` with its captions.
    """
    if plain:
        photos: Any = PlainPhotos(source, transform.preprocess)
        batches: Iterable[Any] = DataLoader(photos, batch_size, drop_last=True, num_workers=workers)
    else:
        loader = BatchLoader(source, TextPlan(), transform, batch_size=batch_size, workers=workers)
        batches = loader.epoch(0)
    iterator = iter(batches)
    next(iterator)
    start = time.perf_counter()
    count = sum(batch_size for _ in iterator)
    return count / (time.perf_counter() - start)


def photo_like(index: int, width: int = 640, height: int = 480) -> Image.Image:
    """An image whose detail falls with frequency as in photos (1 / f); drawn by number."""
    rng = np.random.default_rng(index)
    total = np.zeros((height, width, 3), np.float32)
    side, strength = 3, 60.0
    while side < width:
        noise = rng.normal(0, strength, (side * 3 // 4, side, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(noise[:, :, channel], "F")
            wide = layer.resize((width, height), Image.Resampling.BICUBIC)
            total[:, :, channel] += np.asarray(wide)
        side, strength = side * 2, strength / 1.6
    return Image.fromarray(np.clip(total + 128, 0, 255).astype(np.uint8))


def write_photos(folder: Path, count: int, quality: int = 90) -> Path:
    """A folder of photo-like JPEGs with captions beside them, as `open_source` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        photo_like(index).save(folder / f"{index:05d}.jpg", quality=quality)
        (folder / f"{index:05d}.txt").write_text(f"photo number {index}\n", encoding="utf-8")
    return folder


class _Clock:
    """Adds processor time since the last call to a stage."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(STAGES, 0.0)
        self._last = time.process_time()

    def start(self) -> None:
        self._last = time.process_time()

    def done(self, stage: str) -> None:
        now = time.process_time()
        self.spent[stage] += now - self._last
        self._last = now


def _values(preprocess: Preprocess) -> int:
    return 3 * preprocess.size[0] * preprocess.size[1]
