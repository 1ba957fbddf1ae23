"""`python -m bench data`: images per second of a core, by part and by way of storing."""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms  # type: ignore[import-untyped]

from bench.captions import drawn_captions
from bench.rows import PROGRAM, Inputs, Row, machine
from compoclip.captions.store import ParseStore
from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.data.batch import TextBlock
from compoclip.data.decode import decode
from compoclip.data.loader import BatchLoader
from compoclip.data.pack import PackSpec, pack
from compoclip.data.plan import StoredCaptions, TextPlan
from compoclip.data.prepared import Preparation
from compoclip.data.sources import Sample, Source
from compoclip.data.sources.open import Request
from compoclip.data.transform import ImageTransform, RandomCrop, normalised
from compoclip.errors import UsageError
from compoclip.files import write_text
from compoclip.methods.fsc_clip import PLAN
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig
from compoclip.models.preprocess import Preprocess

STAGES = ("read", "decode", "crop and resize", "stack", "normalise")
NARROW = {  # the weights do not matter for texts, nor is anything encoded
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 8, "head_width": 4, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1},
}


@dataclass(frozen=True)
class Speed:
    """images_per_second: of processor time of one process, the best of the repeats. shares: of
    each of STAGES in it. queue_bytes: of an image on its way from a worker, on average."""

    images_per_second: float
    shares: dict[str, float]
    queue_bytes: int

    @property
    def worker_ms(self) -> float:
        """Milliseconds that a worker spends on an image: the last stage is the device's."""
        return 1000 / self.images_per_second * (1 - self.shares.get(STAGES[-1], 0.0))


@dataclass(frozen=True)
class TextCost:
    """Milliseconds of an image's texts: rewrites is to look its parse up and to draw from it;
    tokens is ids, layout and plan of a batch. texts: an image has so many."""

    rewrites: float
    tokens: float
    texts: float


def text_cost(texts: Sequence[str], batch_size: int, folder: Path) -> TextCost:
    """Measure what a worker does for the texts of FSC-CLIP, a caption an image.

    Caches are those of a worker that has been at it for a while, but no parse is known.
    """
    store = ParseStore(folder / "parses.sqlite")
    store.fill(texts, workers=1)
    samples = [Sample(str(number), b"", (text,)) for number, text in enumerate(texts)]
    model = create_model(ModelConfig(NARROW))
    prepare = Preparation(model.tokenizer, model.encoder.text_planner())
    drawing = tokens = 0.0
    count = 0
    for epoch in range(2):
        plan = TextPlan(PLAN, parsed=StoredCaptions(store))
        drawing = tokens = 0.0
        count = 0
        for first in range(0, len(samples), batch_size):
            part = samples[first : first + batch_size]
            start = time.process_time()
            drawn = [plan.draw(sample, epoch)[0] for sample in part]
            between = time.process_time()
            flat = [(owner, text) for owner, texts in enumerate(drawn) for text in texts]
            block = TextBlock(
                texts=tuple(text.text for _, text in flat),
                owner=tuple(owner for owner, _ in flat),
                role=tuple(text.role for _, text in flat),
                rewrite=tuple(text.rewrite for _, text in flat),
                images=len(part),
            )
            prepare(block)
            drawing += between - start
            tokens += time.process_time() - between
            count += len(flat)
    each = 1000 / len(samples)
    return TextCost(drawing * each, tokens * each, count / len(samples))


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

    Includes the normalisation, which training does on its device, and what else it does there.
    """
    best, shares, sent = float("inf"), {}, 0
    preprocess = transform.preprocess
    for _ in range(repeats):
        clock = _Clock()
        pixels = []
        for index in range(len(source)):
            clock.start()
            image = source[index].image
            data = image if isinstance(image, bytes) else image.read_bytes()
            clock.done("read")
            rgb, stored, box = transform.decoded(data, random.Random(index))
            clock.done("decode")
            pixels.append(transform.pixels(rgb, stored, box))
            clock.done("crop and resize")
        batch = transform.together(pixels)
        clock.done("stack")
        sent = batch.numel()
        normalised(batch, preprocess.mean, preprocess.std)
        clock.done("normalise")
        total = sum(clock.spent.values())
        if total < best:
            best, shares = total, {name: clock.spent[name] / total for name in STAGES}
    return Speed(len(source) / best, shares, sent // len(source))


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


def resaved(source: Source, folder: Path, count: int) -> Path:
    """The first images of a source as 640 x 480 JPEGs with their captions beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(min(count, len(source))):
        sample = source[index]
        photo = decode(sample.image).resize((640, 480), Image.Resampling.BICUBIC)
        # Enlarged photos have no fine detail, which takes most of a file: noise stands in for it.
        noise = np.random.default_rng(index).normal(0, 10, (480, 640, 1))
        pixels = np.clip(np.asarray(photo) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:05d}.jpg", quality=90)
        write_text(folder / f"{index:05d}.txt", sample.captions[0] + "\n")
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


PER_CORE = 250  # images a second: 4,000 on 16 cores
CORES = 16
PLAIN, WHOLE, DRAFT, PACKED = "PIL and torchvision", "originals, --no-draft", "originals", "pack"


@dataclass(frozen=True)
class Options:
    """Images per second of processor time from files to normalised pixels, with the share of each
    stage; what a worker gives with the texts of FSC-CLIP, and 16 of them by that count; then of
    wall time through the loaders with 1, 2, ... workers.

    The plain way is PIL and torchvision image by image, on the originals. The pack
    is made of them here. Without --data, photo-like images of 640 x 480 are made.

    Args:
        data: Image-text data, as for train --data.
        images: Folder that image paths in the data are relative to.
        resave: Make them 640 x 480 JPEGs of some 160 kB first, as COCO has them: enlarged, with a
            little noise in place of the detail that they lack.
        captions: Captions (a .txt, .json, .jsonl file or a folder of them); else the world's.
        texts: Captions to measure with.
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
    resave: bool = False
    captions: Path | None = None
    texts: int = 2000
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
    texts: TextCost
    loaders: dict[int, dict[str, float]]
    size: dict[str, float]

    def per_core(self, way: str) -> float:
        """Images a second of a core that reads, crops and draws texts."""
        return 1000 / (self.ways[way].worker_ms + self.texts.rewrites + self.texts.tokens)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "data", arguments, PROGRAM)
    images = (options.count, options.size, options.pack_size)
    if min(*images, options.batch_size, options.repeats, options.texts) < 1 or options.workers < 0:
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
    options = Options(data=inputs.photos, captions=inputs.captions)
    if inputs.quick:
        options = replace(options, count=32, workers=0, repeats=2, texts=500)
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
    for name in (DRAFT, PACKED):
        made.append(
            Row(
                bench="data",
                what=f"the same with texts, from {name}, images/CPU second of a worker",
                ours=found.per_core(name),
                target=PER_CORE,
                of="ours",
                limit="rewrites, decoding and resizing share it",
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
    made = options.data or str(write_photos(folder / "photos", options.count))
    request = Request(made, options.images)
    if options.resave:
        request = Request(str(resaved(request.open(), folder / "resaved", options.count)))
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
    captions = drawn_captions(options.captions, options.texts, 0, "lower --texts")
    texts = text_cost(captions, 256, folder)
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
    count = len(originals)
    size = {
        DRAFT: _stored(originals),
        PACKED: packed.size_bytes / count,
    }
    return Found(count, ways, texts, loaders, size)


def _stored(source: Source) -> float:
    """Bytes of an image of a source, on average."""
    images = [source[i].image for i in range(len(source))]
    total = sum(len(i) if isinstance(i, bytes) else i.stat().st_size for i in images)
    return total / len(source)


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
    costs = found.texts
    cells = [
        [
            name,
            f"{way.worker_ms:.2f}",
            f"{costs.rewrites:.2f}",
            f"{costs.tokens:.2f}",
            f"{found.per_core(name):.0f}",
            f"{CORES * found.per_core(name):,.0f}",
        ]
        for name, way in found.ways.items()
        if name != PLAIN
    ]
    header = ["a worker, ms an image", "image", "rewrites", "tokens", "images/CPU s", f"x {CORES}"]
    text.append(f"\n{table(cells, header)}")
    for workers, speeds in found.loaders.items():
        shown = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
        text.append(f"\n{workers} workers, images/s of wall time: {shown}")
    on_disk = ", ".join(f"{name} {size / 1000:.1f} kB" for name, size in found.size.items())
    queue: dict[str, Any] = {PLAIN: found.ways[PLAIN], "here": found.ways[PACKED]}
    sent = ", ".join(f"{name} {way.queue_bytes / 1000:.0f} kB" for name, way in queue.items())
    return "\n".join([*text, f"\nan image on disk: {on_disk}; from a worker: {sent}"])
