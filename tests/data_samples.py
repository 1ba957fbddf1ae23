"""Samples, parses and files that tests of the data share."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from build.photos import encode, noise
from compoclip.captions.parser import parse
from compoclip.captions.types import Caption
from compoclip.data.batch import Batch
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan
from compoclip.data.sources import EMPTY, SCHEMA, ImageColumn, Sample, Source
from compoclip.data.sources.table import RowBuilder
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError
from compoclip.models.preprocess import Preprocess
from compoclip.rewrites.base import Refused, Rewrite, Rewritten


class Parses:
    """Parses every caption when it is asked for."""

    def __getitem__(self, text: str) -> Caption:
        return parse(text)


class Unparsed:
    """Every caption, parsed to nothing."""

    def __getitem__(self, text: str) -> Caption:
        return Caption(text, ())


def few(samples: Sequence[Sample]) -> Source:
    """A source of these samples, whose images are called by number, those of negatives by -N."""

    def image(name: str) -> object:
        sample = samples[abs(int(name))]
        return sample.negative_image if name.startswith("-") else sample.image

    rows = [
        {
            **{name: getattr(sample, name, EMPTY[name]) for name in SCHEMA.names},
            "image": f"{number}",
            "negative_image": f"-{number}" if sample.negative_image is not None else "",
        }
        for number, sample in enumerate(samples)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    return Source(table, [ImageColumn("image", image)], "few", {}, {})


# --- A loader of made photos. ---

SIZE = Preprocess(size=(16, 16))


@dataclass
class Photos:
    """Photos by number; those in `bad` are damaged, those in `broken` cannot be fetched."""

    bad: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()
    touched: list[int] = field(default_factory=list)

    def __call__(self, image: str) -> bytes:
        index = int(image)
        self.touched.append(index)
        if index in self.broken:
            raise CompoclipError(f"shard of {index} is gone")
        return b"junk" if index in self.bad else encode(noise(index))


def pictures(count: int, photos: Photos | None = None) -> Source:
    builder = RowBuilder("pictures", Path(), ImageColumn("photo", photos or Photos()))
    for i in range(count):
        builder.add(f"id-{i}", str(i), (f"picture {i}", f"image {i}"), place=1)
    return builder.build("pictures")


@dataclass(frozen=True)
class Sometimes:
    """A rewrite that refuses about every third caption."""

    name: str = "sometimes"
    version: str = "1"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        number = rng.randrange(999)
        if number % 3 == 0:
            return Refused("third")
        return Rewritten(f"{caption.text} not {number}", self.name, False, "fake", ())


def resolve(name: str) -> Rewrite:
    return Sometimes(name)


def loader(source: Source, **options: object) -> BatchLoader:
    plan = TextPlan(["sometimes"], seed=5, parsed=Unparsed(), resolve=resolve)
    defaults: dict[str, object] = {"batch_size": 4, "seed": 5}
    return BatchLoader(source, plan, ImageTransform(SIZE), **{**defaults, **options})  # type: ignore[arg-type]


def beside_tensors(batch: Batch) -> dict[str, Any]:
    fields = vars(batch).items()
    return {k: v for k, v in fields if k not in ("pixels", "numbers", "unforeseen")}


def equal(a: Iterator[Batch], b: Iterator[Batch]) -> bool:
    left, right = list(a), list(b)
    return len(left) == len(right) and all(
        torch.equal(x.pixels, y.pixels) and beside_tensors(x) == beside_tensors(y)
        for x, y in zip(left, right)
    )
