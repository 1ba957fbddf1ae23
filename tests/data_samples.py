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


def few(samples: Sequence[Sample]) -> Source:
    """A source of one's own."""
    return Source.of(samples, "few")
