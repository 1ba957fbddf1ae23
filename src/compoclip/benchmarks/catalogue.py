"""What is known about every benchmark, and where its files can be had: `compoclip data ls`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compoclip.benchmarks.meta import Meta
from compoclip.benchmarks.registry import benchmark_names, meta
from compoclip.benchmarks.sources import SOURCES, Source


@dataclass(frozen=True)
class Entry:
    """A benchmark's facts (`Meta`) with the sources of those of its files that can be fetched.

    sources: target below the data root (a file or an image folder) -> its source.
    """

    meta: Meta
    sources: Mapping[str, Source]

    @property
    def items(self) -> int | None:
        """Items of the official files, None where not known or where each set has its own."""
        return None if self.meta.family else sum(self.meta.expected.values()) or None

    @property
    def size(self) -> int:
        """Bytes of all sources of known size, archives packed."""
        return sum(source.size for source in self.sources.values())

    @property
    def by_hand(self) -> tuple[str, ...]:
        """Files and folders that no source is known for."""
        return tuple(
            each for each in (*self.meta.files, *self.meta.images) if each not in self.sources
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        about = self.meta
        return {
            "id": about.id,
            "title": about.title,
            "citation": about.citation,
            "items": self.items,
            "expected": dict(about.expected),
            "parts": list(about.parts),
            "family": about.family,
            "requires": about.requires,
            "licence": about.licence,
            "status": about.status,
            "access": about.access,
            "source": about.source,
            "files": [self._place(file) for file in about.files],
            "archives": list(about.archives),
            "optional": list(about.optional),
            "images": [self._place(folder) for folder in about.images],
            "size": self.size,
        }

    def _place(self, target: str) -> dict[str, Any]:
        source = self.sources.get(target)
        return {
            "path": target,
            "blake2b": self.meta.hashes.get(target),
            "url": source.url if source else None,
            "size": (source.size or None) if source else None,
            "md5": (source.md5 or None) if source else None,
        }


def entry(name: str) -> Entry:
    """The entry of one benchmark. Raises UsageError for unknown names."""
    about = meta(name)
    places = (*about.files, *about.images)
    return Entry(about, {each: SOURCES[each] for each in places if each in SOURCES})


def catalogue() -> list[Entry]:
    """All benchmarks, sorted by name."""
    return [entry(name) for name in benchmark_names()]
