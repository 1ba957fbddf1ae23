"""Runs over a corpus: finished shards are skipped, bad ones are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from compoclip.cluster import require_engine, run
from compoclip.config import Engine
from compoclip.corpora.job import CorpusJob, Counts, add_counts, new_counts
from compoclip.corpora.shard import (
    MANIFESTS,
    SETTINGS,
    ShardResult,
    ShardTask,
    finished,
    make_shard,
    opened_shard,
)
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import only_writer, read_json_object, write_json
from compoclip.recordfile import require_same_settings

Track = Callable[[Iterable[ShardResult]], Iterable[ShardResult]]


@dataclass
class CorpusOutcome:
    """The outcome of a run over a corpus, in order of the shards' names.

    written, skipped: counts of the shards written now and before. bad: errors of the other shards.
    total: the counts of all written shards. others: shards in the folder that earlier runs wrote of
    a corpus with other shards.
    """

    written: dict[str, Counts] = field(default_factory=dict)
    skipped: dict[str, Counts] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    total: Counts = field(default_factory=new_counts)
    others: tuple[str, ...] = ()


def process(
    shards: Sequence[Path],
    out: Path,
    job: CorpusJob,
    *,
    column: str | None = None,
    workers: int = 1,
    engine: Engine = "local",
    track: Track = iter,
) -> CorpusOutcome:
    """Write every shard, with the job's columns, into the folder `out`.

    The bytes of a shard depend on the shard, its name, the job and the column, not on workers or
    engine. Shards that an earlier run of the same job finished are not made again.

    Args:
        shards: The files.
        out: The folder.
        job: The job.
        column: Caption columns joined by commas, in tar shards the key in .json members; guessed
            by default.
        workers: Number of processes.
        engine: Runs the workers: processes of this machine, or Ray.
        track: Wraps the stream of results, for progress.

    Raises:
        UsageError: When `column` does not exist, or `out` was written with other settings.
        CompoclipError: When `out` cannot be written, or Ray is not installed.
    """
    require_engine(engine)
    if any(out.absolute() == shard.absolute().parent for shard in shards):
        raise UsageError(f"{out}: holds the shards themselves; choose another -o")
    for shard in shards:  # check the column in the first readable one, before hours of work
        try:
            opened_shard(shard, column, (), new_counts())
            break
        except UsageError:
            raise
        except CompoclipError:
            continue  # reported when it is made
    with only_writer(out, folder=True):
        settings, path = {**job.settings(), "column": column}, out / MANIFESTS / SETTINGS
        if path.is_file():
            recorded = read_json_object(path, damaged="choose another -o or remove the folder")
            require_same_settings(out, recorded, settings)
        else:
            write_json(path, settings)
        outcome = CorpusOutcome()
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
                    outcome.written[result.name] = result.counts
        names = {shard.name for shard in shards}
        written = (file.stem for file in sorted((out / MANIFESTS).glob("*.json")))
        outcome.others = tuple(
            name for name in written if name not in names and (out / name).is_file()
        )
        outcome.written = dict(sorted(outcome.written.items()))
        outcome.bad = dict(sorted(outcome.bad.items()))
        for counts in (*outcome.written.values(), *outcome.skipped.values()):
            add_counts(outcome.total, counts)
        return outcome
