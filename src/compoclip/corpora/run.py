"""A whole corpus: every shard once, finished ones skipped, bad ones named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compoclip.corpora.engine import Engine, run
from compoclip.corpora.job import Counts, Job, add_counts, new_counts
from compoclip.corpora.shard import (
    MANIFESTS,
    SETTINGS,
    ShardResult,
    ShardTask,
    checked,
    finished,
    make_shard,
)
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import only_writer, write_atomically
from compoclip.recordfile import require_same

Track = Callable[[Iterable[ShardResult]], Iterable[ShardResult]]


@dataclass
class Outcome:
    """What became of a corpus. All in order of the shards' names.

    made, skipped: counts of the shards written now and before. bad: what is wrong with the others.
    total: the counts of all that are there now.
    """

    made: dict[str, Counts] = field(default_factory=dict)
    skipped: dict[str, Counts] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    total: Counts = field(default_factory=new_counts)


def process(
    shards: Sequence[Path],
    out: Path,
    job: Job,
    *,
    column: str | None = None,
    workers: int = 1,
    engine: Engine = "local",
    track: Track = iter,
) -> Outcome:
    """Write every shard, with what the job adds, into the folder `out`.

    column: see the formats. The bytes of a shard depend on the shard, its name, the job and the
    column, not on workers or engine. Shards that an earlier run of the same job finished are not
    made again. track wraps the stream of results.

    Raises UsageError when the captions are not where `column` says or `out` holds the work of other
    settings, CompoclipError when `out` cannot be written. Bad shards are in the outcome.
    """
    if any(out.absolute() == shard.absolute().parent for shard in shards):
        raise UsageError(f"{out}: holds the shards themselves; choose another -o")
    _check_captions(shards, column)
    with only_writer(out, folder=True):
        _settle(out, {**job.settings(), "column": column})
        return _process(shards, out, job, column, workers, engine, track)


def _process(
    shards: Sequence[Path],
    out: Path,
    job: Job,
    column: str | None,
    workers: int,
    engine: Engine,
    track: Track,
) -> Outcome:
    outcome = Outcome()
    tasks = []
    for shard in shards:
        task = ShardTask(shard, out, job, column)
        try:
            counts = finished(task)
        except CompoclipError as error:
            outcome.bad[shard.name] = str(error)
            continue
        if counts is None:
            tasks.append(task)
        else:
            outcome.skipped[shard.name] = counts
    with closing(run(make_shard, tasks, min(workers, max(1, len(tasks))), engine)) as results:
        for result in track(results):
            if result.stop:
                raise CompoclipError(result.error)
            if result.counts is None:
                outcome.bad[result.name] = result.error
            else:
                outcome.made[result.name] = result.counts
    outcome.made = dict(sorted(outcome.made.items()))
    outcome.bad = dict(sorted(outcome.bad.items()))
    for counts in (*outcome.made.values(), *outcome.skipped.values()):
        add_counts(outcome.total, counts)
    return outcome


def _check_captions(shards: Sequence[Path], column: str | None) -> None:
    """Let the first shard that can be read speak for all, before hours of work."""
    for shard in shards:
        try:
            checked(shard, column)
            return
        except UsageError:
            raise
        except CompoclipError:
            continue  # it is named when its turn comes


def _settle(out: Path, settings: dict[str, Any]) -> None:
    """Check or write the settings of the folder."""
    path = out / MANIFESTS / SETTINGS
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
        write_atomically(path, lambda place: place.write_text(text, encoding="utf-8"))
        return
    except (OSError, ValueError, RecursionError):
        raise CompoclipError(f"{path}: damaged; choose another -o or remove the folder") from None
    require_same(out, before, settings)
