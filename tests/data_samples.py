"""Samples, parses and files that tests of the data share."""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from PIL import Image

from compoclip.captions.parser import parse
from compoclip.captions.types import Caption
from compoclip.data.decode import Mirrored, unmirrored
from compoclip.data.sources import EMPTY, SCHEMA, Sample, Source


def write_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def encode(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def make_tar(path: Path, members: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as out:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_700_000_000
            out.addfile(member, io.BytesIO(data))
    return path


def samples_of(source: Source) -> list[Sample]:
    return [source[i] for i in range(len(source))]


class Parses:
    """Parses every caption when it is asked for."""

    def __getitem__(self, text: str) -> Caption:
        return parse(text)


class Unparsed:
    """Every caption, parsed to nothing."""

    def __getitem__(self, text: str) -> Caption:
        return Caption(text, ())


class GivenImages:
    """The images of samples, called by number, and those of their negatives, by "-number"."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def __call__(self, image: str) -> Path | bytes:
        sample = self._samples[abs(int(image))]
        return unmirrored(sample.negative_image if image.startswith("-") else sample.image)

    def stamp(self, image: str, state: Callable[[Path], str]) -> str:
        picture = self(image)
        if isinstance(picture, Path):
            return f"{picture} {state(picture)}"
        return str(zlib.crc32(picture))


def few(samples: Sequence[Sample]) -> Source:
    """A source of samples that no reader read."""
    rows = []
    for index, sample in enumerate(samples):
        row = {name: getattr(sample, name, EMPTY[name]) for name in SCHEMA.names}
        row |= {"image": str(index), "mirror": isinstance(sample.negative_image, Mirrored)}
        row["negative_image"] = "" if sample.negative_image is None else f"-{index}"
        rows.append(row)
    return Source(pa.Table.from_pylist(rows, SCHEMA), [GivenImages(samples)], "few", {}, {})
