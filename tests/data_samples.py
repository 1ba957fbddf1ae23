"""Samples and parses that tests of the data share."""

from __future__ import annotations

from collections.abc import Sequence

from compoclip.captions.parser import parse
from compoclip.captions.types import Caption
from compoclip.data.sources import Sample, Source


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
