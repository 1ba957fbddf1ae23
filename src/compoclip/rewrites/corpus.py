"""Rewrites of a whole file of captions, see `recordfile` for how the file is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compoclip.recordfile import Item, Track, write_records
from compoclip.rewrites.records import Settings, count, records
from compoclip.rewrites.statistics import Tally


@dataclass(frozen=True)
class Outcome:
    """What a run wrote: tallies over all records, and how many were there before it."""

    tallies: dict[str, Tally]
    resumed: int


def write_corpus(
    items: Iterable[Item],
    out: Path,
    settings: Settings,
    source: dict[str, Any],
    workers: int = 1,
    track: Track = iter,
) -> Outcome:
    """Write the records of all (id, caption) items to `out`, one JSON object a line.

    source: what identifies the captions (digest, column). track wraps the stream of finished
    captions. Raises like `write_records`.
    """
    tallies = {name: Tally() for name in settings.rewrites}
    resumed = write_records(
        items,
        out,
        partial(records, settings=settings),
        {**settings.provenance(), "source": source},
        partial(count, tallies),
        len(settings.rewrites),
        workers,
        track,
    )
    return Outcome(tallies, resumed)
