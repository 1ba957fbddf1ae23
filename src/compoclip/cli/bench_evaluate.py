"""`compoclip bench evaluate`: how many encodings an evaluation needs, against item by item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from compoclip.cli.bench_rows import Inputs, Row
from compoclip.cli.device import device_named
from compoclip.cli.options import joined, parse
from compoclip.console import emit_json, table
from compoclip.errors import UsageError


@dataclass(frozen=True)
class Options:
    """Count the images and texts that an evaluation encodes, each distinct one once over all
    benchmarks, against encoding every item's on its own. Nothing is encoded, and no image has to be
    there: absent ones are told apart by their path."""

    on: Annotated[tuple[str, ...], tyro.conf.arg(metavar="BENCHMARK ...")]
    """benchmarks or suites, as for `compoclip evaluate`"""
    data: Path = Path("data")
    """data root in the default layout"""
    model: str = "bundled"
    """whose tokenizer tells texts apart: anything `compoclip evaluate` takes"""
    workers: int = 2
    """threads that read images"""
    json: bool = False
    """print JSON"""


def main(arguments: Sequence[str]) -> int:
    """Count and print; returns the exit code."""
    options = parse(Options, "bench evaluate", joined(arguments, "--on"))
    if options.workers < 1:
        raise UsageError("--workers must be at least 1")
    if not options.on:
        raise UsageError("name at least one benchmark; see bench evaluate --help")
    from compoclip.evaluation.targets import parse_targets

    benchmarks = [target.load() for target in parse_targets(options.on, options.data)]
    from compoclip.evaluation.economy import economies
    from compoclip.evaluation.model_encoder import ModelEncoder
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
    from compoclip.evaluation.economy import economies, encoding_seconds
    from compoclip.evaluation.encode import EncodeOptions
    from compoclip.evaluation.model_encoder import ModelEncoder
    from compoclip.evaluation.targets import parse_targets
    from compoclip.models.checkpoint import load_model
    from compoclip.world.export.part import SuiteSpec
    from compoclip.world.export.suite import CORE, write_suite

    suite = inputs.folder / "suite"
    items, which = (20, CORE) if inputs.quick else (250, ())
    write_suite(suite, SuiteSpec(items=items), benchmarks=which)
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
