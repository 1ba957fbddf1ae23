"""Samples, parses and files that tests of the data share."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from compoclip.captions.parser import parse
from compoclip.captions.types import Caption
from compoclip.data.sources import Sample, Source


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


def few(samples: Sequence[Sample]) -> Source:
    """A source of one's own."""
    return Source.of(samples, "few")
