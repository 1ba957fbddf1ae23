"""`python -m bench data`: images per second of a core, by part and by way of storing."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms  # type: ignore[import-untyped]

from bench.harness import Row, timed
from bench.made import batch_of, drawn_captions, narrow_model, write_samples
from compoclip.captions.store import ParseStore
from compoclip.data.loader import BatchLoader
from compoclip.data.options import PackSpec
from compoclip.data.pack import pack
from compoclip.data.plan import StoredCaptions, TextPlan
from compoclip.data.prepared import Preparation
from compoclip.data.sources import Sample, Source
from compoclip.data.sources.open import Request
from compoclip.data.transform import ImageTransform, RandomCrop, normalised
from compoclip.methods.fsc_clip import PLAN
from compoclip.models.preprocess import Preprocess

STAGES = ("read", "decode", "crop and resize", "stack", "normalise")
PER_CORE = 250  # images a second: 4,000 on 16 cores
PLAIN, WHOLE, DRAFT, PACKED = "PIL and torchvision", "originals, --no-draft", "originals", "pack"
QUICK = ("--count=32", "--workers=0", "--repeats=2", "--texts=500")


def text_cost(texts: Sequence[str], batch_size: int, folder: Path) -> tuple[float, float, float]:
    """Measure what a worker does for the texts of FSC-CLIP, a caption an image.

    Caches are those of a worker that has been at it for a while, but no parse is known.

    Returns:
        Milliseconds of an image to look its parse up and to draw from it; the same for ids, layout
        and plan of a batch; and how many texts an image has.
    """
    store = ParseStore(folder / "parses.sqlite")
    store.fill(texts, workers=1)
    samples = [Sample(str(number), b"", (text,)) for number, text in enumerate(texts)]
    model = narrow_model(32, layers=1)  # nothing is encoded
    prepare = Preparation(model.tokenizer, model.encoder.text_planner())
    for epoch in range(2):  # the first fills the caches
        plan = TextPlan(PLAN, parsed=StoredCaptions(store))
        drawing = tokens = 0.0
        count = 0
        for first in range(0, len(samples), batch_size):
            part = samples[first : first + batch_size]
            pixels = torch.zeros(len(part), 3, 1, 1)
            _, drawn, batch = timed(partial(batch_of, pixels, plan, part, epoch))
            drawing += drawn
            tokens += timed(partial(prepare, batch))[1]
            count += len(batch.texts)
    each = 1000 / len(samples)
    return drawing * each, tokens * each, count / len(samples)


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


def plain_speed(source: Source, preprocess: Preprocess, repeats: int) -> float:
    """Measure `PlainPhotos` on all images of a source: milliseconds of an image, at best."""
    photos = PlainPhotos(source, preprocess)
    best = min(
        timed(lambda: torch.stack([photos[i] for i in range(len(photos))]))[1]
        for _ in range(repeats)
    )
    return 1000 * best / len(source)


def our_speed(
    source: Source, transform: ImageTransform, repeats: int
) -> tuple[dict[str, float], int]:
    """Measure `ImageTransform.read` on all images of a source.

    Returns milliseconds of an image by stage, of processor time of one process, the best of the
    repeats; and bytes of an image on its way from a worker. Includes the normalisation, which
    training does on its device.
    """
    best: dict[str, float] = {}
    preprocess = transform.preprocess
    for _ in range(repeats):
        spent = dict.fromkeys(STAGES, 0.0)
        last = time.process_time()

        def done(stage: str, spent: dict[str, float] = spent) -> None:
            nonlocal last
            last, before = time.process_time(), last
            spent[stage] += last - before

        pixels = []
        for index in range(len(source)):
            image = source[index].image
            data = image if isinstance(image, bytes) else image.read_bytes()
            done("read")
            rgb, stored, box = transform.decoded(data, random.Random(index))
            done("decode")
            pixels.append(transform.pixels(rgb, stored, box))
            done("crop and resize")
        batch = transform.together(pixels)
        done("stack")
        normalised(batch, preprocess.mean, preprocess.std)
        done("normalise")
        if not best or sum(spent.values()) < sum(best.values()):
            best = spent
    each = 1000 / len(source)
    return {name: each * s for name, s in best.items()}, batch.numel() // len(source)


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
        captions: Captions (a .txt, .json, .jsonl file or a folder of them); else the world's.
        texts: Captions to measure with.
        count: Photo-like images to make, without --data.
        size: Pixels a side of what a model sees.
        batch_size: Images a batch, for the loaders.
        workers: Measure the loaders with 1 to so many workers.
        repeats: Timed repeats; the best is shown.
    """

    data: str | None = None
    images: Path | None = None
    captions: Path | None = None
    texts: int = 2000
    count: int = 96
    size: int = 224
    batch_size: int = 16
    workers: int = 2
    repeats: int = 3


def measure(options: Options, folder: Path) -> list[Row]:
    """Pack what is to be measured below `folder`, and measure."""
    made = options.data
    if made is None:
        texts = [f"photo number {index}" for index in range(options.count)]
        made = write_samples(folder / "photos", texts, options.count)
    request = Request(made, images=options.images)
    packed = pack(request, folder / "pack", PackSpec(), max_bad=0)
    originals, small = request.open(), Request(str(folder / "pack")).open()
    preprocess = Preprocess(size=(options.size, options.size))
    draft, whole = ImageTransform(preprocess), ImageTransform(preprocess, draft=False)
    inputs = {WHOLE: (originals, whole), DRAFT: (originals, draft), PACKED: (small, draft)}
    plain = plain_speed(originals, preprocess, options.repeats)
    ways = {name: our_speed(*given, options.repeats) for name, given in inputs.items()}
    captions = drawn_captions(options.captions, options.texts, 0, "--texts")
    rewrites, tokens, texts_of = text_cost(captions, 256, folder)
    rows = []
    for name, (ms, _) in ways.items():
        most = max(ms, key=ms.__getitem__)
        # The last stage is the device's.
        spent = sum(ms.values()) - ms[STAGES[-1]] + rewrites + tokens
        rows += [
            Row(
                what=f"images from {name}, images/CPU second",
                ours=1000 / sum(ms.values()),
                baseline=1000 / plain,
                against=PLAIN,
                target=PER_CORE if name == PACKED else None,
                of="ours",
                limit=f"{ms[most] / sum(ms.values()):.0%} of the time goes to: {most}",
            ),
            Row(
                what=f"the same with texts, from {name}, images/CPU second of a worker",
                ours=1000 / spent,
                target=None if name == WHOLE else PER_CORE,
                of="ours",
                limit="rewrites, decoding and resizing share it",
            ),
            *(Row(f"{name}: {stage}, ms an image", each) for stage, each in ms.items()),
        ]
    rows += [
        Row("rewrites, ms an image", rewrites),
        Row(f"tokens of {texts_of:.1f} texts, ms an image", tokens),
        Row(
            what="bytes of an image on its way from a worker",
            ours=ways[PACKED][1],
            baseline=4 * 3 * options.size**2,
            against="float32 pixels",
            less=True,
        ),
        Row(
            what="bytes of an image on disk, pack",
            ours=packed.size_bytes / len(originals),
            baseline=_stored(originals),
            against="originals",
            less=True,
        ),
    ]
    batch = min(options.batch_size, len(originals) // 2)
    for workers in range(1, options.workers + 1):
        reference = loader_speed(originals, draft, batch, workers, plain=True)
        rows += [
            Row(
                what=f"{name}, {workers} workers, images/s of wall time",
                ours=loader_speed(*given, batch, workers),
                baseline=reference,
                against=PLAIN,
            )
            for name, given in inputs.items()
        ]
    return rows


def _stored(source: Source) -> float:
    """Return the bytes of an image of a source, on average."""
    images = [source[i].image for i in range(len(source))]
    total = sum(len(i) if isinstance(i, bytes) else i.stat().st_size for i in images)
    return total / len(source)
