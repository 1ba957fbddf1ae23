"""`python -m bench evaluate`: how many encodings an evaluation needs, and what the host does around
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from bench.captions import world_captions
from bench.data import photo_like
from bench.rows import PROGRAM, Inputs, Row
from compoclip.benchmarks.case import Benchmark, Content, ImageRef, Retrieval
from compoclip.cli.options import parse
from compoclip.config import Shown
from compoclip.console import emit_json, table
from compoclip.data.decode import decode
from compoclip.errors import UsageError
from compoclip.evaluation.encode import (
    Amounts,
    EncodeOptions,
    by_content,
    encode_contents,
    read_images,
)
from compoclip.evaluation.encoder import Encoder, ModelEncoder, Pending, TextKey, evaluating
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.ranks import device_named


@dataclass(frozen=True)
class Economy:
    """Encodings that some benchmarks need. naive: every image and text of every item on its own,
    as scripts that go through the items do. once: each distinct image (bytes and box; where the
    file is absent: path and box) and each distinct token sequence."""

    name: str
    items: int
    naive_images: int
    naive_texts: int
    once_images: int
    once_texts: int

    @property
    def ratio(self) -> float:
        """Naive encodings for each one that is made."""
        return (self.naive_images + self.naive_texts) / max(1, self.once_images + self.once_texts)

    @property
    def text_ratio(self) -> float:
        """The same for texts alone."""
        return self.naive_texts / max(1, self.once_texts)


def economies(
    benchmarks: Sequence[Benchmark],
    text_keys: Callable[[Sequence[str]], Sequence[TextKey]],
    workers: int = 2,
) -> tuple[list[Economy], Economy]:
    """One a benchmark as if it were alone, and that of all of them evaluated together.

    text_keys: of the model (`Encoder.text_keys`). Nothing is encoded.
    """
    contents = [each.content for each in benchmarks]
    texts = list(dict.fromkeys(text for each in contents for text in each.texts))
    images = list(dict.fromkeys(ref for each in contents for ref in each.images))
    tokens = {text: key.key for text, key in zip(texts, text_keys(texts))}
    _, rows = by_content(images, workers)
    alone = [_economy(b.name, [b.content], tokens, rows) for b in benchmarks]
    return alone, _economy("all together", contents, tokens, rows)


def _economy(
    name: str,
    contents: Sequence[Content],
    tokens: Mapping[str, bytes],
    rows: Mapping[ImageRef, int],
) -> Economy:
    counts = [_counts(content) for content in contents]
    return Economy(
        name=name,
        items=sum(items for items, _, _ in counts),
        naive_images=sum(images for _, images, _ in counts),
        naive_texts=sum(texts for _, _, texts in counts),
        once_images=len({rows[ref] for each in contents for ref in each.images}),
        once_texts=len({tokens[text] for each in contents for text in each.texts}),
    )


def encoding_seconds(
    encoder: Encoder, benchmarks: Sequence[Benchmark], options: EncodeOptions
) -> tuple[float, float]:
    """Processor seconds of encoding everything item by item, and of `encode_contents`.

    Both read and encode in batches of as many. Other work on the machine counts little.
    """
    size, by, _ = options.amounts(encoder.device)
    contents = [each.content for each in benchmarks]
    start = time.process_time()
    for content in contents:
        images, texts = content.images, content.texts
        for at in range(0, len(images), size):
            part = images[at : at + size]
            encoder.start_images([encoder.read_image(ref) for ref in part])()
        for at in range(0, len(texts), by):
            encoder.start_texts(texts[at : at + by])()
    between = time.process_time()
    encode_contents(encoder, contents, options)
    return between - start, time.process_time() - between


class HostOnly(ModelEncoder):
    """Everything around the towers, which give zeros. Pixels are normalised where the towers are,
    that is nowhere here."""

    def start_images(self, images: Sequence[np.ndarray]) -> Pending:
        """Bring a batch to the device."""
        return self._nothing(len(self.upload(images)))

    def start_texts(self, texts: Sequence[str]) -> Pending:
        """Make ids of a batch."""
        return self._nothing(len(self._loaded.tokenizer(texts)))

    def _nothing(self, count: int) -> Pending:
        with self.evaluating():
            return lambda: np.zeros((count, 512), dtype=np.float32)


class FloatsOneByOne(HostOnly):
    """The same as evaluation scripts do it: floats are made of an image where it is read, and the
    state of the model is changed for every batch."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__(loaded)
        self.read_image: Any = lambda ref: loaded.preprocess.evaluation(decode(ref.path))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Entered for every batch."""
        with evaluating(self._loaded.encoder), torch.inference_mode():
            yield

    def upload(self, images: Sequence[Any]) -> Tensor:
        """(N, 3, H, W) float32."""
        return torch.stack(list(images))


@dataclass(frozen=True)
class Host:
    """Processor seconds outside of the towers. images: for 1,000 of them; images_main: those of the
    main thread, which no image is read in. texts: for 10,000 of them, all in the main thread."""

    images: float
    images_main: float
    texts: float


def host_seconds(
    encoder: ModelEncoder, images: Sequence[ImageRef], texts: Sequence[str], options: EncodeOptions
) -> Host:
    """What `encode_contents` takes for these images and for these texts.

    encoder: has no towers. options: names a cache, too.
    """

    def taken(content: Content) -> tuple[float, float]:
        whole, main = time.process_time(), time.thread_time()
        encode_contents(encoder, [content], options)
        return time.process_time() - whole, time.thread_time() - main

    thousands, ten_thousands = len(images) / 1000, len(texts) / 10_000
    both, main = taken(Retrieval(tuple(images), (), ()))
    return Host(
        both / thousands,
        main / thousands,
        taken(Retrieval((), tuple(texts), ()))[0] / ten_thousands,
    )


def reading_speed(
    encoder: Encoder, images: Sequence[ImageRef], workers: int, processes: bool, repeats: int
) -> float:
    """Images read a second, once the readers have started."""
    many = list(images) * repeats
    reading = read_images(encoder, many, Amounts(64, 64, workers), processes)
    for _ in zip(range(len(many) // 3), reading):
        start = time.perf_counter()
    rest = sum(1 for _ in reading)
    return rest / (time.perf_counter() - start)


def _counts(content: Content) -> tuple[int, int, int]:
    """Items, images and texts, item by item."""
    return sum(content.counts().values()), len(content.images), len(content.texts)


@dataclass(frozen=True)
class Options:
    """Count the images and texts that an evaluation encodes, each distinct one once over all
    benchmarks, against encoding every item's on its own. Nothing is encoded, and no image has to be
    there: absent ones are told apart by their path.

    Args:
        on: Benchmarks or suites, as for `compoclip evaluate`.
        data: Data root in the default layout.
        model: Whose tokenizer tells texts apart: anything `compoclip evaluate` takes.
        workers: Threads that read images.
        json: Print JSON.
    """

    on: Annotated[tuple[str, ...], Shown("BENCHMARK ...")]
    data: Path = Path("data")
    model: str = "bundled"
    workers: int = 2
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Count and print; returns the exit code."""
    options = parse(Options, "evaluate", arguments, PROGRAM)
    if options.workers < 1:
        raise UsageError("--workers must be at least 1")
    if not options.on:
        raise UsageError("name at least one benchmark; see bench evaluate --help")
    from compoclip.benchmarks.targets import parse_targets

    benchmarks = [target.load() for target in parse_targets(options.on, options.data)]
    encoder = ModelEncoder(load_model(options.model, device=device_named("cpu")))
    alone, together = economies(benchmarks, encoder.text_keys, options.workers)
    every = [*alone, together]
    if options.json:
        emit_json(
            [{**asdict(each), "ratio": each.ratio, "text_ratio": each.text_ratio} for each in every]
        )
        return 0
    cells = [
        [
            each.name,
            str(each.items),
            str(each.naive_images),
            str(each.once_images),
            str(each.naive_texts),
            str(each.once_texts),
            f"{each.text_ratio:.2f}",
            f"{each.ratio:.2f}",
        ]
        for each in every
    ]
    header = ["", "items", "images", "distinct", "texts", "distinct", "texts saved", "all saved"]
    print(table(cells, header))
    print(
        "\nimages, texts: encodings item by item; distinct: encodings made, each image (bytes and "
        "box) and token sequence once; saved: times fewer"
    )
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """The world's benchmarks with the bundled model, counted and encoded both ways, and the host's
    part of encoding photo-like images and captions."""
    from compoclip.benchmarks.targets import parse_targets
    from compoclip_world.export.part import SuiteSpec
    from compoclip_world.export.suite import write_suite

    suite = inputs.folder / "suite"
    write_suite(suite, SuiteSpec(items=20 if inputs.quick else 250))
    benchmarks = [target.load() for target in parse_targets([str(suite)], suite)]
    encoder = ModelEncoder(load_model("bundled", device=device_named("cpu")))
    _, together = economies(benchmarks, encoder.text_keys)
    naive, once = encoding_seconds(encoder, benchmarks, EncodeOptions())
    every = together.naive_images + together.naive_texts
    made = together.once_images + together.once_texts
    world = f"{len(benchmarks)} benchmarks of the world"
    return [
        Row(
            bench="evaluate",
            what=f"encodings of {world}",
            ours=made,
            baseline=every,
            against="every item's",
            ratio=together.ratio,
        ),
        Row(
            bench="evaluate",
            what=f"{world}, encoded, CPU seconds",
            ours=once,
            baseline=naive,
            against="every item's",
            ratio=naive / once,
        ),
        *_host_rows(load_model("bundled", device=device_named("cpu")), inputs),
    ]


def photo_files(folder: Path, count: int, drawn: int = 64) -> list[ImageRef]:
    """So many photo-like JPEGs; those after the first `drawn` differ from these in a last byte or
    two alone, which makes them other images."""
    for k in range(count):
        path = folder / f"{k}.jpg"
        if k < drawn:
            photo_like(k).save(path, quality=90)
        else:
            first = (folder / f"{k % drawn}.jpg").read_bytes()
            path.write_bytes(first + (k // drawn).to_bytes(2, "little"))
    return [ImageRef(folder / f"{k}.jpg") for k in range(count)]


def _host_rows(loaded: LoadedModel, inputs: Inputs) -> list[Row]:
    """The host's part, for a GPU and its batches, against floats made one by one; and readers."""
    size = replace(loaded.preprocess, size=(224, 224))  # the bundled model's images are small
    loaded = replace(loaded, preprocess=size)
    images = photo_files(inputs.folder, 64 if inputs.quick else 512)
    captions = world_captions(500 if inputs.quick else 2000)
    texts = [f"{caption} {k}" for k in range(5) for caption in captions]
    loaded.tokenizer(texts)  # byte-pair encoding is the same in both ways
    plain = host_seconds(
        FloatsOneByOne(loaded), images, texts, EncodeOptions(64, 2, cache=inputs.folder / "a")
    )
    ours = host_seconds(
        HostOnly(loaded), images, texts, EncodeOptions(1024, 2, cache=inputs.folder / "b")
    )
    names = {
        "images": "host of 1,000 images, CPU seconds",
        "images_main": "host of 1,000 images, CPU seconds of the main thread",
        "texts": "host of 10,000 texts, CPU seconds",
    }
    rows = [
        Row(
            bench="evaluate",
            what=what,
            ours=getattr(ours, name),
            baseline=getattr(plain, name),
            against="floats one by one, 64 at once",
            ratio=getattr(plain, name) / getattr(ours, name),
        )
        for name, what in names.items()
    ]
    if inputs.quick:
        return rows
    one, threads, processes = (  # in turn, the better of two: other programs run, too
        max(each)
        for each in zip(
            *(
                [
                    reading_speed(ModelEncoder(loaded), images, workers, kind, 3)
                    for workers, kind in ((1, False), (2, False), (2, True))
                ]
                for _ in range(2)
            )
        )
    )
    return [
        *rows,
        *(
            Row(
                bench="evaluate",
                what=f"images read a second by {readers}",
                ours=speed,
                baseline=one,
                against="1 thread",
                ratio=speed / one,
            )
            for readers, speed in (("2 threads", threads), ("2 processes", processes))
        ),
    ]
