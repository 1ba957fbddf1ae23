"""Labelled photos, whatever layout they came in: what the readers of zero-shot sets yield."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compoclip.benchmarks.case import ImageRef

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)


@dataclass(frozen=True)
class PhotoSet:
    """Photos with their labels, and what the data themselves say about the classes.

    labels: of each photo, one or several numbers. names: what the data call the classes, by label
    (directories, a label file, the names of a column); () when they do not say. folders: the names
    are those of directories, in sorted order. toolkit: numbers that no name explains are those of
    the ELEVATER toolkit. templates: a file of prompt templates among the data.
    keys: texts that decide the items and the labels, for the data hash. left_out: reason -> count.
    """

    images: tuple[ImageRef, ...]
    labels: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    keys: tuple[str, ...]
    folders: bool = False
    toolkit: bool = False
    templates: Path | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Number of classes, as far as the labels and names tell."""
        return max(len(self.names), 1 + max((max(each) for each in self.labels), default=-1))
