"""Samples, parses and files that tests of the data share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from compoclip.captions.parser import parse
from compoclip.captions.types import Caption
from compoclip.data.sources import Sample, Source


def dump(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def samples_of(source: Source) -> list[Sample]:
    return [source[i] for i in range(len(source))]


class Parses:
    """Parses every caption when it is asked for."""

    def __getitem__(self, text: str) -> Caption:
        return parse(text)


class Few(Source):
    """A source of one's own, which knows nothing but its samples."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def describe(self) -> str:
        return "few"
