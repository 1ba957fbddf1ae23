"""`python -m bench evaluate`: how many encodings an evaluation needs, against item by item."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bench.rows import PROGRAM, Inputs, Row
from compoclip.benchmarks.case import Benchmark, Content, ImageRef
from compoclip.cli.options import joined, parse
from compoclip.console import emit_json, table
from compoclip.errors import UsageError
from compoclip.evaluation.encode import (
    EncodeOptions,
    by_content,
    distinct_images,
    distinct_texts,
    encode_contents,
)
from compoclip.evaluation.encoder import Encoder, TextKey
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
    texts = distinct_texts(contents)
    tokens = {text: key.key for text, key in zip(texts, text_keys(texts))}
    _, rows = by_content(distinct_images(contents), workers)
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
        once_images=len({rows[ref] for ref in distinct_images(contents)}),
        once_texts=len({tokens[text] for text in distinct_texts(contents)}),
    )


def encoding_seconds(
    encoder: Encoder, benchmarks: Sequence[Benchmark], options: EncodeOptions
) -> tuple[float, float]:
    """Processor seconds of encoding everything item by item, and of `encode_contents`.

    Both read and encode in batches of `options.batch_size`. Other work on the machine counts
    little.
    """
    contents = [each.content for each in benchmarks]
    start = time.process_time()
    for content in contents:
        images, texts = content.images, content.texts
        for at in range(0, len(images), options.batch_size):
            part = images[at : at + options.batch_size]
            encoder.encode_images([encoder.read_image(ref) for ref in part])
        for at in range(0, len(texts), options.batch_size):
            encoder.encode_texts(texts[at : at + options.batch_size])
    between = time.process_time()
    encode_contents(encoder, contents, options)
    return between - start, time.process_time() - between


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

    on: Annotated[tuple[str, ...], tyro.conf.arg(metavar="BENCHMARK ...")]
    data: Path = Path("data")
    model: str = "bundled"
    workers: int = 2
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Count and print; returns the exit code."""
    options = parse(Options, "evaluate", joined(arguments, "--on"), PROGRAM)
    if options.workers < 1:
        raise UsageError("--workers must be at least 1")
    if not options.on:
        raise UsageError("name at least one benchmark; see bench evaluate --help")
    from compoclip.benchmarks.targets import parse_targets

    benchmarks = [target.load() for target in parse_targets(options.on, options.data)]
    from bench.evaluate import economies
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model

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
    """The world's benchmarks with the bundled model, counted and encoded both ways."""
    from bench.evaluate import economies, encoding_seconds
    from compoclip.benchmarks.targets import parse_targets
    from compoclip.evaluation.encode import EncodeOptions
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model
    from compoclip.world.export.part import SuiteSpec
    from compoclip.world.export.suite import write_suite

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
    ]
