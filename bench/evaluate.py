"""`python -m bench evaluate`: how many encodings an evaluation needs, and what the host does around
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from bench.harness import Row
from bench.made import photo_files, world_captions
from compoclip.benchmarks.case import Benchmark, ImageRef, Retrieval
from compoclip.benchmarks.targets import parse_targets
from compoclip.config import Shown
from compoclip.data.decode import decode
from compoclip.evaluation.encode import EncodeOptions, by_content, encode_contents
from compoclip.evaluation.encoder import Encoder, ModelEncoder, Pending, TextKey, evaluating
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.ranks import device_named
from compoclip_world.export.part import SuiteSpec
from compoclip_world.export.suite import write_suite

QUICK = ("--items=20", "--images=64", "--texts=2500")


def economies(
    benchmarks: Sequence[Benchmark],
    text_keys: Callable[[Sequence[str]], Sequence[TextKey]],
    workers: int = 2,
) -> list[Row]:
    """Count the encodings of each benchmark as if it were alone, then of all evaluated together.

    The baseline is every image and text of every item on its own, as scripts that go through the
    items do; ours is each distinct image (bytes and box; where the file is absent: path and box)
    and each distinct token sequence. text_keys: of the model (`Encoder.text_keys`). Nothing is
    encoded.
    """
    alone = {each.name: [each.content] for each in benchmarks}
    contents = [each.content for each in benchmarks]
    texts = list(dict.fromkeys(text for each in contents for text in each.texts))
    images = list(dict.fromkeys(ref for each in contents for ref in each.images))
    tokens = {text: key.key for text, key in zip(texts, text_keys(texts))}
    _, rows = by_content(images, workers)
    found = []
    for name, some in (*alone.items(), ("all together", contents)):
        items = sum(sum(each.counts().values()) for each in some)
        shown = [rows[ref] for each in some for ref in each.images]
        read = [tokens[text] for each in some for text in each.texts]
        for what, once, naive in (
            ("images", len(set(shown)), len(shown)),
            ("texts", len(set(read)), len(read)),
        ):
            what = f"{name}, {items} items: {what} encoded"
            found.append(Row(what, once, naive, "every item's", less=True))
    return found


def encoding_seconds(
    encoder: Encoder, benchmarks: Sequence[Benchmark], options: EncodeOptions
) -> tuple[float, float]:
    """Processor seconds of encoding everything item by item, and of `encode_contents`.

    Both read and encode in batches of as many. Other work on the machine counts little.
    """
    size, by = options.images_at_once(encoder.device), options.texts_at_once(encoder.device)
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


def host_seconds(
    encoder: ModelEncoder, images: Sequence[ImageRef], texts: Sequence[str], options: EncodeOptions
) -> dict[str, float]:
    """Return the processor seconds of `encode_contents` outside of the towers, by their purpose.

    encoder: has no towers. options: names a cache, too.
    """
    found = {}
    for what, count, content in (
        ("1,000 images", len(images) / 1000, Retrieval(tuple(images), (), ())),
        ("10,000 texts", len(texts) / 10_000, Retrieval((), tuple(texts), ())),
    ):
        whole, main = time.process_time(), time.thread_time()
        encode_contents(encoder, [content], options)
        found[f"host of {what}, CPU seconds"] = (time.process_time() - whole) / count
        found[f"host of {what}, CPU seconds of the main thread"] = (
            time.thread_time() - main
        ) / count
    return found


@dataclass(frozen=True)
class Options:
    """Count the images and texts that an evaluation encodes, each distinct one once over all
    benchmarks, against encoding every item's on its own. No image has to be there: absent ones are
    told apart by their path. Without benchmarks those of the world, which are also encoded both
    ways, with the host's part of encoding photo-like images and captions.

    Args:
        on: Benchmarks or suites, as for `compoclip evaluate`.
        data: Data root in the default layout.
        model: Whose tokenizer tells texts apart: anything `compoclip evaluate` takes.
        workers: Threads that read images.
        items: Items of each of the world's benchmarks.
        images: Photo-like images for the host's part.
        texts: Captions for the host's part.
    """

    on: Annotated[tuple[str, ...], Shown("BENCHMARK ...")] = ()
    data: Path = Path("data")
    model: str = "bundled"
    workers: int = 2
    items: int = 250
    images: int = 512
    texts: int = 10_000


def measure(options: Options, folder: Path) -> list[Row]:
    """Count; without benchmarks of the user's encode, too."""
    names, root = options.on, options.data
    if not names:
        root = folder / "suite"
        write_suite(root, SuiteSpec(items=options.items))
        names = (str(root),)
    benchmarks = [target.load() for target in parse_targets(names, root)]
    loaded = load_model(options.model, device=device_named("cpu"))
    encoder = ModelEncoder(loaded)
    rows = economies(benchmarks, encoder.text_keys, options.workers or 1)
    if options.on:
        return rows
    spent, less = encoding_seconds(encoder, benchmarks, EncodeOptions())
    world = f"{len(benchmarks)} benchmarks of the world, encoded, CPU seconds"
    encoded = Row(world, less, spent, "every item's", less=True)
    return [*rows[-2:], encoded, *_host_rows(loaded, options, folder)]


def _host_rows(loaded: LoadedModel, options: Options, folder: Path) -> list[Row]:
    """Measure the host's part, for a GPU and its batches, against floats made one by one."""
    size = replace(loaded.preprocess, size=(224, 224))  # the bundled model's images are small
    loaded = replace(loaded, preprocess=size)
    images = [ImageRef(path) for path in photo_files(folder / "photos", options.images)]
    captions = world_captions(max(4, options.texts // 5))
    texts = [f"{caption} {k}" for k in range(5) for caption in captions]
    loaded.tokenizer(texts)  # byte-pair encoding is the same in both ways
    plain, ours = (
        host_seconds(kind(loaded), images, texts, EncodeOptions(at_once, 2, cache=folder / name))
        for kind, at_once, name in ((FloatsOneByOne, 64, "a"), (HostOnly, 1024, "b"))
    )
    against = "floats one by one, 64 at once"
    return [Row(what, ours[what], plain[what], against, less=True) for what in ours]
