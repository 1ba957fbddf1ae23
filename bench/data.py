"""`python -m bench data`: images per second from originals and from a pack."""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms  # type: ignore[import-untyped]

from bench.rows import PROGRAM, Inputs, Row, machine
from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.data.decode import opened, reduce, to_rgb
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Source
from compoclip.data.transform import ImageTransform, RandomCrop, normalised
from compoclip.errors import UsageError
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
    """Measure `PlainPhotos` on all images of a source."""
    photos = PlainPhotos(source, preprocess)
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        torch.stack([photos[i] for i in range(len(photos))])
        seconds.append(time.process_time() - start)
    return Speed(len(source) / min(seconds), {}, 4 * _values(preprocess))


def our_speed(source: Source, transform: ImageTransform, repeats: int) -> Speed:
    """Measure `ImageTransform.read` on all images of a source, stage by stage.

    Includes the normalisation, which training does on its device.
    """
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


if TYPE_CHECKING:
    from bench.data import Speed

PER_CORE = 250  # images a second: 4,000 on 16 cores
PLAIN, WHOLE, DRAFT, PACKED = "PIL and torchvision", "originals, --no-draft", "originals", "pack"


@dataclass(frozen=True)
class Options:
    """Images per second of processor time from files to normalised pixels, with the share of each
    stage; then of wall time through the loaders with 1, 2, ... workers.

    The plain way is PIL and torchvision image by image, on the originals. The pack is made of them
    here. Without --data, photo-like images of 640 x 480 are made.

    Args:
        data: Image-text data, as for train --data.
        images: Folder that image paths in the data are relative to.
        count: Photo-like images to make, without --data.
        size: Pixels a side of what a model sees.
        pack_size: Shorter side of images in the pack.
        batch_size: Images a batch, for the loaders.
        workers: Measure the loaders with 1 to so many workers.
        repeats: Timed repeats; the best is shown.
        json: Print JSON.
    """

    data: str | None = None
    images: Path | None = None
    count: int = 96
    size: int = 224
    pack_size: int = 256
    batch_size: int = 16
    workers: int = 2
    repeats: int = 3
    json: bool = False


@dataclass(frozen=True)
class Found:
    """ways: of one process. loaders: workers -> way -> images/s. size: bytes an image on disk."""

    images: int
    ways: dict[str, Speed]
    loaders: dict[int, dict[str, float]]
    size: dict[str, float]


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "data", arguments, PROGRAM)
    numbers = (options.count, options.size, options.pack_size, options.batch_size, options.repeats)
    if min(numbers) < 1 or options.workers < 0:
        raise UsageError("numbers must be at least 1, --workers at least 0")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    if options.json:
        emit_json({"machine": machine(), **asdict(found)})
    else:
        print(f"{machine()}; {found.images} images of {options.data or 'photo-like noise'}\n")
        print(_text(found))
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """One process; the loaders too, unless it has to be quick."""
    options = Options(data=inputs.photos, workers=0 if inputs.quick else 2)
    if inputs.quick:
        options = Options(data=inputs.photos, count=32, workers=0, repeats=2)
    found = measure(options, inputs.folder)
    plain = found.ways[PLAIN]
    made = []
    for name, target in ((DRAFT, None), (PACKED, PER_CORE)):
        way = found.ways[name]
        most = max(way.shares, key=way.shares.__getitem__)
        made.append(
            Row(
                bench="data",
                what=f"images from {name}, images/CPU second",
                ours=way.images_per_second,
                baseline=plain.images_per_second,
                against=PLAIN,
                ratio=way.images_per_second / plain.images_per_second,
                target=target,
                of="ours",
                limit=f"{way.shares[most]:.0%} of the time goes to: {most}",
            )
        )
    made.append(
        Row(
            bench="data",
            what="bytes of an image on its way from a worker",
            ours=found.ways[PACKED].queue_bytes,
            baseline=plain.queue_bytes,
            against="float32 pixels",
            ratio=plain.queue_bytes / found.ways[PACKED].queue_bytes,
        )
    )
    for workers, speeds in found.loaders.items():
        made.append(
            Row(
                bench="data",
                what=f"pack, {workers} workers, images/s",
                ours=speeds[PACKED],
                baseline=speeds[PLAIN],
                against=PLAIN,
                ratio=speeds[PACKED] / speeds[PLAIN],
            )
        )
    return made


def measure(options: Options, folder: Path) -> Found:
    """Pack what is to be measured below `folder`, and measure."""
    from bench.data import loader_speed, our_speed, plain_speed, write_photos
    from compoclip.data.pack import PackSpec, Request, pack
    from compoclip.data.transform import ImageTransform
    from compoclip.models.preprocess import Preprocess

    made = options.data or str(write_photos(folder / "photos", options.count))
    request = Request(made, options.images)
    packed = pack(request, folder / "pack", PackSpec(options.pack_size), max_bad=0)
    originals, small = request.open(), Request(str(folder / "pack")).open()
    preprocess = Preprocess(size=(options.size, options.size))
    draft, whole = ImageTransform(preprocess), ImageTransform(preprocess, draft=False)
    repeats = options.repeats
    ways = {
        PLAIN: plain_speed(originals, preprocess, repeats),
        WHOLE: our_speed(originals, whole, repeats),
        DRAFT: our_speed(originals, draft, repeats),
        PACKED: our_speed(small, draft, repeats),
    }
    batch = min(options.batch_size, len(originals) // 2)
    loaders = {
        workers: {
            PLAIN: loader_speed(originals, draft, batch, workers, plain=True),
            WHOLE: loader_speed(originals, whole, batch, workers),
            DRAFT: loader_speed(originals, draft, batch, workers),
            PACKED: loader_speed(small, draft, batch, workers),
        }
        for workers in range(1, options.workers + 1)
    }
    images = [originals[i].image for i in range(len(originals))]
    total = sum(len(i) if isinstance(i, bytes) else i.stat().st_size for i in images)
    count = len(originals)
    size = {DRAFT: total / count, PACKED: packed.size_bytes / count}
    return Found(count, ways, loaders, size)


def _text(found: Found) -> str:
    plain = found.ways[PLAIN].images_per_second
    stages = list(found.ways[PACKED].shares)
    cells = [
        [
            name,
            f"{way.images_per_second:.0f}",
            f"{way.images_per_second / plain:.2f}",
            *(f"{way.shares[stage]:.0%}" if way.shares else "" for stage in stages),
        ]
        for name, way in found.ways.items()
    ]
    text = [table(cells, ["", "images/CPU s", "ratio", *stages])]
    for workers, speeds in found.loaders.items():
        shown = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
        text.append(f"\n{workers} workers, images/s of wall time: {shown}")
    on_disk = ", ".join(f"{name} {size / 1000:.1f} kB" for name, size in found.size.items())
    queue: dict[str, Any] = {PLAIN: found.ways[PLAIN], "here": found.ways[PACKED]}
    sent = ", ".join(f"{name} {way.queue_bytes / 1000:.0f} kB" for name, way in queue.items())
    return "\n".join([*text, f"\nan image on disk: {on_disk}; from a worker: {sent}"])
